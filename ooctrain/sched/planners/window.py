"""window: paper 000's scheduling, as its authors' code does it.

The planner walks the calls with a window over the variable sequence that starts at the current
call; the size of the window is its one number. Variables that enter the window are swapped in, as
far as the budget allows. A variable that a call used and that does not come again within the window
is swapped out. The list waits for such a swap-out only when its bytes are needed, oldest first. If
the variable comes again before that, its swap-out is cancelled.

Sources: paper 000, section 3; the authors' nnabla, src/nbla/lms/swap_in_out_scheduler.cpp. Where
paper and code differ we follow the code: a variable counts once per window, and where a call does
not fit together with what was prefetched for later ones, those prefetches are forbidden until then
and the walk starts again. We depart from the code in two points. A variable with a valid host copy
leaves without a transfer. Parameters and optimizer slots may stay on the device where that is
faster (`persistent="auto"` tries both). `window-cyclic` makes the free choices of the walk by what
a step costs. Read next: `lru.py`, which looks back where the window looks ahead.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, get_args

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.ledger import peaks
from ooctrain.sched.ledger import walk as walk_list
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planning.fastest import Candidate, fastest, least_us
from ooctrain.sched.planning.list_writer import ListWriter, VariableSequence
from ooctrain.sched.planning.planner import (
    check_true_or_false,
    host_too_small,
    infeasible,
    make_plan,
    smallest_budget,
)
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule, Plan, Schedule
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Call, Trace

Place = Literal["auto", "device", "host"]
DEFAULT_SIZE = 1.5  # "according to ResNet50 experiment" (nnabla's lms.pyx); the paper states none


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Paper 000's planner.

    Args:
        size: the window as a multiple of the budget.
        count: "unique": each variable once per window, with cancel and restart (the authors' code);
            "occurrence": each time it occurs, without cancel (paper 000 as printed). The paper is
            silent about a call that does not fit together with what was prefetched; the window is
            halved until all fit, and the plan's notes name the window that did.
        persistent: where parameters and optimizer slots rest: "host" (as the authors: they swap
            like all others), "device" (they never move), "auto" (the faster of the two that fit).

    Cost: O(calls + variables) for a walk; a restart walks a part of it again.
    """

    name = "window"

    size: float = DEFAULT_SIZE
    count: Count = "unique"
    persistent: Place = "auto"

    def __post_init__(self) -> None:
        if self.count not in get_args(Count) or self.persistent not in get_args(Place):
            raise ConfigError(
                f"window: count={self.count!r}, persistent={self.persistent!r}",
                code="OOC-105",
                fix='count is "unique" or "occurrence"; persistent is "auto", "device" or "host"',
            )
        if not isinstance(self.size, int | float) or not 0 < self.size < math.inf:
            raise ConfigError(
                f"window: size={self.size!r} is not a finite number above 0",
                code="OOC-105",
                fix="such as window:size=1.5, paper 000's; a share of the budget",
            )

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the largest need of a single call; where host memory is
        short, it is searched for, and a time limit ends that with a budget that suffices.
        """
        sequences = self._sequences(question.trace, question.granule)
        needs = (sequence.largest_need() for _, sequence in sequences)
        least, witness = min(needs)
        plans = self._plans(question)
        if plans:
            return min(plans, key=lambda plan: plan.makespan_us)
        if question.host_budget_bytes is not None:
            least = self._least_for_host(question, max(least, question.budget_bytes + 1))
        raise infeasible(self.name, question.budget_bytes, least, witness)

    def _sequences(self, trace: Trace, granule: Granule) -> Iterator[tuple[str, VariableSequence]]:
        places = ("device", "host") if self.persistent == "auto" else (self.persistent,)
        for place in places:
            yield place, VariableSequence(trace, granule, pin_persistent=place == "device")

    def _plans(self, question: Question) -> list[Plan]:
        """A plan for each place where persistent variables may rest and the budgets allow it."""
        host_budget_bytes = question.host_budget_bytes
        host_limit = math.inf if host_budget_bytes is None else host_budget_bytes
        plans = [
            make_plan(found.schedule, question.trace, question.machine, found.notes)
            for found in self._lists(question)
        ]
        return [plan for plan in plans if plan.host_peak_bytes <= host_limit]

    def _lists(self, question: Question) -> Iterator[Candidate]:
        """A list for each place that the device's budget allows."""
        for place, sequence in self._sequences(question.trace, question.granule):
            if sequence.largest_need()[0] <= question.budget_bytes:
                writer, size = walk(sequence, question.budget_bytes, self.size, self.count)
                notes = {"window": size, "count": self.count, "persistent": place}
                yield Candidate(writer.finish(), notes)

    def _least_for_host(self, question: Question, low: int) -> int:
        """The least device budget from `low` on that makes do with the host budget; once the time
        is over one that does, too.

        Raises:
            Infeasible: none does.
        """
        trace, granted = question.trace, question.granule.granted
        host_limit = math.inf
        if question.host_budget_bytes is not None:
            host_limit = question.host_budget_bytes

        def feasible(budget_bytes: int) -> bool:
            lists = self._lists(replace(question, budget_bytes=budget_bytes))
            schedules = (found.schedule for found in lists)
            return any(peaks(walk_list(trace, s), s)[1] <= host_limit for s in schedules)

        if feasible(low):
            return low
        # With every occurrence within window and budget, nothing ever leaves.
        most = sum(granted(trace.variables[v].nbytes) for v in trace.variable_sequence())
        most += max((granted(call.workspace_bytes) for call in trace.calls), default=0)
        high = max(low, math.ceil(most * max(1.0, 1 / self.size)))
        if not feasible(high):
            raise host_too_small(self.name)
        return smallest_budget(feasible, low, high, question.effort.deadline.passed)


