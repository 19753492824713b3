"""Changes of images while batches are read: crops, mirroring and normalization.

The random numbers of a sample depend on (seed, epoch, number of the sample) alone. So an image (C,
H, W), float32 or uint8, is changed in the same way whichever thread reads it and wherever a run was
resumed, and in another way in the next epoch. Names, arguments and defaults are torchvision's. Read
next: `loader.py`, whose argument `transform` takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np

from ooctrain.data.dataset import as_images, words_of
from ooctrain.errors import ConfigError
from ooctrain.step.arguments import checked

Size = int | Sequence[int]
_WORD_BITS, _FLOAT_BITS = 64, 53


class Draws:
    """Random numbers that depend on a key alone, in every NumPy version.

    Args:
        key: whole numbers, such as (seed, epoch, number of the sample).
    """

    def __init__(self, *key: int):
        self._words = words_of(key)

    def uniform(self) -> float:
        """The next number, from 0 to below 1."""
        word = int(self._words.random_raw())
        return (word >> (_WORD_BITS - _FLOAT_BITS)) * 2.0**-_FLOAT_BITS

    def below(self, count: int) -> int:
        """The next whole number, from 0 to below `count`."""
        return int(self.uniform() * count)


#: An image (C, H, W) and random numbers to the image that is trained on; a function will do.
Transform = Callable[[np.ndarray, Draws], np.ndarray]


@checked
class Compose:
    """One change after the other.

    Attributes:
        keeps_bytes: whether bytes come out of it as bytes: none of the changes calculates.
    """

    def __init__(self, transforms: Sequence[Transform]):
        self.transforms = list(transforms)

    @property
    def keeps_bytes(self) -> bool:
        return all(getattr(transform, "keeps_bytes", False) for transform in self.transforms)

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        for transform in self.transforms:
            image = transform(image, draws)
        return image


@checked
class RandomCrop:
    """A part of the image, anywhere in it with equal chance.

    Args:
        size: height and width of the part, or one number for both.
        padding: pixels around the image before: one number, (left and right, top and bottom), or
            (left, top, right, bottom).
        fill: value of these pixels, where `padding_mode` is "constant".
        padding_mode: "constant", "edge", "reflect" or "symmetric".

    Raises:
        ConfigError: an invalid size or padding; in a call: the image is smaller, or bytes are to be
            padded with what is not a byte.
    """

    keeps_bytes = True

    def __init__(
        self, size: Size, padding: Size = 0, fill: float = 0,
        padding_mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant",
    ):  # fmt: skip
        if padding_mode not in ("constant", "edge", "reflect", "symmetric"):
            raise ConfigError(
                f"unknown padding_mode {padding_mode!r}",
                fix="constant, edge, reflect or symmetric",
            )
        self.size, self.padding, self.fill = _pair(size), _sides(padding), fill
        self.padding_mode = padding_mode

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        left, top, right, bottom = self.padding
        if any(self.padding):
            width = ((0, 0), (top, bottom), (left, right))
            if self.padding_mode == "constant":
                if image.dtype == np.uint8 and self.fill not in range(256):
                    raise ConfigError(
                        f"bytes cannot be padded with {self.fill}", fix="fill from 0 to 255"
                    )
                image = np.pad(image, width, constant_values=self.fill)
            else:
                image = np.pad(image, width, mode=self.padding_mode)
        rows, columns = _room(image, self.size)
        return _cut(image, draws.below(rows + 1), draws.below(columns + 1), self.size)


@checked
class CenterCrop:
    """The middle of the image, `size` high and wide.

    Raises:
        ConfigError: in a call: the image is smaller.
    """

    keeps_bytes = True

    def __init__(self, size: Size):
        self.size = _pair(size)

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        rows, columns = _room(image, self.size)
        return _cut(image, round(rows / 2), round(columns / 2), self.size)


@checked
class RandomHorizontalFlip:
    """Left for right, with chance `p`."""

    keeps_bytes = True

    def __init__(self, p: float = 0.5):
        self.p = _chance(p)

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        return image[:, :, ::-1] if draws.uniform() < self.p else image


@checked
class RandomVerticalFlip:
    """Top for bottom, with chance `p`."""

    keeps_bytes = True

    def __init__(self, p: float = 0.5):
        self.p = _chance(p)

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        return image[:, ::-1] if draws.uniform() < self.p else image


@checked
class Normalize:
    """(image - mean) / std, one of each for every channel, or one number for all.

    Raises:
        ConfigError: a deviation of 0, other numbers of the two; in a call: of channels.
    """

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]):
        means, deviations = np.atleast_1d(mean).tolist(), np.atleast_1d(std).tolist()
        if len(means) != len(deviations) or not all(value > 0 for value in deviations):
            raise ConfigError(
                f"mean {tuple(means)} and std {tuple(deviations)} normalise no image",
                fix="as many means as deviations, and deviations above 0",
            )
        self.mean = np.asarray(means, np.float32)[:, None, None]
        self.std = np.asarray(deviations, np.float32)[:, None, None]

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        if len(self.mean) not in (1, len(image)):
            raise ConfigError(
                f"{len(self.mean)} means for an image of {len(image)} channels",
                fix="one mean and one deviation for each channel",
            )
        return (image - self.mean) / self.std


@checked
@dataclass(frozen=True, slots=True)
class Augmentation:
    """Crops and flips, by which a network sees each image in many ways: `--crop 28 --flip`.

    `DataLoader(train, 64, transform=Augmentation(crop=28, flip=True).training)`.

    Args:
        crop: height and width that are cut out of each image: at random places to train on, in the
            middle to test; None: whole images.
        pad: pixels of 0 on each side of an image, before it is cut to train on.
        flip: whether half of the images are mirrored, left for right, to train on.

    Raises:
        ConfigError: a size below 1, or `pad` without `crop`.
    """

    crop: int | None = None
    pad: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if self.crop is not None:
            RandomCrop(self.crop, self.pad)
        elif self.pad:
            raise ConfigError(
                f"--pad {self.pad} needs --crop, which cuts the padded images back to one size",
                fix="add --crop SIZE",
            )

    @property
    def training(self) -> Transform | None:
        """What is done to images that are trained on; None: nothing."""
        changes: list[Transform] = []
        if self.crop is not None:
            changes.append(RandomCrop(self.crop, self.pad))
        if self.flip:
            changes.append(RandomHorizontalFlip())
        return Compose(changes) if changes else None

    @property
    def testing(self) -> Transform | None:
        """What is done to images that are tested; None: nothing."""
        return None if self.crop is None else CenterCrop(self.crop)


def transformed(
    transform: Transform, images: np.ndarray, key: Sequence[int], numbers: np.ndarray
) -> np.ndarray:
    """A batch of images, each changed by its own random numbers.

    Args:
        key: what they depend on, with the number of the sample: (seed, epoch).
        numbers: numbers of the samples.

    Raises:
        ConfigError: the transform leaves images of several shapes.
    """
    changed = [
        as_images(np.asarray(transform(image, Draws(*key, int(number)))))
        for image, number in zip(images, numbers, strict=True)
    ]
    shapes = {image.shape for image in changed}
    if len(shapes) > 1:
        raise ConfigError(
            f"the transform leaves images of {len(shapes)} shapes, which make no batch",
            fix="a crop to one size at its end",
        )
    return np.stack(changed)


def _room(image: np.ndarray, size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns that a part of this size leaves."""
    rows, columns = image.shape[1] - size[0], image.shape[2] - size[1]
    if min(rows, columns) < 0:
        raise ConfigError(
            f"{size[0]} x {size[1]} pixels cannot be cut out of {image.shape[1]} x "
            f"{image.shape[2]}", fix="a smaller part, or padding",
        )  # fmt: skip
    return rows, columns


