"""Traces in bands as traces: what is kept, what runs again, how they are planned, what is refused.

Values are the business of tests/properties/test_bands.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
from support.check_tile import SCALARS, chain_trace, random_values
from support.quick import quick

import ooctrain as oc
from ooctrain import nn
from ooctrain.engine.incore import run_trace
from ooctrain.errors import ConfigError
from ooctrain.layers.combine import Concat
from ooctrain.layers.regions import Slice
from ooctrain.layers.resampling import Upsample, UpsampleGrad
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.tile import tile, tile_by_name
from ooctrain.rewrite.tile.frontier import computable, even_cuts, rounded
from ooctrain.rewrite.tile.on_rows import OnRows
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.step.blocks import tensor_of
from ooctrain.step.op import Spec, row_rule_of
from ooctrain.step.rows import Read, RowPlace, RowsRead, ScaledRows, Span, Window
from ooctrain.step.trace import Trace


def vgg_like() -> nn.Sequential:
    oc.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
    )  # fmt: skip


def classifier() -> nn.Sequential:
    return nn.Sequential(vgg_like(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def step() -> Trace:
    return oc.trace(classifier(), (2, 3, 32, 32), threads=2, conv_algorithm="direct")


# Rows


SIZES = [(rows, outputs) for rows in range(1, 7) for outputs in range(1, 7)]


@pytest.mark.parametrize("size", [*SIZES, (3, 12), (12, 3), (5, 8)], ids=str)
@pytest.mark.parametrize("how", [("nearest", False), ("bilinear", False), ("bilinear", True)])
def test_a_band_of_a_resized_image_is_made_of_the_rows_that_it_reads(how, size):
    """Larger, smaller, by whole factors and others, and the gradients of them."""
    rows, outputs = size
    rng = np.random.default_rng(0)
    forward, back = Upsample((outputs, 3), *how), UpsampleGrad((rows, 2), *how)
    for op, x in (
        (forward, rng.standard_normal((1, 2, rows, 2))),
        (back, rng.standard_normal((1, 2, outputs, 3))),
    ):
        rule, (whole,) = row_rule_of(op, [Spec(x.shape)]), op.reference(x, scalars={})
        # Where a pixel becomes several, a band ends where one of them does.
        whole_factor = op is forward and how[0] == "nearest" and outputs % rows == 0
        borders = range(0, whole.shape[2] + 1, outputs // rows if whole_factor else 1)
        for lo, hi in combinations(borders, 2):
            read = rule.reads[0].read(Span(lo, hi), x.shape[2])
            expected = whole[:, :, lo:hi]
            if read.inside.extent:
                place = RowPlace(0, Span(lo, hi), read.pad_lo, read.pad_hi, whole.shape)
                (found,) = rule.cut(place).reference(
                    x[:, :, read.inside.lo : read.inside.hi], scalars={}
                )
                assert found == pytest.approx(expected, rel=1e-12, abs=1e-12), (op, lo, hi)
            else:
                assert not expected.any(), (op, lo, hi)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("gathers", [False, True])
def test_before_the_first_row_of_a_resized_image_nothing_is_read(mode, gathers) -> None:
    read = ScaledRows(mode, False, (0, 4, 0, 8), gathers)
    extent = 8 if gathers else 4
    assert read.stop(0, extent) == 0 < read.stop(1, extent)


def test_rows_that_a_window_reads_by_hand() -> None:
    read = RowsRead(Window(kernel=3, stride=2, pad_lo=1, pad_hi=1))
    assert read.read(Span(0, 2), 9) == Read(Span(0, 4), 1, 0)
    assert (read.first(2, 9), read.stop(2, 9)) == (3, 4)


def test_a_frontier_at_multiples_of_rows_by_hand() -> None:
    """Both ends stay where they are; nothing comes behind the last row."""
    assert rounded((0, 5, 8, 11, 14), 4, upwards=False) == (0, 4, 8, 8, 14)
    assert rounded((0, 5, 8, 13, 14), 4, upwards=True) == (0, 8, 8, 14, 14)


def test_rows_that_a_gradient_gathers_by_hand() -> None:
    """Window o lies over rows 2 o - 1 to 2 o + 1: row 3 is read by windows 1 and 2."""
    read = RowsRead(Window(kernel=3, stride=2, pad_lo=1, pad_hi=1), gathers=True)
    assert read.read(Span(3, 4), 5) == Read(Span(1, 3), 2, 2)
    assert (read.first(3, 5), read.stop(3, 5)) == (1, 2)


@pytest.mark.parametrize(("rows", "outputs"), [(0, 0), (1, 0), (2, 1), (3, 2), (7, 6), (8, 8)])
def test_computable_rows_recede_by_the_halo(rows: int, outputs: int) -> None:
    assert computable(rows, RowsRead(Window(kernel=3, pad_lo=1, pad_hi=1)), 8, 8) == outputs


def test_there_are_no_more_bands_than_rows() -> None:
    assert even_cuts(5, 3) == (0, 1, 3, 5)
    assert even_cuts(2, 9) == (0, 1, 2)
    with pytest.warns(UserWarning, match="bands_again:99 makes 4 bands"):
        few = tile(chain_trace(vgg_like(), (1, 3, 4, 8)), (99, 1), halo="keep")
    assert sum(c.name.startswith("0.fwd[") for c in few.calls) == 3  # the first band has no output


# The trace


def test_the_trace_in_bands_is_whole() -> None:
    plain = step()
    for again in (False, True):
        banded = tile(plain, (4, 1), halo="keep", again=again)
        banded.check()
        assert banded.outputs.keys() == plain.outputs.keys()
        for name, v in plain.outputs.items():
            assert banded.variables[banded.outputs[name]].shape == plain.variables[v].shape
        initial = [{tensor_of(t.variables[v].name) for v in t.initial} for t in (plain, banded)]
        assert initial[0] == initial[1]


def test_forward_calls_run_again_only_where_asked() -> None:
    plain = chain_trace(vgg_like(), (1, 3, 32, 16))
    again, once = (tile(plain, (4, 1), halo="keep", again=again) for again in (True, False))
    assert any(".again" in c.name for c in again.calls)
    assert not any(".again" in c.name for c in once.calls)
    convolutions = [c for c in once.calls if ".fwd" in c.name and c.name.startswith("2.")]
    assert len(convolutions) == 4


def test_each_backward_call_names_its_forward_call() -> None:
    banded = tile(chain_trace(vgg_like(), (1, 3, 32, 16)), (4, 1), halo="keep")
    gradients = [c for c in banded.calls if c.forward_of is not None]
    assert gradients
    for call in gradients:
        layer, *_ = banded.calls[call.forward_of].name.split(".")
        assert call.name.startswith(f"{layer}.")


def test_more_bands_need_less_and_no_row_is_computed_twice() -> None:
    plain = chain_trace(vgg_like(), (1, 3, 128, 64), conv_algorithm="direct")
    banded = [tile(plain, (n, 1), halo="keep") for n in (1, 2, 4, 8)]
    peaks = [trace_peak_bytes(trace) for trace in banded]
    assert peaks == sorted(peaks, reverse=True)
    work = [flops_of(trace, "forward") for trace in (plain, *banded)]
    assert len(set(work)) == 1
    tiles = tile(plain, (8, 1))
    assert flops_of(tiles, "forward") > work[0]


def flops_of(trace: Trace, phase: str) -> int:
    """Arithmetic of the convolutions of a phase."""
    total = 0
    for call in trace.calls:
        if call.phase == phase and "conv2d" in call.op.name and ".again" not in call.name:
            ins, outs = ([trace.variables[v] for v in side] for side in (call.ins, call.outs))
            total += call.op.flops(ins, outs)
    return total


def test_tiles_with_recomputed_halos_may_run_forward_once() -> None:
    plain = chain_trace(vgg_like(), (2, 3, 17, 13), conv_algorithm="direct")
    values = random_values(plain, 0, integers=None)
    once, again = (tile(plain, (3, 2), again=again) for again in (False, True))
    assert len(once.calls) < len(again.calls)
    found = [run_trace(trace, values, SCALARS, threads=2) for trace in (once, again)]
    for name, value in found[0].items():
        assert np.array_equal(value, found[1][name]), name


def test_evaluation_runs_forward_in_bands() -> None:
    plain = oc.trace(
        vgg_like(), (2, 3, 16, 16), loss=None, optimizer=None, training=False, threads=2
    )
    banded = tile(plain, (3, 1), halo="keep")
    assert {c.phase for c in banded.calls} == {"forward"}
    assert list(banded.outputs)[:2] == ["output[n 0, h 0:3]", "output[n 0, h 3:8]"]
    assert {tensor_of(name) for name in banded.outputs} == {"output"}
    values = random_values(plain)
    found, expected = (run_trace(t, values, {}, threads=2) for t in (banded, plain))
    assert np.array_equal(found["output"], expected["output"])


@pytest.mark.parametrize(("width", "copies"), [(4, False), (5, True)])
def test_a_gpu_reads_rows_in_place_where_they_begin_with_a_whole_group(width, copies) -> None:
    """A group is four elements: rows of 5 x 3 that begin elsewhere are copied before."""
    model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1))
    trace = oc.trace(model, (2, 3, 12, width), "mse", device="cuda", threads=1)
    tiled = apply_rewrites(trace, ("bands:4:0.fwd:2.fwd",))
    views = [
        (*view, tiled.variables[v].shape) for call in tiled.calls if isinstance(call.op, OnRows)
        for v, view in zip(call.ins, call.op.views, strict=False) if view is not None
    ]  # fmt: skip
    assert views
    for image, row, _, (_, channels, height, columns) in views:
        assert (image * height + row) * channels * columns % 4 == 0
    assert any(isinstance(call.op, Concat) for call in tiled.calls) == copies


def test_two_segments() -> None:
    both = tile(tile(step(), (2, 1), "0.0", "0.3", halo="keep"), (2, 1), "0.4", "0.6", halo="keep")
    both.check()
    names = {v.name for v in both.variables}
    assert not names & {"0.2.out", "0.3.out"}
    assert {n for n in names if tensor_of(n) == "0.3.out"} > {"0.3.out[n 0, h 0:14]"}


# Plans


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((2, 3, 32, 32)).astype("float32"), rng.integers(0, 4, 2)


@pytest.mark.parametrize(
    "rewrites",
    quick(
        [
            ("bands:4", "fuse", "share_storage"),
            ("fuse", "share_storage", "bands:4:0.0:0.6"),
            ("bands_again:4", "share_storage"),
            ("bands:3:0.0:0.3", "share_storage", "tile:2x2:0.4:0.6"),
        ],
        3,
    ),
    ids=["first", "last", "again", "bands and tiles"],
)
def test_plans_keep_to_their_ledger_and_all_have_the_same_bits(rewrites: tuple[str, ...]) -> None:
    network, trace = classifier(), step()
    plain = oc.execute(oc.plan(trace, "1GiB", planner="keep-all"), network, batch())
    least = trace_minimum_bytes(apply_rewrites(trace, rewrites))
    found = []
    for planner, budget in (("keep-all", "1GiB"), ("window", 2 * least), ("naive", least)):
        plan = oc.plan(trace, budget, planner=planner, rewrites=rewrites)
        oc.verify(plan, trace, budget)
        run = oc.execute(plan, network, batch())
        assert run.timeline.peak_bytes == plan.peak_bytes
        found.append(run.gradients)
    for name, gradient in plain.gradients.items():
        assert all(np.array_equal(found[0][name], other[name]) for other in found[1:]), name
        assert found[0][name] == pytest.approx(gradient, rel=1e-4, abs=1e-6), name


@pytest.mark.slow
def test_bands_fit_where_no_call_of_the_untiled_step_fits() -> None:
    trace = oc.trace(classifier(), (1, 3, 128, 64), threads=2, conv_algorithm="direct")
    untiled, banded = (
        trace_minimum_bytes(apply_rewrites(trace, names)) for names in ((), ("bands:16",))
    )
    assert banded < untiled / 2
    with pytest.raises(oc.Infeasible):
        oc.plan(trace, (untiled + banded) // 2, planner="naive", rewrites=())
    plan = oc.plan(trace, (untiled + banded) // 2, planner="naive", rewrites=("bands:16",))
    assert plan.peak_bytes <= (untiled + banded) // 2


# Refusals


def test_bands_are_as_wide_as_the_image() -> None:
    with pytest.raises(ConfigError, match="as wide as the image") as caught:
        tile(step(), (4, 2), halo="keep")
    assert "grid=(8, 1)" in caught.value.fix


def test_there_are_two_kinds_of_halo() -> None:
    with pytest.raises(ConfigError, match="neither 'recompute' nor 'keep'"):
        tile(step(), (4, 1), halo="both")


@pytest.mark.parametrize("grid", [(0, 1), (-1, 1), (2.5, 1), 4])
def test_the_number_of_bands_is_positive(grid: object) -> None:
    with pytest.raises(ConfigError, match="two numbers of tiles"):
        tile(step(), grid, halo="keep")


@pytest.mark.parametrize("name", ["bands", "bands:", "bands:4x4", "bands:0x", "bands:4:a:b:c"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a tiling"):
        tile_by_name(step(), name)


def test_an_unknown_layer() -> None:
    with pytest.raises(ConfigError, match="no forward call is named 'conv9'"):
        tile(step(), (4, 1), "conv9", halo="keep")


def test_what_runs_in_bands_is_not_cut_again() -> None:
    banded = tile(step(), (2, 1), halo="keep")
    with pytest.raises(ConfigError):
        tile(banded, (2, 1), "0.0", "0.6", halo="keep")


def test_an_average_that_counts_cells_of_the_image_is_named() -> None:
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.AvgPool2d(3, 2, 1, count_include_pad=False)
    trace = chain_trace(nn.Sequential(*layers), (1, 3, 12, 12))
    with pytest.raises(ConfigError, match=r"'1\.grad' cannot run in bands") as caught:
        tile(trace, (2, 1), halo="keep")
    assert "with_padding" in caught.value.fix
    tile(trace, (2, 1)).check()


@dataclass(frozen=True)
class Half(oc.Op):
    """A user's operation with a tile rule, but no rule for its gradient."""

    def shape(self, x):
        return x

    def forward(self, x):
        return x / 2

    def backward(self, dy):
        return dy / 2

    def window(self):
        return Window(), Window()