# The walk: paper 000's figure 2. At each call (a) variables that enter the window are swapped in,
# (b) the walk waits for leaving variables only when their bytes are needed, (c) variables that the
# call used and that are not in the window again leave.


Count = Literal["unique", "occurrence"]
Rank = Callable[["Walk", int], tuple[int, ...]]
#: Below this share of the budget no window is tried: nothing comes in ahead.
SMALLEST_SIZE = 2**-20


def walk(
    sequence: VariableSequence, budget_bytes: int, size: float, count: Count,
    rank: Rank | None = None,
) -> tuple[ListWriter, float]:  # fmt: skip
    """The list, and the size of the window that led to it.

    Args:
        budget_bytes: device budget; at least `sequence.largest_need()`.
        size: the window, as a multiple of the budget; halved until all calls fit where each
            occurrence counts.
        count: see `SlidingWindow`.
        rank: the order in which swap-outs are waited for, and in which a call's variables leave,
            ascending; None: the order in which the swap-outs began.

    Cost: O(uses); with a rank, what sorting costs besides.
    """
    counts_each = count == "occurrence"
    heads = heads_of(sequence, budget_bytes, size, counts_each=counts_each)
    while heads is None:
        size = size / 2 if size > SMALLEST_SIZE else 0.0
        heads = heads_of(sequence, budget_bytes, size, counts_each=counts_each)
    attempt = Walk(sequence, budget_bytes, heads, rank)
    for call in sequence.trace.calls:
        attempt.step(call)
    return attempt.writer, size


