"""Paper 003, sections 4.1 to 4.3: dimension maps, segments, sizes of tiles, the planner `sft`.

Tried are operations of table 3, the four operators of figure 6 and small networks. A dimension map
is a claim about what a slice of the output depends on, so it is tried: one
element of the input is changed, and only what the map allows may change in the output.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.check_tile import chain_trace

import ooctrain as oc
from ooctrain import nn
from ooctrain.layers.batch_norm import BatchNormApply
from ooctrain.layers.combine import Concat
from ooctrain.layers.conv2d import Conv2d, Geometry
from ooctrain.layers.layout import Reshape
from ooctrain.layers.linear import Linear
from ooctrain.layers.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d, PoolGeometry
from ooctrain.layers.relu import ReLU
from ooctrain.layers.softmax import SoftmaxAlong
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.tile.dimensions import WHOLE, loop_nest
from ooctrain.rewrite.tile.offers import Offer
from ooctrain.rewrite.tile.operators import dominators, operators_of, post_dominators
from ooctrain.rewrite.tile.sft import (
    FtSegment,
    find_segments,
    ft_dimensions,
    gathered_spans,
    must_tile,
    need_bytes,
    tile_spans_of,
)
from ooctrain.rewrite.tile.sft_planner import Sft, at_least_bytes, tile_bytes
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.op import Op, Spec, can_be_tiled
from ooctrain.step.presets import rtx2080ti
from ooctrain.step.rows import Span, Window

IMAGE = Spec((2, 3, 8, 8))
CONV = Conv2d(Geometry((1, 1), (1, 1, 1, 1)), (3, 3), "direct")
POOL = MaxPool2d(PoolGeometry((2, 2), (2, 2)))
WEIGHT = Spec((4, 3, 3, 3))

#: operation, its inputs, loops of the input, iteration space, loops of the output: our table 3.
#: Where the print has other ones, the reason stands behind.
TABLE_3 = [
    pytest.param(
        Linear(), (Spec((2, 6)), Spec((5, 6))), ("B", "C"), ("B", "C", "K"), ("B", "K"), id="linear"
    ),
    pytest.param(
        CONV, (IMAGE, WEIGHT), ("B", "C", "H", "W"), ("B", "C", "K", "H", "W"),
        ("B", "K", "H", "W"), id="convolution",
    ),
    pytest.param(
        POOL, (IMAGE,), ("B", "C", "H", "W"), ("B", "C", "H", "W"), ("B", "C", "H", "W"),
        id="max pool, channel tiles included",
    ),
    # Printed with all of C at once; but each channel has a mean of its own.
    pytest.param(
        AdaptiveAvgPool2d((1, 1)), (IMAGE,), ("B", "C", WHOLE, WHOLE), ("B", "C"),
        ("B", "C", WHOLE, WHOLE), id="global average pool, differs",
    ),
    pytest.param(
        ReLU(), (IMAGE,), ("B", "C", "H", "W"), ("B", "C", "H", "W"), ("B", "C", "H", "W"),
        id="relu, channel tiles included",
    ),
    # Printed with channel tiles and whole images; but it couples channels and nothing else.
    pytest.param(
        SoftmaxAlong(1), (IMAGE,), ("B", WHOLE, "H", "W"), ("B", "H", "W"),
        ("B", WHOLE, "H", "W"), id="softmax, differs",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("op", "ins", "read", "loops", "written"), TABLE_3)
def test_table_3(op: Op, ins: tuple, read: tuple, loops: tuple, written: tuple) -> None:
    nest = loop_nest(op, ins, op.infer(*ins)[0])
    assert nest is not None
    assert (nest.ins[0].loops, nest.loops, nest.out.loops) == (read, loops, written)
    assert nest.ins[1:] == (None,) * (len(ins) - 1)  # weights do not flow


def test_table_4() -> None:
    """Sigma and delta of rows and columns; of batch and channels 1 and 0."""
    conv = loop_nest(CONV, (IMAGE, WEIGHT), Spec((2, 4, 8, 8))).ins[0]
    assert [(conv.scale(d), conv.delta(d)) for d in range(4)] == [(1, 0), (1, 0), (1, 2), (1, 2)]
    pool = loop_nest(POOL, (IMAGE,), Spec((2, 3, 4, 4))).ins[0]
    assert [(pool.scale(d), pool.delta(d)) for d in range(4)] == [(1, 0), (1, 0), (2, 0), (2, 0)]
    overlapping = MaxPool2d(PoolGeometry((3, 3), (2, 2), (1, 1, 1, 1)))
    tensor = loop_nest(overlapping, (IMAGE,), overlapping.infer(IMAGE)[0]).ins[0]
    assert (tensor.scale(2), tensor.delta(2)) == (2, 1)  # the erratum: k - s, not 0


MAPPED = [
    (CONV, (IMAGE, WEIGHT)),
    (Conv2d(Geometry((2, 1), (0, 1, 1, 0), (1, 2)), (3, 3), "direct"), (IMAGE, WEIGHT)),
    (POOL, (IMAGE,)),
    (AvgPool2d(PoolGeometry((3, 3), (2, 2), (1, 1, 1, 1))), (IMAGE,)),
    (AdaptiveAvgPool2d((1, 1)), (IMAGE,)),
    (ReLU(), (IMAGE,)),
    (SoftmaxAlong(1), (IMAGE,)),
    (SoftmaxAlong(0), (Spec((4, 3)),)),
    (Linear(), (Spec((2, 6)), Spec((5, 6)))),
    (Concat(1), (IMAGE, IMAGE)),
    (Concat(2), (IMAGE, IMAGE)),
    (Reshape(IMAGE.shape, (2, 192)), (IMAGE,)),
]


@pytest.mark.parametrize(("op", "ins"), MAPPED, ids=lambda value: getattr(value, "name", ""))
def test_a_slice_depends_on_what_its_map_says_and_on_nothing_else(op: Op, ins: tuple) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(spec.shape) for spec in ins]
    before, nest = op.reference(*arrays, scalars={})[0], loop_nest(op, ins, op.infer(*ins)[0])
    for (position, dim), out_dim in nest.connections().items():
        window = nest.ins[position].windows.get(dim, Window())
        for i in range(ins[position].shape[dim]):
            changed = [a.copy() for a in arrays]
            np.moveaxis(changed[position], dim, 0)[i] += 10.0
            after = op.reference(*changed, scalars={})[0]
            rows = np.moveaxis(after != before, out_dim, 0).reshape(before.shape[out_dim], -1)
            for o in np.flatnonzero(rows.any(axis=1)):
                first = o * window.stride - window.pad_lo
                last = first + (window.kernel - 1) * window.dilation
                assert first <= i <= last, f"{op.name}: output {o} reads input {i} of axis {dim}"


# Figure 6 and listing 3


def operators(model: nn.Module, image: tuple[int, ...]):
    return operators_of(chain_trace(model, image, conv_algorithm="direct"))


def figure_6():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
    )  # fmt: skip
    return operators(model, (2, 3, 16, 16))


def test_figure_6() -> None:
    """B connects all four operators; B, H and W the first three; a convolution mixes channels."""
    graph = figure_6()
    assert ft_dimensions(graph, 0, 3) == ("B",)
    assert ft_dimensions(graph, 0, 2) == ("B", "H", "W")
    assert ft_dimensions(graph, 2, 2) == ("B", "C", "H", "W")


def test_segments_end_at_the_first_operator_that_fits() -> None:
    graph = figure_6()
    needs = [need_bytes(graph, i) for i in range(4)]
    assert needs[:2] == [2 * 256 * 4 * 11, 2 * 256 * 4 * 12]
    assert needs[2:] == [2 * 4 * (256 * 4 + 64 * 4 + 64 + 64 * 4), 4 * 2 * 4 * (64 + 2)]
    assert must_tile(graph, needs[2]) == [True, True, False, False]
    (segment,) = find_segments(graph, needs[2])
    assert (segment.start, segment.end, segment.dimensions) == (0, 2, ("B", "H", "W"))
    assert find_segments(graph, max(needs)) == ()


class Residual(nn.Module):
    """A fork, one way with a convolution, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.way = nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.after = nn.MaxPool2d(2)

    def forward(self, x):
        x = self.before(x)
        return self.after(x + self.way(x))


