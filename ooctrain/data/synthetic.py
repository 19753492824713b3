"""Random images that can be learned, of any number, size, number of classes.

Each class has a fixed coarse pattern, which each sample covers with noise. Sample i depends on
(seed, i) alone, so nothing is stored and any order gives the same images. Read next: `dataset.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooctrain.data.dataset import Batch, Shape, resize, stack, words_of
from ooctrain.errors import ConfigError
from ooctrain.step.arguments import checked

COARSE = 4
NOISE = 0.5
TEST_OFFSET = 1 << 40


class Synthetic:
    """Noisy patterns.

    Args:
        samples: how many.
        shape: channels, extents and classes.
        seed: seed of patterns and noise.
        first: number of the first sample (the test part starts far behind the training part).
    """

    def __init__(self, samples: int, shape: Shape, seed: int = 0, first: int = 0):
        if samples < 1 or min(shape.channels, shape.height, shape.width, shape.classes) < 1:
            raise ConfigError(
                f"synthetic data of {samples} samples and shape {shape} is empty",
                fix="one sample, class, channel and pixel at least",
            )
        self.samples, self.shape, self.seed, self.first = samples, shape, seed, first
        self._patterns = [self._pattern(label) for label in range(shape.classes)]

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        number, label = self.number(index), index % self.shape.classes
        size = (self.shape.channels, self.shape.height, self.shape.width)
        noise = uniform(size, self.seed, 1, number)
        return resize_pattern(self._patterns[label], size) + np.float32(NOISE) * noise, label

    def number(self, index: int) -> int:
        """What a sample's random numbers depend on. Raises IndexError beyond the last sample."""
        if not 0 <= index < self.samples:
            raise IndexError(index)
        return self.first + index

    def take(self, indices: np.ndarray) -> Batch:
        """The samples `indices`: images (n, C, H, W) float32, and targets, which are class numbers
        (n,) int64, those of pixels (n, H, W) int64, or images (n, 3, H, W) float32.
        """
        return stack(self, indices)

    def _pattern(self, label: int) -> np.ndarray:
        rows, columns = min(COARSE, self.shape.height), min(COARSE, self.shape.width)
        coarse = (self.shape.channels, rows, columns)
        return uniform(coarse, self.seed, 0, label)


@checked
def synthetic(
    train: bool = True, image_size: int = 32, channels: int = 3, classes: int = 10,
    samples: int = 1024, seed: int = 0,
) -> Synthetic:  # fmt: skip
    """Noisy patterns, one for each class: images (C, H, W) of `image_size` squared, class numbers.

    Args:
        train: else the test part: a quarter of the samples, with other noise.
        samples: samples of the training part.
        seed: seed of patterns and noise.
    """
    shape = Shape(channels, image_size, image_size, classes)
    return Synthetic(part_samples(samples, train), shape, seed, 0 if train else TEST_OFFSET)


def part_samples(samples: int, train: bool) -> int:
    """Samples of the training part, or of the test part: a quarter as many."""
    return samples if train else max(1, samples // 4)


def resize_pattern(pattern: np.ndarray, size: tuple[int, int, int]) -> np.ndarray:
    """A coarse pattern enlarged to (C, H, W)."""
    return resize(pattern[None], size[1], size[2])[0]


def uniform(size: tuple[int, ...], *key: int) -> np.ndarray:
    """Uniform float32 in [-1, 1) that depend on the key alone, in every NumPy version."""
    words = words_of(key).random_raw(int(np.prod(size)))
    return ((words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - 1).reshape(size)


# Images whose target is a map: a class for each pixel, or another image. Each sample has a coarse
# map of its own, enlarged; the image shows it through noise, or the target paints it in colours.
# What is to be learned is local, so a network for maps can learn it from few samples.


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


@checked
def synthetic_pixels(
    train: bool = True, image_size: int = 64, channels: int = 3, classes: int = 4,
    samples: int = 256, seed: int = 0,
) -> SyntheticPixels:  # fmt: skip
    """Noisy maps: images (C, H, W) of `image_size` squared, a class number for each pixel.

    Args:
        train: else the test part: a quarter of the samples, with maps of its own.
        samples: samples of the training part.
        seed: seed of maps and noise.
    """
    shape = Shape(channels, image_size, image_size, classes, "pixels")
    return SyntheticPixels(part_samples(samples, train), shape, seed, 0 if train else TEST_OFFSET)


@checked
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
