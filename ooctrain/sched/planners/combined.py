"""combined: offloading and recomputation together, by search. The planner to beat.

A choice says of each value whether it is kept, dropped once or dropped repeatedly, and of each
source whether it is held for those that are computed again; where the host is short, it says so
after each use of a value. Given a choice, Belady's rule offloads the remaining excess and the
as-soon-as-possible engine times it. Compiled, this takes a tenth of a millisecond, so annealing can
try thousands of choices from several starts. A second search goes on from the best choice, over
what is kept from call to call (`sched/search/keep_offload_or_recompute.py`), or, where nothing can
wait on the host, from several (`sched/search/keep_or_recompute.py`); where the host has room, but
not enough, both are tried. The readable `lower` writes the plan itself. It is never worse than its
`starts`, whose plans take part: `keep-all`, `prefix`, `belady`, `window-cyclic` and, in steps of at
most `CALLS` calls, `dtr` and `window`; on a host without room, in longer steps, `keep-all` and
`dtr`. A plan that ends as soon as the inputs allow is taken without a search. Where other forms of
the step are offered, a short search of each shows which one is searched. Source: ours; what it
reaches is in docs/planners.md. Read next: `portfolio.py`, which runs the starts;
`sched/search/anneal.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ooctrain.errors import Infeasible, PartFailed, failing_as
from ooctrain.sched.bounds.closed import arrivals_us
from ooctrain.sched.planners.belady import Belady, offload
from ooctrain.sched.planners.checkmate import Checkmate
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.portfolio import Portfolio, Turn
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planners.window import SlidingWindow, WindowCyclic
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.host_gaps import (
    has_host_space,
    is_host_tight,
    is_short_of_host,
    without_host,
)
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.planner import Planner, check_evaluations, check_true_or_false
from ooctrain.sched.planning.question import Question, makespan_us
from ooctrain.sched.planning.rematerialise import Use, read_off, rematerialise_after
from ooctrain.sched.schedule import Plan, Run

if TYPE_CHECKING:
    from ooctrain.sched.search.choice import Choice, Search
    from ooctrain.sched.search.keep_or_recompute import KeptRuns


#: Steps up to this length get all evaluations; longer ones fewer, as each takes more time, and more
#: than in proportion: a prefetch looks over more runs.
CALLS, GROWTH = 600, 1.5
#: Evaluations where the caller does not say how many.
THOROUGH = 120_000
#: Share of a time limit that is kept for the search while the starts are planned.
SEARCH_SHARE = 0.5
#: How many times longer writing the plan down may take than `belady` takes for its plan.
WRITING = 1.5
#: Without host memory: number of restarts, and the least evaluations of each; where there are too
#: few for that, restarts go on from the best.
SEVERAL, EACH = 10, 500
#: For the choice of a form of the step that is worth a search: evaluations, and the share of
#: those of the search that it takes where that is more.
PROMISE, PROMISE_SHARE = 500, 1 / 60
#: Another form is taken only if it promises a step shorter by this share than the step as it is
#: does: promises are that far off. Measured: docs/planners.md.
CLEARLY = 0.02
#: Of a time limit: what is left to the search after the promises.
PROMISED_SHARE = 0.75
#: A search counts on from its seed, in 64 bits; of NumPy's numbers it would be compiled once more.
_SEEDS = 1 << 62


@dataclass(frozen=True, slots=True)
class Combined:
    """Annealing from several starts over what is kept, dropped, held; Belady and `lower` do the
    rest.

    Args:
        evaluations: how many choices are tried at most in a step of `CALLS` calls; None: as many
            as the question says (`--evaluations`), or `THOROUGH`. A time limit interrupts, and the
            plan's notes then say so.
        checkmate: whether `checkmate` is among the starts of short steps on a short host.
        forms: whether it takes other forms of the step that are offered, where they promise more.

    Cost: some 0.2 ms for each evaluation of 600 calls, and the starts' plans.
    """

    name = "combined"

    evaluations: int | None = None
    checkmate: bool = True
    forms: bool = True

    def __post_init__(self) -> None:
        check_evaluations(self.name, self.evaluations)
        check_true_or_false(self.name, {"checkmate": self.checkmate, "forms": self.forms})

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least of the starts'; of all forms, where there are
        other ones.

        A promise is a list that there is. So where the plan of the most promising form is slower
        than what the next one promised, that one is searched as well; in short steps the step as it
        is in any case, as what is planned by rules keeps no promise.
        """
        seed = int(question.seed) % _SEEDS
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
        """How long a step takes, in ns, by the best choice of a search that has barely begun;
        beyond all durations where none fits. Cost: `PROMISE` evaluations, or `PROMISE_SHARE`.
        """
        search, first = _begun(question)
        number = _evaluations(max(PROMISE, PROMISE_SHARE * self._most(question)), question)
        seed, deadline = int(question.seed) % _SEEDS, question.effort.deadline
        return search.cost(search.improve(first[0], number, seed=seed, deadline=deadline))

    def _most(self, question: Question) -> int:
        """Evaluations in a step of `CALLS` calls."""
        given = (self.evaluations, question.effort.evaluations)
        return next((number for number in given if number is not None), THOROUGH)

    def _plan_form(self, question: Question) -> Plan:
        """The plan of one form of the step."""
        starting = _Starts(replace(question, forms={}))
        first = starts(question)
        starting.run_starts(first if self.checkmate else _without_checkmate(first))
        if starting.best is None and not is_short_of_host(question):
            return starting.outcome(self.name)  # raises
        best = starting.best_start()
        if best is None or not (starting.all_fits or starting.is_least(best)):
            found = _Searched(None, cut_short=False)
            try:
                with failing_as("the search of 'combined'"):
                    found = self._searched_with_and_without(
                        question, starting.search_ends, starting.again
                    )
            except PartFailed as failure:
                starting.failures.append(failure)
            starting.cut_short |= found.cut_short
            if best is None and found.plan is None:
                starting.run_starts(last_asked(question))
                best = starting.best_start()
            plans = [plan for plan in (best, found.plan) if plan is not None]
            if plans:
                starting.best = min(plans, key=makespan_us)
        else:
            starting.best = best
        return starting.outcome(self.name)

    def _searched_with_and_without(
        self, question: Question, deadline: Deadline, others: Iterable[Plan]
    ) -> _Searched:
        """`_searched`; where the host has not got room for all that has to leave, once more as if
        it had none, as these lists are hard to find by small steps from those that swap. In a long
        step each search then gets half of the evaluations, in any step half of the time.
        """
        if not is_host_tight(question):
            return self._searched(question, deadline, others)
        share = 1.0 if len(question.trace.calls) <= CALLS else 0.5
        first = deadline.earlier((deadline.left_s() or 0.0) / 2)
        return _Searched.fastest([
            self._searched(question, first, others, share),
            self._searched(without_host(question), deadline, others, share),
        ])  # fmt: skip

    def _searched(
        self, question: Question, deadline: Deadline, others: Iterable[Plan], share: float = 1.0
    ) -> _Searched:
        """The plan of the best choice, or of what came of it.

        Args:
            others: plans that run calls again.
            share: part of the evaluations.
        """
        search, first = _begun(question, others)
        number = share * self._most(question)
        half = _evaluations(number / 2, question)
        many = search.copies_nothing and half >= SEVERAL * EACH
        find = _several if many else _choices
        found = find(search, first, half, question.seed, deadline)
        best = next(filter(None, (_plan_of(choice, question) for choice in found)), None)
        if deadline.passed():
            return _Searched.of([best], search)
        lists = search.call_by_call(
            [(choice, _runs(choice, question)) for choice in found],
            _evaluations(number, question), seed=question.seed + len(found), deadline=deadline,
        )  # fmt: skip
        kept = next(filter(None, (_plan_of_kept(kept, question) for kept in lists)), None)
        return _Searched.of([best, kept], search)


