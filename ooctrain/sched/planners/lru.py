"""lru: memory as a cache with demand paging, as CUDA Unified Memory has it.

There is no planning ahead. When a call is about to run, the missing pages that it touches are
fetched, and the least recently used pages make room for them, in pages of 2 MiB. The step stops for
every such fault.

Because a call touches a variable from end to end, its resident pages are always its last ones:
pages leave from the front, and come back all together. So one number for each variable is enough.
Persistent variables are cached across steps: a cold step is walked first, and what it leaves on the
device is where the planned step starts.

Sources: Unified Memory as papers 000 to 002 and 004 compare with it in words; CUDA C++ Programming
Guide, chapter on Unified Memory (migration on fault, eviction of least recently used blocks of 2
MiB). Departures: pages that still have a valid host copy leave without a transfer; dead variables
are freed at once; neighbouring pages move in one copy. Read next: `belady.py`, for what knowing the
future is worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ooctrain.sched.planning.list_writer import VariableSequence, bound_to_device, last_uses
from ooctrain.sched.planning.planner import check_host, check_whole_numbers, infeasible, make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import (
    End,
    Fence,
    Free,
    Granule,
    Instruction,
    Plan,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
)
from ooctrain.step.trace import Call, Trace

PAGE_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Lru:
    """Demand paging.

    Args:
        page_bytes: what moves at least, rounded up to the granule; whole variables on allocators
            without ranges.

    Cost: O(uses + pages that leave), twice.
    """

    name = "lru"

    page_bytes: int = PAGE_BYTES

    def __post_init__(self) -> None:
        check_whole_numbers(self.name, {"page_bytes": self.page_bytes})

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the largest need of a single call."""
        trace, budget_bytes, granule = question.trace, question.budget_bytes, question.granule
        need, witness = VariableSequence(trace, granule, pin_persistent=False).largest_need()
        if need > budget_bytes:
            raise infeasible(self.name, budget_bytes, need, witness)
        page = granule.granted(self.page_bytes)
        cold = _Cache(trace, budget_bytes, granule, page, {})
        cold.walk()
        warm = _Cache(trace, budget_bytes, granule, page, cold.left())
        warm.walk()
        plan = make_plan(warm.finish(), trace, question.machine, {"page_bytes": page})
        check_host(self.name, plan, question.host_budget_bytes)
        return plan


class _Cache:
    """One step of demand paging.

    Attributes:
        away: for each variable, how many of its first bytes are not on the device.
        hosted: for each variable, how many of its first bytes have a valid host copy.
        recent: what has bytes on the device, the least recently used first.
    """

    def __init__(
        self, trace: Trace, budget_bytes: int, granule: Granule, page: int,
        start: Mapping[int, int],
    ):  # fmt: skip
        self.trace, self.budget_bytes, self.granule, self.page = trace, budget_bytes, granule, page
        self.size = [variable.nbytes for variable in trace.variables]
        self.pinned = bound_to_device(trace)
        self.last_use = last_uses(trace)
        self.away, self.hosted = list(self.size), [0] * len(self.size)
        self.start = {
            v: 0 if v in self.pinned else start.get(v, self.size[v]) for v in trace.initial
        }
        for variable, away in self.start.items():
            self.away[variable] = self.hosted[variable] = away
        order = [*start, *sorted(self.pinned.intersection(trace.initial))]
        self.recent = dict.fromkeys(v for v in order if self.away[v] < self.size[v])
        self.ledger_bytes = sum(self._granted(v, self.away[v], self.size[v]) for v in self.recent)
        self.instructions: list[Instruction] = []

    def walk(self) -> None:
        """All calls."""
        for call in self.trace.calls:
            self._run(call)

    def left(self) -> Mapping[int, int]:
        """{initial variable: first bytes away} for what of it is on the device now, the least
        recently used first.
        """
        initial = {end: start for start, end in self.trace.end_variables.items()}
        return {initial[v]: self.away[v] for v in self.recent if v in initial}

    def finish(self) -> Schedule:
        """Brings the start about again and returns the schedule."""
        ends = {self.trace.end_variables.get(v, v): away for v, away in self.start.items()}
        for variable in list(self.recent):
            self._evict(variable, ends.get(variable, self.size[variable]))
        for variable, away in ends.items():
            if self.trace.variables[variable].persistent:
                self._fetch(variable, away)
        starts = sorted(self.start.items())
        return Schedule(
            tuple(self.instructions),
            tuple((v, away, self.size[v]) for v, away in starts if away < self.size[v]),
            tuple((v, 0, away) for v, away in starts if away or not self.size[v]),
            self.granule,
        )

    def _run(self, call: Call) -> None:
        touched = call.touched()
        fresh = [v for v in call.outs if v not in call.reuse]
        claim_bytes = self.granule.granted(call.workspace_bytes)
        claim_bytes += sum(self._granted(v, 0, self.size[v]) for v in fresh)
        missing = [v for v in call.ins if self.away[v]]
        if missing or self.ledger_bytes + claim_bytes > self.budget_bytes:
            self.instructions.append(Fence())  # a fault stops the step
        for variable in dict.fromkeys(missing):
            self._make_room(self._granted(variable, 0, self.away[variable]), touched)
            self._fetch(variable, 0)
        self._make_room(claim_bytes, touched)
        self.instructions += [Run(call.id), End(call.id)]
        self.ledger_bytes += claim_bytes - self.granule.granted(call.workspace_bytes)
        for source in call.reuse.values():
            self.recent.pop(source, None)
            self.away[source] = self.size[source]
        for out in call.outs:
            self.away[out] = 0
        self._touch(touched, call)

    def _touch(self, touched: Sequence[int], call: Call) -> None:
        taken_over = set(call.reuse.values())
        for variable in touched:
            self.recent.pop(variable, None)
            if variable not in taken_over and self.size[variable]:
                self.recent[variable] = None
                if self.last_use[variable] <= call.id:
                    self._free(variable, self.size[variable])

    def _make_room(self, size_bytes: int, touched: Sequence[int]) -> None:
        """Evicts pages, the least recently used first, but none of the call's own."""
        asked = set(touched) | self.pinned
        while (short_bytes := self.ledger_bytes + size_bytes - self.budget_bytes) > 0:
            variable = next((v for v in self.recent if v not in asked), None)
            if variable is None:
                return
            asked.add(variable)
            pages = -(-short_bytes // self.page)
            whole = not self.granule.ranges
            end = self.size[variable] if whole else self.away[variable] + pages * self.page
            self._evict(variable, min(end, self.size[variable]))

    def _evict(self, variable: int, end: int) -> None:
        """Makes its bytes up to `end` leave the device, those without a host copy by a copy."""
        first, hosted = self.away[variable], self.hosted[variable]
        if first >= end:
            return
        if hosted < end:
            self.instructions.append(SwapOut(variable, max(first, hosted), end))
            self.hosted[variable] = end
        self._free(variable, end)

    def _free(self, variable: int, end: int) -> None:
        first = self.away[variable]
        self.instructions.append(Free(variable, first, end))
        self.ledger_bytes -= self._granted(variable, first, end)
        self.away[variable] = end
        if end == self.size[variable]:
            self.recent.pop(variable, None)

    def _fetch(self, variable: int, first: int) -> None:
        """Brings its bytes from `first` on to the device."""
        end = self.away[variable]
        if first < end:
            self.instructions.append(SwapIn(variable, first, end))
            self.ledger_bytes += self._granted(variable, first, end)
            self.away[variable] = first
            self.recent[variable] = None

    def _granted(self, variable: int, first: int, end: int) -> int:
        return self.granule.granted(end - first)
