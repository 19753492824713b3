"""capuchin: swap what the link can hide, recompute what is cheapest, by measured access times.

A value that is read again much later can be away meanwhile. Its *free time* is the interval between
two accesses less the times of the copies out and back. Values with the most free time are swapped
first, as long as the link, which carries one copy after the other, can hide both copies. After that
the next swap costs the exposed part of its copies. The best recomputation (most bytes saved per
second of computing, including whatever its own sources need by then) costs that computing. The
cheaper of the two is taken, until the peak is below the budget.

Source: Peng et al., Capuchin: Tensor-based GPU memory management for deep learning (ASPLOS 2020),
section 4. Departures: access times are those of the machine's model, not of a measured iteration;
which accesses lie in the peak is seen from the bytes at each call; copies start as early as the
shared engine finds room, there at an access before (the in-trigger, moved by feedback); a choice
that does not fit once it is played through is extended; and since such a rule may fail at a budget
where it succeeded at a smaller one, every value that may leave is released where it fails. Read
next: `prefix.py`, which sorts once; `combined.py`, which searches.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ooctrain.sched.planning.decisions import Decisions, Gap
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.planner import infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable, last_forward_use, rematerialise
from ooctrain.sched.planning.swap import movable_gaps
from ooctrain.sched.schedule import Plan, Run
from ooctrain.step.machine import call_durations_ns

#: The peak is aimed at in steps of at least this share of the budget.
STEPS = 32


class Capuchin:
    """Free time first, then saving per second.

    Cost: for each target that is tried the runs of a step, and for each value that is let go those
    that may be computed again.
    """

    name = "capuchin"

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least of two extremes: all is swapped that may be, or
        all is let go in the way that is cheaper."""
        budget_bytes = question.budget_bytes
        policy = Policy(question)
        everything = LetGo(frozenset(policy.intervals), frozenset())
        extremes = [policy.played(way) for way in (policy.choose(0), everything)]
        smallest = min(extremes, key=lambda way: way.need)
        if smallest.need[0] > budget_bytes:
            raise infeasible(self.name, budget_bytes, *smallest.need)
        found = policy.fitting() or smallest
        notes = {
            "swapped": len({gap.var for gap in found.gaps}),
            "runs_again": len(found.runs) - len(question.trace.calls),
        }
        return plan_of(self.name, question, Decisions(found.runs, found.gaps), notes)


@dataclass(frozen=True, slots=True)
class LetGo:
    """What is let go in its interval: values that are swapped, and that are computed again."""

    swapped: frozenset[int]
    dropped: frozenset[int]


@dataclass(frozen=True, slots=True)
class Played:
    """A choice as runs and gaps; `need` is (least budget, the call that needs it)."""

    runs: tuple[Run, ...]
    gaps: tuple[Gap, ...]
    need: tuple[int, str]


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """When a value leaves and returns, how long each takes, and how much of the latter shows."""

    leaves_ns: int
    out_ns: int
    returns_ns: int
    in_ns: int
    shown_ns: int


class Lane:
    """When the link is busy in one direction."""

    def __init__(self) -> None:
        self._busy: list[tuple[int, int]] = []

    def earliest_ns(self, begin_ns: int, length_ns: int) -> int:
        """When a copy begins that may begin at a time. Cost: O(copies)."""
        for start_ns, end_ns in self._busy:
            if start_ns - begin_ns >= length_ns:
                break
            begin_ns = max(begin_ns, end_ns)
        return begin_ns

    def latest_ns(self, end_ns: int, length_ns: int) -> int:
        """When a copy begins at last that is to be there at a time. Cost: O(copies)."""
        for start_ns, done_ns in reversed(self._busy):
            if end_ns - done_ns >= length_ns:
                break
            end_ns = min(end_ns, start_ns)
        return end_ns - length_ns

    def take(self, start_ns: int, length_ns: int) -> None:
        """A copy runs then."""
        insort(self._busy, (start_ns, start_ns + length_ns))