def test_no_way_leads_around_the_end_of_a_segment() -> None:
    graph = operators(Residual(), (1, 8, 16, 16))
    assert [call.op.name for call in graph.calls] == ["conv2d", "conv2d", "add", "max_pool2d"]
    assert post_dominators(graph) == [2, 2, 3, 4]
    assert dominators(graph) == [-1, 0, 0, 2]
    for capacity in range(0, max(need_bytes(graph, i) for i in range(4)), 512):
        must, segments = must_tile(graph, capacity), find_segments(graph, capacity)
        may = {i for i in range(4) if not must[i]} | {segment.end for segment in segments}
        for segment in segments:
            inside = range(segment.start, segment.end + 1)
            for place in inside:
                dominator = dominators(graph)[place]
                assert dominator in (-1, *inside) or dominator in may
                assert place == segment.end or post_dominators(graph)[place] in inside
                assert place == segment.end or set(graph.after[place]) <= {*inside}


def test_statistics_of_a_batch_leave_no_dimension() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    graph = operators_of(oc.trace(model, (2, 3, 8, 8), loss="mse"))
    assert ft_dimensions(graph, 0, len(graph.calls) - 1) == ()
    apply = next(i for i, c in enumerate(graph.calls) if type(c.op).__name__ == "BatchNormApply")
    assert ft_dimensions(graph, apply, len(graph.calls) - 1) == ("B", "C", "H", "W")


