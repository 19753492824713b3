"""MNIST and similar sets in the IDX format: a magic number, big-endian extents, then bytes.

It reads images-idx3 and labels-idx1 files, plain or gzipped; images are 28 x 28, grey, and enlarged
on request. The header says how many bytes must follow, and no byte more is unpacked, so a
compressed file cannot fill the memory. Source: the format's description by Y. LeCun, C. Cortes, C.
Burges. Read next: `folder.py`.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ooctrain.data.dataset import ImageDataset, resize
from ooctrain.errors import DataFormatError
from ooctrain.step.arguments import checked

CLASSES = 10
MEAN, STD = 33.3, 78.6
UNSIGNED_BYTE = 0x08
MOST_BYTES = 1 << 31
FILES = {
    True: ("train-images", "train-labels"),
    False: ("t10k-images", "t10k-labels"),
}


@checked
def mnist(
    root: str | Path, train: bool = True, image_size: int = 28, channels: int = 1
) -> ImageDataset:
    """MNIST (or Fashion-MNIST, ...) from the folder with its four files.

    Args:
        root: folder with train-images-idx3-ubyte, ..., with or without ".gz".
        train: training or test files.
        image_size: 28 or more.
        channels: the grey value is repeated to this many.

    Raises:
        DataFormatError: a file is missing, broken, or the two do not belong together.
    """
    image_name, label_name = FILES[train]
    image_path = find_file(Path(root), f"{image_name}-idx3-ubyte")
    label_path = find_file(Path(root), f"{label_name}-idx1-ubyte")
    images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
    if len(images) != len(labels):
        raise DataFormatError(
            f"{image_path.name} holds {len(images)} images, {label_path.name} {len(labels)} labels",
            path=str(label_path),
            fix="files of one set: train-... with train-..., t10k-... with t10k-...",
        )
    wrong = np.flatnonzero(labels >= CLASSES)
    if len(wrong):
        raise DataFormatError(
            f"{label_path}: label {labels[wrong[0]]} of image {wrong[0]} is above 9",
            path=str(label_path),
            offset=8 + int(wrong[0]),
            fix="MNIST's files have labels 0 to 9; download them again",
        )
    grey = images[:, None]
    if grey.shape[2:] != (image_size, image_size):
        grey = resize(grey, image_size, image_size)
    return ImageDataset(grey, labels, channels=channels, classes=CLASSES, mean=(MEAN,), std=(STD,))


def find_file(root: Path, stem: str) -> Path:
    """The file `stem` or `stem`.gz in a folder; a dot may stand for the last hyphen but one."""
    for name in (stem, stem.replace("-idx", ".idx")):
        for path in (root / name, root / f"{name}.gz"):
            if path.is_file():
                return path
    raise DataFormatError(
        f"neither {stem} nor {stem}.gz is in {root}",
        path=str(root / stem),
        fix="give the folder that holds them",
    )


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An IDX file of unsigned bytes.

    Args:
        path: plain, or gzipped if it ends in ".gz".
        dimensions: how many the file must have.

    Raises:
        DataFormatError: magic, extents or length are wrong.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return _parse_idx(file, path, dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise DataFormatError(
            f"{path} cannot be read: {error}",
            path=str(path),
            fix="download it again, or `gunzip -t` to see what is wrong with it",
        ) from error


def _parse_idx(file: BinaryIO | gzip.GzipFile, path: Path, dimensions: int) -> np.ndarray:
    header_bytes = 4 + 4 * dimensions
    header = file.read(header_bytes)
    magic = bytes((0, 0, UNSIGNED_BYTE, dimensions))
    if header[:4] != magic or len(header) < header_bytes:
        raise DataFormatError(
            f"{path} is not an IDX file of bytes in {dimensions} dimensions",
            path=str(path),
            offset=0,
            numbers=f"it starts with {header[:4].hex()}, an IDX file with {magic.hex()}",
            fix="download it again; the folder wants MNIST's four files",
        )
    extents = struct.unpack(f">{dimensions}I", header[4:])
    size = math.prod(extents)
    if not 0 < size <= MOST_BYTES:
        raise DataFormatError(
            f"{path} has impossible extents {extents}",
            path=str(path),
            offset=4,
            fix="download it again",
        )
    body = file.read(size + 1)
    if len(body) != size:
        have = f"{len(body)} bytes follow" if len(body) < size else "more bytes follow"
        raise DataFormatError(
            f"{path} does not hold the {size} bytes that its header announces",
            path=str(path),
            offset=header_bytes + min(len(body), size),
            numbers=f"extents {extents}; {have}",
            fix="the file is truncated or has been appended to; fetch it again",
        )
    return np.frombuffer(body, np.uint8).reshape(extents)
