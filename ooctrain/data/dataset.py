"""Data sets: a length and numbered samples, as in PyTorch, plus whole batches by index.

A batch is taken by its indices in one call, so a data set may decode, scale or repeat channels once
per batch instead of once per sample. Samples are float32 images (C, H, W) with integer labels, from
arrays or files. While a batch of bytes is read, data sets give bytes to whatever asks them, such as
a data set of one's own that wraps another. Read next: `loader.py`, then `digits.py`, the smallest
data set.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np

from ooctrain.devices.cpu.host_vm import available_memory_bytes
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.step.arguments import Taker, checked
from ooctrain.step.user_values import as_numbers, as_target
from ooctrain.units import format_bytes

FLOAT_BYTES = 4
_MASK_64 = (1 << 64) - 1
#: Images are resized in parts of about this size.
RESIZED_BYTES = 8 << 20
Batch = tuple[np.ndarray, np.ndarray]
Target = Literal["class", "pixels", "image"]
_WANTS_BYTES: ContextVar[bool] = ContextVar("ooctrain_wants_bytes", default=False)


@runtime_checkable
class Dataset(Protocol):
    """Numbered samples."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        """Sample `index`: image (C, H, W) float32 or uint8; and its label, or a map of labels (H,
        W), or an image.
        """
        ...


def _numbered(value: Any) -> Any:
    """Of what has a length and takes numbers, text and dictionaries are not meant."""
    if isinstance(value, type | str | Mapping) or not isinstance(value, Dataset):
        raise TypeError
    len(value)
    return value


#: A data set as an argument.
Samples = Annotated[Dataset, Taker("data with a length and numbered samples", _numbered)]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model must fit.

    Args:
        channels, height, width: channels, height and width of the images.
        classes: number of classes; for images as targets, their channels.
        target: "class": a class number for each image; "pixels": one for each pixel; "image":
            another image.
    """

    channels: int
    height: int
    width: int
    classes: int
    target: Target = "class"


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """What distinguishes a data set from another one, or from itself after a change.

    Args:
        count: number of samples.
        classes: their names, in order; none where they have no names.
        fingerprint: a hash of what is known of the samples without reading files; "" where nothing
            is.
    """

    count: int
    classes: tuple[str, ...] = ()
    fingerprint: str = ""


@checked
def identity_of(dataset: Samples) -> DataIdentity:
    """By its own `classes`, if these are names, and `fingerprint()`, if it has them."""
    fingerprint, names = getattr(dataset, "fingerprint", None), getattr(dataset, "classes", ())
    return DataIdentity(
        len(dataset), tuple(map(str, names)) if isinstance(names, list | tuple) else (),
        str(fingerprint()) if callable(fingerprint) else "",
    )  # fmt: skip


