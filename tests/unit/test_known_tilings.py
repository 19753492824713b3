"""Where a step can be cut, and what each way to tile it is thought to cost, are as they were.

Which of many legal tilings is taken, and what it is estimated to compute and hold, no law says:
whatever is estimated, the tiled step computes the same. `support/known.py` says why the answers
stand in a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from functools import cache
from itertools import combinations, groupby

import numpy as np
import pytest
from support import known
from support.known_steps import DUPLEX, MACHINE, row_of, step
from support.op_samples import SAMPLES
from support.quick import every

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import OoctrainError
from ooctrain.rewrite.tile.choose import best_way, movable_choices, tilings_of
from ooctrain.rewrite.tile.dimensions import loop_nest
from ooctrain.rewrite.tile.offers import OperatorTimes
from ooctrain.rewrite.tile.operators import dominators, operators_of, post_dominators
from ooctrain.rewrite.tile.segment_costs import (
    choices_of,
    cuts_of,
    room_bytes,
    stored_bytes,
    without_rule,
)
from ooctrain.rewrite.tile.sft import (
    FtSegment,
    chain_of,
    find_segments,
    ft_dimensions,
    must_tile,
    need_bytes,
    tile_spans_of,
)
from ooctrain.rewrite.tile.sft_planner import (
    Sft,
    at_least_bytes,
    obstacles,
    partitions,
    tile_bytes,
    tiled_ratios,
)
from ooctrain.rewrite.tile.tiling import (
    least_alive_bytes,
    name_of,
    parse_name,
    remark_on,
    tile_trace,
)
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.step.op import Spec
from ooctrain.step.rows import Span
from ooctrain.step.trace import Trace
from ooctrain.tracing import trace


class Joined(nn.Module):
    """A network of pixels with a fork, a transposed convolution and a join, as U-Net has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 5, padding=2), nn.BatchNorm2d(6)
        self.down = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 6, 2, stride=2), nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        y = F.relu(self.up(F.max_pool2d(F.relu(self.down(x)), 3, 1, 1)))
        return self.last(F.concat([x, y], dim=1))


def _joined() -> Trace:
    return trace(Joined(), (2, 3, 24, 20), threads=2)


def _pools() -> Trace:
    """Windows of many forms, and a linear layer at the end."""
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.LeakyReLU(0.1), nn.AvgPool2d(3, 2, 1),
        nn.Conv2d(6, 6, (1, 5), padding=(0, 2)), nn.MaxPool2d((3, 2), (2, 1)), nn.GELU(),
        nn.Conv2d(6, 4, 3, dilation=2, padding=2), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(16, 5),
    )  # fmt: skip
    return trace(net, (3, 3, 45, 38), optimizer="adam", threads=2)


MAKERS: Mapping[str, Callable[[], Trace]] = {
    "blocks": lambda: step("blocks"), "plain": lambda: step("plain"), "joined": _joined,
    "pools": _pools,
}  # fmt: skip


@cache
def made(name: str) -> Trace:
    return MAKERS[name]()


@pytest.mark.parametrize("name", MAKERS)
def test_segments_are_cut_where_they_were(name):
    operators = operators_of(made(name))
    count = len(operators.calls)
    needs = [need_bytes(operators, place) for place in range(count)]
    rows: list[known.Row] = [
        ("operators", count, known.digest(needs), known.digest(operators.after)),
        ("dominators", known.digest(dominators(operators)),
         known.digest(post_dominators(operators))),
        ("bytes", *(known.digest([of(operators, place) for place in range(count)])
                    for of in (stored_bytes, room_bytes))),
        ("cuts", *cuts_of(operators)),
        ("obstacles", known.digest(sorted(obstacles(operators).items())),
         known.digest(without_rule(operators))),
    ]  # fmt: skip
    for quarter in range(1, 5):
        capacity = max(needs) * quarter // 5
        found = find_segments(operators, capacity)
        rows.append(("capacity", capacity, sum(must_tile(operators, capacity)), len(found),
                     known.digest(found)))  # fmt: skip
    ends = list(combinations(range(count), 2))
    rows.append(("dimensions", known.digest([ft_dimensions(operators, *each) for each in ends])))
    rows.append(("chains", known.digest([
        [call.name for call in chain_of(operators, FtSegment(*each, ())) or ()] for each in ends
    ])))  # fmt: skip
    for segments in partitions(operators):
        for segment in segments:
            target = operators.trace.variables[operators.calls[segment.end].outs[0]].shape
            spans = [
                sorted(tile_spans_of(operators, segment, span, axis).items())
                for axis in (2, 3) for span in (Span(0, 1), Span(1, target[axis]))
            ]  # fmt: skip
            grids = [(tile_bytes(operators, segment, grid), tiled_ratios(operators, segment, grid))
                     for grid in ((2, 2), (4, 1), (1, 3))]  # fmt: skip
            rows.append((*astuple(segment), known.digest(spans), known.digest(grids)))
    known.check_rows("segments", name, rows)


