"""auto: in-core where it fits, else the best of the planners that are cheap to ask, else a search.

Planning costs milliseconds and a step costs seconds, so `auto` asks several planners and returns
the plan with the smallest simulated makespan. Where that is far from the lower bound for any list,
recomputation may pay. `dtr` and `superneurons` recompute by their own rules. `combined` searches up
to its time limit, and also over other forms of the step if the caller offers some
(`execution/compose.py` does; planners know no rewrites). No single window is best everywhere: over
ResNet-18, ResNet-50 and VGG-11, two links and five budgets, the default loses up to 10 % against
the best of twelve windows (six sizes, two places for parameters), a window of size 1 up to 15 %;
those asked here lose nothing. Read next: `registry.py`.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ooctrain.errors import Infeasible, Withheld
from ooctrain.sched.bounds.closed import lower_bound
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.dtr.dtr import Dtr
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.superneurons import SuperNeurons
from ooctrain.sched.planners.window.window import SlidingWindow
from ooctrain.sched.planning.planner import Planner, least_refusal, make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

#: Whom to ask besides, given the best plan so far (None: nobody has one): planners that rewrite the
#: step first, which this floor does not know.
Others = Callable[[Question, Plan | None], Sequence[Planner]]
#: A plan within this factor of what no list beats is not worth seconds of search.
NEAR = 1.05
#: Whoever moves parts of variables is asked for multiples of this (`alloc/virtual.py`'s chunk), so
#: that a plan made to the byte can be executed too.
CHUNK_BYTES = 64 << 10
#: Share of a time limit that the search gets at least, however long the others took.
SEARCH_SHARE = 0.25
#: The search's starts, and comparing forms of a step, take about as long: under a shorter limit it
#: is only asked if the others have left time.
SEARCHING_S = 1.0
#: A rewrite of the step, "" for none, and the step after it.
Form = tuple[str, Trace]


def other_windows() -> tuple[Planner, ...]:
    """What the window's size and the place of parameters can still gain over its default."""
    return (
        SlidingWindow(size=2, persistent="device"),
        SlidingWindow(size=1, persistent="host"),
        SlidingWindow(size=0.75, persistent="host"),
    )


def makespan_us(plan: Plan) -> float:
    """How long a step takes by the plan's own claim."""
    return plan.makespan_us


def nobody_else(question: Question, best: Plan | None) -> Sequence[Planner]:
    """Whom a composition asks that has no other planners."""
    return ()