@checked
class ImageDataset:
    """Images in one array, scaled when a batch is taken.

    Args:
        images: (N, C, H, W) uint8 or float32; C is 1 or the number of channels wanted.
        labels: (N,) integers.
        channels: a single channel is repeated to this many.
        classes: number of classes.
        mean, std: one per channel of `images` (or one for all): the batch is (pixels - mean) / std.

    Raises:
        ConfigError: images and labels that do not belong together, or that are not real numbers.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        *,
        channels: int,
        classes: int,
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
    ):
        images, labels = as_numbers(images, "images"), as_numbers(labels, "labels")
        if (
            channels < 1
            or images.ndim != 4
            or len(images) != len(labels)
            or images.shape[1] not in (1, channels)
        ):
            raise ConfigError(
                f"images {images.shape} and labels {labels.shape} do not make data of "
                f"{channels} channels",
                fix="images (N, H, W, channels) of uint8, and N labels",
            )
        self.images, self.labels = images, np.asarray(labels, np.int64)
        self.shape = Shape(channels, images.shape[2], images.shape[3], classes)
        self._mean = np.asarray(mean, np.float32)[None, :, None, None]
        self._std = np.asarray(std, np.float32)[None, :, None, None]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        images, labels = self.take(np.array([index]))
        return images[0], int(labels[0])

    def take(self, indices: np.ndarray) -> Batch:
        """The samples `indices` as (images (n, C, H, W) float32, labels (n,) int64)."""
        return ImageDataset.take_bytes(self, indices) if wants_bytes() else self._scaled(indices)

    def take_bytes(self, indices: np.ndarray) -> Batch:
        """The same with images as uint8, before they are scaled; as float32 where they are kept as
        something else."""
        if self.images.dtype != np.uint8:
            return self._scaled(indices)
        return self._in_colour(self.images[indices]), self.labels[indices]

    def _scaled(self, indices: np.ndarray) -> Batch:
        scaled = (self.images[indices].astype(np.float32) - self._mean) / self._std
        return self._in_colour(scaled), self.labels[indices]

    def _in_colour(self, images: np.ndarray) -> np.ndarray:
        if images.shape[1] != self.shape.channels:
            images = np.repeat(images, self.shape.channels, axis=1)
        return np.ascontiguousarray(images)

    def fingerprint(self) -> str:
        """Of the arrays' bytes."""
        found = hashlib.sha256(np.ascontiguousarray(self.images))
        found.update(np.ascontiguousarray(self.labels))
        return found.hexdigest()


def take(dataset: Dataset, indices: np.ndarray, *, as_bytes: bool | None = None) -> Batch:
    """A batch of any data set: by its own `take`, or sample by sample, if a class of one's own has
    other samples than the one that knows how to take many.

    Args:
        as_bytes: by its own `take_bytes`, if it has one: images as they are kept or shown, uint8,
            for a model that normalises them itself. None: as the caller wants them.

    Raises:
        ShapeError: what it gives is not an array of real numbers.
    """
    with _wanting(wants_bytes() if as_bytes is None else as_bytes):
        if wants_bytes() and _takes(dataset, "take_bytes", above=("__getitem__", "take")):
            return dataset.take_bytes(indices)  # type: ignore[attr-defined]
        if not _takes(dataset, "take", above=("__getitem__",)):
            return stack(dataset, indices)
        found = dataset.take(indices)  # type: ignore[attr-defined]
    images, targets = pair_of(found, "what take() of the data gives")
    return as_numbers(images, "images of the data"), as_target(targets, "labels of the data")


def wants_bytes() -> bool:
    """Whether what is read now is for a model that takes bytes."""
    return _WANTS_BYTES.get()


@contextmanager
def _wanting(as_bytes: bool) -> Iterator[None]:
    token = _WANTS_BYTES.set(as_bytes)
    try:
        yield
    finally:
        _WANTS_BYTES.reset(token)


def _takes(dataset: Dataset, name: str, above: tuple[str, ...]) -> bool:
    """Whether a class has a method by this name, and none below it has another of those `above`
    which the method knows nothing of."""
    for kind in type(dataset).__mro__:
        if name in vars(kind):
            return True
        if any(other in vars(kind) for other in above):
            return False
    return False


def stack(dataset: Dataset, indices: np.ndarray) -> Batch:
    """A batch sample by sample: images (n, C, H, W), bytes as uint8 and others as float32; and the
    targets, whole numbers as int64 and others as float32.

    Raises:
        ConfigError: a sample is not a pair, such as a dict or None.
        ShapeError: images or labels are not numbers, or have several shapes.
    """
    samples = [pair_of(dataset[int(i)], f"sample {i}") for i in indices]
    images = [as_numbers(image, "an image of the data") for image, _ in samples]
    targets = as_numbers([as_target(label, "a label of the data") for _, label in samples],
                         "labels of the data")  # fmt: skip
    wanted = np.int64 if targets.dtype.kind in "iub" else np.float32
    shapes, kinds = {image.shape for image in images}, {image.dtype for image in images}
    if len(kinds) > 1 and np.dtype(np.uint8) in kinds:
        raise ShapeError(
            "images as bytes and as other numbers make no batch",
            numbers=", ".join(sorted(map(str, kinds))),
            fix="one element type for all; what a wrapper keeps may be of an earlier model",
        )
    if len(shapes) > 1:
        raise ShapeError(
            f"images of {len(shapes)} shapes make no batch",
            numbers=", ".join(map(str, sorted(shapes)[:3])),
            fix="images of one size; or --batch 1, DataLoader(data, 1)",
        )
    return as_images(np.stack(images)), targets.astype(wanted, copy=False)


