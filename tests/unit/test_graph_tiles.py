"""Tiles of rows through forks and joins, halos computed again: planner `sft` on graphs.

A small network with all kinds of joins, U-Net and ResNet-18 with standing statistics are tiled. On
small whole numbers float sums are exact in any order, so tiled and
untiled results have equal bits; on any data those of images have. Read next:
`rewrite/tile/graph_tiles.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain import nn
from ooctrain.engine.incore import run_trace
from ooctrain.errors import ConfigError
from ooctrain.models.unet import UNet
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.tile.graph_tiles import graph_calls, rows_computed
from ooctrain.rewrite.tile.offers import OperatorTimes
from ooctrain.rewrite.tile.operators import operators_of
from ooctrain.rewrite.tile.sft import FtSegment
from ooctrain.rewrite.tile.sft_planner import Sft, _extra_of_rows
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.step.machine import call_durations_ns
from ooctrain.step.presets import rtx2080ti
from ooctrain.step.trace import Trace
from ooctrain.testing.tiled.check_tiled import gradient_step, random_values

SCALARS = {"lr": 0.5, "step": 3, "seed": 7}


class Joined(nn.Module):
    """A residual sum, a pooling, a transposed convolution, a skip that is concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.way = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.pool, self.low = nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 4, 3, padding=1)
        self.relu = nn.ReLU()

    def forward(self, x):
        x = self.relu(self.first(x))
        y = self.relu(x + self.way(x))
        z = self.up(self.relu(self.low(self.pool(y))))
        return self.last(oc.functional.concat([y, z], 1))


def ends(trace: Trace) -> tuple[str, str]:
    forward = [call.name for call in trace.calls if call.phase == "forward"]
    return forward[0], forward[-1]


def joined(images: int, rows: int, rewrites: tuple[str, ...] = ()) -> Trace:
    oc.manual_seed(0)
    step = gradient_step(Joined(), (images, 3, rows, 8), conv_algorithm="direct")
    return apply_rewrites(step, rewrites)


def tiled(trace: Trace, tiles: int) -> Trace:
    return apply_rewrites(trace, (":".join((f"tile:{tiles}x1", *ends(trace))),))


def results(trace: Trace, values: dict) -> dict:
    return run_trace(trace, values, SCALARS, "cpu", threads=2)


FUSED = ("fuse", "share_storage")
CASES = [(1, 16, 3, ()), (2, 12, 2, FUSED), (1, 16, 2, FUSED), (2, 12, 5, ()), (1, 10, 16, ())]


@pytest.mark.parametrize("case", quick(CASES, 2), ids=str)
def test_tiles_of_a_graph_have_the_untiled_bits(case: tuple) -> None:
    images, rows, tiles, rewrites = case
    trace = joined(images, rows, rewrites)
    values = random_values(trace, np.random.default_rng(0))
    expected, found = results(trace, values), results(tiled(trace, tiles), values)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert np.array_equal(value, found[name]), name


def test_on_any_data_images_have_the_untiled_bits_and_weights_nearly() -> None:
    """Gradients are gathered: each row of dX is made by one call from all of its terms."""
    trace = joined(1, 16)
    rng = np.random.default_rng(1)
    values = random_values(trace, rng)
    for name, value in values.items():
        if value.dtype == np.float32:
            values[name] = rng.standard_normal(value.shape).astype("float32")
    expected, found = results(trace, values), results(tiled(trace, 4), values)
    images = [name for name, value in expected.items() if value.ndim == 4 and len(value) == 1]
    assert len(images) >= 2  # y and dX
    for name, value in expected.items():
        if name in images and value.shape[2] >= 8:
            assert np.array_equal(value, found[name]), name
        assert np.abs(found[name] - value).max() <= 1e-4 * np.abs(value).max(), name


def test_the_estimate_of_its_rows_is_what_the_tiled_step_computes() -> None:
    """Of convolutions: flops are as many times the untiled ones as rows are computed."""
    trace = joined(1, 32)
    calls = graph_calls(trace, *ends(trace))
    first, again = rows_computed(trace, calls, 4)
    assert all(ratio >= 1 for ratio in first.values())
    assert max(first.values()) > 1  # the halo
    assert max(again.values()) > max(first.values())  # a double halo where gradients gather
    after = tiled(trace, 4)
    for call in calls.forward:
        rows = [
            after.variables[c.outs[0]].shape[2] for c in after.calls
            if c.phase == "forward" and c.name.startswith(f"{call.name}[")
        ]  # fmt: skip
        assert sum(rows) / trace.variables[call.outs[0]].shape[2] == pytest.approx(first[call.id])


def test_a_gradient_of_a_tile_names_the_forward_call_of_its_tile() -> None:
    """As in bands and in the grid: reports count it to its layer."""
    after = tiled(joined(1, 32), 4)
    pairs = [
        (call, after.calls[call.forward_of]) for call in after.calls if call.forward_of is not None
    ]
    assert len(pairs) >= 4 * 6
    for call, forward in pairs:
        assert forward.phase == "forward"
        assert call.name.partition(".")[0] == forward.name.partition(".")[0]


