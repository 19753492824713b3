"""combined: offloading and recomputation together, by search. The planner to beat.

The search (`by_search.py`) says of each value that may be computed again whether it is kept as each
call begins, and of large values whether they stay on the device while others can leave; Belady's
rule offloads the remaining excess, the as-soon-as-possible engine times it, and the readable
`lower` writes the plan itself. Compiled, a list takes a tenth of a millisecond, so annealing can
try thousands. Where the host has room, but not enough, it searches once more as if it had none. The
plan is never worse than its `starts`, whose plans take part: `keep-all`, `prefix`, `belady`,
`window-cyclic` and, in steps of at most `CALLS` calls, `dtr` and `window`; on a host without room,
in longer steps, `keep-all` and `dtr`. A plan that ends as soon as the inputs allow is taken without
a search. Where other forms of the step are offered, a short search of each shows which one is
searched. Source: ours; what it reaches is in docs/planners.md. Read next: `portfolio.py`, which
runs the starts; `by_search.py`, then `sched/search/search.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ooctrain.errors import PartFailed, failing_as
from ooctrain.sched.bounds.closed import arrivals_us
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.by_search import CALLS, SEEDS, found_by_search, promised_ns
from ooctrain.sched.planners.checkmate import Checkmate
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.portfolio import Portfolio, Turn
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planners.window import SlidingWindow, WindowCyclic
from ooctrain.sched.planning.host_gaps import has_host_space, is_short_of_host
from ooctrain.sched.planning.planner import Planner, check_evaluations, check_true_or_false
from ooctrain.sched.planning.question import Question, makespan_us
from ooctrain.sched.schedule import Plan

#: Evaluations where the caller does not say how many.
THOROUGH = 120_000
#: Share of a time limit that is kept for the search while the starts are planned.
SEARCH_SHARE = 0.5
#: How many times longer writing the plan down may take than `belady` takes for its plan.
WRITING = 1.5
#: For the choice of a form of the step that is worth a search: evaluations, and the share of
#: those of the search that it takes where that is more.
PROMISE, PROMISE_SHARE = 500, 1 / 60
#: Another form is taken only if it promises a step shorter by this share than the step as it is
#: does: promises are that far off. Measured: docs/planners.md.
CLEARLY = 0.02
#: Of a time limit: what is left to the search after the promises.
PROMISED_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Combined:
    """Annealing from several starts over what is kept and what is computed again; Belady and
    `lower` do the rest.

    Args:
        evaluations: what the search may cost in a step of `CALLS` calls (`by_search.py` says how
            many lists that are); None: as much as the question says (`--evaluations`), or
            `THOROUGH`. A time limit interrupts, and the
            plan's notes then say so.
        forms: whether it takes other forms of the step that are offered, where they promise more.

    Cost: some 0.2 ms for each evaluation of 600 calls, and the starts' plans.
    """

    name = "combined"

    evaluations: int | None = None
    forms: bool = True

    def __post_init__(self) -> None:
        check_evaluations(self.name, self.evaluations)
        check_true_or_false(self.name, {"forms": self.forms})

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least of the starts'; of all forms, where there are
        other ones.

        A promise is a list that there is. So where the plan of the most promising form is slower
        than what the next one promised, that one is searched as well; in short steps the step as it
        is in any case, as what is planned by rules keeps no promise.
        """
        seed = int(question.seed) % SEEDS
        question = replace(question, seed=seed, cost=makespan_us)
        if not (self.forms and question.forms) or question.peak_bytes <= question.budget_bytes:
            return self._plan_form(question)
        portfolio, is_short = Portfolio(question), len(question.trace.calls) <= CALLS
        promised = self.by_promise(question, CLEARLY)
        for ns, form in promised:
            too = is_short and not form
            if portfolio.best is not None and portfolio.best_us * 1000 <= ns and not too:
                break
            portfolio.run(Turn(self, form=form))
        return portfolio.outcome(self.name)

    def by_promise(self, question: Question, clearly: float = 0.0) -> list[Promised]:
        """The step's forms, the most promising first; "" is the step as it is.

        Args:
            clearly: by what share another form has to be ahead of the step as it is.
        """
        effort = replace(question.effort, deadline=question.effort.deadline.keeping(PROMISED_SHARE))
        promised = []
        for form, trace in {"": question.trace, **question.forms}.items():
            asked = replace(question, trace=trace, effort=effort)
            fits = asked.minimum_bytes <= asked.budget_bytes
            ns = self.promise(asked) if fits else math.inf
            promised.append(Promised(ns / (1 - clearly if form else 1), form))
        return sorted(promised, key=lambda each: each.ns)

    def promise(self, question: Question) -> float:
        """How long a step takes, in ns, by the best that a search finds which has barely
        begun; beyond all durations where nothing fits. Cost: `PROMISE` lists, or `PROMISE_SHARE`.
        """
        number = max(PROMISE, PROMISE_SHARE * self._most(question))
        return promised_ns(question, number, question.effort.deadline)

    def _most(self, question: Question) -> int:
        """Evaluations in a step of `CALLS` calls."""
        given = (self.evaluations, question.effort.evaluations)
        return next((number for number in given if number is not None), THOROUGH)

    def _plan_form(self, question: Question) -> Plan:
        """The plan of one form of the step."""
        portfolio = _Starts(replace(question, forms={}))
        portfolio.run_starts(starts(question))
        is_refused = portfolio.best is None and not is_short_of_host(question)
        if not (is_refused or portfolio.all_fits or portfolio.is_least):
            portfolio.search(self._most(question))
            if portfolio.best is None:
                portfolio.run_starts(last_asked(question))
        return portfolio.outcome(self.name)