class Walk:
    """One walk of the window over the calls: paper 000's figure 2, steps (a), (b), (c).

    A storage is absent (not written yet, or on the host only), reserved (in the window, its memory
    claimed only when its call writes it), present, or leaving (swapped out, its bytes not yet
    waited for).

    Args:
        heads: see `heads_of`.
        rank: see `walk`.

    Attributes:
        head: first position of the sequence that is not in the window yet.
        in_window: for each storage, how often it occurs in the window.
        leaving: storages that are leaving, oldest first; at the start, what rests on the device and
            is not in the window yet.
    """

    def __init__(
        self, sequence: VariableSequence, budget_bytes: int, heads: Sequence[int],
        rank: Rank | None,
    ):  # fmt: skip
        self.sequence, self.budget_bytes, self.heads, self.rank = (
            sequence, budget_bytes, heads, rank,
        )  # fmt: skip
        self.writer = sequence.start()
        self.leaving = dict.fromkeys(sequence.resting)
        self.leaving_bytes = sum(sequence.size_bytes[v] for v in sequence.resting)
        self.present_bytes = self.writer.ledger_bytes - self.leaving_bytes
        self.head = 0
        self.in_window = [0] * len(sequence.storage)
        self.reserved: set[int] = set()
        self.version = list(range(len(sequence.storage)))  # of each storage, the variable it holds

    def step(self, call: Call) -> None:
        """Lists a call, what comes in before it, and what leaves after it."""
        self._fill_window(call.id)
        sequence = self.sequence
        written = [root for root in sequence.touched[call.id] if root in self.reserved]
        written_bytes = sum(
            sequence.size_bytes[v] for v in written + sequence.fresh_pinned[call.id]
        )
        self._make_room(written_bytes + sequence.workspace_bytes[call.id])
        self.present_bytes += written_bytes
        self.reserved.difference_update(written)
        self.writer.run(call.id)
        for out in call.outs:
            self.version[sequence.storage[out]] = out
        self._leave(call)

    def _fill_window(self, call_id: int) -> None:
        """Step (a) of paper 000's figure 2."""
        order = self.sequence.order
        while self.head < self.heads[call_id]:
            root = order[self.head][1]
            if self.in_window[root] == 0:
                self._enter(root)
            self.in_window[root] += 1
            self.head += 1

    def _enter(self, root: int) -> None:
        """Brings a storage into the window."""
        size, variable = self.sequence.size_bytes[root], self.version[root]
        if root in self.leaving:
            del self.leaving[root]
            self.leaving_bytes -= size
            self.writer.cancel_swap_out(variable)
        elif variable in self.writer.hosted:
            self._make_room(size)
            self.writer.swap_in(variable)
        else:
            self.reserved.add(root)
            return
        self.present_bytes += size

    def _make_room(self, size_bytes: int) -> None:
        """Step (b): waits for swap-outs until enough bytes are free, the oldest first."""
        while self.present_bytes + self.leaving_bytes + size_bytes > self.budget_bytes:
            root = next(iter(self._ranked(self.leaving)))
            del self.leaving[root]
            self.leaving_bytes -= self.sequence.size_bytes[root]
            self.writer.swap_out(self.version[root])  # listed already, except for what rested here
            self.writer.free(self.version[root])

    def next_use(self, root: int) -> int:
        """Position of a storage's next use outside the window; past the end if it has no more."""
        positions = self.sequence.positions[root]
        after = bisect.bisect_left(positions, self.head)
        return positions[after] if after < len(positions) else len(self.sequence.order)

    def _ranked(self, roots: Collection[int]) -> Collection[int]:
        rank = self.rank
        return roots if rank is None else sorted(roots, key=lambda root: rank(self, root))

    def _leave(self, call: Call) -> None:
        """Step (c): what the call used and is not in the window again is freed or swapped out."""
        sequence = self.sequence
        parting = []
        for _, root in sequence.order[sequence.starts[call.id] : sequence.starts[call.id + 1]]:
            self.in_window[root] -= 1
            if self.in_window[root] == 0:
                parting.append(root)
        for root in self._ranked(parting):
            self._part_with(root, call.id)
        for root in sequence.touched[call.id]:
            if root in sequence.pinned and sequence.last_use[root] <= call.id:
                self.writer.free(self.version[root])
                self.present_bytes -= sequence.size_bytes[root]

    def _part_with(self, root: int, call_id: int) -> None:
        size = self.sequence.size_bytes[root]
        self.present_bytes -= size
        if self.sequence.last_use[root] <= call_id:
            self.writer.free(self.version[root])
        else:
            self.writer.swap_out(self.version[root])
            self.leaving[root] = None
            self.leaving_bytes += size


# How far the window reaches while each call runs, decided before anything is listed. Whether a
# variable may enter depends on the call and on the window's end alone: what is in the window and
# has been written is on the device, all else has left or will leave in time. So one pass over the
# calls, in which nothing moves, finds the end. Where a call does not fit, prefetches for later ones
# are taken back, the one that entered last first, in all earlier calls too; the authors' code
# cancels them and walks again.


def heads_of(
    sequence: VariableSequence, budget_bytes: int, size: float, *, counts_each: bool = False
) -> list[int] | None:
    """For each call the first position of the sequence that is not in the window while it runs.

    Args:
        budget_bytes: device budget; at least `sequence.largest_need()`.
        size: the window, as a multiple of the budget without what is pinned.
        counts_each: whether the window counts each occurrence of a variable, and not it alone.

    Returns:
        Ascending positions; None where a call does not fit with what was prefetched and each
        occurrence counts, in which case nothing is taken back.

    Cost: O(uses), and O(1) for each prefetch that is taken back.
    """
    reach, found = _Reach(sequence, budget_bytes, size, counts_each), list[int]()
    for call in range(len(sequence.trace.calls)):
        reach.fill(call)
        missing_bytes = reach.missing_bytes(call)
        if missing_bytes > 0:
            if counts_each:
                return None
            reach.take_back(call, missing_bytes)
        found.append(reach.head)
        reach.run(call)
    # What is taken back at a call has not entered before it.
    return list(accumulate(reversed(found), min))[::-1]


