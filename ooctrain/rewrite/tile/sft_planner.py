"""sft: segments fused and tiled, halos computed again, nothing swapped.

The planner takes a step and a budget and returns a plan of the tiled step that lies entirely in
device memory. It cuts the network into segments by what fits (`sft.py`), cuts each segment's output
into 2^n x 2^n tiles, one with forks and joins into 2^n tiles of rows, runs each tile's forward
calls once more in backward, and keeps the values between segments. Of all grids that fit it takes
the one with the least work.

Source: paper 003. Departures: the paper cuts by one capacity, the memory, and stops where a segment
does not fit then; here capacities are halved until one fits, since an operator that fits alone need
not fit together with what others keep. In a chain gradients are added up over halos, not gathered.
Read next: `banded.py`, which computes no halo twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ooctrain.errors import ConfigError, Infeasible, PartFailed
from ooctrain.rewrite.tile.banded_calls import BandedCalls
from ooctrain.rewrite.tile.graph_tiles import graph_calls, rows_computed
from ooctrain.rewrite.tile.halo import split_evenly
from ooctrain.rewrite.tile.offers import Offer, OperatorTimes, nothing_fits, tiled_as_offered
from ooctrain.rewrite.tile.operators import Operators, operators_of
from ooctrain.rewrite.tile.sft import (
    FtSegment,
    chain_of,
    find_segments,
    need_bytes,
    tile_spans_of,
)
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planning.planner import check_true_or_false, check_whole_numbers, remarked
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule, Plan
from ooctrain.sched.spans import held_during
from ooctrain.step.machine import Machine, specs_of
from ooctrain.step.op import can_be_tiled, row_rule_of, why_untiled

#: Tiles in H and in W that the paper tries.
GRIDS = (2, 4, 8, 16, 32)
#: How often the capacity is halved, from what the largest operator needs.
HALVINGS = 9
#: Grids whose halos make the step longer than this many untiled ones are not offered.
MOST_WORK = 4.0


@dataclass(frozen=True, slots=True)
class Sft:
    """Paper 003's planner.

    Args:
        tiles: in H and in W; None: the best of `GRIDS`.
        untiled: whether the step as it is is preferred where it fits; else it comes last.

    Cost: that of tiling the step once for each offer that is tried; O(tiles * calls) each.
    """

    name = "sft"

    tiles: int | None = None
    untiled: bool = True

    def __post_init__(self) -> None:
        if self.tiles is not None:
            check_whole_numbers(self.name, {"tiles": self.tiles})
        check_true_or_false(self.name, {"untiled": self.untiled})

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least of all partitions and grids."""
        trace, budget_bytes, granule = question.trace, question.budget_bytes, question.granule
        operators = operators_of(trace)
        refusals: list[Infeasible] = []
        failures: list[PartFailed] = []
        offers, least = self.offers(operators, question.machine), math.inf
        needs = {offer: at_least_bytes(operators, offer, granule) for offer in offers}
        # Those that cannot fit come last, and only as far as one may have the least budget, which
        # is above this one.
        for offer in sorted(offers, key=lambda offer: max(needs[offer] - budget_bytes, 0)):
            if needs[offer] >= least:
                continue
            try:
                tiled = tiled_as_offered(trace, offer)
            except PartFailed as failure:  # of one tiling; the others are tried
                failures.append(failure)
                continue
            if tiled is None:
                continue
            peak = trace_peak_bytes(tiled, granule)
            if peak >= least:
                continue  # its refusal would say no more
            try:
                plan = KeepAll().plan(replace(question, trace=tiled))
            except Infeasible as refusal:
                if refusal.minimum_bytes is None:
                    raise
                refusals.append(refusal)
                least = min(least, refusal.minimum_bytes)
                continue
            return remarked(with_tiling(plan, offer, peak), failures)
        failed = next(iter(failures), None)
        if failed is not None and not refusals:
            raise failed
        missing = obstacles(operators)
        raise nothing_fits(self.name, budget_bytes, refusals, missing) from failed

    def offers(self, operators: Operators, machine: Machine) -> list[Offer]:
        """The step as it is, and all partitions in all grids that do not work too much for their
        halos; the least work first.
        """
        times = OperatorTimes.of(operators, machine)
        found: dict[tuple[str, ...], Offer] = {(): Offer((), 1.0, why="it fits untiled")}
        for segments in partitions(operators):
            for tiles in GRIDS if self.tiles is None else (self.tiles,):
                offer = _offer(operators, segments, tiles, times)
                if offer is not None and offer.work <= MOST_WORK:
                    found.setdefault(offer.rewrites, offer)
        in_order = sorted(found.values(), key=lambda offer: (not offer.rewrites, offer.work))
        return in_order if not self.untiled else sorted(in_order, key=lambda offer: offer.work)


