"""The law of bands through losses and means: gradients have the untiled bits.

A mean divides by the pixels of the whole image. The loss is a sum over bands, so its floats are
added in another order: it is within twice the bound of one sum, and equal to the bit on whole
numbers whose count is a power of two. Global average pooling is a sum over rows, too. Planted bugs:
`LOSS_BAND_BUGS` in tests/zoo/norm_band_bugs.py. Source: docs/tiling.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from properties.test_bands import UNIT, results
from properties.test_bands_of_norms import bounds_of_weights
from support.check_tile import chain_trace, random_values
from support.quick import quick

import ooctrain as oc
import ooctrain.functional as F
from ooctrain import nn
from ooctrain.step.trace import Trace

SHAPE = (2, 2, 16, 8)


def weighted(y: Any, target: Any) -> Any:
    """Cross-entropy of each pixel, weighted by channel and by target."""
    each = F.binary_cross_entropy_with_logits(y, target, reduction="none")
    return (each * (target + 2.0)).mean()


LOSSES: dict[str, tuple[str | Callable[[Any, Any], Any], str]] = {
    "mse": ("mse", "mean_error"),
    "l1": ("l1", "mean_error"),
    "each by itself": (F.binary_cross_entropy_with_logits, "sum"),
    "weighted": (weighted, "sum"),
    "smooth": (F.smooth_l1_loss, "sum"),
}


def untiled(loss: str | Callable[[Any, Any], Any], *layers: nn.Module) -> Trace:
    oc.manual_seed(0)
    model = nn.Sequential(*(layers or (nn.Conv2d(2, 3, 3, padding=1), nn.ReLU())),
                          nn.Conv2d(3, 2, 3, padding=1))  # fmt: skip
    return oc.trace(
        model, SHAPE, loss, None, threads=2, conv_algorithm="direct", target_shape=SHAPE
    )


def check_loss(name: str, again: bool) -> None:
    """Gradients to the bit, the loss within its bound."""
    loss, last = LOSSES[name]
    trace = untiled(loss)
    banded = oc.tile(trace, (5, 1), "0", last, halo="keep", again=again)
    values = random_values(trace, 0, integers=None)
    expected, got = results(trace, values), results(banded, values)
    n = np.prod(SHAPE)
    bounds = bounds_of_weights(trace, values)
    bounds["loss"] = 2 * n * UNIT / (1 - n * UNIT) * np.abs(expected["loss"])
    for output, value in expected.items():
        error = np.abs(value.astype("float64") - got[output])
        assert np.all(error <= bounds.get(output, 0.0)), f"{output}: off by {error.max()}"


@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize("name", quick(list(LOSSES), 0, 3))
def test_losses_on_any_data(name: str, again: bool) -> None:
    check_loss(name, again)


@pytest.mark.parametrize("name", ["mse", "l1"])
def test_losses_on_whole_numbers(name: str) -> None:
    loss, last = LOSSES[name]
    trace = untiled(loss)
    banded = oc.tile(trace, (5, 1), "0", last, halo="keep")
    values = random_values(trace, 0, integers=1)
    expected, got = results(trace, values), results(banded, values)
    for output, value in expected.items():
        assert np.array_equal(value, got[output]), f"{output} differs"


def check_global_pooling(images: int = 3) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    trace = chain_trace(model, (images, 2, 16, 8), conv_algorithm="direct")
    banded = oc.tile(trace, (5, 1), "0", "2", halo="keep")
    values = random_values(trace, 0, integers=None)
    expected, got = results(trace, values), results(banded, values)
    for output in ("grad:x", "grad:0.bias"):
        assert np.array_equal(expected[output], got[output]), f"{output} differs"
    n = 16 * 8
    bound = 2 * n * UNIT / (1 - n * UNIT) * np.abs(expected["y"])  # behind ReLU all terms are >= 0
    assert np.all(np.abs(expected["y"] - got["y"]) <= bound)


@pytest.mark.parametrize("images", [1, 3])
def test_global_average_pooling_is_a_sum_over_rows(images: int) -> None:
    check_global_pooling(images)


def test_no_whole_prediction_is_left() -> None:
    """With the loss in the segment, neither what it reads nor its gradient exists as a whole."""
    trace = untiled("mse")
    banded = oc.tile(trace, (4, 1), "0", "mean_error", halo="keep")
    whole = {v.name for v in banded.variables if v.shape == SHAPE}
    assert whole <= {"input", "target"}