class Padded(nn.Module):
    """Nobody asks for gradients of the padding, so the calls behind it run over fewer rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pad, self.last = nn.Conv2d(3, 4, 1), nn.ZeroPad2d(2), nn.Conv2d(4, 4, 3)
        self.relu, self.leaky = nn.ReLU(), nn.LeakyReLU(0.1)

    def forward(self, x):
        x = self.pad(self.first(x))
        return self.last(self.relu(x) + self.leaky(x))


@pytest.mark.parametrize("model", [Joined, Padded])
def test_the_estimate_of_its_work_is_what_the_tiled_step_computes(model) -> None:
    """Where each operator takes a nanosecond, forward or backward, it is a count of rows."""
    trace = gradient_step(model(), (1, 3, 16, 8), conv_algorithm="direct")
    calls, after = graph_calls(trace, *ends(trace)), tiled(trace, 3)
    operators = operators_of(trace)
    places = [[c.name for c in operators.calls].index(name) for name in ends(trace)]
    segment = FtSegment(*places, ("H",))

    def times_run(call) -> float:
        if calls.rules[call.id].reduces:
            return 1.0
        rows = [
            after.variables[c.outs[0]].shape[2] for c in after.calls
            if c.name.startswith((f"{call.name}[", f"{call.name}.again["))
        ]  # fmt: skip
        return sum(rows) / trace.variables[call.outs[0]].shape[2]

    ones = tuple(1 for _ in operators.calls)
    none = tuple(0 for _ in operators.calls)
    forward = sum(times_run(call) - 1 for call in calls.forward)
    assert _extra_of_rows(operators, segment, 3, OperatorTimes(ones, none, 1)) == pytest.approx(
        forward
    )
    gradients = [
        max((times_run(g) for g in calls.backward if g.forward_of == call.id), default=1.0)
        for call in calls.forward
    ]  # of a sum there is no call: its gradient is that of what it adds
    backward = sum(times - 1 for times in gradients)
    assert min(gradients) < 1 or model is Joined
    assert _extra_of_rows(operators, segment, 3, OperatorTimes(none, ones, 1)) == pytest.approx(
        backward
    )


class PaddedPoints(nn.Module):
    """Layers that read one row, so the first and the last tiles are padding and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pad, self.last = nn.Conv2d(3, 4, 1), nn.ZeroPad2d(2), nn.Conv2d(4, 4, 1)
        self.relu, self.leaky = nn.ReLU(), nn.LeakyReLU(0.5)

    def forward(self, x):
        x = self.pad(self.first(x))
        return self.last(self.relu(x) + self.leaky(x))


def test_a_tile_of_padding_alone_runs_over_one_row_more_and_has_the_untiled_bits() -> None:
    """No kernel runs on zero rows."""
    trace = gradient_step(PaddedPoints(), (1, 3, 16, 8), conv_algorithm="direct")
    after = tiled(trace, 10)
    padded = [c.name for c in after.calls if c.name.startswith("pad.fwd[")]
    assert (padded[0], padded[1], padded[-1]) == (
        "pad.fwd[h 0:3]", "pad.fwd[h 2:4]", "pad.fwd[h 17:20]",
    )  # fmt: skip
    values = random_values(trace, np.random.default_rng(0))
    expected, found = results(trace, values), results(after, values)
    for name, value in expected.items():
        assert np.array_equal(value, found[name]), name


def test_a_norm_of_the_batch_is_no_part_of_a_tile() -> None:
    trace = oc.trace(UNet(2, 3, 4, 2), (1, 3, 16, 16), "mse", threads=1)
    with pytest.raises(ConfigError, match="needs all rows of an image at once") as refused:
        oc.tile(trace, (2, 1), *ends(trace))
    assert "bands:16" in str(refused.value)
    with pytest.raises(ConfigError, match=r"does not lead straight to|cannot be tiled"):
        oc.tile(trace, (2, 2), *ends(trace))


def frozen(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


@pytest.mark.slow
@pytest.mark.parametrize("network", ["unet", "resnet18"])
def test_sft_runs_graphs_exactly(network: str) -> None:
    """With statistics that stand still: loss to the bit, gradients up to the order of sums."""
    oc.manual_seed(0)
    unet = network == "unet"
    model = frozen(UNet(2, 3, 4, 2) if unet else oc.models.build("resnet18", 10, "cifar"))
    trace = oc.trace(
        model, (1, 3, 32, 32), "mse" if unet else "cross_entropy", threads=1,
        conv_algorithm="direct",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    target = rng.standard_normal((1, 2, 32, 32), "float32") if unet else rng.integers(0, 10, 1)
    batch = rng.standard_normal((1, 3, 32, 32), "float32"), target
    whole = oc.execute(oc.plan(trace, "2GiB", planner="keep-all"), model, batch)
    for tiles in (2, 4):
        plan = oc.plan(trace, "2GiB", planner=Sft(tiles=tiles, untiled=False))
        assert plan.rewrites[-1].startswith(f"tile:{tiles}x1:")
        found = oc.execute(plan, model, batch)
        assert found.loss == whole.loss
        for name, gradient in whole.gradients.items():
            largest = np.abs(gradient).max()
            assert np.abs(found.gradients[name] - gradient).max() <= 1e-5 * largest, name


@pytest.mark.slow
def test_sft_fits_a_graph_where_the_step_does_not() -> None:
    trace = oc.trace(frozen(UNet(2, 3, 8, 3)), (1, 3, 512, 512), "mse", threads=1)
    peak = trace_peak_bytes(trace)
    plan = oc.plan(trace, peak // 2, planner="sft", machine="rtx2080ti")
    assert plan.peak_bytes <= peak // 2
    name = plan.notes["tiling"]
    assert name.startswith("tile:")
    assert "x1:inc" in name
    alone = sum(call_durations_ns(trace, rtx2080ti()))
    work = sum(call_durations_ns(plan.trace, rtx2080ti())) / alone
    assert plan.notes["work_over_untiled"] == pytest.approx(work, rel=0.25)  # slices, inserts