# Listing 4 and figure 7


def test_figure_7() -> None:
    """64 rows of the output: forward alone reads 262 rows of the input; gathered, 66 rows."""
    model = nn.Sequential(
        nn.Conv2d(1, 1, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(1, 1, 3, padding=1),
        nn.MaxPool2d(2),
    )  # fmt: skip
    graph = operators(model, (1, 1, 1024, 1024))
    (segment,) = find_segments(graph, 0)
    for axis in (2, 3):
        needed = tile_spans_of(graph, segment, Span(64, 128), axis)
        variables = [graph.calls[0].ins[0], *(call.outs[0] for call in graph.calls)]
        assert [needed[v].extent for v in variables] == [262, 260, 130, 128, 64]
    conv, pool = Window(3, pad_lo=1, pad_hi=1), Window(2, 2)
    gathered = gathered_spans(Span(256, 512), [conv, pool, conv, pool], [1024, 512, 512, 256])
    assert [span.extent for span in gathered] == [258, 130, 132, 66]


def test_readers_of_one_tensor_ask_for_the_union() -> None:
    graph = operators(Residual(), (1, 8, 16, 16))
    segment = find_segments(graph, 0)[0]
    needed = tile_spans_of(graph, segment, Span(2, 4), 2)
    fork = graph.calls[0].outs[0]
    assert needed[fork] == Span(3, 9)  # the sum reads 4:8, the convolution one row more each way


def test_a_tile_of_an_image_on_its_side_takes_as_much_memory() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3))
    upright, lying = (operators(model, (2, 3, *sides)) for sides in ((40, 24), (24, 40)))
    segment = FtSegment(0, 2, ())
    for rows, columns in ((1, 2), (4, 2), (3, 5)):
        assert tile_bytes(upright, segment, (rows, columns)) == tile_bytes(
            lying, segment, (columns, rows)
        )


# The planner


def step():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    trace = oc.trace(model, (1, 3, 16, 16), threads=2, conv_algorithm="direct")
    return trace, apply_rewrites(trace, ("fuse", "share_storage"))


