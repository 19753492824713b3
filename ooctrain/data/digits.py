"""The handwritten digits that come with the package: 1797 images, real and small.

They are enlarged from 8 x 8 to 32 x 32 pixels, so that a CIFAR network can learn them within a
minute. Source: bundled/SOURCE.md (E. Alpaydin and C. Kaynak 1998, CC BY 4.0). Read next:
`cifar10.py`.
"""

from __future__ import annotations

import gzip
from importlib import resources

import numpy as np

from ooctrain.data.dataset import ImageDataset, permutation, resize
from ooctrain.errors import DataFormatError
from ooctrain.step.arguments import checked

IMAGES, SIDE, LEVELS, CLASSES = 1797, 8, 16, 10
TRAIN_IMAGES = 1437
#: Mean and standard deviation of all pixels, in the file's own levels 0 to 16.
MEAN, STD = 4.88, 6.02
SPLIT_KEY = 20260101


@checked
def digits(train: bool = True, image_size: int = 32, channels: int = 3) -> ImageDataset:
    """The bundled digits: 1437 to train with, 360 to test with, split once and for all at random.

    Args:
        train: which of the two parts.
        image_size: height and width, 8 or more.
        channels: the grey value is repeated to this many.

    Raises:
        DataFormatError: the bundled file is broken.
    """
    name = "digits.csv.gz"
    with resources.files("ooctrain.data.bundled").joinpath(name).open("rb") as file:
        table = parse_table(file.read(), name)
    order = permutation(IMAGES, SPLIT_KEY)
    part = table[order[:TRAIN_IMAGES] if train else order[TRAIN_IMAGES:]]
    images = part[:, :-1].reshape(-1, 1, SIDE, SIDE)
    return ImageDataset(
        resize(images, image_size, image_size), part[:, -1], channels=channels, classes=CLASSES,
        mean=(MEAN,), std=(STD,),
    )  # fmt: skip


def parse_table(packed: bytes, path: str) -> np.ndarray:
    """(1797, 65) int64 from the gzipped table: 64 pixels 0 to 16 and the label.

    Raises:
        DataFormatError: not that table.
    """
    try:
        lines = gzip.decompress(packed).decode("ascii").split()
        table = np.array([line.split(",") for line in lines], np.int64)
    except (OSError, EOFError, ValueError) as error:
        raise DataFormatError(
            f"{path} is not a gzipped table of numbers: {error}",
            path=path,
            fix="reinstall ooctrain, or give the original file",
        ) from error
    if table.shape != (IMAGES, SIDE * SIDE + 1):
        raise DataFormatError(
            f"{path} has a table of shape {table.shape}, not (1797, 65)",
            path=path,
            fix="reinstall ooctrain, or give the original file",
        )
    pixels, labels = table[:, :-1], table[:, -1]
    if pixels.min() < 0 or pixels.max() > LEVELS or labels.min() < 0 or labels.max() >= CLASSES:
        raise DataFormatError(
            f"{path} has pixels outside 0 to 16 or labels outside 0 to 9",
            path=path,
            fix="reinstall ooctrain, or give the original file",
        )
    return table
