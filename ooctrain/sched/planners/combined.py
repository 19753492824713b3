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
reaches is in docs/planners.md. Read next: `sched/search/anneal.py`, `sched/planning/forms.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ooctrain.errors import Infeasible, PartFailed, failing_as
from ooctrain.sched.bounds.closed import arrivals_us
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.by_search import CALLS, SEEDS, Found, found_by_search, promised_ns
from ooctrain.sched.planners.checkmate import Checkmate
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planners.window import SlidingWindow, WindowCyclic
from ooctrain.sched.planning.effort import Deadline, check_evaluations
from ooctrain.sched.planning.forms import ByPromise
from ooctrain.sched.planning.host_gaps import (
    has_host_space,
    is_short_of_host,
)
from ooctrain.sched.planning.parameters import check_true_or_false
from ooctrain.sched.planning.planner import Planner, least_refusal, remarked
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

#: Evaluations where the caller does not say how many.
THOROUGH = 120_000
#: Share of a time limit that is kept for the search while the starts are planned.
SEARCH_SHARE = 0.5
#: How many times longer writing the plan down may take than `belady` takes for its plan.
WRITING = 1.5
#: For the choice of a form of the step that is worth a search: evaluations, and the share of
#: those of the search that it takes where that is more.
PROMISE, PROMISE_SHARE = 500, 1 / 60


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

    def offered(self, steps: Mapping[str, Trace]) -> Planner:
        """See `OfferedPlanner`."""
        return ByPromise(self, steps, CALLS) if steps and self.forms else self

    def with_evaluations(self, evaluations: int) -> Combined:
        """See `SearchingPlanner`."""
        return self if self.evaluations is not None else replace(self, evaluations=evaluations)

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least of the starts'."""
        question = Question(
            trace,
            budget_bytes,
            machine,
            granule,
            host_budget_bytes,
            int(seed) % SEEDS,
            time_limit_s,
        )
        asked = _Starts(question)
        first = starts(question)
        best = asked.best_plan(first if self.checkmate else _without_checkmate(first))
        if best is None and not is_short_of_host(question):
            raise least_refusal("combined", asked.refusals, budget_bytes, asked.failures)
        cut_short = asked.cut_short
        if best is None or not (asked.all_fits or asked.is_least(best)):
            deadline = asked.deadline.earlier(asked.writing_s)
            found, number = Found(None, cut_short=False), self.evaluations
            try:
                with failing_as("the search of 'combined'"):
                    found = found_by_search(
                        question, THOROUGH if number is None else number, deadline, asked.again
                    )
            except PartFailed as failure:
                asked.failures.append(failure)
            plans = [plan for plan in (best, found.plan) if plan is not None]
            if not plans:
                plans += filter(None, [asked.best_plan(last_asked(question))])
            if not plans:
                raise least_refusal("combined", asked.refusals, budget_bytes, asked.failures)
            best = min(plans, key=lambda plan: plan.makespan_us)
            cut_short |= found.cut_short
        best = remarked(best, asked.failures)
        return replace(best, notes={**best.notes, "cut_short": True}) if cut_short else best

    def promise(self, question: Question) -> float:
        """How long a step takes, in ns, by the best choice of a search that has barely begun;
        beyond all durations where none fits. Cost: `PROMISE` evaluations, or `PROMISE_SHARE`.
        """
        asked = next(
            (n for n in (self.evaluations, question.evaluations) if n is not None), THOROUGH
        )
        number = max(PROMISE, PROMISE_SHARE * asked)
        return promised_ns(question, number, Deadline.after(question.time_limit_s))


class _Starts:
    """The plans that take part as they are.

    Attributes:
        deadline: that of the whole search.
        all_fits: whether the step fits as it is; then a search finds nothing to drop.
        again: plans that compute again.
        writing_s: how long it takes at most to write a plan down.
        refusals, failures: errors of those that have no plan.
        cut_short: whether one of them did not run, or was cut short itself.
    """

    def __init__(self, question: Question):
        self.question = question
        self.deadline = Deadline.after(question.time_limit_s)
        self.all_fits = self.cut_short = False
        self.writing_s = 0.0
        self.refusals: list[Infeasible] = []
        self.failures: list[PartFailed] = []
        self.again: list[Plan] = []

    def best_plan(self, planners: Iterable[Planner]) -> Plan | None:
        """The fastest of some planners' plans."""
        best: Plan | None = None
        kept_s = SEARCH_SHARE * (self.question.time_limit_s or 0.0)
        first = self.deadline.earlier(kept_s)
        short = is_short_of_host(self.question)
        for planner in planners:
            if best is not None and first.passed():
                self.cut_short = True
                break
            began_s = time.monotonic()
            try:
                plan = replace(self.question, time_limit_s=first.left_s()).ask(planner)
            except Infeasible as refusal:
                self.refusals.append(refusal)
                continue
            except PartFailed as failure:
                self.failures.append(failure)
                continue
            if planner.name == "belady":
                self.writing_s = WRITING * (time.monotonic() - began_s)
            if short and isinstance(planner, Dtr | Checkmate):
                self.again.append(plan)
            self.cut_short |= bool(plan.notes.get("cut_short"))
            if best is None or plan.makespan_us < best.makespan_us:
                best = replace(plan, notes={"from": planner.name, **plan.notes})
            self.all_fits |= planner.name == "keep-all"
            if self.is_least(best):
                break
        return best

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
