"""Data in memory: arrays as a data set, a part of a data set, a random split of one.

Names and arguments are those of `torch.utils.data`. Random choices depend on a seed that is given.
Read next: `dataset.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooctrain.data.dataset import Batch, Samples, Shape, as_images, permutation, take
from ooctrain.errors import ConfigError
from ooctrain.step.arguments import checked
from ooctrain.step.user_values import as_numbers


class TensorDataset:
    """Images and targets in two arrays; sample i is the i-th of each.

    Args:
        tensors: images (N, ...), and targets (N, ...): arrays of numbers, or tensors.

    Raises:
        ConfigError: not two, other lengths, or no numbers.
    """

    def __init__(self, *tensors: Any):
        arrays = [as_numbers(t.numpy() if hasattr(t, "numpy") else t, "a tensor of a data set")
                  for t in tensors]  # fmt: skip
        if len(arrays) != 2:
            raise ConfigError(
                f"a batch is images and targets, got {len(arrays)} arrays", fix="two arrays"
            )
        masked = any(isinstance(one, np.ma.MaskedArray) for one in tensors)
        if masked or any(a.ndim < 1 or a.dtype.kind not in "biuf" for a in arrays):
            raise ConfigError(
                "images and targets are arrays of numbers, one row a sample",
                fix="TensorDataset(images, labels), both with N rows",
            )
        if len(arrays[0]) != len(arrays[1]):
            raise ConfigError(
                f"{len(arrays[0])} images do not match {len(arrays[1])} targets",
                fix="as many targets as images",
            )
        self.tensors = tuple(arrays)

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        images, targets = self.tensors
        return as_images(images[index]), targets[index]

    def take(self, indices: np.ndarray) -> Batch:
        """The samples `indices` as (images, targets): images float32, or uint8 where they are
        bytes; targets that are whole numbers int64."""
        images, targets = (array[indices] for array in self.tensors)
        wanted = np.float32 if targets.dtype.kind == "f" else np.int64
        return as_images(images), targets.astype(wanted)


@checked
class Subset:
    """Some samples of a data set, in the order of their numbers here."""

    def __init__(self, dataset: Samples, indices: Sequence[int] | np.ndarray):
        self.dataset, self.indices = dataset, _numbers_of(indices, len(dataset))
        shape = getattr(dataset, "shape", None)
        if isinstance(shape, Shape):
            self.shape = shape

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        return self.dataset[int(self.indices[index])]

    def take(self, indices: np.ndarray) -> Batch:
        """The samples `indices` of these."""
        return take(self.dataset, self.indices[indices])

    def take_bytes(self, indices: np.ndarray) -> Batch:
        """The same as bytes, where the data set has them."""
        return take(self.dataset, self.indices[indices], as_bytes=True)


def _numbers_of(indices: Any, count: int) -> np.ndarray:
    """Numbers of samples. Raises ConfigError: no row of whole numbers, or no such sample."""
    found = as_numbers(indices, "indices")
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ConfigError(
            "indices are not a row of whole numbers", code="OOC-106", numbers=f"{found.dtype} "
            f"{found.shape}", fix="Subset(dataset, [0, 2, 5])",
        )  # fmt: skip
    wrong = found[(found < -count) | (found >= count)]
    if wrong.size:
        raise ConfigError(
            f"there is no sample {wrong[0]} of {count}", code="OOC-106",
            fix=f"numbers from 0 to {count - 1}",
        )  # fmt: skip
    return found.astype(np.int64)


@checked
def random_split(
    dataset: Samples, lengths: Sequence[int | float], *, seed: int = 0
) -> list[Subset]:
    """Parts of a data set that have no sample in common, drawn once and for all.

    Args:
        lengths: samples in each part; or shares that add up to 1, rounded down, the samples that
            are left going to the first parts one by one, as in PyTorch.
        seed: seed of the order.

    Raises:
        ConfigError: the lengths do not add up to the data set's.
    """
    count, shares = len(dataset), math.isclose(sum(lengths), 1)
    sizes = [math.floor(count * length) if shares else int(length) for length in lengths]
    if shares:
        for place in range(count - sum(sizes)):
            sizes[place % len(sizes)] += 1
    whole = shares or sizes == list(lengths)
    if not whole or sum(sizes) != count or min(sizes, default=0) < 0:
        raise ConfigError(
            f"parts of {', '.join(map(str, lengths))} do not make a data set of {count} samples",
            fix=f"numbers that add up to {count}, or shares that add up to 1",
        )
    order, ends = permutation(count, seed), np.cumsum(sizes)
    return [Subset(dataset, order[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