def pair_of(sample: Any, what: str) -> tuple[Any, Any]:
    """An image and its label.

    Args:
        what: its name in the error.

    Raises:
        ConfigError: something else, such as a dict, None, or an image alone.
    """
    if isinstance(sample, tuple | list) and len(sample) == 2 and not any(p is None for p in sample):
        return sample[0], sample[1]
    kind = type(sample).__name__
    if isinstance(sample, tuple | list):
        parts = ", ".join("None" if part is None else type(part).__name__ for part in sample)
        kind = f"{kind} of ({parts})"
    raise ConfigError(
        f"{what} is a {kind}, not a pair (image, label)", code="OOC-106",
        fix="return image, label; of a dict sample['image'], sample['label']; of mixup image, "
        "class probabilities",
    )  # fmt: skip


def as_images(values: np.ndarray) -> np.ndarray:
    """Bytes as they are, for `nn.FromBytes`; other numbers as float32."""
    return values if values.dtype == np.uint8 else values.astype(np.float32, copy=False)


def permutation(count: int, *key: int) -> np.ndarray:
    """A random order of `range(count)` that depends on the key alone, in every NumPy version.

    Sorting raw random words keeps to what NumPy promises to keep (NEP 19: the bit generators'
    streams, not the methods of `Generator`). Time O(n log n).
    """
    return np.argsort(words_of(key).random_raw(count), kind="stable")


def words_of(key: Iterable[int]) -> np.random.Philox:
    """Raw random words that depend on the key alone; a seed below 0 counts as its 64 bits."""
    return np.random.Philox(np.random.SeedSequence([number & _MASK_64 for number in key]))


def resize(images: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear resizing with half-pixel centres of (N, C, H, W) to (N, C, height, width), float32.

    Enlarging only: reducing this way would leave pixels out.

    Raises:
        ConfigError: smaller images, or more of them than there is memory for.
    """
    if height < images.shape[2] or width < images.shape[3]:
        raise ConfigError(
            f"images of {images.shape[2]} x {images.shape[3]} cannot shrink to {height} x {width}",
            fix="choose a larger --image-size",
        )
    each = FLOAT_BYTES * math.prod((images.shape[1], height, width))
    wanted = len(images) * each
    free = available_memory_bytes()
    if free is not None and wanted > free:
        raise ConfigError(
            f"{len(images)} images of {height} x {width} are more than this machine has memory for",
            code="OOC-108",
            numbers=f"wanted {format_bytes(wanted)}, free {format_bytes(free)}",
            fix="choose a smaller --image-size",
        )
    rows = _interpolation(images.shape[2], height)
    columns = _interpolation(images.shape[3], width)
    found = np.empty((*images.shape[:2], height, width), np.float32)
    step = max(1, RESIZED_BYTES // max(1, each))  # what is between the two products stays small
    for first in range(0, len(images), step):
        part = images[first : first + step].astype(np.float32)
        found[first : first + step] = rows @ part @ columns.T
    return found


def _interpolation(old: int, new: int) -> np.ndarray:
    """(new, old) matrix whose row o weighs the two old pixels around the centre of new pixel o."""
    centre = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    lower = np.floor(centre).astype(int)
    upper, share = np.minimum(lower + 1, old - 1), (centre - lower).astype(np.float32)
    matrix = np.zeros((new, old), np.float32)
    matrix[np.arange(new), lower] += 1 - share
    matrix[np.arange(new), upper] += share
    return matrix
