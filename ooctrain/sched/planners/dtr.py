"""dtr: recomputation decided while the step runs, like a cache of tensors with computed misses.

There is no plan ahead of time: the list is that of a simulated online run-time. Where an allocation
does not fit, the tensor with the least h = cost / (size x staleness) is evicted. Where a call
misses an input, its producer runs again, after the producers of the inputs that are missing there.
The cost of a tensor is its own time and that of the evicted ones around it, which would have to
come back with it or go with it; staleness is the time since it was last touched.

Sources: Kirisame et al., Dynamic Tensor Rematerialization (2021), section 3 and appendix (h_DTR
with equivalence classes: evicted neighbours are kept as sets with a total cost, and one that comes
back subtracts its own). Departures: values that the rest of the step does not read are freed at
once (their "eager eviction", here with the trace for reference counts); outputs of calls that may
not run again stay; an online rule succeeds at some budgets and fails at larger ones, so besides the
budget itself fixed fractions of the step's peak are tried as limits, and the fastest that fits is
taken. Read next: `sched/planners/rotor.py`, for what knowing the whole chain is worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ooctrain.sched.planning.decisions import Decisions, runs_once
from ooctrain.sched.planning.list_writer import last_uses
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.planner import check_whole_numbers, infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule, Plan, Run
from ooctrain.step.machine import call_durations_ns
from ooctrain.step.trace import Call, Trace


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

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least need of the runs at the fixed limits."""
        trace, budget_bytes, granule = question.trace, question.budget_bytes, question.granule
        durations = call_durations_ns(trace, question.machine)
        tried = (online(trace, limit, durations, granule) for limit in self._limits(question))
        ways = [runs_once(trace), *(runs for runs in tried if runs is not None)]
        needs = [question.liveness.least_budget(way) for way in ways]
        least, witness = min(needs)
        if least > budget_bytes:
            raise infeasible(self.name, budget_bytes, least, witness)
        fitting = [w for w, need in zip(ways, needs, strict=True) if need[0] <= budget_bytes]
        within = online(trace, budget_bytes, durations, granule)
        if within is not None and question.liveness.least_budget(within)[0] <= budget_bytes:
            fitting.append(within)
        runs = min(fitting, key=lambda runs: sum(durations[run.call] for run in runs))
        notes = {"runs_again": len(runs) - len(trace.calls)}
        return plan_of(self.name, question, Decisions(runs), notes)

    def _limits(self, question: Question) -> Iterator[int]:
        """Bytes, from the step's minimum up to just below its peak."""
        least, most = question.minimum_bytes, question.peak_bytes
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


# The run-time: a cache of tensors whose misses are computed. Connected evicted tensors form a set
# with one total cost, kept by union and find; a tensor that comes back subtracts its own time.


#: A run-time that runs this many times the calls of a step has begun to thrash, and is given up.
THRASHING = 4
#: Stands for no time at all where one divides by it.
TOUCHED_NOW_NS = 1e-300


class GivenUp(Exception):
    """All that may go is gone, or the run-time thrashes."""


class GoneForGood(Exception):
    """An evicted value cannot come back: what it was made from has been updated."""

    def __init__(self, var: int):
        super().__init__(var)
        self.var = var


