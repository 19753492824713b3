"""Samples as other libraries have them (dicts, None, triples) are a typed error that names one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ooctrain import data
from ooctrain.errors import ConfigError, ShapeError

IMAGE = np.zeros((1, 4, 4), np.float32)
WRONG: dict[str, Any] = {
    "dict": {"image": IMAGE, "label": 0},
    "None": None,
    "no label": (IMAGE, None),
    "no image": (None, 1),
    "image alone": IMAGE,
    "two rows": np.zeros((2, 4, 4), np.float32),
    "triple": (IMAGE, 1, "a.png"),
    "empty": (),
    "text": "ab",
    "number": 3,
}


class Mine:
    """Right samples up to the fifth."""

    def __init__(self, wrong: Any):
        self.wrong = wrong

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return self.wrong if index == 5 else (IMAGE, index % 2)


class Whole(Mine):
    """The same, in batches of its own."""

    def take(self, indices: np.ndarray) -> Any:
        return self.wrong


@pytest.mark.parametrize("kind", [Mine, Whole])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", WRONG)
def test_a_sample_that_is_no_pair_is_named(name, workers, kind):
    loader = data.DataLoader(kind(WRONG[name]), 3, num_workers=workers)
    with pytest.raises(ConfigError) as found:
        list(loader)
    assert found.value.code == "OOC-106"
    assert kind is Whole or "sample 5" in found.value.what


def test_the_first_sample_is_looked_at_by_shape_of():
    with pytest.raises(ConfigError):
        data.shape_of([{"image": IMAGE, "label": 0}])


def test_a_list_is_a_pair_too():
    images, labels = next(iter(data.DataLoader([[IMAGE, 1], [IMAGE, 0]], 2)))
    assert (images.shape, labels.tolist()) == ((2, 1, 4, 4), [1, 0])


def test_images_of_several_sizes_are_named():
    samples = [(IMAGE, 0), (np.zeros((1, 4, 5), np.float32), 1)]
    with pytest.raises(ShapeError) as found:
        list(data.DataLoader(samples, 2))
    assert "(1, 4, 5)" in found.value.numbers
