"""A portfolio: one question to several planners in turn, of which the fastest plan stays.

`auto` decides which planners run, in what order; a `Poll` runs them. It keeps the time limit, the
best plan so far, and the refusals, of which the error is made if there is no plan. Planners that
move parts of variables plan in whole chunks, so that the plan can be executed with the default
allocator, and their lists are counted again in the granule of the question. Source: ours (an
algorithm portfolio). Read next: `auto.py`; `sched/planning/question.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ooctrain.errors import Infeasible, PartFailed, Withheld, failing_as
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.forms import StepForm
from ooctrain.sched.planning.planner import Planner, least_refusal, make_plan, remarked
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule, Plan
from ooctrain.step.trace import Trace

#: Further planners, given the best plan so far (None: there is none, or no good one): those that
#: rewrite the step first, which this floor does not know.
Others = Callable[[Question, Plan | None], Sequence[Planner]]
#: A plan within this factor of what no list beats is not worth seconds of search, and a plan within
#: it of another one is as good.
NEAR = 1.03
#: Planners that move parts of variables plan in multiples of this, the chunk of
#: `alloc/virtual.py`, so that a plan made to the byte can be executed too.
CHUNK_BYTES = 64 << 10
#: Share of a time limit that is kept for the search; earlier planners leave that time.
SEARCH_SHARE = 0.25


@dataclass
class Poll:
    """One question, answered by one planner after another.

    Attributes:
        best: the plan with the shortest step so far.
        best_us: its step; infinite before there is one.
        refusals: errors of planners without a plan.
        failures: errors of planners that raised another one; the others run all the same.
        cut_short: whether time ran out before a planner.
        deadline: for all planners together.
        kept_s: seconds before it that the current planners leave to later ones.
    """

    question: Question
    step_us: Callable[[Plan], float]
    best: Plan | None = None
    best_us: float = math.inf
    refusals: list[Infeasible] = field(default_factory=list)
    failures: list[PartFailed] = field(default_factory=list)
    cut_short: bool = False
    deadline: Deadline = field(init=False)
    kept_s: float = 0.0

    def __post_init__(self) -> None:
        self.deadline = Deadline.after(self.question.time_limit_s)
        self.kept_s = SEARCH_SHARE * (self.question.time_limit_s or 0.0)

    def is_over(self) -> bool:
        """Whether there is a plan, and time ran out before another planner."""
        return self.cut_short and self.best is not None

    def ask(self, *planners: Planner, form: StepForm | None = None) -> None:
        """Runs planners in turn; as soon as there is a plan, only while there is time."""
        for planner in planners:
            left_s = self.deadline.earlier(self.kept_s).left_s()
            if self.best is not None and left_s == 0:
                self.cut_short = True
                return
            self._put(planner, replace(self.question, time_limit_s=left_s), form)

    def ask_also(
        self, planner: Planner, narrower: Question | None = None, form: StepForm | None = None
    ) -> None:
        """Asks for a plan in the question's own granule, and takes it if it is faster by more than
        `NEAR`.

        Args:
            narrower: used instead of the question; a plan for it is a plan for both.
            form: form of the step to plan; None: the step as it is.
        """
        left_s = self.deadline.left_s()
        if self.best is not None and left_s == 0:
            self.cut_short = True
            return
        of_step = form or StepForm("", self.question.trace)
        asked = replace(narrower or self.question, trace=of_step.trace, time_limit_s=left_s)
        try:
            plan = of_step.named(asked.ask(planner))
        except Withheld:
            return
        except PartFailed as failure:
            self.failures.append(failure)
            return
        except Infeasible as refusal:
            if narrower is None:
                self.refusals.append(refusal)
            return
        step_us = self.step_us(plan)
        if NEAR * step_us < self.best_us:
            self._take(plan, step_us, planner.name)

    def search(self, form: StepForm, granule: Granule, share: float = 1.0) -> None:
        """Runs `combined`.

        Args:
            share: part of the evaluations and of the remaining time that it may take.
        """
        left_s, number = self.deadline.left_s(), self.question.evaluations
        if self.best is not None and left_s == 0:
            self.cut_short = True
            return
        asked = replace(
            self.question, granule=granule, time_limit_s=left_s and share * left_s,
            evaluations=None if number is None else int(share * number),
        )  # fmt: skip
        self._put(Combined(), asked, form)

    def promise(self, trace: Trace) -> float:
        """What `combined` promises for a form of the step."""
        asked = replace(self.question, trace=trace, time_limit_s=self.deadline.left_s())
        try:
            with failing_as("planner 'combined'"):
                return Combined().promise(asked)
        except PartFailed as failure:
            self.failures.append(failure)
            return math.inf

    def besides(self, others: Others, best: Plan | None) -> Sequence[Planner]:
        """Further planners to run; none where choosing them fails."""
        try:
            with failing_as("choosing other planners"):
                return others(self.question, best)
        except PartFailed as failure:
            self.failures.append(failure)
            return ()

    def _put(self, planner: Planner, asked: Question, form: StepForm | None) -> None:
        """Runs a planner and notes the outcome."""
        of_step = form or StepForm("", asked.trace)
        asked = replace(asked, trace=of_step.trace)
        try:
            plan = self._answer(planner, asked)
        except Withheld:  # a course wheel comes without this planner; the others run
            return
        except PartFailed as failure:
            self.failures.append(failure)
            return
        except Infeasible as refusal:
            # The least budget in chunks says nothing about the least budget in bytes.
            if not _in_chunks(planner, asked.granule):
                self.refusals.append(refusal)
            return
        step_us = self.step_us(plan)
        if step_us < self.best_us:
            self._take(of_step.named(plan), step_us, planner.name)

    def _take(self, plan: Plan, step_us: float, chosen: str) -> None:
        """A plan is the best so far."""
        self.best = replace(plan, notes={**plan.notes, "chosen": chosen})
        self.best_us = step_us

    def outcome(self) -> Plan:
        """The best plan.

        Raises:
            Infeasible: no planner had one.
            PartFailed: all of them failed otherwise.
        """
        if self.best is None:
            budget_bytes = self.question.budget_bytes
            raise least_refusal("auto", self.refusals, budget_bytes, self.failures)
        notes = {**self.best.notes, **({"cut_short": True} if self.cut_short else {})}
        return remarked(replace(self.best, notes=notes), self.failures)

    def _answer(self, planner: Planner, asked: Question) -> Plan:
        """Its plan. One that moves parts moves whole chunks, and its ledger is counted in the
        granule of the question.
        """
        granule = asked.granule
        if _in_chunks(planner, granule):
            granule = in_chunks(granule)
        plan = replace(asked, granule=granule).ask(planner)
        if plan.schedule.granule == self.question.granule:
            return plan
        schedule = replace(plan.schedule, granule=self.question.granule)
        made = make_plan(schedule, plan.trace, asked.machine, plan.notes)
        return replace(made, rewrites=plan.rewrites)


def in_chunks(granule: Granule) -> Granule:
    """A granule of whole chunks."""
    return replace(granule, size_bytes=granule.granted(CHUNK_BYTES))


def _in_chunks(planner: Planner, granule: Granule) -> bool:
    """Whether a planner moves parts of variables, and so plans in multiples of a chunk."""
    return granule.ranges and isinstance(planner, Belady | Combined)
