"""Rows of a TIFF file: only the stripes or tiles in which they lie are read and unpacked.

A TIFF file lists where each of its stripes or tiles lies, so any rows of its first page can be read
without the others; they come channels-last. When the file is opened it is checked that all stripes
or tiles are there, and that the first can be unpacked: so no step fails in the middle for want of a
codec. Data that is not packed is mapped into memory. Parsing and unpacking are tifffile's, an extra
dependency ("data").
Read next: `row_image.py`.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ooctrain.data.extras import extra
from ooctrain.errors import DataFormatError

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
        self._file, self._reading = path.open("rb"), Lock()
        tifffile = extra("tifffile", "tifffile", "TIFF files", "numpy.save the image as .npy")
        try:
            self._page: Any = tifffile.TiffFile(self._file).pages[0]
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
        self._mapped: np.ndarray | None = None
        order = self._page.parent.byteorder
        native = self.dtype.itemsize == 1 or np.dtype(order + "f4").isnative
        if self._page.is_memmappable and native and self._page.planarconfig == 1:
            self._mapped = np.memmap(
                path, self.dtype, "r", offset=self._page.dataoffsets[0], shape=self.shape
            )
        else:
            self._unpacked(0)

    def read(self, lo: int, hi: int) -> np.ndarray:
        """(hi - lo, W, C), from the stripes or tiles that these rows lie in."""
        if self._mapped is not None:
            return self._mapped[lo:hi]
        height, width, channels = self.shape
        found = np.zeros((hi - lo, width, channels), self.dtype)
        for index in self._segments(lo, hi):
            data, (sample, _, row, column, *_) = self._unpacked(index)
            if data is None:  # a tile that was never written is 0
                continue
            rows = slice(max(lo, row), min(hi, row + len(data), height))
            columns = slice(column, min(column + data.shape[1], width))
            part = data[rows.start - row : rows.stop - row, : columns.stop - column]
            place = slice(sample, sample + data.shape[2])
            found[rows.start - lo : rows.stop - lo, columns, place] = part
        return found

    def _segments(self, lo: int, hi: int) -> list[int]:
        """Numbers of the stripes or tiles in which rows lie."""
        page, (height, width, _) = self._page, self.shape
        tall = page.tilelength if page.is_tiled else min(page.rowsperstrip or height, height)
        across = -(-width // page.tilewidth) if page.is_tiled else 1
        down = -(-height // tall)
        planes = len(page.dataoffsets) // (down * across)
        return [
            (plane * down + row) * across + column
            for plane in range(planes)
            for row in range(lo // tall, -(-hi // tall))
            for column in range(across)
        ]

    def _unpacked(self, index: int) -> tuple[np.ndarray | None, tuple[int, ...]]:
        """One stripe or tile, (rows, columns, samples), and where it begins: (sample, depth, row,
        column, ...).
        """
        with self._reading:  # the file has one position, and threads that read ahead share it
            self._file.seek(self._page.dataoffsets[index])
            packed = self._file.read(self._page.databytecounts[index])
        options = {"jpegtables": self._page.jpegtables} if self._page.jpegtables else {}
        try:
            data, place, _ = self._page.decode(packed or None, index, **options)
        except Exception as error:  # of whatever codec
            raise self._broken(f"cannot be unpacked: {error}", f"stripe or tile {index}") from error
        return None if data is None else data[0], place

    def _expect_all_there(self) -> None:
        """Raises DataFormatError: a stripe or tile lies beyond the end of the file."""
        size = self._path.stat().st_size
        places = zip(self._page.dataoffsets, self._page.databytecounts, strict=True)
        beyond = [i for i, (offset, count) in enumerate(places) if offset + count > size]
        if beyond:
            raise DataFormatError(
                f"{self._path} is truncated",
                path=str(self._path),
                offset=size,
                numbers=f"{len(beyond)} of {len(self._page.dataoffsets)} stripes or tiles lie "
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
