"""tflms-hybrid: recompute the segments of some checkpoints, swap the rest as TFLMS does.

Recomputation and swapping are both edits of a graph, so one can follow the other. First the values
that belong to the listed checkpoints are computed again, then `lms-auto` tunes itself on the graph
that results. Without a list that is `lms-auto`; where recomputation alone makes room, nothing is
swapped.

Source: paper 001, sections 2.3 and 3.2, figure 2. Departures: the list is chosen automatically
unless it is given, which the paper leaves as future work: checkpoints by the time their segment
takes to compute again per byte, the best prefix of that order by simulated time. Batch statistics
stay (`sched/planning/rematerialise.py`). Values come back right before their first reader; the
paper's trigger for it is not an edge of our graph, so that a copied call has a lower level than
there. Read next: `sched/planning/unroll.py`, `lms.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.planners.lms import tuned_list
from ooctrain.sched.planning.decisions import BEFORE_THE_STEP
from ooctrain.sched.planning.fastest import Candidate, fastest_list
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import (
    SegmentCheckpoint,
    checkpoints_by_types,
    last_forward_use,
    rematerialise,
    segments,
)
from ooctrain.sched.planning.unroll import list_runs
from ooctrain.sched.schedule import Plan, Run
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace

AUTO, ALL = "auto", "all"
#: How many prefixes are tried besides the empty one.
PREFIXES = 8


@dataclass(frozen=True, slots=True)
class TflmsHybrid:
    """Paper 001's hybrid.

    Args:
        checkpoint_list: numbers as `ooctrain plan --list-checkpoints` prints them, "2+4+6"; or
            "auto", "all", None (no recomputation).
        recomp_checkpoint_ops_by_types: operations whose outputs are checkpoints, "Conv2d+Linear".

    Cost: that of `lms-auto`; for "auto" up to `PREFIXES` + 1 lists: those whose calls alone take no
        longer than the first one's step.
    """

    name = "tflms-hybrid"

    checkpoint_list: str | int | tuple[int, ...] | None = AUTO
    recomp_checkpoint_ops_by_types: str = "Conv2d"

    def __post_init__(self) -> None:
        types = self.recomp_checkpoint_ops_by_types
        if not isinstance(types, str):
            raise ConfigError(
                f"tflms-hybrid: recomp_checkpoint_ops_by_types={types!r} names no operations",
                code="OOC-105",
                fix='such as "Conv2d" or "Conv2d+Linear"',
            )

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least over the lists that are tried."""
        trace, machine = question.trace, question.machine
        lists, refusals = list[Candidate](), list[Infeasible]()
        within_us = math.inf  # a plan that is known to keep to both budgets takes so long
        durations = call_durations_ns(trace, machine)
        for ids in self._lists(trace, machine):
            runs = self.runs(trace, ids)
            if sum(durations[run.call] for run in runs) / 1000 > within_us:
                continue  # no list of these runs is as fast
            try:
                lists.append(self._list(question, runs, ids))
                if within_us == math.inf:
                    within_us = fastest_list(self.name, question, lists[-1:]).makespan_us
            except Infeasible as refusal:
                refusals.append(refusal)
        try:
            if lists:
                return fastest_list(self.name, question, lists)
        except Infeasible as refusal:
            refusals.append(refusal)
        raise min(refusals, key=_by_minimum)

    def _list(self, question: Question, runs: Sequence[Run], ids: Sequence[int]) -> Candidate:
        """What TFLMS makes of the step in which some checkpoints' segments are computed again."""

        def write(step: Trace) -> Candidate:
            return tuned_list(self.name, step, question.budget_bytes, question.granule)

        found = list_runs(self.name, question, runs, write)
        return replace(found, notes={**found.notes, "checkpoint_list": "+".join(map(str, ids))})

    def checkpoints(self, trace: Trace) -> tuple[SegmentCheckpoint, ...]:
        """All checkpoints of a trace, with their numbers."""
        return checkpoints_by_types(trace, self.recomp_checkpoint_ops_by_types.split("+"))

    def runs(self, trace: Trace, ids: Sequence[int]) -> tuple[Run, ...]:
        """The step in which what belongs to some checkpoints is computed again, before any swap."""
        segment = self.segments(trace)
        return rematerialise(trace, [var for number in ids for var in segment[number]])

    def segments(self, trace: Trace) -> Mapping[int, tuple[int, ...]]:
        """{number of a checkpoint: the values of its segment that may be dropped}."""
        known = self.checkpoints(trace)
        values = segments(trace, [checkpoint.var for checkpoint in known])
        return {checkpoint.id: values[checkpoint.var] for checkpoint in known}

    def _lists(self, trace: Trace, machine: Machine) -> Iterator[tuple[int, ...]]:
        """The lists that are tried."""
        known = self.checkpoints(trace)
        if self.checkpoint_list == AUTO:
            yield from self._prefixes(trace, machine)
        elif self.checkpoint_list == ALL:
            yield tuple(checkpoint.id for checkpoint in known)
        else:
            ids = _numbers(self.checkpoint_list)
            if any(not 1 <= number <= len(known) for number in ids):
                raise ConfigError(
                    f"tflms-hybrid: checkpoint_list={self.checkpoint_list!r} names a checkpoint "
                    f"that is not there; there are {len(known)}",
                    code="OOC-105",
                    fix="ooctrain plan MODEL --list-checkpoints prints them",
                )
            yield ids

    def _prefixes(self, trace: Trace, machine: Machine) -> Iterator[tuple[int, ...]]:
        order = self.by_recompute_time(trace, machine)
        lengths = {round(step * len(order) / PREFIXES) for step in range(PREFIXES + 1)}
        for length in sorted(lengths):
            yield tuple(sorted(order[:length]))

    def by_recompute_time(self, trace: Trace, machine: Machine) -> list[int]:
        """Numbers of the checkpoints with a segment, the least time per byte to get it back first.

        Cost: O(uses + calls that run again where one segment is dropped).
        """
        segment = {number: values for number, values in self.segments(trace).items() if values}
        times = zip(segment, times_to_drop_ns(trace, machine, segment.values()), strict=True)
        per_byte = {
            number: time_ns / sum(trace.variables[var].nbytes for var in segment[number])
            for number, time_ns in times
        }
        return sorted(segment, key=lambda number: (per_byte[number], number))


