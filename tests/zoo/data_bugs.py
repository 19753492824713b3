"""Planted bugs of data: random changes of an image that depend on more, or on less, than they may.

`BUGS` is {name: a function that plants the bug}. Each loader agrees with itself as long as it is
read in one way only. Read next: `test_data_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from zoo.planting import plant

from ooctrain.data import loader, transforms

Plant = Callable[[pytest.MonkeyPatch], None]


def chance_goes_by_the_place_in_the_batch(patch: pytest.MonkeyPatch) -> None:
    """Another batch size gives other images."""
    wrong = "for number, image in enumerate(images)"
    _transformed(patch, "for image, number in zip(images, numbers, strict=True)", wrong)


def one_source_for_all_samples(patch: pytest.MonkeyPatch) -> None:
    """What is drawn depends on how many samples were read before."""
    shared = transforms.Draws(0)
    patch.setattr(transforms, "SHARED", shared, raising=False)
    _transformed(patch, "Draws(*key, int(number))", "SHARED")


def each_epoch_looks_the_same(patch: pytest.MonkeyPatch) -> None:
    """The images are those of the first epoch for ever."""
    plant(patch, loader.DataLoader, "_read", "(self.seed, epoch)", "(self.seed, 0)")


def batches_come_as_they_are_ready(patch: pytest.MonkeyPatch) -> None:
    """Two readers, and the last batch first."""
    plant(patch, loader, "_read_ahead", "while ready:\n                yield ready.popleft()",
          "while ready:\n                yield ready.pop()")  # fmt: skip


def _transformed(patch: pytest.MonkeyPatch, piece: str, wrong: str) -> None:
    planted = plant(patch, transforms, "transformed", piece, wrong)
    patch.setattr(loader, "transformed", planted)


BUGS: dict[str, Plant] = {
    bug.__name__: bug
    for bug in (
        chance_goes_by_the_place_in_the_batch, one_source_for_all_samples,
        each_epoch_looks_the_same, batches_come_as_they_are_ready,
    )
}  # fmt: skip
