"""Each planted bug of bands through class-number losses, or through resized images, breaks a law.

The laws are in `properties/test_bands_of_class_losses.py` and `properties/test_bands.py`.
"""

from __future__ import annotations

import pytest
from properties.test_bands import Cut, check_any_data, graph_trace
from properties.test_bands_of_class_losses import check_class_loss, check_total
from support.check_tile import random_values
from support.quick import all_but
from support.tile_graphs import Graph
from zoo.class_loss_band_bugs import CLASS_LOSS_BUGS, SCALED_BUGS

from ooctrain.errors import OoctrainError

#: What a slip of a line ends in, where it does not end in wrong numbers.
KILLED = (AssertionError, OoctrainError, ValueError, KeyError, IndexError)
QUICK_LOSS = "the gradient divides by the labels of the band"
QUICK_SCALED = "odd start of an upsampled band"
SCALED = [
    Graph([("bilinear, odd", 0, 0), ("3x3", 0, 0)]),
    Graph([("corners, odd", 0, 0), ("3x3", 0, 0), ("nearest, odd", 0, 0)]),
]


def laws_of_losses() -> None:
    check_total((2, 23, 9), [8, 9], weights=False)
    check_total((2, 23, 9), [8, 9], weights=True)
    for loss in ("plain", "weights", "sum"):
        check_class_loss(loss)


def laws_of_sizes() -> None:
    for graph in SCALED:
        trace = graph_trace(graph, (2, 2, 17, 7))
        assert trace is not None
        banded = Cut((3, 4, 9), again=False).of(trace, "first", "last")
        check_any_data(trace, banded, random_values(trace, 1, integers=None))


@pytest.mark.slow
def test_the_laws_hold_without_bugs() -> None:
    laws_of_losses()
    laws_of_sizes()


@pytest.mark.parametrize("bug", all_but(CLASS_LOSS_BUGS, *{*CLASS_LOSS_BUGS} - {QUICK_LOSS}))
def test_bug_of_losses(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CLASS_LOSS_BUGS[bug](monkeypatch)
    with pytest.raises(KILLED):
        laws_of_losses()


@pytest.mark.parametrize("bug", all_but(SCALED_BUGS, *{*SCALED_BUGS} - {QUICK_SCALED}))
def test_bug_of_sizes(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SCALED_BUGS[bug](monkeypatch)
    with pytest.raises(KILLED):
        laws_of_sizes()
