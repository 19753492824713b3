"""Rows of a TIFF file: only the stripes or tiles in which they lie are read and unpacked.

A TIFF file lists where each of its stripes or tiles lies, so any rows of its first page can be read
without the others; they come channels-last. When the file is opened it is checked that all stripes
or tiles are there, and that the first can be unpacked: so no step fails in the middle for want of a
codec. Data that is not packed is mapped into memory. The file is open only while it is read, as a
process may have some thousand open files and not more. Parsing and unpacking are tifffile's, an
extra dependency ("data").
Read next: `row_image.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ooctrain.data.extras import extra
from ooctrain.errors import DataFormatError, reason

#: PhotometricInterpretation of an image whose pixels are places in a table of colours.
_PALETTE = 3


class TiffRows:
    """The first page of a TIFF file.

    Attributes:
        shape: (H, W, C).
        dtype: of the file.

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
                # What tifffile reads only when it is asked for: the file is closed then.
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