class Halved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        return Half()(self.conv(x))


def test_an_operation_of_ones_own_needs_a_rule_for_its_gradient_too() -> None:
    with pytest.raises(ConfigError, match="cannot run in bands: it has no tile rule"):
        tile(chain_trace(Halved(), (1, 3, 8, 8)), (2, 1), halo="keep")


def sums_images_of_one_pixel(images: int) -> Trace:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 5), nn.ReLU(), nn.Conv2d(1, 1, 1))
    return chain_trace(model, (images, 1, 5, 5), conv_algorithm="direct")


def test_a_bias_that_sums_images_of_one_pixel_is_refused() -> None:
    """Kernels add them in one block: bands read beyond their pixel, for a wrong gradient."""
    with pytest.raises(ConfigError, match="it adds images of one pixel in one block") as caught:
        tile(sums_images_of_one_pixel(2), (2, 1), halo="keep")
    assert caught.value.code == "OOC-113"
    whole = sums_images_of_one_pixel(1)
    values = random_values(whole, 0, integers=1)
    found = run_trace(tile(whole, (2, 1), halo="keep"), values, SCALARS)
    for name, value in run_trace(whole, values, SCALARS).items():
        assert np.array_equal(value, found[name]), name


@dataclass(frozen=True)
class Shifted(oc.Op):
    """Claims to read one row for each row, and gives one less."""

    def shape(self, x):
        return (*x[:2], max(x[2] - 1, 1), x[3])

    def forward(self, x):
        return x[:, :, : max(x.shape[2] - 1, 1)]

    def window(self):
        return Window(), Window()