class Policy:
    """Which values are let go, and how.

    Attributes:
        intervals: {value: its longest interval between two accesses}, of what the forward pass
            makes.
        by_free_time: the values, those first whose copies leave most of the interval.
    """

    def __init__(self, question: Question):
        self.question, trace = question, question.trace
        self._durations_ns = call_durations_ns(trace, question.machine)
        self.resident = np.array(question.resident_bytes, np.int64)
        self.intervals: dict[int, Gap] = {}
        for gap in sorted(question.swap_gaps, key=lambda gap: gap.before - gap.after):
            producer = trace.producer[gap.var]
            if producer is not None and trace.calls[producer].phase in ("forward", "loss"):
                self.intervals[gap.var] = gap
        self._end_ns = list(accumulate(self._durations_ns))
        self.by_free_time = sorted(self.intervals, key=lambda var: (-self._free_ns(var), var))
        self.revivable = [
            var
            for var in droppable(trace)
            if var in self.intervals and self.intervals[var].after == last_forward_use(trace, var)
        ]

    def fitting(self) -> Played | None:
        """The first choice that fits once it is played through; None: no choice fits."""
        budget = target = self.question.budget_bytes
        while target > 0:
            choice = self.choose(target)
            way = self.played(choice)
            over = way.need[0] - budget
            if over <= 0:
                return way
            if len(choice.swapped) + len(choice.dropped) == len(self.intervals):
                return None
            target -= max(over, budget // STEPS, 1)
        return None

    def choose(self, target_bytes: int) -> LetGo:
        """Lets values go until at no call more than the target is there, or none is left."""
        return _Choosing(self, target_bytes).choice()

    def played(self, choice: LetGo) -> Played:
        """A choice played through. Cost: O(uses by the runs)."""
        trace = self.question.trace
        runs = rematerialise(trace, choice.dropped)
        first: dict[int, int] = {}
        for position, run in enumerate(runs):
            first.setdefault(run.call, position)

        def is_away(gap: Gap) -> bool:
            interval = self.intervals[gap.var]
            return first[interval.after] <= gap.after and gap.before <= first[interval.before]

        moved = (gap for gap in movable_gaps(trace, runs) if gap.var in choice.swapped)
        gaps = tuple(filter(is_away, moved))
        liveness = self.question.liveness
        return Played(runs, gaps, liveness.least_budget(runs, gaps))

    def copies_of(self, var: int, out: Lane, back: Lane) -> RoundTrip:
        """How a value would travel in its interval, along with others."""
        gap, machine = self.intervals[var], self.question.machine
        out_ns, in_ns = machine.transfer_ns(gap.hi, "out"), machine.transfer_ns(gap.hi, "in")
        due_ns = self._end_ns[gap.before - 1]
        leaves_ns = out.earliest_ns(self._end_ns[gap.after], out_ns)
        returns_ns = back.latest_ns(due_ns, in_ns)
        if returns_ns < leaves_ns + out_ns:
            returns_ns = back.earliest_ns(leaves_ns + out_ns, in_ns)
        shown_ns = max(0, returns_ns + in_ns - due_ns)
        return RoundTrip(leaves_ns, out_ns, returns_ns, in_ns, shown_ns)

    def again_ns(self, var: int, dropped: Collection[int]) -> float:
        """Time to compute a value again, with those of its sources that are gone by then."""
        trace, needed = self.question.trace, self.intervals[var].before
        lasting = trace.end_variables.values()
        calls, missing = set[int](), [var]
        while missing:
            producer = trace.producer[missing.pop()]
            if producer is None or not trace.calls[producer].pure:
                return math.inf
            if producer not in calls:
                calls.add(producer)
                missing += [
                    source
                    for source in trace.calls[producer].ins
                    if source in dropped
                    or (trace.uses[source][-1] < needed and source not in lasting)
                ]
        return sum(self._durations_ns[call] for call in calls)

    def _free_ns(self, var: int) -> int:
        """What the copies of a value leave of its interval if it has the link to itself."""
        gap, machine = self.intervals[var], self.question.machine
        copies_ns = machine.transfer_ns(gap.hi, "out") + machine.transfer_ns(gap.hi, "in")
        return self._end_ns[gap.before - 1] - self._end_ns[gap.after] - copies_ns


class _Choosing:
    """One round of letting values go.

    Attributes:
        held: bytes on the device at each call.
    """

    def __init__(self, policy: Policy, target_bytes: int):
        self._policy, self._target_bytes = policy, target_bytes
        self.held = policy.resident.copy()
        self._out = Lane()
        # A shared link carries one copy at a time, whichever way it goes.
        shared = policy.question.machine.link == "shared"
        self._back = self._out if shared else Lane()
        self._swapped, self._dropped = set[int](), set[int]()
        #: A heap of (- bytes saved per ns, value); a saving may be out of date: it only falls.
        self._by_saving = [(-math.inf, var) for var in policy.revivable]

    def choice(self) -> LetGo:
        for var in self._policy.by_free_time:
            if self._helps(var):
                copies = self._policy.copies_of(var, self._out, self._back)
                if not copies.shown_ns:
                    self._swap(var, copies)
        for var in self._policy.by_free_time:
            while self._helps(var):
                copies = self._policy.copies_of(var, self._out, self._back)
                again = self._best_to_compute_again()
                if again is None or again[0] >= copies.shown_ns:
                    self._swap(var, copies)
                else:
                    self._dropped.add(again[1])
                    self._is_away(again[1])
        return LetGo(frozenset(self._swapped), frozenset(self._dropped))

    def _helps(self, var: int) -> bool:
        """Whether a value is there where too much is."""
        gap = self._policy.intervals[var]
        there = var not in self._swapped and var not in self._dropped
        over = self.held[gap.after + 1 : gap.before] > self._target_bytes
        return there and bool(over.any())

    def _swap(self, var: int, copies: RoundTrip) -> None:
        self._swapped.add(var)
        self._out.take(copies.leaves_ns, copies.out_ns)
        self._back.take(copies.returns_ns, copies.in_ns)
        self._is_away(var)

    def _is_away(self, var: int) -> None:
        gap = self._policy.intervals[var]
        self.held[gap.after + 1 : gap.before] -= self._policy.question.granule.granted(gap.hi)

    def _best_to_compute_again(self) -> tuple[float, int] | None:
        """(ns, value): the one that saves most bytes per second of computing."""
        while self._by_saving:
            known, var = self._by_saving[0]
            again_ns = self._policy.again_ns(var, self._dropped)
            saving = self._policy.intervals[var].hi / max(1.0, again_ns)
            if not self._helps(var) or again_ns == math.inf:
                heapq.heappop(self._by_saving)
            elif -saving == known:
                return again_ns, var
            else:
                heapq.heapreplace(self._by_saving, (-saving, var))
        return None