class _Reach:
    """The window's end, and what it means in bytes, before or during a call.

    Attributes:
        head: the first position that is not in the window.
        in_window: for each storage, how often it occurs in the window.
        window_bytes: size of what is in the window.
        present_bytes: on the device, without what is leaving.
        written: for each storage, whether there is a value of it, on either side.
    """

    def __init__(
        self, sequence: VariableSequence, budget_bytes: int, size: float, counts_each: bool
    ):
        self.sequence, self.budget_bytes, self.counts_each = sequence, budget_bytes, counts_each
        initial = set(sequence.trace.initial)
        pinned_bytes = sum(sequence.size_bytes[v] for v in initial & sequence.pinned)
        self.most_in_window = size * (budget_bytes - pinned_bytes)
        self.present_bytes, self.window_bytes, self.head = pinned_bytes, 0, 0
        self.in_window = [0] * len(sequence.storage)
        self.written = [v in initial for v in range(len(sequence.storage))]

    def fill(self, call_id: int) -> None:
        """Step (a) of paper 000's figure 2; a call's own variables enter even a smaller window."""
        order, size_bytes = self.sequence.order, self.sequence.size_bytes
        while self.head < len(order):
            user, root = order[self.head]
            entering = self.in_window[root] == 0
            counted = size_bytes[root] if entering or self.counts_each else 0
            if user > call_id and self.window_bytes + counted > self.most_in_window:
                break
            if entering and not self._enters(root):
                break
            self.window_bytes += counted
            self.in_window[root] += 1
            self.head += 1

    def _enters(self, root: int) -> bool:
        """Whether the budget lets a storage in; it takes bytes once it is written."""
        size = self.sequence.size_bytes[root]
        if self.present_bytes + size > self.budget_bytes:
            return False
        if self.written[root]:
            self.present_bytes += size
        return True

    def missing_bytes(self, call_id: int) -> int:
        """Bytes missing for a call, given what is there; no more than 0 where it fits."""
        claimed = self._claimed_bytes(call_id) + self.sequence.workspace_bytes[call_id]
        return self.present_bytes + claimed - self.budget_bytes

    def _claimed_bytes(self, call_id: int) -> int:
        """Of the storages that a call is the first to write."""
        sequence = self.sequence
        fresh = [
            v for v in sequence.touched[call_id] if v not in sequence.pinned and not self.written[v]
        ]
        return sum(sequence.size_bytes[v] for v in fresh + sequence.fresh_pinned[call_id])

    def take_back(self, call_id: int, missing_bytes: int) -> None:
        """Takes entries off the window's end until the call fits."""
        order, size_bytes = self.sequence.order, self.sequence.size_bytes
        first_of_others = self.sequence.starts[call_id + 1]
        while missing_bytes > 0 and self.head > first_of_others:
            self.head -= 1
            root = order[self.head][1]
            self.in_window[root] -= 1
            if self.in_window[root] == 0:
                self.window_bytes -= size_bytes[root]
                if self.written[root]:
                    self.present_bytes -= size_bytes[root]
                    missing_bytes -= size_bytes[root]

    def run(self, call_id: int) -> None:
        """What the call wrote is there; what it used and is outside the window leaves."""
        sequence = self.sequence
        size_bytes = sequence.size_bytes
        self.present_bytes += self._claimed_bytes(call_id)
        for root in sequence.touched[call_id]:
            self.written[root] = True
            if root in sequence.pinned and sequence.last_use[root] <= call_id:
                self.present_bytes -= size_bytes[root]
        for _, root in sequence.order[sequence.starts[call_id] : sequence.starts[call_id + 1]]:
            self.in_window[root] -= 1
            left = self.in_window[root] == 0
            if left or self.counts_each:
                self.window_bytes -= size_bytes[root]
            if left:
                self.present_bytes -= size_bytes[root]


# window-cyclic: the walk's free choices, made by what a step costs in the simulator; the fastest of
# several window lists is taken. In the order in which they are tried:
#
# 1. `resident`: parameters and optimizer slots may stay on the device (the authors swap them like
# all else in every step).
#
# 2. `across`: or some of them may: those that the next step needs first are brought back, or never
# leave, before this step ends. The window slides over the end of the step as over any call; how
# much rests on the device between steps is found by trying.
#
# 3. `tuned`: the size of the window.
#
# 4. `ordered`: what is needed last leaves first, the larger first among equals; where memory is
# short, it is waited for in that order (the paper's section 6: "we ignore the order of variables
# for Swap-out").
#
# Each can be switched off alone; without all four this is `window:persistent=host`. Source: ours,
# after paper 000, sections 3 and 6.


SIZES = (0.75, 1.0, 2.5)
#: Shares of the persistent bytes that are tried as what rests on the device, in order of first use.
RESTING_SHARES = (0.3, 0.6, 1.0)