def with_tiling(plan: Plan, offer: Offer, least_bytes: int) -> Plan:
    """A plan of a tiled step as one of the step before.

    Args:
        least_bytes: least need of the tiled step with all that lasts on the device; a list that
        swaps some of
            that out, too, may need less.
    """
    notes = {**plan.notes, **offer.notes(min(least_bytes, plan.peak_bytes))}
    return replace(plan, rewrites=(*offer.rewrites, *plan.rewrites), notes=notes)


def partitions(operators: Operators) -> Iterator[tuple[FtSegment, ...]]:
    """What `find_segments` finds under ever smaller capacities, each once, as far as it can run."""
    largest = max((need_bytes(operators, i) for i in range(len(operators.calls))), default=0)
    seen: set[tuple[FtSegment, ...]] = set()
    for halving in range(HALVINGS + 1):
        segments = find_segments(operators, largest >> halving)
        if not segments or segments in seen:
            continue
        seen.add(segments)
        if all(_can_run(operators, segment) for segment in segments):
            yield segments


def _can_run(operators: Operators, segment: FtSegment) -> bool:
    """Whether tiles that compute their halos again can run it: a chain of operators with tile
    rules, or a graph of operators with row rules.
    """
    if not operators.nameable(segment.start, segment.end) or "H" not in segment.dimensions:
        return False
    if not _is_chain(operators, segment):
        return _graph(operators, segment) is not None
    return "W" in segment.dimensions


def _is_chain(operators: Operators, segment: FtSegment) -> bool:
    chain = chain_of(operators, segment)
    return chain is not None and all(can_be_tiled(call.op) for call in chain)


def _graph(operators: Operators, segment: FtSegment) -> BandedCalls | None:
    """All calls of a segment with forks and joins; None where tiles of rows cannot run it."""
    first, last = (operators.calls[place].name for place in (segment.start, segment.end))
    try:
        return graph_calls(operators.trace, first, last)
    except ConfigError:
        return None


def obstacles(operators: Operators) -> dict[str, str]:
    """{forward call that cannot be tiled in rows: why}."""
    trace = operators.trace
    found = {}
    for call in operators.calls:
        rows = row_rule_of(call.op, specs_of(trace, call.ins))
        if not can_be_tiled(call.op) and (rows is None or rows.reduces):
            found[call.name] = why_untiled(call.op)
    return found


def at_least_bytes(operators: Operators, offer: Offer, granule: Granule) -> int:
    """What no list of the tiled step goes below that keeps all: persistent bytes, and at each
    untiled call all that lives there and lies in no segment.
    """
    trace = operators.trace
    forward: set[int] = set()
    ends: set[int] = set()
    for name in offer.rewrites:
        first, last = name.split(":")[2:]
        places = [i for i, call in enumerate(operators.calls) if call.name in (first, last)]
        calls = operators.calls[places[0] : places[-1] + 1]
        forward.update(call.id for call in calls)
        ends.update(calls[-1].outs)
    inside = {c.id for c in trace.calls if c.id in forward or c.forward_of in forward}
    inner = {
        trace.storage[v] for i in inside for v in trace.calls[i].outs
        if v not in ends and trace.variables[v].kind != "wgrad"
    }  # fmt: skip
    first_use, last_use = dict[int, int](), dict[int, int]()
    for call in trace.calls:
        for storage in {trace.storage[v] for v in call.touched()}:
            first_use.setdefault(storage, call.id)
            last_use[storage] = call.id
    for v in trace.variables:
        if v.persistent:
            first_use[trace.storage[v.id]], last_use[trace.storage[v.id]] = 0, len(trace.calls) - 1
    stretches = (
        (first_use[s], last_use[s], granule.granted(trace.variables[s].nbytes))
        for s in first_use if s not in inner
    )  # fmt: skip
    return granule.fixed_bytes + max(held_during(stretches, len(trace.calls)), default=0)


