"""Which calls of a trace run in bands, over which rows, and where they stand among the others.

A trace, the names of a first and a last layer, and cuts give `BandedCalls`: forward and backward
calls with their row rules and frontiers, and the other calls in order around them. No patterns of
calls are matched. The row rule of a backward call says what it reads; it writes the gradient of
what its forward call reads, so it has the same bands. A tensor that is read outside is put together
whole. Read next: `bands.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ooctrain.errors import ConfigError
from ooctrain.layers.combine import Add, AddMasked
from ooctrain.rewrite.tile.carried_sums import rows_together
from ooctrain.rewrite.tile.frontier import (
    Frontier,
    even_cuts,
    frontier_after,
    frontier_before,
    rounded,
)
from ooctrain.rewrite.tile.halo import row_axis
from ooctrain.rewrite.tile.segment import check_untiled, choose_chain, named_calls
from ooctrain.step.machine import specs_of
from ooctrain.step.op import row_rule_of, why_untiled
from ooctrain.step.rows import SAME, Read, RowRule, Span
from ooctrain.step.trace import Call, Phase, Trace


@dataclass(frozen=True, slots=True)
class BandedCalls:
    """A part of a trace that runs in bands.

    Args:
        forward, backward: its calls, in their order.
        before, between, after: all other calls: before the forward ones, after them, after the
            backward ones.
        rules: {call: its row rule}.
        rows: {call: frontier of the rows that it runs over}.
        frontiers: {variable that exists in bands: its frontier}.
        handed_out: results that other calls or the caller read, so that they exist as wholes too.
    """

    forward: tuple[Call, ...]
    backward: tuple[Call, ...]
    before: tuple[Call, ...]
    between: tuple[Call, ...]
    after: tuple[Call, ...]
    rules: Mapping[int, RowRule]
    rows: Mapping[int, Frontier]
    frontiers: Mapping[int, Frontier]
    handed_out: frozenset[int]

    @property
    def bands(self) -> int:
        """How many there are."""
        return len(self.rows[self.forward[0].id]) - 1

    def of(self, phase: Phase, band: int) -> dict[int, Span]:
        """{call of a pass: rows that it runs over in one band}; backward may run forward calls
        again.
        """
        calls = self.forward if phase == "forward" else (*self.forward, *self.backward)
        return {call.id: Span(*self.rows[call.id][band : band + 2]) for call in calls}

    def reads(self, trace: Trace, call: Call, rows: Span) -> list[Read | None]:
        """What some rows of a call read of its inputs; None: all of it, as of a weight."""
        return [
            None if read is None else read.read(rows, row_count(trace, v))
            for read, v in zip(self.rules[call.id].reads, call.ins, strict=True)
        ]

    @property
    def results(self) -> set[int]:
        """All that its calls write."""
        return {v for call in (*self.forward, *self.backward) for v in call.outs}


def banded_calls(
    trace: Trace, bands: int, first: str | None, last: str | None, cuts: Sequence[int] | None = None
) -> BandedCalls:
    """The calls from `first` to `last`, and all that is computed backward through them.

    Args:
        bands: into which what `first` reads is cut; fewer where it has fewer rows.
        first, last: names, between which there may be forks and joins; if one is None, a chain, as
            `segment.choose_chain` finds it.
        cuts: 0, rows at which the input is cut, and the number of its rows; None: evenly.

    Raises:
        ConfigError: a call has no row rule; it says which.
    """
    forward = forward_calls(trace, first, last)
    backward = _backward_calls(trace, {call.id for call in forward})
    rules = {call.id: _rule(trace, call) for call in (*forward, *backward)}
    source = forward[0].ins[0]
    extent = trace.variables[source].shape[2]
    frontiers = {source: even_cuts(extent, bands) if cuts is None else tuple(cuts)}
    rows: dict[int, Frontier] = {}
    sums = {v for call in (*forward, *backward) if rules[call.id].reduces for v in call.outs}
    for call in (*forward, *backward):
        _check_rows(trace, call, rules[call.id], sums)
    for call in forward:
        rows[call.id] = _forward_rows(trace, call, rules[call.id], frontiers)
        if not rules[call.id].reduces:
            frontiers |= dict.fromkeys(call.outs, rows[call.id])
    for call in backward:
        found = _backward_rows(trace, call, rules, frontiers)
        rows[call.id] = _in_blocks(trace, call, found, upwards=True)
        if not rules[call.id].reduces:
            frontiers |= dict.fromkeys(call.outs, rows[call.id])
    before, rest = _together(trace.calls, {call.id for call in forward})
    between, after = _together(rest, {call.id for call in backward})
    return BandedCalls(
        tuple(forward), tuple(backward), before, between, after, rules, rows, frontiers,
        _handed_out(trace, (*forward, *backward)),
    )  # fmt: skip


def forward_calls(trace: Trace, first: str | None, last: str | None) -> list[Call]:
    """The longest chain; or, if both ends are named, all calls on ways to the last one from what
    the first one reads.

    Raises:
        ConfigError: there are none, or an earlier tiling has made one of them.
    """
    if first is None or last is None:
        return choose_chain(trace, first, last)
    starts = [call for call in named_calls(trace, first) if call.ins]
    named = named_calls(trace, last, ("forward", "loss"))
    ends = [call for call in named if call.pure and call.ins]
    if not (starts and ends):
        raise ConfigError(
            f"{(last if starts else first)!r} reads no image that could be cut", code="OOC-113",
            fix="a segment from the layer that reads the first image to the one that reads the "
            "last",
        )  # fmt: skip
    start, end = starts[0], ends[-1]
    between = trace.calls[start.id : end.id + 1]
    reached = {start.ins[0]}
    for call in between:
        if reached.intersection(call.ins):
            reached.update(call.outs)
    needed, found = set(end.outs), list[Call]()
    for call in reversed(between):
        if needed.intersection(call.outs) and reached.intersection(call.ins):
            needed.update(call.ins)
            found.append(call)
    if start not in found:
        raise ConfigError(
            f"no way leads from {start.name!r} to {end.name!r}",
            code="OOC-113",
            fix="an end that the start's output reaches",
        )
    check_untiled(found[::-1])
    return found[::-1]


def _backward_calls(trace: Trace, forward: set[int]) -> list[Call]:
    """The gradients of these calls, and the sums of gradients that meet in between.

    A sum is left out if one of its terms is computed outside from results of the others.
    """
    found: list[Call] = []
    inside: set[int] = set()  # gradients of images made by the calls that are found
    outside: set[int] = set()  # what is computed from them elsewhere
    for call in trace.calls:
        if call.phase != "backward" or not call.ins:  # zeros of an earlier segment read nothing
            continue
        has_rows = len(trace.variables[call.ins[0]].shape) == 4
        meets = call.forward_of is None and isinstance(call.op, Add | AddMasked)
        if (call.forward_of in forward and has_rows) or (
            meets and inside.intersection(call.ins) and not outside.intersection(call.ins)
        ):
            found.append(call)
            inside.update(v for v in call.outs if trace.variables[v].kind != "wgrad")
        elif not (inside.isdisjoint(call.ins) and outside.isdisjoint(call.ins)):
            outside.update(call.outs)
    return found


def _handed_out(trace: Trace, inside: Sequence[Call]) -> frozenset[int]:
    ids, outputs = {call.id for call in inside}, set(trace.outputs.values())
    return frozenset(
        v for call in inside for v in call.outs
        if v in outputs or not ids.issuperset(trace.readers[v])
    )  # fmt: skip


def row_count(trace: Trace, v: int) -> int:
    """Rows of an image."""
    shape = trace.variables[v].shape
    return shape[row_axis(shape)]


def _rule(trace: Trace, call: Call) -> RowRule:
    rule = row_rule_of(call.op, specs_of(trace, call.ins))
    if rule is None:
        raise ConfigError(
            f"{call.name!r} cannot run in bands: {why_untiled(call.op)}",
            code="OOC-113",
            fix="end the segment before it, or tile with halo='recompute'; of an operation of your "
            "own: window, with_padding",
        )
    return rule


def _check_rows(trace: Trace, call: Call, rule: RowRule, sums: Collection[int]) -> None:
    """Raises ConfigError: the call would run over rows of what has none, such as a sum of them."""
    for read, v in zip(rule.reads, call.ins, strict=True):
        variable = trace.variables[v]
        if read is not None and (v in sums or 0 in variable.shape):
            what = "is a sum over all rows" if v in sums else "has no pixels"
            raise ConfigError(
                f"{call.name!r} cannot run in bands: {variable.name!r} {what}", code="OOC-113",
                fix="end the segment before it, or begin it behind",
            )  # fmt: skip


def _forward_rows(
    trace: Trace, call: Call, rule: RowRule, frontiers: Mapping[int, Frontier]
) -> Frontier:
    reads = zip(rule.reads, call.ins, strict=True)
    before = [(read, frontiers[v]) for read, v in reads if read and v in frontiers]
    if not before:
        raise ConfigError(
            f"{call.name!r} reads no rows of the segment", code="OOC-113",
            fix="end the segment before it, or begin it earlier",
        )  # fmt: skip
    if rule.reduces:
        return _in_blocks(trace, call, before[0][1], upwards=False)
    return frontier_after(before, trace.variables[call.outs[0]].shape[-2])


def _in_blocks(trace: Trace, call: Call, frontier: Frontier, upwards: bool) -> Frontier:
    """Where a kernel adds several rows at once and is to go on from band to band, whole blocks."""
    if not call.op.carries:
        return frontier
    together = rows_together(call.op, trace.variables[call.ins[0]].shape, trace.device)
    return rounded(frontier, together, upwards)


def _backward_rows(
    trace: Trace, call: Call, rules: Mapping[int, RowRule], frontiers: Mapping[int, Frontier]
) -> Frontier:
    """The rows that a backward call runs over, such that all that they read is there.

    Of a sum over rows: those of the output of its forward call, or of the input, whichever its last
    input belongs to. Where rows are gathered: those of the input of its forward call. Else the rows
    as they are, and what is farthest decides.
    """
    forward = None if call.forward_of is None else trace.calls[call.forward_of]
    rule = rules[call.id]
    if forward is not None and rule.reduces:
        over_input = call.ins[-1] == forward.ins[0]
        return frontiers[forward.ins[0] if over_input else forward.outs[0]]
    if forward is not None and rule.reads[0] is None:
        return frontiers[forward.ins[0]]
    extents = {trace.variables[v].shape[2] for v in (call.ins[0], call.outs[0])}
    if forward is not None and (rule.reads[0] != SAME or len(extents) > 1):
        v = forward.ins[0]
        read = rules[forward.id].reads[0]
        assert read is not None
        after = frontiers[forward.outs[0]]
        return frontiers.get(v) or frontier_before(read, after, trace.variables[v].shape[2])
    # What forward reads is there wherever forward has run, so it decides nothing: one factor of a
    # product may be far ahead of the other, and with it of the product.
    cut = [v for v in call.ins if v in frontiers]
    near = [frontiers[v] for v in cut if _is_gradient(trace, v)]
    if forward is not None and forward.outs[0] in frontiers:
        near.append(frontiers[forward.outs[0]])
    near = near or [frontiers[v] for v in cut]
    return tuple(map(max, zip(*near, strict=True)))


def _is_gradient(trace: Trace, v: int) -> bool:
    """Whether a backward call has made it."""
    producer = trace.producer[v]
    return producer is not None and trace.calls[producer].phase == "backward"


def _together(calls: Sequence[Call], group: set[int]) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
    """The calls before and after a group, if it stands together: as late as it can.

    What reads a result of the group moves behind it.

    Raises:
        ConfigError: the group reads something that is computed from its own results.
    """
    waiting: set[int] = set()  # variables that are there only after the group
    late: set[int] = set()  # those of them that other calls write
    before: list[Call] = []
    after: list[Call] = []
    left = len(group)
    for call in calls:
        if call.id in group:
            left -= 1
            if late.intersection(call.ins):
                raise ConfigError(
                    f"{call.name!r} reads what is computed outside the segment from its results",
                    code="OOC-113",
                    fix="choose a segment that contains what lies between",
                )
            waiting.update(call.outs)
        elif not left or waiting.intersection(call.ins):
            late.update(call.outs)
            waiting.update(call.outs)
            after.append(call)
        else:
            before.append(call)
    return tuple(before), tuple(after)
