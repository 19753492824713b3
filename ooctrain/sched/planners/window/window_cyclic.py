"""window-cyclic: paper 000's window, and four things that it leaves open.

The walk of `window_walk.py` has free choices. This planner makes them by what a step costs in the
simulator, and takes the fastest of several window lists. In the order in which they are tried here:

1. `resident`: parameters and optimizer slots may stay on the device (the authors swap them like all
   else in every step).
2. `across`: or some of them may: those that the next step needs first are brought back, or never
   leave, before this step ends. The window slides over the end of the step as over any call; how
   much rests on the device between steps is found by trying.
3. `tuned`: the size of the window (the authors' 1.5 is "according to ResNet50 experiment").
4. `ordered`: what is needed last leaves first, the larger first among equals; where memory is
   short, it is waited for in that order (the paper's section 6: "we ignore the order of variables
   for Swap-out").

Each can be switched off alone; without all four this is `window:persistent=host`. Source: ours,
after paper 000, sections 3 and 6. Read next: `window_walk.py`, `sched/planners/belady.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from ooctrain.errors import Infeasible
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.window.window import DEFAULT_SIZE
from ooctrain.sched.planners.window.window_walk import Walk, walk
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.fastest import fastest, least_us
from ooctrain.sched.planning.list_writer import ListWriter
from ooctrain.sched.planning.parameters import check_true_or_false
from ooctrain.sched.planning.planner import infeasible, make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.storages import VariableSequence
from ooctrain.sched.schedule import BYTES, Granule, Plan, Schedule
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

SIZES = (0.75, 1.0, 2.5)
#: Shares of the persistent bytes that are tried as what rests on the device, in order of first use.
RESTING_SHARES = (0.3, 0.6, 1.0)


@dataclass(frozen=True, slots=True)
class WindowChoice:
    """The free choices of a walk.

    Args:
        size: of the window, as a multiple of the budget.
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

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the largest need of a single call."""
        if self.resident:
            question = Question(trace, budget_bytes, machine, granule, host_budget_bytes)
            with suppress(Infeasible):  # where everything fits, no list is faster or moves less
                return question.put_to(KeepAll())
        need, witness = _sequence(trace, granule, WindowChoice()).largest_need()
        if need > budget_bytes:
            raise infeasible(self.name, budget_bytes, need, witness)
        deadline = Deadline.after(time_limit_s)
        cut_short = False
        plans: dict[WindowChoice, Plan] = {}
        best = WindowChoice()
        for changes in (({},), *self._rounds()):
            for change in changes:
                choice = replace(best, **change)
                if plans and deadline.passed():
                    cut_short = True
                    break
                writer = _walk(trace, budget_bytes, granule, choice)
                if writer is None:
                    continue
                schedule = writer.finish()
                # With a host budget a slower list may be the one that keeps to it.
                if host_budget_bytes is None and _too_slow(schedule, plans, trace, machine):
                    continue
                plans[choice] = make_plan(schedule, trace, machine, _notes(choice))
            best = min(plans, key=lambda choice: plans[choice].makespan_us)
        found = fastest(self.name, list(plans.values()), host_budget_bytes)
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
