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
faster (`persistent="auto"` tries both). Read next: `window_walk.py`, `window_cyclic.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ooctrain.errors import ConfigError
from ooctrain.sched.ledger import peaks
from ooctrain.sched.ledger import walk as walk_list
from ooctrain.sched.planners.window.window_walk import Count, walk
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.fastest import Candidate
from ooctrain.sched.planning.planner import HOST_LACKS, infeasible, make_plan, smallest_budget
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.storages import VariableSequence
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

Place = Literal["auto", "device", "host"]
DEFAULT_SIZE = 1.5  # "according to ResNet50 experiment" (nnabla's lms.pyx); the paper states none


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Paper 000's planner.

    Args:
        size: the window as a multiple of the budget.
        count: "unique": each variable once per window, with cancel and restart (the authors' code);
            "occurrence": each time it occurs, without cancel (paper 000 as printed). The paper is
            silent about a call that does not fit beside what was prefetched; the window is halved
            until all fit, and the plan's notes name the window that did.
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

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the largest need of a single call; where the host lacks, it
        is searched for, and a time limit ends that with a budget that suffices.
        """
        question = Question(
            trace, budget_bytes, machine, granule, host_budget_bytes, seed, time_limit_s
        )
        deadline = Deadline.after(time_limit_s)
        needs = (sequence.largest_need() for _, sequence in self._sequences(trace, granule))
        least, witness = min(needs)
        plans = self._plans(question)
        if plans:
            return min(plans, key=lambda plan: plan.makespan_us)
        if host_budget_bytes is not None:
            least = self._least_for_host(question, max(least, budget_bytes + 1), deadline)
        raise infeasible(self.name, budget_bytes, least, witness)

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

    def _least_for_host(self, question: Question, low: int, deadline: Deadline) -> int:
        """The least device budget from `low` on that makes do with the host budget; once the time
        is over one that does, too.
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
        enough = feasible(high)
        return smallest_budget(feasible, low, high, deadline.passed) if enough else HOST_LACKS
