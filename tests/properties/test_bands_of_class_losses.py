"""The law of bands through losses of class numbers: loss and gradients have the untiled bits.

The mean over pixels divides by the labels that count, or by the sum of their weights: of the whole
batch, which no band knows. So the sum and its divisor are carried from band to band, with the
untiled kernel's own accumulator, and there is no bound to state: the loss and the gradient of the
logits, and with it all other gradients but those of convolutions' weights, have the untiled bits on
any data. Planted bugs: `CLASS_LOSS_BUGS` in tests/zoo/class_loss_band_bugs.py. Source:
docs/tiling.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from properties.test_bands import SCALARS
from properties.test_bands_of_norms import check_norms
from support.quick import quick
from support.same_bits import check_same_bits, out_of_core
from support.tile_graphs import Graph, graphs
from unit.test_carried_sums import Device, run_on

import ooctrain as oc
import ooctrain.functional as F
from ooctrain import nn
from ooctrain.engine.incore import initial_values
from ooctrain.execution.fit import prepare
from ooctrain.execution.sessions import input_values
from ooctrain.execution.settings import Settings
from ooctrain.layers.losses import (
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    TotalLoss,
    WeightedCrossEntropy,
    WeightedCrossEntropyGrad,
)
from ooctrain.rewrite.tile.carried_sums import CarriedSum, CarriedTotal, state_bytes
from ooctrain.step.op import Spec
from ooctrain.step.trace import Trace

IGNORED = 255
CLASSES = 5
WEIGHTS = np.array([0.3, 1.7, 0.0, 2.9, 1.1], np.float32)


def _of(**options: Any) -> Callable[[Any, Any], Any]:
    return lambda y, target: F.cross_entropy(y, target, ignore_index=IGNORED, **options)


def _weighted(**options: Any) -> nn.CrossEntropyLoss:
    return nn.CrossEntropyLoss(WEIGHTS, ignore_index=IGNORED, **options)


LOSSES: dict[str, Any] = {
    "plain": _of(),
    "weights": _weighted(),
    "smoothing": _of(label_smoothing=0.2),
    "weights, smoothing": _weighted(label_smoothing=0.2),
    "sum": _of(reduction="sum"),
    "weighted sum": _weighted(reduction="sum"),
    "each by itself": lambda y, target: (_of(reduction="none")(y, target) * 2.0).mean(),
}


LAST = {name: "cross_entropy" if name in ("plain", "sum") else "weighted_cross_entropy"
        for name in LOSSES}  # fmt: skip
#: A skip over pooling and enlarging, norms within.
UNET = Graph([("batch norm", 0, 0), ("3x3", 0, 0), ("pool", 0, 0), ("5x5", 0, 0), ("up", 0, 0),
              ("concat", 0, 3)])  # fmt: skip


def untiled(loss: str, images: int = 2, height: int = 16, width: int = 9) -> Trace:
    """A small net with logits of each pixel."""
    oc.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, CLASSES, 3, padding=1)
    )
    shape = images, 2, height, width
    return oc.trace(
        model, shape, LOSSES[loss], None, threads=2, conv_algorithm="direct",
        target_shape=(images, height, width),
    )  # fmt: skip


def values_of(
    trace: Trace, seed: int, ignored: float = 0.3, classes: int = CLASSES
) -> dict[str, np.ndarray]:
    """Normal numbers; labels, some of them ignored, more of them in the upper rows."""
    rng, values = np.random.default_rng(seed), {}
    for v in (trace.variables[v] for v in trace.initial):
        drawn = rng.standard_normal(v.shape).astype("float32")
        if v.kind == "input" and v.dtype == "int64":
            drawn = rng.integers(0, classes, v.shape)
            rows = np.arange(v.shape[1])[:, None]
            drawn[rng.random(v.shape) < ignored * (1 - rows / v.shape[1])] = IGNORED
        values[v.name] = abs(drawn).astype(v.dtype) if v.kind == "state" else drawn
    return values


def two_classes(loss: str) -> Any:
    """The loss for the graphs' two channels."""
    weighted = "weight" in loss
    options: dict[str, Any] = {"label_smoothing": 0.2} if "smoothing" in loss else {}
    options |= {"reduction": "sum"} if "sum" in loss else {}
    return nn.CrossEntropyLoss(WEIGHTS[:2] if weighted else None, ignore_index=IGNORED, **options)


def check_class_loss(
    loss: str, bands: int = 5, again: bool = False, images: int = 2, size: tuple[int, int] = (16, 9)
) -> None:
    """Everything to the bit but gradients of convolutions' weights."""
    trace = untiled(loss, images, *size)
    banded = oc.tile(trace, (bands, 1), "0", LAST[loss], halo="keep", again=again)
    check_norms(trace, banded, values_of(trace, 0))


@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize("loss", quick(list(LOSSES), 0))
def test_bits_of_the_untiled_loss(loss: str, again: bool) -> None:
    check_class_loss(loss, again=again)


# The total by itself: blocks of 2,048 pixels and chunks of 65,536 that begin within rows


def carried_total(
    op: TotalLoss, arrays: list[np.ndarray], cuts: Sequence[int], device: Device = "cpu"
) -> list[np.ndarray]:
    """What the operation gives, image by image and band by band."""
    run, (n, h, _) = run_on(device), arrays[0].shape
    rows = sorted({0, h, *(cut for cut in cuts if cut < h)})
    specs = [Spec(a.shape, a.dtype.name) for a in arrays]
    outs = op.infer(*specs)
    size_bytes = state_bytes(op, specs, outs, device)
    state: list[np.ndarray] = []
    for image in range(n):
        for lo, hi in pairwise(rows):
            read = [a[image : image + 1, lo:hi] if a.ndim == 3 else a for a in arrays]
            sum_ = CarriedSum(op, arrays[0].shape, (image, lo), size_bytes, bool(state))
            state = run(sum_, [*read, *state])
    vectors = [a for a in arrays if a.ndim < 3]
    shapes = tuple(spec.shape for spec in outs)
    return run(CarriedTotal(op, arrays[0].shape, shapes), [*state, *vectors])