def _cut(image: np.ndarray, top: int, left: int, size: tuple[int, int]) -> np.ndarray:
    return image[:, top : top + size[0], left : left + size[1]]


def _pair(size: Size) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) == 1:
        pair = (pair[0], pair[0])
    if len(pair) != 2 or min(pair) < 1:
        raise ConfigError(
            f"size {size!r} is not one or two numbers of 1 or more",
            fix="an int, or (height, width)",
        )
    return int(pair[0]), int(pair[1])


def _sides(padding: Size) -> tuple[int, int, int, int]:
    """(left, top, right, bottom)."""
    given = (padding,) if isinstance(padding, int) else tuple(padding)
    if len(given) not in (1, 2, 4) or min(given) < 0:
        raise ConfigError(
            f"padding {padding!r} is not one, two or four numbers of 0 or more",
            fix="an int, (left and right, top and bottom), or (left, top, right, bottom)",
        )
    left, top, right, bottom = given * (4 // len(given))
    return left, top, right, bottom


def _chance(p: float) -> float:
    if not 0 <= p <= 1:
        raise ConfigError(
            f"p {p!r} is not a chance from 0 to 1", fix="0.5 does it to every second image"
        )
    return p


def __getattr__(name: str) -> NoReturn:
    # Not at the top: a table of words, read when a name is missing.
    from ooctrain.engine.torch_names import refusal

    raise refusal(__name__, name, "transforms", globals())