@dataclass(frozen=True, slots=True)
class WindowChoice:
    """The free choices of a walk.

    Args:
        size: the window, as a multiple of the budget.
        pinned: what persists never leaves the device.
        resting: share of the persistent bytes that are on the device between steps.
        ordered: swap-outs by next use and size; else as they come.
    """

    size: float = DEFAULT_SIZE
    pinned: bool = False
    resting: float = 0.0
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class WindowCyclic:
    """The best of the window lists.

    Args:
        resident, across, tuned, ordered: the four gains (above), each on or off.

    Cost: about a dozen walks, and a simulation for each list that may be the fastest.
    """

    name = "window-cyclic"

    resident: bool = True
    across: bool = True
    tuned: bool = True
    ordered: bool = True

    def __post_init__(self) -> None:
        gains = ("resident", "across", "tuned", "ordered")
        check_true_or_false(self.name, {gain: getattr(self, gain) for gain in gains})

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the largest need of a single call."""
        trace, machine = question.trace, question.machine
        if self.resident:
            with suppress(Infeasible):  # where everything fits, no list is faster or moves less
                return KeepAll().plan(question)
        need, witness = _sequence(trace, question.granule, WindowChoice()).largest_need()
        if need > question.budget_bytes:
            raise infeasible(self.name, question.budget_bytes, need, witness)
        cut_short = False
        plans: dict[WindowChoice, Plan] = {}
        best = WindowChoice()
        for changes in (({},), *self._rounds()):
            for change in changes:
                choice = replace(best, **change)
                if plans and question.effort.deadline.passed():
                    cut_short = True
                    break
                writer = _walk(trace, question.budget_bytes, question.granule, choice)
                if writer is None:
                    continue
                schedule = writer.finish()
                # With a host budget a slower list may be the one that keeps to it.
                any_host = question.host_budget_bytes is None
                if any_host and _too_slow(schedule, plans, trace, machine):
                    continue
                plans[choice] = make_plan(schedule, trace, machine, _notes(choice))
            best = min(plans, key=lambda choice: plans[choice].makespan_us)
        found = fastest(self.name, list(plans.values()), question.host_budget_bytes)
        return replace(found, notes={**found.notes, "cut_short": True}) if cut_short else found

    def _rounds(self) -> Iterator[tuple[dict[str, Any], ...]]:
        """What is changed in the best choice so far, round by round."""
        if self.resident:
            yield ({"pinned": True},)
        if self.across:
            yield tuple({"pinned": False, "resting": share} for share in RESTING_SHARES)
        if self.ordered:
            yield ({"ordered": True},)
        if self.tuned:
            yield tuple({"size": size} for size in SIZES)


def _too_slow(
    schedule: Schedule, plans: Mapping[WindowChoice, Plan], trace: Trace, machine: Machine
) -> bool:
    """Whether a list cannot be faster than the fastest plan so far, which saves its simulation."""
    best_us = min((plan.makespan_us for plan in plans.values()), default=math.inf)
    return least_us(schedule, trace, machine) >= best_us


def _notes(choice: WindowChoice) -> dict[str, Any]:
    return {
        "window": choice.size, "pinned": choice.pinned, "resting": choice.resting,
        "ordered": choice.ordered,
    }  # fmt: skip


def _walk(
    trace: Trace, budget_bytes: int, granule: Granule, choice: WindowChoice
) -> ListWriter | None:
    """The list of a choice; None where its persistent variables leave no room."""
    sequence = _sequence(trace, granule, choice)
    if sequence.largest_need()[0] > budget_bytes or sequence.start().ledger_bytes > budget_bytes:
        return None
    rank = farthest_and_largest if choice.ordered else None
    return walk(sequence, budget_bytes, choice.size, "unique", rank)[0]


def _sequence(trace: Trace, granule: Granule, choice: WindowChoice) -> VariableSequence:
    resting = _first_needed(trace, choice.resting) if choice.resting else ()
    return VariableSequence(trace, granule, choice.pinned, resting)


def _first_needed(trace: Trace, share: float) -> Iterator[int]:
    """The persistent variables that a step uses first, up to a share of their bytes."""
    persistent = [v for v in trace.initial if trace.variables[v].persistent and trace.uses[v]]
    persistent.sort(key=lambda v: trace.uses[v][0])
    sizes = [trace.variables[v].nbytes for v in persistent]
    for variable, so_far in zip(persistent, accumulate(sizes), strict=True):
        if so_far <= share * sum(sizes):
            yield variable


def farthest_and_largest(attempt: Walk, root: int) -> tuple[int, int]:
    """Rank of a storage that leaves: the one that is needed last goes first, then the largest."""
    return -attempt.next_use(root), -attempt.sequence.size_bytes[root]