def tiled_ratios(
    operators: Operators, segment: FtSegment, grid: tuple[int, int]
) -> tuple[list[float], list[float]]:
    """How many times its elements each operator of a segment computes, in rows and in columns."""
    variables = operators.trace.variables
    both: list[list[float]] = []
    for axis, tiles in zip((2, 3), grid, strict=True):
        extent = variables[operators.calls[segment.end].outs[0]].shape[axis]
        written = [0] * len(variables)
        for span in split_evenly(extent, tiles):
            for v, part in tile_spans_of(operators, segment, span, axis).items():
                written[v] += part.extent
        outs = [call.outs[0] for call in operators.calls[segment.start : segment.end + 1]]
        both.append([written[v] / variables[v].shape[axis] for v in outs])
    return both[0], both[1]


def tile_bytes(operators: Operators, segment: FtSegment, grid: tuple[int, int]) -> int:
    """The memory check of section 4.2: what a tile in the middle of the grid holds in backward, all
    its forward tensors and the two largest gradients.
    """
    variables = operators.trace.variables
    target = variables[operators.calls[segment.end].outs[0]].shape
    spans = []
    for axis, tiles in zip((2, 3), grid, strict=True):
        parts = split_evenly(target[axis], tiles)
        middle = parts[len(parts) // 2]
        spans.append(tile_spans_of(operators, segment, middle, axis))
    sizes = []
    for v in (spans[0].keys() & spans[1].keys()) - operators.trace.taker.keys():
        whole, rows, columns = variables[v], spans[0][v].extent, spans[1][v].extent
        sizes.append(whole.nbytes * rows * columns // max(whole.shape[2] * whole.shape[3], 1))
    return sum(sizes) + sum(sorted(sizes)[-2:])


def _offer(
    operators: Operators, segments: tuple[FtSegment, ...], tiles: int, times: OperatorTimes
) -> Offer | None:
    """The offer of one grid for all segments; None where tiles would have no row or column."""
    extra_ns, names = 0.0, []
    for segment in segments:
        ends = [operators.calls[place] for place in (segment.start, segment.end)]
        if min(operators.trace.variables[ends[1].outs[0]].shape[2:]) < tiles:
            return None
        chain = _is_chain(operators, segment)
        extra_ns += (_extra_of_tiles if chain else _extra_of_rows)(operators, segment, tiles, times)
        grid = f"{tiles}x{tiles}" if chain else f"{tiles}x1"
        names.append(f"tile:{grid}:{ends[0].name}:{ends[1].name}")
    work = times.work(extra_ns)
    through = ", ".join(operators.calls[segment.end].name for segment in segments)
    why = f"the least work of all partitions and grids that fit: segments end at {through}"
    return Offer(tuple(names), work, why=why)


def _extra_of_tiles(
    operators: Operators, segment: FtSegment, tiles: int, times: OperatorTimes
) -> float:
    """What a chain in tiles x tiles computes more, in nanoseconds."""
    rows, columns = tiled_ratios(operators, segment, (tiles, tiles))
    extra_ns = 0.0
    for place, r, c in zip(range(segment.start, segment.end + 1), rows, columns, strict=True):
        forward, backward = times.forward[place], times.backward[place]
        extra_ns += (2 * forward + backward) * r * c - forward - backward
    return extra_ns


def _extra_of_rows(
    operators: Operators, segment: FtSegment, tiles: int, times: OperatorTimes
) -> float:
    """The same of a graph in tiles of rows, whose gradients are gathered."""
    calls = _graph(operators, segment)
    assert calls is not None, "such segments are left out"
    first, second = rows_computed(operators.trace, calls, tiles)
    gradients: dict[int, float] = {}
    for call in calls.backward:
        if call.forward_of is not None:
            most = max(gradients.get(call.forward_of, 0.0), second.get(call.id, 0.0))
            gradients[call.forward_of] = most
    extra_ns = 0.0
    for place in range(segment.start, segment.end + 1):
        forward, backward, call = (
            times.forward[place],
            times.backward[place],
            operators.calls[place],
        )
        if call.id in first:
            extra_ns += forward * (first[call.id] + second.get(call.id, 0.0) - 1)
            extra_ns += backward * (gradients.get(call.id, 1.0) - 1)
    return extra_ns