class WithShift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        return Shifted()(self.conv(x))


def test_a_row_rule_that_lies_is_found_out() -> None:
    trace = oc.trace(
        WithShift(), (1, 3, 9, 8), loss=None, optimizer=None, training=False, threads=2
    )
    with pytest.raises(ConfigError, match=r"the row rule of .* is wrong"):
        tile(trace, (3, 1), halo="keep")


# Graphs


class Residual(nn.Module):
    """Two blocks with a shortcut, the second one coarser."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.conv3, self.short = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(3, 6, 1, 2)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        x = oc.functional.relu(self.conv2(oc.functional.relu(self.conv1(x))) + x)
        x = oc.functional.relu(self.conv3(x) + self.short(x))
        return self.head(oc.functional.adaptive_avg_pool2d(x, 1).flatten(1))


@pytest.mark.parametrize("name", ["bands:4", "bands_again:4"])
def test_a_residual_network_runs_in_bands_before_and_after_fusing(name: str) -> None:
    oc.manual_seed(0)
    network = Residual()
    trace = oc.trace(network, (2, 3, 24, 16), threads=2, conv_algorithm="direct")
    sums = [c.name for c in trace.calls if c.op.name == "add" and c.phase == "forward"]
    segment = f"{name}:conv1:{sums[-1]}"
    rng = np.random.default_rng(0)
    data = rng.standard_normal((2, 3, 24, 16)).astype("float32"), rng.integers(0, 4, 2)
    plain = oc.execute(oc.plan(trace, "1GiB", planner="keep-all"), network, data)
    for rewrites in ((segment, "fuse", "share_storage"), ("fuse", "share_storage", segment)):
        plan = oc.plan(trace, "1GiB", planner="keep-all", rewrites=rewrites)
        run = oc.execute(plan, network, data)
        assert run.loss == plain.loss
        for key, gradient in plain.gradients.items():
            assert run.gradients[key] == pytest.approx(gradient, rel=1e-4, abs=1e-6), key


def test_what_leads_nowhere_is_no_segment() -> None:
    with pytest.raises(ConfigError, match=r"no way leads from '0\.5\.fwd' to '0\.0\.fwd'"):
        tile(step(), (2, 1), "0.5", "0.0", halo="keep")


@pytest.mark.parametrize("again", [False, True])
def test_rows_that_are_there_as_a_value_are_not_copied(again):
    banded = tile(step(), (4, 1), halo="keep", again=again)
    copies = [call.op for call in banded.calls if isinstance(call.op, Slice)]
    assert copies
    assert not [op for op in copies if op.shape == op.full]


@pytest.mark.parametrize("bands", [5, 16])
def test_bands_that_run_again_join_no_rows_however_thin_they_are(bands):
    """They write their rows beside those that were kept, and what the next one needs is cut out of
    that one value."""
    banded = tile(chain_trace(vgg_like(), (1, 3, 16, 8)), (bands, 1), halo="keep", again=True)
    assert any(".slice" in call.name for call in banded.calls)
    assert not [call.name for call in banded.calls if ".join" in call.name]


def test_who_reads_values_as_they_are_is_the_untiled_operation() -> None:
    """Rows are named where some of a value are read, and pieces where there are several."""
    banded = tile(step(), (3, 1), halo="keep")
    on_rows = [call.op for call in banded.calls if isinstance(call.op, OnRows)]
    assert on_rows
    for op in on_rows:
        assert any(op.views) or op.pieces or op.above or op.below
        assert not op.pieces or max(op.pieces) > 1


def test_a_whole_is_named_after_the_rows_that_have_come_into_it_last() -> None:
    banded = tile(step(), (3, 1), halo="keep")
    inserts = [call for call in banded.calls if ".insert[" in call.name]
    assert len(inserts) == 2 * 3
    for call in inserts:
        tensor, _, rows = call.name.partition(".insert[")
        (out,) = (banded.variables[v].name for v in call.outs)
        assert out in (f"{tensor}[with {rows}", tensor)
