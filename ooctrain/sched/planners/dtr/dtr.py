"""dtr: recomputation decided while the step runs, like a cache of tensors with computed misses.

There is no plan ahead of time: the list is that of a simulated online run-time. Where an allocation
does not fit, the tensor with the least h = cost / (size x staleness) is evicted. Where a call lacks
an input, its producer runs again, after the producers of the inputs that are missing there. The
cost of a tensor is its own time and that of the evicted ones around it, which would have to come
back with it or go with it; staleness is the time since it was last touched.

Sources: Kirisame et al., Dynamic Tensor Rematerialization (2021), section 3 and appendix (h_DTR
with equivalence classes: evicted neighbours are kept as sets with a total cost, and one that comes
back subtracts its own). Departures: values that the rest of the step does not read are freed at
once (their "eager eviction", here with the trace for reference counts); outputs of calls that may
not run again stay; an online rule succeeds at some budgets and fails at larger ones, so besides the
budget itself fixed fractions of the step's peak are tried as limits, and the fastest that fits is
taken. Read next: `sched/planners/rotor.py`, for what knowing the whole chain is worth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.dtr.dtr_runtime import GivenUp, GoneForGood, Runtime
from ooctrain.sched.planning.decisions import Decisions, runs_once
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.parameters import check_whole_numbers
from ooctrain.sched.planning.planner import infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import BYTES, Granule, Plan, Run
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class Dtr:
    """The eviction heuristic h_DTR-eq.

    Args:
        limits: how many fractions of the step's peak are tried besides the budget.

    Cost: for each limit O(evictions x values alive).
    """

    name = "dtr"

    limits: int = 12

    def __post_init__(self) -> None:
        check_whole_numbers(self.name, {"limits": self.limits}, least=0)

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least need of the runs at the fixed limits."""
        durations = call_durations_ns(trace, machine)
        limits = self._limits(trace, granule)
        tried = (online(trace, limit, durations, granule) for limit in limits)
        ways = [runs_once(trace), *(runs for runs in tried if runs is not None)]
        liveness = Liveness(trace, granule)
        needs = [liveness.least_budget(way) for way in ways]
        least, witness = min(needs)
        if least > budget_bytes:
            raise infeasible(self.name, budget_bytes, least, witness)
        fitting = [w for w, need in zip(ways, needs, strict=True) if need[0] <= budget_bytes]
        within = online(trace, budget_bytes, durations, granule)
        if within is not None and liveness.least_budget(within)[0] <= budget_bytes:
            fitting.append(within)
        runs = min(fitting, key=lambda runs: sum(durations[run.call] for run in runs))
        notes = {"runs_again": len(runs) - len(trace.calls)}
        question = Question(trace, budget_bytes, machine, granule, host_budget_bytes)
        return plan_of(self.name, question, Decisions(runs), notes)

    def _limits(self, trace: Trace, granule: Granule) -> Iterator[int]:
        """Bytes, from the step's minimum up to just below its peak."""
        least, most = trace_minimum_bytes(trace, granule), trace_peak_bytes(trace, granule)
        for step in range(self.limits):
            yield least + (most - least) * step // self.limits


def online(
    trace: Trace, limit_bytes: int, duration_ns: list[int], granule: Granule
) -> tuple[Run, ...] | None:
    """The runs of an online run-time under a limit; None where it does not get through the step."""
    stays: frozenset[int] = frozenset()
    while True:
        runtime = Runtime(trace, limit_bytes, duration_ns, granule, stays)
        try:
            runtime.play()
        except GoneForGood as gone:
            stays |= {gone.var}
        except GivenUp:
            return None
        else:
            return tuple(runtime.runs)
