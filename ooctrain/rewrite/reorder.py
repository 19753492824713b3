"""Reorder: the same calls in an order that holds less at once.

A trace runs its calls in the order in which the program made them. Where the graph has branches,
other orders are possible, and they differ in what is alive at one time: a branch that ends small
should be finished before the next one begins, and a weight gradient should run as soon as it can,
since it is the last reader of an activation and of a gradient that are large. No planner here moves
a call; this rewrite does, before any of them runs, and all of them gain.

Two steps: a greedy order, which of the calls that may run takes the one after which least is alive;
then a local search, from it and from the order as it was, which moves single calls as early, as
late or as near to the peak as they may stand. The best order seen is taken, so the peak is never
higher than before. A call never leaves its phase, calls that change states keep their order, and a
call that writes over its input stays behind the other readers of that input; so every operation has
the same inputs as before, and all results have the same bits. Sources: Steiner et al., "OLLA:
decreasing the memory usage of neural networks by optimizing the lifetime and location of arrays"
(2022), which orders by an integer program; Huang et al., "SwapAdvisor" (ASPLOS 2020). The two
heuristics are ours. Read next: `share_storage.py`, which may do more after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.step.trace import Trace

NAME = "reorder"
#: Moves that the local search tries in all; each costs a walk over the uses of the step.
MOST_MOVES = 400


def reorder(trace: Trace) -> Trace:
    """The trace with its calls in the best order found; itself where none is better.

    Cost: O(calls^2) for the greedy order, O(uses) for each of `MOST_MOVES` moves.
    """
    orders = _Orders(trace)
    start = list(range(len(trace.calls)))
    best = min(map(orders.descend, (start, orders.greedy())), key=orders.height)
    if orders.height(best)[0] >= orders.height(start)[0]:
        return trace
    found = trace.with_calls([trace.calls[call] for call in best])
    assert trace_peak_bytes(found) < trace_peak_bytes(trace), "two peaks disagree"
    return found


class _Orders:
    """What any order of a trace's calls must keep to, and what it holds.

    Attributes:
        after: for each call the calls that run before it in every order.
    """

    def __init__(self, trace: Trace):
        self._trace = trace
        self._phase = _phases(trace)
        self.after = _dependencies(trace)
        self._before: list[set[int]] = [set() for _ in trace.calls]
        for call, earlier in enumerate(self.after):
            for one in earlier:
                self._before[one].add(call)
        storage = trace.storage
        self._stays = {storage[v] for v in trace.end_variables.values()}
        first = {storage[v] for v in trace.initial if trace.variables[v].persistent}
        always = first & self._stays
        self._first = first - always  # a parameter of which the update writes a new one
        self._places = [{storage[v] for v in call.touched()} - always for call in trace.calls]
        self._users: dict[int, set[int]] = {}
        for call, places in enumerate(self._places):
            for place in places:
                self._users.setdefault(place, set()).add(call)
        self._sizes = {place: trace.variables[place].nbytes for place in self._users}

    def height(self, order: Sequence[int]) -> tuple[int, int]:
        """(most bytes held during a call, without what always is; how many calls hold as much)."""
        held = self.held(order)
        most = max(held, default=0)
        return most, held.count(most)

    def held(self, order: Sequence[int]) -> list[int]:
        """Bytes alive during each call of an order, its workspace included."""
        at = {call: place for place, call in enumerate(order)}
        change = [0] * (len(order) + 1)
        for place, users in self._users.items():
            turns = [at[call] for call in users]
            change[0 if place in self._first else min(turns)] += self._sizes[place]
            if place not in self._stays:
                change[max(turns) + 1] -= self._sizes[place]
        alive = accumulate(change[:-1])
        return [
            bytes_now + self._trace.calls[call].workspace_bytes
            for bytes_now, call in zip(alive, order, strict=True)
        ]

    def greedy(self) -> list[int]:
        """Of the calls that may run, always the one after which least is alive; else the first."""
        left = {place: set(users) for place, users in self._users.items()}
        waiting = [len(earlier) for earlier in self.after]
        ready = {call for call, count in enumerate(waiting) if not count}
        order: list[int] = []
        claimed = set(self._first)
        while ready:
            phase = min(self._phase[call] for call in ready)
            chosen = min(
                (call for call in ready if self._phase[call] == phase),
                key=lambda call: (self._growth(call, left, claimed), call),
            )
            ready.discard(chosen)
            order.append(chosen)
            claimed |= self._places[chosen]
            for place in self._places[chosen]:
                left[place].discard(chosen)
            for later in self._before[chosen]:
                waiting[later] -= 1
                if not waiting[later]:
                    ready.add(later)
        return order

    def descend(self, order: list[int]) -> list[int]:
        """Moves calls away from the peak as long as that lowers it."""
        height, tried = self.height(order), 0
        improved = True
        while improved and tried < MOST_MOVES:
            improved = False
            for moved in self._moves(order):
                tried += 1
                found = self.height(moved)
                if found < height:
                    order, height, improved = moved, found, True
                    break
                if tried >= MOST_MOVES:
                    break
        return order

    def _growth(self, call: int, left: dict[int, set[int]], claimed: set[int]) -> int:
        """By how much a call that runs now makes more alive."""
        grows = 0
        for place in self._places[call]:
            grows += self._sizes[place] * (place not in claimed)
            if place not in self._stays and left[place] == {call}:
                grows -= self._sizes[place]
        return grows

    def _moves(self, order: Sequence[int]) -> Iterator[list[int]]:
        """Orders with one call elsewhere, those next to the peak first."""
        held = self.held(order)
        peak = held.index(max(held))
        for place in sorted(range(len(order)), key=lambda place: abs(place - peak)):
            call = order[place]
            first, last = self._reach(order, place)
            others = [*order[:place], *order[place + 1 :]]
            for target in (peak, first, last):
                if first <= target <= last and target != place:
                    yield [*others[:target], call, *others[target:]]

    def _reach(self, order: Sequence[int], place: int) -> tuple[int, int]:
        """The first and the last place in which a call may stand, all others as they are."""
        call, first, last = order[place], place, place
        phase = self._phase[call]
        while first and self._free_of(order[first - 1], self.after[call], phase):
            first -= 1
        while last + 1 < len(order) and self._free_of(order[last + 1], self._before[call], phase):
            last += 1
        return first, last

    def _free_of(self, other: int, bound: set[int], phase: int) -> bool:
        return other not in bound and self._phase[other] == phase


def _phases(trace: Trace) -> list[int]:
    """For each call the number of its stretch of calls of one phase; stretches stay in order."""
    numbers: list[int] = []
    for call in trace.calls:
        before = numbers[-1] if numbers else 0
        changed = bool(numbers) and trace.calls[call.id - 1].phase != call.phase
        numbers.append(before + changed)
    return numbers


def _dependencies(trace: Trace) -> list[set[int]]:
    """For each call those before it in every order: the makers of what it reads, the readers of
    what it writes over, and the impure call before an impure one. (Phases are kept besides.)
    """
    found: list[set[int]] = [set() for _ in trace.calls]
    impure: int | None = None
    for call in trace.calls:
        made_by = {trace.producer[v] for v in call.ins}
        found[call.id] |= {one for one in made_by if one is not None}
        for source in call.reuse.values():
            found[call.id] |= set(trace.readers[source]) - {call.id}
        if not call.pure:
            if impure is not None:
                found[call.id].add(impure)
            impure = call.id
    return found