class Runtime:
    """One step, run online under a limit.

    Args:
        limit_bytes: limit of all that is on the device, in granted bytes.
        stays: values that are not evicted.

    Attributes:
        runs: what has run so far.
        alive: what is on the device; held_bytes: what it takes.
        evictable: for each value, whether it is there and may be evicted.
        locks: for each value, how many calls that are about to run need it.
        touched_ns: for each value, when it was last touched.
    """

    def __init__(
        self, trace: Trace, limit_bytes: int, duration_ns: list[int], granule: Granule,
        stays: frozenset[int],
    ):  # fmt: skip
        self.trace, self.limit_bytes, self.duration_ns = trace, limit_bytes, duration_ns
        self.size = [granule.granted(variable.nbytes) for variable in trace.variables]
        self.workspace = [granule.granted(call.workspace_bytes) for call in trace.calls]
        self.last_use = last_uses(trace)
        stays |= {*trace.outputs.values(), *trace.end_variables.values()}
        self.may_go = [self._comes_back(v.id) and v.id not in stays for v in trace.variables]
        self.around = Neighbours(trace, duration_ns)
        self.alive = {v for v in trace.initial if trace.variables[v].persistent}
        self.held_bytes = sum(self.size[v] for v in self.alive)
        self.runs: list[Run] = []
        self.evictable = np.zeros(len(trace.variables), np.bool_)
        self.locks = np.zeros(len(trace.variables), np.int64)
        self.now_ns, self.touched_ns = 0, np.zeros(len(trace.variables), np.int64)
        self.size_bytes = np.maximum(np.array(self.size, float), 1.0)

    def play(self) -> None:
        """Runs the step.

        Raises:
            GivenUp: the limit is too small.
            GoneForGood: a value was evicted that has to stay.
        """
        for call in self.trace.calls:
            self._lock(call)
            for var in call.ins:
                self._bring(var)
            self._run(call)
            self._unlock(call)
            self._let_go(call)

    def _lock(self, call: Call) -> None:
        for var in call.ins:
            self.locks[var] += 1

    def _unlock(self, call: Call) -> None:
        for var in call.ins:
            self.locks[var] -= 1

    def _comes_back(self, var: int) -> bool:
        producer = self.trace.producer[var]
        return producer is not None and self.trace.calls[producer].pure and self.size[var] > 0

    def _bring(self, wanted: int) -> None:
        """Runs what it takes to have a value, depth first."""
        stack, open_calls = [wanted], set[int]()
        while stack:
            var = stack[-1]
            if var in self.alive:
                stack.pop()
                continue
            producer = self.trace.producer[var]
            if producer is None and not self.trace.variables[var].persistent:
                self._make_room(self.size[var])  # an input comes from the host, and stays
                self._add(var)
                continue
            if producer is None or not self.trace.calls[producer].pure:
                raise GoneForGood(wanted)
            call = self.trace.calls[producer]
            if producer not in open_calls:
                open_calls.add(producer)
                self._lock(call)
            missing = [v for v in call.ins if v not in self.alive]
            if missing:
                stack += missing
                continue
            self._run(call)
            open_calls.remove(producer)
            self._unlock(call)

    def _run(self, call: Call) -> None:
        if len(self.runs) >= THRASHING * len(self.trace.calls):
            raise GivenUp
        keep = tuple(v for v in call.outs if v not in self.alive)
        fresh = sum(self.size[v] for v in call.outs if v not in call.reuse)
        self._make_room(fresh + self.workspace[call.id])
        self.runs.append(Run(call.id, keep if len(keep) < len(call.outs) else None))
        for source in call.reuse.values():
            self._remove(source)
        for var in keep:
            self._add(var)
        self.now_ns += self.duration_ns[call.id]
        for var in call.touched():
            self.touched_ns[var] = self.now_ns

    def _add(self, var: int) -> None:
        self.alive.add(var)
        self.evictable[var] = self.may_go[var]
        self.held_bytes += self.size[var]
        self.around.is_back(var)

    def _remove(self, var: int) -> None:
        self.alive.remove(var)
        self.evictable[var] = False
        self.held_bytes -= self.size[var]
        self.around.is_gone(var)

    def _let_go(self, call: Call) -> None:
        """Frees what no later call of the step reads; inputs stay."""
        candidates = {*call.touched(), *self.around.brought_back}
        self.around.brought_back.clear()
        for var in candidates & self.alive:
            is_input = self.trace.producer[var] is None and not self.trace.variables[var].persistent
            if self.last_use[var] <= call.id and not is_input:
                self._remove(var)

    def _make_room(self, size_bytes: int) -> None:
        while self.held_bytes + size_bytes > self.limit_bytes:
            self._remove(self._least())

    def _least(self) -> int:
        """The value with the least h, the first of equals.

        What is known of costs says how small each h may be, so that few of them are computed.
        """
        candidates = np.flatnonzero(self.evictable & (self.locks == 0))
        stale_ns = np.maximum(self.now_ns - self.touched_ns[candidates], TOUCHED_NOW_NS)
        at_least = self.around.least_ns(candidates) / self.size_bytes[candidates] / stale_ns
        least = (math.inf, len(self.size))
        for place in np.argsort(at_least):
            if at_least[place] > least[0]:
                break
            least = min(least, self._h(int(candidates[place])))
        if not candidates.size:
            raise GivenUp
        return least[1]

    def _h(self, var: int) -> tuple[float, int]:
        """(h, value); infinite for what was touched just now."""
        space_time = self.size[var] * (self.now_ns - int(self.touched_ns[var]))
        return (self.around.cost_ns(var) / space_time if space_time else math.inf), var


