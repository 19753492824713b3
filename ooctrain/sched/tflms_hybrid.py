"""tflms-hybrid: compute again what hangs on some checkpoints, swap the rest as TFLMS does.

In: a trace, a budget, a list of checkpoints. Out: the list that TFLMS makes of the edited step. The
one idea: recomputation and swapping are edits of a graph, so one follows the other: first what
belongs to the listed checkpoints is computed again, then `lms-auto` tunes itself on the graph that
results. Without a list that is `lms-auto`; where recomputation alone makes room, nothing is
swapped.

Source: paper 001, sections 2.3 and 3.2, figure 2. Departures: the list is chosen automatically
unless it is given, which the paper leaves as future work: checkpoints by the time their segment
takes to compute again per byte, the best prefix of that order by simulated time. Batch statistics
stay (`checkpoints.py`). Values come back right before their first reader; the paper's trigger for
it is no edge of our graph, so that a copied call has a lower level than there. Read next:
`unroll.py`, `lms_auto.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ooctrain.cost import Machine, call_durations_ns
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.base import HOST_LACKS
from ooctrain.sched.checkpoints import Checkpoint, checkpoints_by_types, segments
from ooctrain.sched.lms_auto import LmsAuto
from ooctrain.sched.rematerialise import rematerialise
from ooctrain.sched.schedule import BYTES, Granule, Plan, Run
from ooctrain.sched.unroll import plan_runs
from ooctrain.trace import Trace

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

    Cost: that of `lms-auto`; for "auto" up to `PREFIXES` + 1 times.
    """

    checkpoint_list: str | int | tuple[int, ...] | None = AUTO
    recomp_checkpoint_ops_by_types: str = "Conv2d"

    @property
    def name(self) -> str:
        """The planner's name in tables."""
        return "tflms-hybrid"

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least over the lists that are tried."""
        best: Plan | None = None
        refusals: list[Infeasible] = []
        for ids in self._lists(trace, machine):
            runs = self.runs(trace, ids)
            notes = {"checkpoint_list": "+".join(map(str, ids))}
            try:
                plan = plan_runs(
                    self.name, LmsAuto(), trace, runs, budget_bytes, machine, granule,
                    host_budget_bytes, notes,
                )  # fmt: skip
            except Infeasible as refusal:
                refusals.append(refusal)
                continue
            if best is None or plan.makespan_us < best.makespan_us:
                best = plan
        if best is None:
            raise min(refusals, key=_by_minimum)
        return best

    def checkpoints(self, trace: Trace) -> tuple[Checkpoint, ...]:
        """All checkpoints of a trace, with their numbers."""
        return checkpoints_by_types(trace, self.recomp_checkpoint_ops_by_types.split("+"))

    def runs(self, trace: Trace, ids: Sequence[int]) -> tuple[Run, ...]:
        """The step in which what belongs to some checkpoints is computed again, before any swap."""
        return rematerialise(trace, self._dropped(trace, ids))

    def _dropped(self, trace: Trace, ids: Sequence[int]) -> list[int]:
        known = self.checkpoints(trace)
        segment = segments(trace, [checkpoint.var for checkpoint in known])
        return [var for number in ids for var in segment[known[number - 1].var]]

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
                    code="OOC-105", fix="ooctrain plan MODEL --list-checkpoints prints them",
                )  # fmt: skip
            yield ids

    def _prefixes(self, trace: Trace, machine: Machine) -> Iterator[tuple[int, ...]]:
        order = self.by_recompute_time(trace, machine)
        lengths = {round(step * len(order) / PREFIXES) for step in range(PREFIXES + 1)}
        for length in sorted(lengths):
            yield tuple(sorted(order[:length]))

    def by_recompute_time(self, trace: Trace, machine: Machine) -> list[int]:
        """Numbers of the checkpoints with a segment, the least time per byte to get it back first.

        Cost: O(checkpoints x calls).
        """
        durations = call_durations_ns(trace, machine)
        in_core = sum(durations)

        def time_per_byte(number: int) -> float:
            dropped = self._dropped(trace, [number])
            runs = rematerialise(trace, dropped)
            size_bytes = sum(trace.variables[var].nbytes for var in dropped)
            return (sum(durations[run.call] for run in runs) - in_core) / size_bytes

        segment = segments(trace, [checkpoint.var for checkpoint in self.checkpoints(trace)])
        ids = [checkpoint.id for checkpoint in self.checkpoints(trace) if segment[checkpoint.var]]
        times = {number: time_per_byte(number) for number in ids}
        return sorted(ids, key=lambda number: (times[number], number))


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
            f"tflms-hybrid: checkpoint_list={text!r} is no list of numbers", code="OOC-105",
            fix='such as "2+4+6", "all", "auto" or none',
        ) from error  # fmt: skip


def _by_minimum(refusal: Infeasible) -> tuple[bool, int]:
    return refusal.minimum_bytes == HOST_LACKS, refusal.minimum_bytes
