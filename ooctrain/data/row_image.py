"""Images that are larger than memory, read from their files row by row when they are needed.

A step in bands asks for rows, and rows of an image that lies channels-last are one piece of its
file. So the device never holds the whole image, and the host holds no more than the step's own copy
of it, as bytes if the file has bytes. A file (several for a batch) is `.npy`, memory-mapped, or
TIFF in stripes or tiles, and is open only while rows of it are read; the step takes the batch block
by block. Read next: `tiff_rows.py`, `../step/blocks.py`, `../nn/plain.py` for `FromBytes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooctrain.data.tiff_rows import TiffRows
from ooctrain.errors import ConfigError, DataFormatError
from ooctrain.step.foreign import as_path

_TYPES = ("uint8", "float32")
_TIFF_ENDINGS = (".tif", ".tiff", ".svs", ".btf")


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Rows of an image that are read when somebody makes an array of them.

    Args:
        shape: (1, C, rows, W).
        dtype: of the file.
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
        dtype: of the file.
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