class Neighbours:
    """What is evicted around a value, and what it costs together.

    Attributes:
        brought_back: values that came back since this was cleared.
        seen_ns: for each value, the cost found last, plus `returned_ns` then; 0 where a value
            connected to it has come back since.
        returned_ns: the times of all values that came back.
    """

    def __init__(self, trace: Trace, duration_ns: list[int]):
        makers = [None if p is None else trace.calls[p] for p in trace.producer]
        self.own_ns = [0 if call is None else duration_ns[call.id] for call in makers]
        self.neighbours: list[tuple[int, ...]] = []
        for var, call in enumerate(makers):
            made_from = () if call is None else call.ins
            made_of_it = [out for k in trace.readers[var] for out in trace.calls[k].outs]
            self.neighbours.append(tuple(dict.fromkeys((*made_from, *made_of_it))))
        self.brought_back: set[int] = set()
        self.parent: dict[int, int] = {}  # of evicted values, up to the name of their set
        self.set_of: dict[int, int] = {}
        self.total_ns: dict[int, int] = {}
        self.alone_ns = np.array(self.own_ns, float)
        self.seen_ns, self.returned_ns = np.zeros(len(self.own_ns)), 0

    def cost_ns(self, var: int) -> int:
        """Of a value and the evicted sets that it touches."""
        names = {self._find(self.set_of[v]) for v in self.neighbours[var] if v in self.set_of}
        cost_ns = self.own_ns[var] + sum(self.total_ns[name] for name in names)
        self.seen_ns[var] = cost_ns + self.returned_ns
        return cost_ns

    def least_ns(self, values: NDArray[np.intp]) -> NDArray[np.float64]:
        """What the cost of each value is at least, in no time.

        A cost falls only where a value comes back: by the time of this value, or by a whole set if
        it is connected to. The last digits are left to rounding.
        """
        known_ns = self.seen_ns[values] - self.returned_ns - 1
        return (1 - 1e-9) * np.maximum(self.alone_ns[values], known_ns)

    def is_gone(self, var: int) -> None:
        """A value was evicted: it joins the sets around it."""
        name = len(self.parent)
        self.parent[name], self.total_ns[name] = name, self.own_ns[var]
        for other in {self._find(self.set_of[v]) for v in self.neighbours[var] if v in self.set_of}:
            self.parent[other] = name
            self.total_ns[name] += self.total_ns.pop(other)
        self.set_of[var] = name

    def is_back(self, var: int) -> None:
        """A value is there (again): it takes its own time out of its set, which stays one."""
        if var in self.set_of:
            self.total_ns[self._find(self.set_of.pop(var))] -= self.own_ns[var]
            self.returned_ns += self.own_ns[var]
            self.seen_ns[list(self.neighbours[var])] = 0
            self.brought_back.add(var)

    def _find(self, name: int) -> int:
        while self.parent[name] != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name