class Promised(NamedTuple):
    """A form, and the step in ns that the search has to beat for another form to be of interest."""

    ns: float
    form: str


@dataclass
class _Starts(Portfolio):
    """The plans that take part as they are.

    Attributes:
        all_fits: whether the step fits as it is; then a search finds nothing to drop.
        again: plans that compute again.
        writing_s: how long it takes at most to write a plan down.
    """

    all_fits: bool = False
    again: list[Plan] = field(default_factory=list)
    writing_s: float = 0.0

    def run_starts(self, planners: Iterable[Planner]) -> None:
        """Runs planners until one has a plan that no list beats."""
        self.deadline = self.question.effort.deadline.keeping(SEARCH_SHARE)
        short = is_short_of_host(self.question)
        for planner in planners:
            began_s = time.monotonic()
            plan = self.run(Turn(planner))
            if planner.name == "belady":
                self.writing_s = WRITING * (time.monotonic() - began_s)
            if plan is None:
                continue
            if short and isinstance(planner, Dtr | Checkmate):
                self.again.append(plan)
            self.cut_short |= bool(plan.notes.get("cut_short"))
            self.all_fits |= planner.name == "keep-all"
            if self.is_least:
                break
        if self.best is not None:
            self.best = replace(self.best, notes={"from": self.chosen, **self.best.notes})

    @property
    def is_least(self) -> bool:
        """Whether no list is faster than the best, whatever the budget."""
        return self.best_us <= arrivals_us(self.question.trace, self.question.machine)

    def search(self, evaluations: int) -> None:
        """Has the search take part, which ends early enough for its plan to be written down."""
        ends = self.question.effort.deadline.earlier(self.writing_s)
        try:
            with failing_as("the search of 'combined'"):
                found = found_by_search(self.question, evaluations, ends, self.again)
        except PartFailed as failure:
            self.failures.append(failure)
            return
        self.cut_short |= found.cut_short
        if found.plan is not None and found.plan.makespan_us < self.best_us:
            self.best, self.best_us = found.plan, found.plan.makespan_us


def starts(question: Question) -> tuple[Planner, ...]:
    """Whose plans take part as they are. In a step that is not long, also of one that computes
    again and offloads nothing, and of one that has parameters lie on the host, which leaves inputs
    room to come sooner; where host memory is short, of those that offload nothing. A long step has
    few plans for a host with room for the inputs alone, and a search finds them sooner than those
    which try one long list after another.
    """
    trace = question.trace
    if not is_short_of_host(question):
        here = (Dtr(), SlidingWindow()) if len(trace.calls) <= CALLS else ()
        return (KeepAll(), Belady(), Prefix(), WindowCyclic(), *here)
    if len(trace.calls) > CALLS and not has_host_space(question):
        return (KeepAll(), Dtr())
    alone = Checkmate()
    exact = (alone,) if len(trace.calls) <= alone.exact else ()
    return (KeepAll(), Belady(), Prefix(), WindowCyclic(), Dtr(), *exact)


def last_asked(question: Question) -> tuple[Planner, ...]:
    """Further planners, where neither the starts nor the search have a plan."""
    asked = {planner.name for planner in starts(question)}
    return tuple(one for one in (Belady(), Prefix(), WindowCyclic()) if one.name not in asked)