class Promised(NamedTuple):
    """A form, and the step in ns that the search has to beat for another form to be of interest."""

    ns: float
    form: str


class _Searched(NamedTuple):
    """The plan of the best choice, if there is one, and whether the clock ended the search."""

    plan: Plan | None
    cut_short: bool

    @classmethod
    def of(cls, plans: Sequence[Plan | None], search: Search) -> _Searched:
        """The fastest of these, the first of equals, with what all of the search has tried."""
        found = [plan for plan in plans if plan is not None]
        if not found:
            return cls(None, search.cut_short)
        best = min(found, key=lambda plan: plan.makespan_us)
        notes = {**best.notes, "evaluations": search.evaluations}
        return cls(replace(best, notes=notes), search.cut_short)

    @classmethod
    def fastest(cls, found: Sequence[_Searched]) -> _Searched:
        """The fastest plan of some searches, the first of equals."""
        plans = [one.plan for one in found if one.plan is not None]
        best = min(plans, key=lambda plan: plan.makespan_us, default=None)
        return cls(best, any(one.cut_short for one in found))


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
            if self.best is not None and self.is_least(self.best):
                break

    def best_start(self) -> Plan | None:
        """The fastest, which says whose it is."""
        if self.best is None:
            return None
        return replace(self.best, notes={"from": self.chosen, **self.best.notes})

    @property
    def search_ends(self) -> Deadline:
        """When the search has to end, so that its plan can still be written down."""
        return self.question.effort.deadline.earlier(self.writing_s)

    def is_least(self, plan: Plan) -> bool:
        """Whether no list is faster, whatever the budget."""
        return plan.makespan_us <= arrivals_us(self.question.trace, self.question.machine)


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