def check_total(
    shape: tuple[int, int, int], cuts: Sequence[int], weights: bool, device: Device = "cpu"
) -> None:
    """The loss of a step without bands, and the gradient by what it is divided by."""
    n, h, w = shape
    rng = np.random.default_rng(h * w)
    logits = rng.standard_normal((n, CLASSES, h, w)).astype("float32")
    labels = rng.integers(0, CLASSES, shape)
    labels[rng.random(shape) < 0.3] = IGNORED
    own = [WEIGHTS] if weights else []
    loss = (WeightedCrossEntropy if weights else SoftmaxCrossEntropy)(IGNORED)
    grad = (WeightedCrossEntropyGrad if weights else SoftmaxCrossEntropyGrad)(IGNORED)
    expected, lse = run_on(device)(loss, [logits, labels, *own])
    each_op = WeightedCrossEntropy(IGNORED, 0.0, "none")
    ones = own or [np.ones(CLASSES, np.float32)]
    each, same_lse = run_on(device)(each_op, [logits, labels, *ones])
    found, divisor = carried_total(TotalLoss(IGNORED), [each, labels, *own], cuts, device)
    assert np.array_equal(found, expected), f"the loss {found} is not {expected}"
    assert np.array_equal(lse, same_lse)
    read = [logits, labels, *own, lse, np.float32(0.7)]
    (dx,), (dx_by_divisor,) = (run_on(device)(grad, [*read, *d]) for d in ([], [divisor]))
    assert np.array_equal(dx, dx_by_divisor), "the gradient by the carried divisor differs"


@pytest.mark.parametrize("weights", [False, True])
def test_the_total_of_a_few_bands(weights: bool) -> None:
    check_total((2, 23, 9), [8, 9], weights)


@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 900)),
    st.lists(st.integers(1, 39), max_size=6), st.booleans(),
)  # fmt: skip
@example((2, 23, 9), [8, 9], False)
@example((2, 40, 900), [1, 2, 17, 33], True)
def test_the_total_of_bands(shape: tuple[int, int, int], cuts: list[int], weights: bool) -> None:
    check_total(shape, cuts, weights)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [False, True])
def test_the_total_of_bands_on_a_gpu(weights: bool) -> None:
    check_total((2, 11, 37), [3, 4, 9], weights, "cuda")


# Whole networks


@pytest.mark.slow
@settings(max_examples=25)
@given(
    graphs(norms=True), st.integers(1, 9), st.booleans(),
    st.sampled_from(sorted({*LAST} - {"each by itself"})), st.integers(0, 9),
)  # fmt: skip
@example((UNET, (2, 2, 26, 12)), 5, True, "weights", 0)
def test_graphs_with_losses(graph: Any, bands: int, again: bool, loss: str, seed: int) -> None:
    """From the first layer to the loss, nothing whole in between."""
    model, image = graph
    try:
        trace = oc.trace(model, image, two_classes(loss), None, threads=2, conv_algorithm="direct")
        oc.tile(trace, (1, 1), "first", LAST[loss], halo="keep")
    except (oc.errors.ShapeError, oc.errors.ConfigError):
        reject()
    banded = oc.tile(trace, (bands, 1), "first", LAST[loss], halo="keep", again=again)
    check_norms(trace, banded, values_of(trace, seed, classes=2))


def test_labels_lie_in_blocks_and_are_checked() -> None:
    """No image is whole, neither labels nor losses; a label that is not a class is refused."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    shape = (2, 2, 16, 12)
    trace = oc.trace(model, shape, "cross_entropy", threads=2)
    banded = oc.tile(trace, (4, 1), "0", "cross_entropy", halo="keep")
    whole = {shape, (2, 3, 16, 12), (2, 4, 16, 12), (2, 16, 12)}
    assert not whole & {v.shape for v in banded.variables}
    x, y = np.zeros(shape, np.float32), np.zeros((2, 16, 12), np.int64)
    y[1, 9, 3] = 7
    with pytest.raises(oc.errors.ConfigError, match="label 7 is not one of the 3 classes"):
        input_values(banded, x, y)


@pytest.mark.slow
@pytest.mark.parametrize("planner", ["naive", "belady", "prefix"])
def test_out_of_core_as_in_core(planner: str) -> None:
    """Batch norm, a skip, a loss per pixel: the same bits under any plan, two steps long."""
    oc.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1),
    )  # fmt: skip
    shape, rng = (1, 2, 48, 40), np.random.default_rng(0)
    step = oc.trace(model, shape, "cross_entropy", threads=2)
    batches = [
        (rng.standard_normal(shape, np.float32), rng.integers(0, 3, (1, 48, 40))) for _ in range(2)
    ]
    banded = oc.tile(step, (6, 1), "0", "cross_entropy", halo="keep", again=False)
    found = []
    for how, budget in (("keep-all", None), (planner, "80KiB")):
        given_ = Settings(
            budget=budget, planner=how, allocator="best-fit", device="cpu", time_limit_s=None,
            machine="cpu-generic",
        )  # fmt: skip
        start = initial_values(banded, model)
        found.append(out_of_core(prepare(banded, given_), given_, start, batches, SCALARS))
    check_same_bits(*found)
