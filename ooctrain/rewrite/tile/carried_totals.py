"""Levels: bands follow each other up to a sum over all rows, which must be complete before the
next.

The calls of a segment are sorted into levels by their row rules. Bands go through the calls of one
level; a call that reads a sum over all rows belongs to the next level, which starts when all bands
have gone through this one. The end of a level turns the states of its sums into totals; from then
on the totals stand for the results of the untiled calls. Between two levels all bands of a tensor
exist, and a planner decides which of them are kept, swapped or computed again. A norm in training
mode is such a sum going forward, and another going backward. Recomputation knows the statistics and
has no barrier. Source: ours; docs/tiling.md. Read next: `bands.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from ooctrain.layers.regions import InsertAdd
from ooctrain.rewrite.tile.band_rows import BandPass, Source
from ooctrain.rewrite.tile.carried_sums import CarriedSum, CarriedTotal, state_bytes
from ooctrain.rewrite.tile.on_rows import OnRows
from ooctrain.rewrite.tile.writer import TileCall, TraceWriter, Value, add_up, onto, zeros
from ooctrain.step.machine import specs_of
from ooctrain.step.op import Op, Spec
from ooctrain.step.rows import RowRule
from ooctrain.step.trace import Call, Trace

#: Calls through which bands run together.
Level = tuple[Call, ...]


def levels_of(calls: Iterable[Call], rules: Mapping[int, RowRule]) -> tuple[Level, ...]:
    """The calls, level by level, in their order."""
    at: dict[int, int] = {}  # variable: the first level in which it can be read
    levels: list[list[Call]] = []
    for call in calls:
        level = max((at[v] for v in call.ins if v in at), default=0)
        at |= dict.fromkeys(call.outs, level + rules[call.id].reduces)
        while len(levels) <= level:
            levels.append([])
        levels[level].append(call)
    return tuple(map(tuple, levels))


def crossing(levels: Sequence[Level]) -> set[int]:
    """Variables that are made in one level and read in a later one: bands of them wait there."""
    made: set[int] = set()
    found: set[int] = set()
    for level in levels:
        found.update(v for call in level for v in call.ins if v in made)
        made.update(v for call in level for v in call.outs)
    return found


def leading_to(calls: Sequence[Call], wanted: Iterable[int], there: Collection[int]) -> list[Call]:
    """Those of the calls that compute what is wanted from what is there."""
    needed, found = set(wanted).difference(there), list[Call]()
    for call in reversed(calls):
        if needed.intersection(call.outs):
            needed.update(set(call.ins).difference(there))
            found.append(call)
    return found[::-1]


def carry(
    run: BandPass, trace: Trace, call: Call, place: tuple[int, int], label: str,
    sources: Iterable[Iterable[Source]],
) -> TileCall:  # fmt: skip
    """Adds a band's rows to the state of a sum, which goes on where the band before has stopped.

    Args:
        place: image and first row.
        label: of the rows, as in names.
        sources: values that hold the rows that it reads.
    """
    whole_ins, whole_outs = specs_of(trace, call.ins), specs_of(trace, call.outs)
    size_bytes = state_bytes(call.op, whole_ins, whole_outs, trace.device)
    goes_on = call.id in run.states
    op: Op = CarriedSum(call.op, whole_ins[0].shape, place, size_bytes, goes_on)
    values, views = zip(*chain.from_iterable(sources), strict=True)
    state = [run.states[call.id]] if goes_on else []
    if any(views):
        op = OnRows(op, (*views, *(None for _ in state)))
    name = f"{call.name}{label}"
    out = Value(f"{name}.state", Spec((size_bytes,), "uint8"), "stat")
    reuse = {0: len(values)} if goes_on else {}
    run.steps.append(TileCall(name, op, (*values, *state), (out,), run.phase, reuse))
    run.states[call.id] = out
    return run.steps[-1]


def add_part(run: BandPass, writer: TraceWriter, v: int, part: Value, image: int | None) -> None:
    """Adds a band's part of a sum over rows to the sum over all bands.

    Args:
        image: the image of the sum; None: all.
    """
    if image is None or writer.trace.variables[v].shape[0] == 1:
        add_up(v, part, run.steps, run.totals, run.phase)
        return
    if v not in run.totals:
        run.totals[v], steps = zeros(writer.value_of(v))
        run.steps += steps
    name, total = part.name.replace("[", "[to ", 1), run.totals[v]
    op = InsertAdd((image, *(0 for _ in total.spec.shape[1:])))
    run.steps.append(onto(total, name, f"{part.name}.sum", op, part, run.phase))
    run.totals[v] = run.steps[-1].outs[0]


def finish_level(run: BandPass, level: Level, writer: TraceWriter) -> None:
    """Ends a level: its sums become totals, its tensors exist in all bands."""
    for call in level:
        if call.id in run.states:
            _write_total(run, call, writer)
        for v in call.outs:
            if v in run.totals:
                writer.becomes(v, run.totals[v])
    run.finished.update(v for call in level for v in call.outs)
    run.level += 1


def _write_total(run: BandPass, call: Call, writer: TraceWriter) -> None:
    variables = writer.trace.variables
    shape = variables[call.ins[0]].shape
    op = CarriedTotal(call.op, shape, tuple(variables[v].shape for v in call.outs))
    vectors = [writer.value_of(v) for v in call.ins if len(variables[v].shape) < len(shape)]
    old = [variables[v] for v in call.outs]
    outs = tuple(Value(one.name, Spec(one.shape, one.dtype), one.kind) for one in old)
    ins = run.states.pop(call.id), *vectors
    run.steps.append(TileCall(call.name, op, ins, outs, run.phase))
    run.totals |= zip(call.outs, outs, strict=True)