def test_sft_tiles_where_the_step_does_not_fit_and_swaps_nothing() -> None:
    original, trace = step()
    whole = Sft().plan(Question(trace, 1 << 30, rtx2080ti()))
    assert whole.rewrites == ()
    plan = Sft().plan(Question(trace, whole.peak_bytes * 3 // 4, rtx2080ti()))
    assert plan.rewrites
    assert plan.peak_bytes <= whole.peak_bytes * 3 // 4
    assert not any(type(i).__name__ == "SwapOut" for i in plan.schedule.instructions)
    assert plan.notes["work_over_untiled"] > 1
    named = oc.plan(original, plan.peak_bytes, planner=Sft(), machine=rtx2080ti())
    oc.verify(named, original, plan.peak_bytes)


def test_its_least_budget_is_its_least_budget() -> None:
    _, trace = step()
    with pytest.raises(oc.Infeasible, match="of any tiling") as refused:
        Sft().plan(Question(trace, 1, rtx2080ti()))
    least = refused.value.minimum_bytes
    assert Sft().plan(Question(trace, least, rtx2080ti())).peak_bytes <= least
    with pytest.raises(oc.Infeasible) as again:
        Sft().plan(Question(trace, least - 1, rtx2080ti()))
    assert again.value.minimum_bytes == least
    assert refused.value.witness_call
    assert "avgpool" in str(refused.value) or "windows have no fixed stride" in str(refused.value)


@pytest.mark.slow
def test_gradients_through_tiles_with_standing_statistics() -> None:
    """As DarkNet's with frozen batch norm: those of the untiled step, sums over tiles up to
    rounding.
    """
    oc.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.LeakyReLU(0.1), nn.MaxPool2d(2)]
    model = nn.Sequential(*body, nn.Conv2d(8, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    body[1].eval()
    rng = np.random.default_rng(0)
    batch = rng.standard_normal((1, 3, 32, 32)).astype("float32"), rng.integers(0, 4, 1)
    trace = oc.trace(model, (1, 3, 32, 32), threads=1, conv_algorithm="direct")
    plain = oc.plan(trace, "1GiB", planner="keep-all")
    tiled = oc.plan(trace, "1GiB", planner=Sft(tiles=4, untiled=False))
    assert tiled.rewrites[-1].startswith("tile:4x4:0.fwd")
    assert any(call.name.startswith("1.fwd") and "[h" in call.name for call in tiled.trace.calls)
    runs = [oc.execute(plan, model, batch) for plan in (plain, tiled)]
    for name, gradient in runs[0].gradients.items():
        assert runs[1].gradients[name] == pytest.approx(gradient, rel=1e-4, abs=1e-6), name


def test_what_no_list_goes_below_counts_what_lies_between_segments_and_all_that_persists() -> None:
    _, trace = step()
    operators = operators_of(trace)
    first, last = operators.calls[0], operators.calls[2]
    offer = Offer((f"tile:2x2:{first.name}:{last.name}",), 1.0)
    lasting = sum(v.nbytes for v in trace.variables if v.persistent)
    out = trace.variables[last.outs[0]]
    tiled = apply_rewrites(trace, offer.rewrites)
    least = at_least_bytes(operators, offer, BYTES)
    assert lasting + out.nbytes < least <= trace_peak_bytes(tiled)

    builder = TraceBuilder()
    image, weight = (
        builder.variable(name, (size,), "uint8", kind)
        for name, size, kind in (("image", 1000, "input"), ("weight", 10, "param"))
    )
    made, ended = builder.variable("made", (1,), "uint8"), builder.variable("end", (1,), "uint8")
    builder.call("f", None, (image,), (made,), duration_ns=1)
    builder.call("g", None, (made, weight), (ended,), duration_ns=1)
    small = replace(operators, trace=builder.build(), calls=())
    assert at_least_bytes(small, Offer((), 1.0), BYTES) == 1000 + 10 + 1


def test_what_no_list_goes_below_counts_nothing_that_is_made_and_read_in_a_segment() -> None:
    builder = TraceBuilder()
    made = [builder.variable("0", (1000,), "uint8", "input")]
    for name, size in (("f", 500), ("g", 300), ("h", 1)):
        made.append(builder.variable(f"{name}.out", (size,), "uint8"))
        builder.call(name, None, made[-2:-1], made[-1:], duration_ns=1)
    small = replace(operators_of(step()[1]), trace=builder.build())
    small = replace(small, calls=small.trace.calls)
    assert at_least_bytes(small, Offer((), 1.0), BYTES) == 1000 + 500
    assert at_least_bytes(small, Offer(("tile:2x2:f:h",), 1.0), BYTES) == 1000


def test_a_norm_has_a_tile_rule_where_nothing_but_its_statistics_goes_in() -> None:
    """And these stand still. With those of the batch, a residual or a ReLU there is none."""
    assert can_be_tiled(BatchNormApply(batch_stats=False))
    for more in ({"batch_stats": True}, {"relu": True}, {"residual": True}):
        assert not can_be_tiled(BatchNormApply(**{"batch_stats": False, **more}))