class Auto:
    """The best plan of `keep-all`, `window` with several windows, `belady` and `naive`; of `dtr`,
    `superneurons` and `combined` too, where the best so far is more than `NEAR` from the bound or
    there is none (they need less host memory). `combined` searches forms of the step, too, that
    were offered: all of them if it has all the time it likes, else the one that promises most.
    Cost: theirs together.

    Args:
        others: whom to ask besides; `execution/planners.py` hands in those that rewrite the step.
    """

    name = "auto"

    def __init__(self, others: Others = nobody_else) -> None:
        self._others = others
        self._step_us: Callable[[Plan], float] = makespan_us
        self._offered: Mapping[str, Trace] = {}

    def weighing_by(self, step_us: Callable[[Plan], float]) -> Auto:
        """See `WeighingPlanner`. What claims leave out is the cost of moving parts of variables
        (mapping), so planners that move parts are then asked for whole variables too.
        """
        auto = copy.copy(self)
        auto._step_us = step_us
        return auto

    def offered(self, steps: Mapping[str, Trace]) -> Auto:
        """See `OfferedPlanner`."""
        auto = copy.copy(self)
        auto._offered = steps
        return auto

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least of all asked; a time limit ends the asking."""
        question = Question(
            trace, budget_bytes, machine, granule, host_budget_bytes, seed, time_limit_s
        )
        poll = _Poll(question, self._step_us)
        poll.ask(KeepAll())
        if poll.best is None:
            near_us = NEAR * lower_bound(trace, budget_bytes, machine).makespan_us
            # Those who gain most come first: there may be no time for the others.
            poll.ask(SlidingWindow())
            if poll.best_us > near_us:
                poll.ask(Dtr(), SuperNeurons())
            poll.ask(Belady())
            if poll.best is not None:
                poll.ask(*self._others(question, poll.best))
            if poll.best_us > near_us:
                self._search(poll, near_us)
            poll.ask(*other_windows(), Naive())
            for form in self._offered.items():
                if poll.best is None:
                    poll.ask(SlidingWindow(), form=form)
            if poll.best is None:
                poll.ask(*self._others(question, None))
        return poll.outcome()

    def _search(self, poll: _Poll, near_us: float) -> None:
        """Asks `combined` for the step and its other forms."""
        question, granule = poll.question, poll.question.granule
        if question.time_limit_s is not None and question.time_limit_s < SEARCHING_S:
            poll.ask(Combined())
            return
        forms: list[Form] = [("", question.trace), *self._offered.items()]
        if question.time_limit_s is not None and len(forms) > 1:
            # By evaluations, not by the clock, so that it does not depend on what else runs.
            promises = [Combined().promise(replace(question, trace=trace)) for _, trace in forms]
            forms = [forms[promises.index(min(promises))]]
        for form in forms:
            if poll.best_us > near_us:
                if self._step_us is not makespan_us and granule.ranges:
                    poll.search(form, replace(granule, ranges=False), time_share=0.5)
                poll.search(form, granule)


@dataclass
class _Poll:
    """One question, put to one planner after another.

    Attributes:
        best: the plan with the shortest step so far.
        best_us: its step; infinite before there is one.
        refusals: of those that have none.
        cut_short: whether somebody was not asked any more.
    """

    question: Question
    step_us: Callable[[Plan], float]
    best: Plan | None = None
    best_us: float = math.inf
    refusals: list[Infeasible] = field(default_factory=list)
    cut_short: bool = False
    started_s: float = field(default_factory=time.monotonic)

    def ask(self, *planners: Planner, form: Form | None = None) -> None:
        """Asks them in turn; as soon as there is a plan, only while there is time."""
        for planner in planners:
            left_s = self._left_s()
            if self.best is not None and left_s == 0:
                self.cut_short = True
                return
            self._put(planner, replace(self.question, time_limit_s=left_s), form)

    def search(self, form: Form, granule: Granule, time_share: float = 1.0) -> None:
        """Asks `combined`, even if there is little time.

        Args:
            form: of the step.
            granule: in place of the question's.
            time_share: of the time left that it may take.
        """
        limit_s, left_s = self.question.time_limit_s, self._left_s()
        if limit_s is not None and left_s is not None:
            left_s = max(time_share * left_s, SEARCH_SHARE * limit_s)
        self._put(Combined(), replace(self.question, granule=granule, time_limit_s=left_s), form)

    def _put(self, planner: Planner, asked: Question, form: Form | None) -> None:
        """Puts a question to a planner, and notes what came of it."""
        rewrite, trace = form or ("", asked.trace)
        asked = replace(asked, trace=trace)
        try:
            plan = self._answer(planner, asked)
        except Withheld:  # a course wheel has not got this one: the others are asked
            return
        except Infeasible as refusal:
            # The least budget in chunks says nothing about the least budget in bytes.
            if not _in_chunks(planner, asked.granule):
                self.refusals.append(refusal)
            return
        step_us = self.step_us(plan)
        if step_us < self.best_us:
            rewrites = (*(name for name in (rewrite,) if name), *plan.rewrites)
            notes = {**plan.notes, "chosen": planner.name}
            self.best, self.best_us = replace(plan, rewrites=rewrites, notes=notes), step_us

    def outcome(self) -> Plan:
        """The best plan.

        Raises:
            Infeasible: nobody had one.
        """
        if self.best is None:
            raise least_refusal("auto", self.refusals, self.question.budget_bytes)
        notes = {**self.best.notes, **({"cut_short": True} if self.cut_short else {})}
        return replace(self.best, notes=notes)

    def _answer(self, planner: Planner, asked: Question) -> Plan:
        """Its plan. One that moves parts moves whole chunks, and its ledger is counted in the
        granule of the question.
        """
        granule = asked.granule
        if _in_chunks(planner, granule):
            granule = replace(granule, size_bytes=granule.granted(CHUNK_BYTES))
        plan = replace(asked, granule=granule).put_to(planner)
        if plan.schedule.granule == self.question.granule:
            return plan
        schedule = replace(plan.schedule, granule=self.question.granule)
        made = make_plan(schedule, plan.trace, asked.machine, plan.notes)
        return replace(made, rewrites=plan.rewrites)

    def _left_s(self) -> float | None:
        if self.question.time_limit_s is None:
            return None
        return max(0.0, self.started_s + self.question.time_limit_s - time.monotonic())


def _in_chunks(planner: Planner, granule: Granule) -> bool:
    """Whether a planner moves parts of variables, and so is asked for multiples of a chunk."""
    return granule.ranges and isinstance(planner, Belady | Combined)