def _without_checkmate(planners: Iterable[Planner]) -> Iterator[Planner]:
    return (planner for planner in planners if not isinstance(planner, Checkmate))


def last_asked(question: Question) -> tuple[Planner, ...]:
    """Further planners, where neither the starts nor the search have a plan."""
    asked = {planner.name for planner in starts(question)}
    return tuple(one for one in (Belady(), Prefix(), WindowCyclic()) if one.name not in asked)


def _evaluations(number: float, question: Question) -> int:
    """So many of a step of `CALLS` calls, in a step that may be longer."""
    longer = max(1.0, len(question.trace.calls) / CALLS)
    return int(number / longer**GROWTH)


def _begun(question: Question, others: Iterable[Plan] = ()) -> tuple[Search, list[Choice]]:
    """A search, and what annealing begins with: values to drop.

    Args:
        others: plans that run calls again, whose choices are tried, too.
    """
    # Late: it loads Numba, which planning otherwise does without.
    from ooctrain.sched.search.choice import Choice, Search

    trace, machine = question.trace, question.machine
    search = Search(question)
    prefixes = Prefix(steps=8).choices(trace, machine)
    first = [search.dropping(prefix) for prefix in prefixes]
    if search.short_of_host:
        first += [search.dropping(prefix, repeatedly=True) for prefix in prefixes]
    for plan in others:
        runs = [i for i in plan.schedule.instructions if isinstance(i, Run)]
        found = read_off(trace, runs)
        dropped, unread = tuple(sorted(found.dropped)), tuple(sorted(found.unread))
        first.append(Choice(dropped, unread, tuple(sorted(found.held))))
    return search, search.best_first(first)


def _choices(
    search: Search, first: Sequence[Choice], half: int, seed: int, deadline: Deadline
) -> list[Choice]:
    """What annealing finds, the best first: half of the evaluations go to the starts, half to what
    came of the best of them.
    """
    found = [
        search.improve(choice, half // len(first), seed=seed + place, deadline=deadline)
        for place, choice in enumerate(first)
    ]
    nearest, last = min(found, key=search.cost), seed + len(first)
    found.append(search.improve(nearest, half, seed=last, deadline=deadline, further=True))
    return sorted(found, key=search.cost)


def _several(
    search: Search, first: Sequence[Choice], half: int, seed: int, deadline: Deadline
) -> list[Choice]:
    """What short searches find where nothing is copied, the best first: from where the second
    search goes on matters more than how good that is.
    """
    each = half // (2 * SEVERAL)
    short = [
        search.improve(first[place % len(first)], each, seed=seed + place, deadline=deadline)
        for place in range(SEVERAL)
    ]
    found = [
        search.improve(choice, each, seed=seed + place, deadline=deadline, further=True)
        for place, choice in enumerate(short, SEVERAL)
    ]
    found.sort(key=search.cost)
    if search.fits(found[0]):
        return found
    last = seed + 2 * SEVERAL
    return [search.improve(found[0], half, seed=last, deadline=deadline, further=True), *found]


def _plan_of(choice: Choice, question: Question) -> Plan | None:
    """The plan of a choice, or None if `lower` does not accept it."""
    runs = _runs(choice, question)
    notes = {
        "from": "search", "dropped": len(choice.dropped), "held": len(choice.held),
        "stays": len(choice.stays), "runs_again": len(runs) - len(question.trace.calls),
    }  # fmt: skip
    return _plan_of_runs(runs, question, notes, choice.stays)


def _runs(choice: Choice, question: Question) -> tuple[Run, ...]:
    return rematerialise_after(
        question.trace, choice.dropped, unread=choice.unread, held=choice.held
    )


def _plan_of_runs(
    runs: tuple[Run, ...], question: Question, notes: Mapping[str, Any], stays: Iterable[Use] = ()
) -> Plan | None:
    """The plan of some runs, or None if `lower` does not accept them."""
    try:
        decisions = offload("combined", question, runs, frozenset(stays))
        return plan_of("combined", question, decisions, notes)
    except Infeasible:
        return None


def _plan_of_kept(kept: KeptRuns, question: Question) -> Plan | None:
    notes = {
        "from": "search of what is kept", "stays": len(kept.stays),
        "runs_again": len(kept.runs) - len(question.trace.calls),
    }  # fmt: skip
    return _plan_of_runs(kept.runs, question, notes, kept.stays)
