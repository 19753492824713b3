"""Other planners' lists beside `checkmate`'s: nothing is copied to the host in any of them.

Each is asked as if the host had room for the inputs alone, which wait there in any case. `rotor`
and `dtr` answer at once; `prefix` and `combined` search, and their lists may run a call twice in
one stage, in another order, or fetch an input again, which the program's cannot. What is the least
budget has to be the same whatever the budget asked. So where nothing else fits, they are asked at
fixed budgets, from the least that any list of whole calls needs, by bisection. Source: ours. Read
next: `checkmate.py`, `checkmate_with_companions.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ooctrain.errors import Infeasible
from ooctrain.sched.budget import input_bytes, trace_minimum_bytes
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planners.rotor import Rotor
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.planner import OfferedPlanner, Planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan, Run
from ooctrain.step.trace import Trace

#: Those that name their least budget by themselves.
SIMPLE: tuple[Planner, ...] = (Rotor(), Dtr())
#: How many budgets are tried for the least.
TRIES = 5


@dataclass(frozen=True, slots=True)
class Companions:
    """Planners whose lists take part. Those that search are handed in
    (`checkmate_with_companions.py`), since
    one of them asks `checkmate` itself.

    Args:
        planners: for the budget.
        for_least: those that search, for smaller budgets, one after another.
        evaluations: of each search; None: as many as it makes by itself.
    """

    planners: tuple[Planner, ...] = ()
    for_least: tuple[Planner, ...] = ()
    evaluations: int | None = None

    def offered(self, steps: Mapping[str, Trace]) -> Companions:
        """The same, where those that are asked for the budget may take another form of the step.
        The least budget stays that of the step as it is.
        """
        asked = tuple(
            one.offered(steps) if isinstance(one, OfferedPlanner) else one for one in self.planners
        )
        return replace(self, planners=asked)


#: Nobody who searches.
ALONE = Companions(SIMPLE)


def runs_for_least(planners: Sequence[Planner], question: Question) -> Iterator[tuple[Run, ...]]:
    """What planners run at the least budget that they name."""
    for planner in planners:
        try:
            replace(question, budget_bytes=0, host_budget_bytes=None).put_to(planner)
        except Infeasible as refusal:
            plan = replace(
                question, budget_bytes=refusal.minimum_bytes, host_budget_bytes=None
            ).put_to(planner)
            yield tuple(i for i in plan.schedule.instructions if isinstance(i, Run))


def plans_of(
    planners: Sequence[Planner], question: Question, deadline: Deadline, cut_short: bool
) -> tuple[list[Plan], bool]:
    """The plans of those that have one, each with the note `from`; and whether time was over for
    one of them, or had been.
    """
    found = list[Plan]()
    for planner in planners:
        if deadline.passed():
            return found, True
        asked = replace(
            question, host_budget_bytes=input_bytes(question.trace), time_limit_s=deadline.left_s()
        )
        try:
            plan = asked.put_to(planner)
        except Infeasible:
            continue
        cut_short |= bool(plan.notes.get("cut_short"))
        found.append(replace(plan, notes={**plan.notes, "from": planner.name}))
    return found, cut_short


def least_plans(
    planners: Sequence[Planner], question: Question, known_bytes: int, deadline: Deadline
) -> list[Plan]:
    """Plans of those that search which need less than what is known, whatever the budget of the
    question.

    Args:
        known_bytes: something else needs no more, and the program has no list for less.
    """
    low, high = trace_minimum_bytes(question.trace, question.granule), known_bytes
    found, budget_bytes = list[Plan](), low
    for _ in range(TRIES):
        if budget_bytes >= high:
            break
        asked = replace(question, budget_bytes=budget_bytes)
        plans, _ = plans_of(planners, asked, deadline, False)
        found += plans
        if plans:
            high = min(plan.peak_bytes for plan in plans)
        else:
            low = budget_bytes + 1
        budget_bytes = (low + high) // 2
    return found
