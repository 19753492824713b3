"""Images that are larger than memory, read from their files row by row when they are needed.

A step in bands reads rows, and rows of an image that lies channels-last are one piece of its file.
So the device never holds the whole image, and the host holds no more than the step's own copy of
it, as bytes if the file has bytes. A file (several for a batch) is `.npy`, memory-mapped, or TIFF
in stripes or tiles, and is open only while rows of it are read; the step takes the batch block by
block. Read next: `../step/blocks.py`, `../nn/plain.py` for `FromBytes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ooctrain.data.extras import extra
from ooctrain.errors import ConfigError, DataFormatError, reason
from ooctrain.step.user_values import as_path

_TYPES = ("uint8", "float32")
_TIFF_ENDINGS = (".tif", ".tiff", ".svs", ".btf")


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Rows of an image that are read when an array is made of them.

    Args:
        shape: (1, C, rows, W).
        dtype: element type of the file.
        read: gives (rows, W, C).
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], np.ndarray]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """(1, C, rows, W), a view of how the file has it wherever that can be."""
        found = self.read()[None].transpose(0, 3, 1, 2)
        return found if dtype is None else found.astype(dtype, copy=False)


class RowImage:
    """One image in a file, or a batch of images of one size in a file each.

    A model trains on it as on an array: `trainer.step(RowImage("slide.tif"), labels)`. With bytes
    the model begins with `nn.FromBytes()`. It is read in blocks where the step's bands cut it
    (`oc.tile(..., halo="keep")`, the rewrite "bands:16"); a step without bands takes it whole.

    Args:
        paths: files, `.npy` of shape (H, W, C) or (H, W), or TIFF (of several pages the first);
            uint8 or float32.

    Attributes:
        shape: (N, C, H, W).
        dtype: uint8 or float32.

    Raises:
        DataFormatError: a file is missing, truncated, or of a kind that cannot be read by rows.
        ConfigError: images of several sizes or types, or a dependency is missing.
    """

    def __init__(self, *paths: str | Path) -> None:
        if not paths:
            raise ConfigError("a RowImage needs a file", code="OOC-106", fix="RowImage('a.npy')")
        for path in paths:
            if not isinstance(path, str | Path):
                raise ConfigError(
                    f"a RowImage takes paths, not {type(path).__name__}", code="OOC-106",
                    fix="RowImage('a.npy', 'b.npy'), or RowImage(*paths)",
                )  # fmt: skip
        self._files = [_opened(as_path(path)) for path in paths]
        kinds = {(file.shape, file.dtype.name) for file in self._files}
        if len(kinds) > 1:
            raise ConfigError(
                "images of one batch must have one size and one element type",
                code="OOC-110",
                numbers=", ".join(
                    f"{Path(path).name} {file.shape} {file.dtype}"
                    for path, file in zip(paths, self._files, strict=True)
                ),
                fix="a batch of each size, or images cut to one",
            )
        height, width, channels = self._files[0].shape
        self.shape = (len(paths), channels, height, width)
        self.dtype = self._files[0].dtype

    def rows(self, image: int, lo: int, hi: int) -> RowWindow:
        """Rows [lo, hi) of an image of the batch; nothing is read yet."""
        _, channels, height, width = self.shape
        if not 0 <= lo < hi <= height:
            raise ConfigError(
                f"an image of {height} rows has no rows {lo} to {hi}",
                code="OOC-110",
                fix=f"rows from 0 to {height}, the first below the second",
            )
        file, shape = self._files[image], (1, channels, hi - lo, width)
        return RowWindow(shape, self.dtype, lambda: file.read(lo, hi))

    def __repr__(self) -> str:
        return f"RowImage({' x '.join(map(str, self.shape))} {self.dtype})"


class NpyRows:
    """A `.npy` file, mapped into memory while its rows are read: the system reads pages that are
    looked at, and may drop them again. A map holds a file open, and of those there are few.

    Attributes:
        shape: (H, W, C).
        dtype: element type of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        found = self._map()
        if not isinstance(found, np.memmap) or found.ndim not in (2, 3):
            shape = getattr(found, "shape", None)
            raise DataFormatError(
                f"{path} is not an image: it has shape {shape}",
                path=str(path),
                fix="(H, W, C) or (H, W): one image, channels last",
            )
        if not found.size:
            raise DataFormatError(
                f"{path} is an image without pixels: it has shape {found.shape}",
                path=str(path), fix="an image of at least one row and one column",
            )  # fmt: skip
        if not found.dtype.isnative:
            raise DataFormatError(
                f"{path} holds {found.dtype.str}, in the byte order of other machines",
                path=str(path),
                fix=f"numpy.save(path, image.astype('{found.dtype.name}'))",
            )
        self.shape = found.shape if found.ndim == 3 else (*found.shape, 1)
        self.dtype = found.dtype

    def read(self, lo: int, hi: int) -> np.ndarray:
        """(hi - lo, W, C), a view of the file's pages. Raises DataFormatError: the file has
        changed."""
        found = self._map()
        if found.size != math.prod(self.shape) or found.dtype != self.dtype:
            raise DataFormatError(
                f"{self._path} has changed since it was opened", path=str(self._path),
                numbers=f"{self.shape} {self.dtype} then, {found.shape} {found.dtype} now",
                fix="leave files alone while they are read",
            )  # fmt: skip
        return (found if found.ndim == 3 else found[..., None])[lo:hi]

    def _map(self) -> Any:
        try:
            return np.load(self._path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataFormatError(
                f"{self._path} cannot be read: {error}",
                path=str(self._path),
                fix="an array of uint8 or float32, written by numpy.save",
            ) from error


def _opened(path: Path) -> NpyRows | TiffRows:
    """A file by its ending. Raises DataFormatError: no image of bytes or floats is in it."""
    if not path.is_file():
        raise DataFormatError(
            f"there is no file {path}", path=str(path), fix="the path of a .npy or TIFF file"
        )
    ending = path.suffix.lower()
    if ending != ".npy" and ending not in _TIFF_ENDINGS:
        raise DataFormatError(
            f"{path} cannot be read by rows",
            path=str(path),
            fix=".npy, or TIFF in stripes or tiles; others have to be unpacked as a whole",
        )
    file = NpyRows(path) if ending == ".npy" else TiffRows(path)
    if file.dtype.name not in _TYPES:
        raise DataFormatError(
            f"{path} holds {file.dtype}", path=str(path), fix=f"one of {', '.join(_TYPES)}"
        )
    return file


# Rows of a TIFF file. It lists where each of its stripes or tiles lies, so only those in which the
# rows lie are read and unpacked; rows come channels-last. When the file is opened it is checked
# that all stripes or tiles are there, and that the first can be unpacked: so no step fails in the
# middle for want of a codec. Data that is not packed is mapped into memory. A process may have some
# thousand open files and not more. Parsing and unpacking are tifffile's, an extra dependency
# ("data").

#: PhotometricInterpretation of an image whose pixels are places in a table of colours.
_PALETTE = 3


class TiffRows:
    """The first page of a TIFF file.

    Attributes:
        shape: (H, W, C).
        dtype: element type of the file.

    Raises:
        ConfigError: tifffile is not installed.
        DataFormatError: no TIFF, a truncated one, or one whose compression cannot be unpacked here.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        tifffile = extra("tifffile", "tifffile", "TIFF files", "numpy.save the image as .npy")
        try:
            with path.open("rb") as file:
                self._page: Any = tifffile.TiffFile(file).pages[0]
                # What tifffile reads only when it is requested: the file is closed then.
                self._tables, mappable = self._page.jpegtables, self._page.is_memmappable
                self._places = list(
                    zip(self._page.dataoffsets, self._page.databytecounts, strict=True)
                )
            self.dtype = np.dtype(self._page.dtype)
            extents = self._page.imagelength, self._page.imagewidth, self._page.samplesperpixel
            self.shape: tuple[int, ...] = tuple(map(int, extents))
        except Exception as error:  # whatever its parser trips over
            raise self._broken(f"is no TIFF that can be read: {error}") from error
        if self._page.imagedepth != 1:
            raise self._broken("is a volume, not an image")
        if self._page.photometric == _PALETTE:
            raise DataFormatError(
                f"{path} is a palette image: its pixels are indices, not colours", path=str(path),
                fix="save it as grey or RGB",
            )  # fmt: skip
        self._expect_all_there()
        order = self._page.parent.byteorder
        native = self.dtype.itemsize == 1 or np.dtype(order + "f4").isnative
        self._is_plain = mappable and native and self._page.planarconfig == 1
        if not self._is_plain:
            with self._open() as file:
                self._unpacked(file, 0)

    def read(self, lo: int, hi: int) -> np.ndarray:
        """(hi - lo, W, C), from the stripes or tiles that these rows lie in. Raises
        DataFormatError: the file has gone, or is another one."""
        if self._is_plain:
            return self._mapped()[lo:hi]
        height, width, channels = self.shape
        found = np.zeros((hi - lo, width, channels), self.dtype)
        with self._open() as file:
            for index in self._segments(lo, hi):
                data, (sample, _, row, column, *_) = self._unpacked(file, index)
                if data is None:  # a tile that was never written is 0
                    continue
                rows = slice(max(lo, row), min(hi, row + len(data), height))
                columns = slice(column, min(column + data.shape[1], width))
                part = data[rows.start - row : rows.stop - row, : columns.stop - column]
                place = slice(sample, sample + data.shape[2])
                found[rows.start - lo : rows.stop - lo, columns, place] = part
        return found

    def _mapped(self) -> np.ndarray:
        """Data that is not packed. A map holds the file open for as long as it is looked at."""
        try:
            return np.memmap(
                self._path, self.dtype, "r", offset=self._places[0][0], shape=self.shape
            )
        except (OSError, ValueError) as error:
            raise self._broken(f"cannot be read any more: {reason(error)}") from error

    def _open(self) -> BinaryIO:
        """The file, for one reading: threads that read ahead have one each."""
        try:
            return self._path.open("rb")
        except OSError as error:
            raise self._broken(f"cannot be read any more: {reason(error)}") from error

    def _segments(self, lo: int, hi: int) -> list[int]:
        """Numbers of the stripes or tiles in which rows lie."""
        page, (height, width, _) = self._page, self.shape
        tall = page.tilelength if page.is_tiled else min(page.rowsperstrip or height, height)
        across = -(-width // page.tilewidth) if page.is_tiled else 1
        down = -(-height // tall)
        planes = len(self._places) // (down * across)
        return [
            (plane * down + row) * across + column
            for plane in range(planes)
            for row in range(lo // tall, -(-hi // tall))
            for column in range(across)
        ]

    def _unpacked(self, file: BinaryIO, index: int) -> tuple[np.ndarray | None, tuple[int, ...]]:
        """One stripe or tile, (rows, columns, samples), and where it begins: (sample, depth, row,
        column, ...).
        """
        offset, size_bytes = self._places[index]
        file.seek(offset)
        packed = file.read(size_bytes)
        options = {"jpegtables": self._tables} if self._tables else {}
        try:
            data, place, _ = self._page.decode(packed or None, index, **options)
        except Exception as error:  # of whatever codec
            raise self._broken(f"cannot be unpacked: {error}", f"stripe or tile {index}") from error
        return None if data is None else data[0], place

    def _expect_all_there(self) -> None:
        """Raises DataFormatError: a stripe or tile lies beyond the end of the file."""
        size = self._path.stat().st_size
        beyond = [i for i, (offset, count) in enumerate(self._places) if offset + count > size]
        if beyond:
            raise DataFormatError(
                f"{self._path} is truncated",
                path=str(self._path),
                offset=size,
                numbers=f"{len(beyond)} of {len(self._places)} stripes or tiles lie "
                f"beyond its {size} bytes",
                fix="copy the file again",
            )

    def _broken(self, what: str, where: str = "") -> DataFormatError:
        return DataFormatError(
            f"{self._path} {what}",
            path=str(self._path),
            numbers=where,
            fix="uncompressed or deflated TIFF; for JPEG and LZW pip install imagecodecs",
        )
