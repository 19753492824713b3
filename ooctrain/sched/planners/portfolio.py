"""A portfolio: planners run one after another on one question, and the fastest plan stays.

Which planners run, in which order, and when it is enough stands elsewhere: in the table of `auto`,
in the starts of `combined`. Here stands what is the same for all of them. Plans are compared by the
question's `cost`. A time limit ends the portfolio as soon as there is a plan. Refusals of planners
are remembered, and become the error where there is no plan; a planner that fails does not end the
others. A turn may plan another form of the step (`Question.forms`), or a stricter question, such
as one in whole chunks of memory: then its plan is a plan of the portfolio's question, too, but its
refusal says nothing. Source: algorithm portfolios (Huberman, Lukose and Hogg 1997). Read next:
`auto.py`, `combined.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ooctrain.errors import Infeasible, PartFailed, Withheld
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.planner import Planner, ask, least_refusal, make_plan, remarked
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan

#: A plan within this factor of what no list beats is not worth seconds of search, and a plan within
#: it of another one is as good.
NEAR = 1.03


@dataclass(frozen=True, slots=True)
class Turn:
    """One planner's turn in a portfolio.

    Args:
        question: a stricter one than the portfolio's; None: that one.
        form: name of the form of the step that is planned; "": the step as it is.
        gain: its plan is taken where it is faster than the best by more than this factor.
    """

    planner: Planner
    question: Question | None = None
    form: str = ""
    gain: float = 1.0


@dataclass
class Portfolio:
    """One question, and what came of it so far.

    Attributes:
        deadline: turns run until then, once there is a plan; at first the question's.
        best: the plan of the least cost.
        best_us: its cost; infinite before there is one.
        chosen: name of its planner.
        refusals, failures: errors of planners without a plan.
        withheld: of planners that are not there.
        cut_short: whether time was over before a turn.
    """

    question: Question
    deadline: Deadline = field(init=False)
    best: Plan | None = None
    best_us: float = math.inf
    chosen: str = ""
    refusals: list[Infeasible] = field(default_factory=list)
    failures: list[PartFailed] = field(default_factory=list)
    withheld: list[Withheld] = field(default_factory=list)
    cut_short: bool = False

    def __post_init__(self) -> None:
        self.deadline = self.question.effort.deadline

    def is_over(self) -> bool:
        """Whether there is a plan, and no time for another one."""
        over = self.best is not None and self.deadline.passed()
        self.cut_short |= over
        return over

    def run(self, turn: Turn) -> Plan | None:
        """The plan of a turn, which stays if it is the best; None: there is none, or no time."""
        if self.is_over():
            return None
        asked = turn.question or self.question
        effort = replace(asked.effort, deadline=asked.effort.deadline.or_earlier(self.deadline))
        trace = asked.forms[turn.form] if turn.form else asked.trace
        asked = replace(asked, trace=trace, effort=effort, forms={})
        try:
            plan = ask(turn.planner, asked)
        except Withheld as error:  # a course wheel comes without this planner
            self.withheld.append(error)
            return None
        except PartFailed as failure:
            self.failures.append(failure)
            return None
        except Infeasible as refusal:
            if turn.question is None:
                self.refusals.append(refusal)
            return None
        plan = self._counted(plan)
        if turn.form:
            plan = replace(plan, rewrites=(turn.form, *plan.rewrites))
        cost_us = self.question.cost(plan)
        if turn.gain * cost_us < self.best_us:
            self.best, self.best_us, self.chosen = plan, cost_us, turn.planner.name
        return plan

    def outcome(self, name: str) -> Plan:
        """The best plan, with remarks on what failed.

        Args:
            name: of the planner that this portfolio is, for its refusal.

        Raises:
            Infeasible: no planner had one.
            PartFailed: all of them failed otherwise.
            Withheld: none is there.
        """
        if self.best is None and self.withheld and not (self.refusals or self.failures):
            raise self.withheld[0]
        if self.best is None:
            raise least_refusal(name, self.refusals, self.question.budget_bytes, self.failures)
        notes = {**self.best.notes, **({"cut_short": True} if self.cut_short else {})}
        return remarked(replace(self.best, notes=notes), self.failures)

    def _counted(self, plan: Plan) -> Plan:
        """A plan whose ledger is counted in the granule of the question."""
        granule = self.question.granule
        if plan.schedule.granule == granule:
            return plan
        schedule = replace(plan.schedule, granule=granule)
        made = make_plan(schedule, plan.trace, self.question.machine, plan.notes)
        return replace(made, rewrites=plan.rewrites)
