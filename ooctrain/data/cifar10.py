"""CIFAR-10, binary version: records of one label byte and 3 x 1024 pixel bytes (red, green, blue).

The folder holds data_batch_1.bin to data_batch_5.bin and test_batch.bin; the images are 32 x 32, in
colour. The binary version is read rather than the Python one, because that is a pickle, which runs
code. Source: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
Read next: `mnist.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ooctrain.data.dataset import ImageDataset, resize
from ooctrain.errors import DataFormatError
from ooctrain.step.arguments import checked

CHANNELS, SIDE, CLASSES = 3, 32, 10
RECORD_BYTES = 1 + CHANNELS * SIDE * SIDE
TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILES = ("test_batch.bin",)
#: Mean and standard deviation of the training pixels per channel, 0 to 255.
MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)


@checked
def cifar10(root: str | Path, train: bool = True, image_size: int = SIDE) -> ImageDataset:
    """CIFAR-10 from its unpacked binary archive.

    Args:
        root: the folder with the .bin files, or the one above it ("cifar-10-batches-bin").
        train: the five training files, or the test file.
        image_size: 32 or more; larger images are enlarged bilinearly.

    Raises:
        DataFormatError: a file is missing, truncated, or holds a label above 9.
    """
    folder = Path(root)
    if (folder / "cifar-10-batches-bin").is_dir():
        folder = folder / "cifar-10-batches-bin"
    records = np.concatenate(
        [read_records(folder / name) for name in (TRAIN_FILES if train else TEST_FILES)]
    )
    images = records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE)
    if image_size != SIDE:
        images = resize(images, image_size, image_size)
    return ImageDataset(
        images, records[:, 0], channels=CHANNELS, classes=CLASSES, mean=MEAN, std=STD
    )


def read_records(path: Path) -> np.ndarray:
    """(records, 3073) uint8 of one file.

    Raises:
        DataFormatError: unreadable, empty, a broken record, or a wrong label, with its offset.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataFormatError(
            f"{path} cannot be read: {error.strerror}",
            path=str(path),
            fix="unpack the binary version of CIFAR-10 and give its folder",
        ) from error
    whole, rest = divmod(len(raw), RECORD_BYTES)
    if rest or not whole:
        raise DataFormatError(
            f"{path} is not made of records of {RECORD_BYTES} bytes",
            path=str(path),
            offset=whole * RECORD_BYTES,
            numbers=f"{len(raw)} bytes: {whole} records and {rest} bytes",
            fix="the file is truncated or is not the binary version; fetch it again",
        )
    records = np.frombuffer(raw, np.uint8).reshape(whole, RECORD_BYTES)
    wrong = np.flatnonzero(records[:, 0] >= CLASSES)
    if len(wrong):
        raise DataFormatError(
            f"{path}: record {wrong[0]} has label {records[wrong[0], 0]}, above 9",
            path=str(path),
            offset=int(wrong[0]) * RECORD_BYTES,
            fix="CIFAR-10's files have labels 0 to 9; download them again",
        )
    return records
