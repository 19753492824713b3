"""tflms-hybrid: recompute the segments of some checkpoints, swap the rest as TFLMS does.

Recomputation and swapping are both edits of a graph, so one can follow the other. First the values
that belong to the listed checkpoints are computed again, then `lms-auto` tunes itself on the graph
that results. Without a list that is `lms-auto`; where recomputation alone makes room, nothing is
swapped.

Source: paper 001, sections 2.3 and 3.2, figure 2. Departures: the list is chosen automatically
unless it is given, which the paper leaves as future work: checkpoints by the time their segment
takes to compute again per byte, the best prefix of that order by simulated time. Batch statistics
stay (`sched/planning/segments.py`). Values come back right before their first reader; the paper's
trigger for it is not an edge of our graph, so that a copied call has a lower level than there.
Read next: `sched/planning/unroll.py`, `lms/lms_auto.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.planners.lms.lms_auto import tuned_list
from ooctrain.sched.planning.fastest import Candidate, fastest_list
from ooctrain.sched.planning.planner import HOST_LACKS
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import rematerialise
from ooctrain.sched.planning.runs_added import calls_added
from ooctrain.sched.planning.segments import SegmentCheckpoint, checkpoints_by_types, segments
from ooctrain.sched.planning.unroll import list_runs
from ooctrain.sched.schedule import BYTES, Granule, Plan, Run
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

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least over the lists that are tried."""
        question = Question(trace, budget_bytes, machine, granule, host_budget_bytes)
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
    return refusal.minimum_bytes == HOST_LACKS, refusal.minimum_bytes