@pytest.mark.parametrize("name", MAKERS)
def test_ways_to_tile_cost_what_they_did(name):
    step = made(name)
    operators, rows = operators_of(step), []
    for machine in (MACHINE, DUPLEX):
        times = OperatorTimes.of(operators, machine)
        table = choices_of(operators, times, machine)
        for ends, choices in sorted(table.items()):
            rows.append((*ends, len(choices), known.digest(choices)))
        rows.append(("moved", known.digest(sorted(movable_choices(table).items()))))
        for device, each in ((1 << 18, 1 << 18), (1 << 20, 1 << 19), (1 << 22, 1 << 22)):
            way = best_way(table, device, each)
            rows.append(("way", device, way and way.names, way and way.extra_ns))
        for offers in (tilings_of(operators, times, machine), Sft().offers(operators, machine)):
            rows += [(*astuple(offer)[1:-1], known.digest(offer),
                      at_least_bytes(operators, offer, BYTES)) for offer in offers]  # fmt: skip
    for share in (0.35, 0.6, 0.9):
        peak = known_peak(step)
        try:
            plan = Sft().plan(Question(step, int(share * peak), MACHINE))
            rows.append(("sft", share, *plan.rewrites, plan.peak_bytes, known.digest(plan.notes)))
        except OoctrainError as refusal:
            rows.append(("sft", share, refusal.code, known.digest(refusal.numbers)))
    known.check_rows("ways", name, rows)


def known_peak(step: Trace) -> int:
    return int(row_of(step)[5])


NAMES = ("tile:2x2", "tile:1x3", "bands:1", "bands:3", "bands:7", "bands_again:2")
REFUSED = ("tile:0x1", "tile:2", "bands:0", "bands:2x2", "tile:x", "lines:2", "tile:2x2:a:b:c")


def ends_of(step: Trace) -> Iterator[str]:
    """No ends, and some from the first to the last quarter of the forward calls."""
    yield ""
    calls = [call.name for call in operators_of(step).calls]
    yield f":{calls[0]}"
    yield from (f":{calls[a * len(calls) // 8]}:{calls[b * len(calls) // 8]}"
                for a, b in ((0, 3), (1, 5), (3, 7), (0, 6), (5, 2)))  # fmt: skip


@pytest.mark.parametrize("kind", every(NAMES, 2))
@pytest.mark.parametrize("name", MAKERS)
def test_steps_are_tiled_by_name_as_they_were(name, kind):
    step, rows = made(name), []
    for which in (*(f"{kind}{ends}" for ends in ends_of(step)), *REFUSED):
        try:
            tiling = parse_name(which)
            tiled = tile_trace(step, tiling)
            found = (name_of(tiling), known.digest(remark_on(step, tiling)),
                     least_alive_bytes(step, tiling), *row_of(tiled))  # fmt: skip
        except OoctrainError as refusal:
            found = refusal.code, known.digest(refusal.numbers)
        rows.append((which, *found))
    known.check_rows("tilings", f"{name} {kind}", rows)


LOOPS = {
    kind: [(op, arrays) for _, op, arrays in found]
    for kind, found in groupby(
        sorted(((type(op).__name__, op, arrays) for op, arrays in SAMPLES), key=lambda row: row[0]),
        key=lambda row: row[0],
    )
}


@pytest.mark.parametrize("kind", LOOPS)
def test_loops_run_over_the_dimensions_that_they_did(kind):
    rows = []
    for op, arrays in LOOPS[kind]:
        ins = [Spec(np.shape(array), str(np.asarray(array).dtype)) for array in arrays]
        nest = loop_nest(op, ins, op.infer(*ins)[0]) if ins else None
        if nest is not None:
            cut = [(tensor.scale(axis), tensor.delta(axis)) for tensor in nest.ins if tensor
                   for axis in range(4)]  # fmt: skip
            rows.append((op, "".join(nest.loops), known.digest(nest.ins), "".join(nest.out.loops),
                         known.digest(sorted(nest.connections().items())),
                         known.digest(cut)))  # fmt: skip
    known.check_rows("loops", kind, rows or [("none",)])
