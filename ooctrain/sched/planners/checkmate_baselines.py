"""Baselines of `checkmate`: lists of other planners in which nothing is copied to the host.

Each planner runs as if the host could hold only the inputs, which wait there in any case. `rotor`
and `dtr` are immediate; `prefix` and `combined` search, and their lists may run a call twice in one
stage, in another order, or fetch an input again, which the program's cannot. The least budget must
not depend on the budget in question. So where nothing else fits, the planners run at fixed budgets,
from the least that any list of whole calls needs, by bisection. Source: ours. Read next:
`checkmate.py`, `checkmate_with_companions.py`.
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

#: Planners that name their least budget themselves.
SIMPLE: tuple[Planner, ...] = (Rotor(), Dtr())
#: How many budgets are tried for the least.
TRIES = 5


@dataclass(frozen=True, slots=True)
class Companions:
    """Planners whose lists take part. Searching planners are handed in
    (`checkmate_with_companions.py`), since one of them runs `checkmate` itself.

    Args:
        planners: run at the budget.
        for_least: searching planners, run at smaller budgets, one after another.
        evaluations: limit of each search; None: its own.
    """

    planners: tuple[Planner, ...] = ()
    for_least: tuple[Planner, ...] = ()
    evaluations: int | None = None

    def offered(self, steps: Mapping[str, Trace]) -> Companions:
        """The same, but planners that run at the budget may take another form of the step. The
        least budget stays that of the step as it is.
        """
        offered = tuple(
            one.offered(steps) if isinstance(one, OfferedPlanner) else one for one in self.planners
        )
        return replace(self, planners=offered)


#: No searching planners.
WITHOUT_SEARCH = Companions(SIMPLE)


def runs_for_least(planners: Sequence[Planner], question: Question) -> Iterator[tuple[Run, ...]]:
    """What planners run at the least budget that they name."""
    for planner in planners:
        try:
            replace(question, budget_bytes=0, host_budget_bytes=None).ask(planner)
        except Infeasible as refusal:
            plan = replace(
                question, budget_bytes=refusal.minimum_bytes, host_budget_bytes=None
            ).ask(planner)
            yield tuple(i for i in plan.schedule.instructions if isinstance(i, Run))


def plans_of(
    planners: Sequence[Planner], question: Question, deadline: Deadline, cut_short: bool
) -> tuple[list[Plan], bool]:
    """(the plans found, each with the note `from`; whether time ran out for one, or had before)."""
    found = list[Plan]()
    for planner in planners:
        if deadline.passed():
            return found, True
        asked = replace(
            question, host_budget_bytes=input_bytes(question.trace), time_limit_s=deadline.left_s()
        )
        try:
            plan = asked.ask(planner)
        except Infeasible:
            continue
        cut_short |= bool(plan.notes.get("cut_short"))
        found.append(replace(plan, notes={**plan.notes, "from": planner.name}))
    return found, cut_short


def least_plans(
    planners: Sequence[Planner], question: Question, known_bytes: int, deadline: Deadline
) -> list[Plan]:
    """Plans of searching planners that need less than what is known, whatever the question's
    budget.

    Args:
        known_bytes: least budget of any list known so far; the program has none for less.
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