def times_to_drop_ns(
    trace: Trace, machine: Machine, sets: Iterable[Collection[int]]
) -> Iterator[int]:
    """For each set of values, how much compute time is added where the step drops them."""
    durations = call_durations_ns(trace, machine)
    for dropped in sets:
        yield sum(durations[call] for call in calls_added(trace, dropped))


def _numbers(text: str | int | tuple[int, ...] | None) -> tuple[int, ...]:
    """The numbers in "2+4+6", 2, (2, 4, 6) or None."""
    if text is None:
        return ()
    if isinstance(text, tuple):
        return text
    try:
        return tuple(int(number) for number in str(text).split("+"))
    except ValueError as error:
        raise ConfigError(
            f"tflms-hybrid: checkpoint_list={text!r} is not a list of numbers",
            code="OOC-105",
            fix='such as "2+4+6", "all", "auto" or none',
        ) from error


def _by_minimum(refusal: Infeasible) -> tuple[bool, int]:
    return refusal.minimum_bytes is None, refusal.minimum_bytes or 0


# The calls that `rematerialise` would add for a few values, without its walk over the whole step.
# Only calls that read what is dropped need anything back, and what is alive before a call follows
# from its number: what was written before and is used from it on. So the cost is that of the
# values' neighbourhood, and the planner may try every segment of a long step.


def calls_added(trace: Trace, dropped: Collection[int]) -> list[int]:
    """The calls that `rematerialise(trace, dropped)` adds, in order of their second runs.

    Args:
        dropped: values of `droppable(trace)`.

    Cost: O(uses of the values + calls that are added); that of `rematerialise` where a value has to
        be kept, or one that was not dropped is taken over.
    """
    around = _Neighbourhood(trace, dropped)
    readers = {use for var in dropped for use in trace.readers[var] if use > around.gone_after[var]}
    if all(around.revive_for(call) for call in sorted(readers)):
        return around.added
    seen = BEFORE_THE_STEP
    again = []
    for run in rematerialise(trace, dropped):
        again += [run.call] if run.call <= seen else []
        seen = max(seen, run.call)
    return again


class _Neighbourhood:
    """The step around some dropped values.

    Attributes:
        gone_after: for each of them the call after which it dies.
        back: what has been computed again and is alive.
        added: calls that have run again so far.
    """

    def __init__(self, trace: Trace, dropped: Collection[int]):
        self.trace = trace
        self.gone_after = {var: last_forward_use(trace, var) for var in dropped}
        self.ends = frozenset(trace.end_variables.values())
        self.back: set[int] = set()
        self.added: list[int] = []

    def revive_for(self, call_id: int) -> bool:
        """Brings back what a call reads, depth first, the last value first; False where that is
        not possible, or where other calls are concerned too.
        """
        ins = dict.fromkeys(self.trace.calls[call_id].ins)
        stack = [var for var in ins if not self._is_alive(var, call_id)]
        while stack:
            value = stack[-1]
            if self._is_alive(value, call_id):
                stack.pop()
                continue
            producer = self.trace.producer[value]
            if producer is None or not self.trace.calls[producer].pure:
                return False
            sources = dict.fromkeys(self.trace.calls[producer].ins)
            missing = [var for var in sources if not self._is_alive(var, call_id)]
            if missing:
                stack += missing
            elif not self._run(producer, call_id):
                return False
            else:
                stack.pop()
        self.back = {var for var in self.back if self.trace.uses[var][-1] > call_id}
        return True

    def _run(self, producer: int, call_id: int) -> bool:
        """Runs a call again before another; False where it takes over what is alive anyway."""
        call = self.trace.calls[producer]
        if any(source not in self.back for source in call.reuse.values()):
            return False
        self.back.difference_update(call.reuse.values())
        self.back.update(var for var in call.outs if not self._is_alive(var, call_id))
        self.added.append(producer)
        return True

    def _is_alive(self, var: int, call_id: int) -> bool:
        """Whether a value is there before a call."""
        if var in self.back:
            return True
        producer, uses = self.trace.producer[var], self.trace.uses[var]
        if self.gone_after.get(var, call_id) < call_id or producer == call_id:
            return False
        written = producer is None or producer < call_id
        return written and (var in self.ends or uses[-1] >= call_id)
