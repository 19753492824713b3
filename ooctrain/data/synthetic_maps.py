"""Random images whose target is a map: a class for each pixel, or another image.

Each sample has a coarse map of its own, enlarged; the image shows it through noise, or the target
paints it in colours. As in `synthetic.py`, sample i depends on (seed, i) alone. What is to be
learned here is local, so a network for maps can learn it from few samples. Read next:
`registry.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.data.dataset import Shape, resize
from ooctrain.data.synthetic import (
    COARSE,
    NOISE,
    TEST_OFFSET,
    Synthetic,
    part_samples,
    uniform,
)


class SyntheticPixels(Synthetic):
    """Noisy images of coarse maps of classes; the target is the class of each pixel (H, W)."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        number, size = self.number(index), self.shape
        draws = uniform((COARSE, COARSE), self.seed, 2, number)
        coarse = np.minimum((draws + 1) / 2 * size.classes, size.classes - 1).astype(np.int64)
        labels = coarse[_nearest(size.height)[:, None], _nearest(size.width)]
        colours = uniform((size.channels, size.classes), self.seed, 3)
        noise = uniform((size.channels, size.height, size.width), self.seed, 1, number)
        return colours[:, labels] + np.float32(NOISE) * noise, labels


class SyntheticImages(Synthetic):
    """Smooth coarse maps of several channels; the target is their mixture in three colours."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        number, size = self.number(index), self.shape
        coarse = uniform((1, size.channels, COARSE, COARSE), self.seed, 2, number)
        image = resize(coarse, size.height, size.width)[0]
        mixture = uniform((size.classes, size.channels), self.seed, 3)
        return image, np.tanh(np.tensordot(mixture, image, 1)).astype(np.float32)


def synthetic_pixels(
    train: bool = True, image_size: int = 64, channels: int = 3, classes: int = 4,
    samples: int = 256, seed: int = 0,
) -> SyntheticPixels:  # fmt: skip
    """Noisy maps: images (C, H, W) of `image_size` squared, a class number for each pixel.

    Args:
        train: else the test part: a quarter of the samples, with maps of its own.
        samples: of the training part.
        seed: of maps and noise.
    """
    shape = Shape(channels, image_size, image_size, classes, "pixels")
    return SyntheticPixels(part_samples(samples, train), shape, seed, 0 if train else TEST_OFFSET)


def synthetic_images(
    train: bool = True, image_size: int = 64, channels: int = 3, samples: int = 256, seed: int = 0
) -> SyntheticImages:
    """Maps and what they are painted as: images (C, H, W) and targets (3, H, W).

    Arguments as of `synthetic_pixels`.
    """
    shape = Shape(channels, image_size, image_size, 3, "image")
    return SyntheticImages(part_samples(samples, train), shape, seed, 0 if train else TEST_OFFSET)


def _nearest(extent: int) -> np.ndarray:
    """For each pixel the coarse one that it lies in."""
    return np.arange(extent) * COARSE // extent
