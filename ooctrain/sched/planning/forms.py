"""Forms of one step: which of them promises the shortest step, and the plan of that one.

A composer offers a planner other forms of a step (`OfferedPlanner`), of which each may be faster,
or need less. A planner that searches can promise: a short search of each form shows which is worth
a long one. Such a promise is a list that there is, so if what the long search of one form finds is
slower than what another form promised, that one is searched as well. Source: ours. Read next:
`sched/planners/combined.py`, `sched/planners/auto.py`, which choose so; `execution/compose.py`,
which offers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from ooctrain.errors import Infeasible, PartFailed
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.planner import Planner, least_refusal, remarked
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

#: A form is taken only if it promises a step shorter by this share than the step as it is does:
#: promises are that far off. Measured: docs/planners.md.
CLEARLY = 0.02
#: Of a time limit: what promises may take.
PROMISE_SHARE = 0.25


class StepForm(NamedTuple):
    """A rewrite of the step, "" for none, and the step after it."""

    rewrite: str
    trace: Trace

    def named(self, plan: Plan) -> Plan:
        """A plan of this form, which says so."""
        return replace(plan, rewrites=(self.rewrite, *plan.rewrites)) if self.rewrite else plan


class Promised(NamedTuple):
    """A form, and the step in ns that the search has to beat for another form to be of interest."""

    ns: float
    form: StepForm


class PromisingPlanner(Planner, Protocol):
    """A planner that estimates before a long search what it will find at most."""

    def with_evaluations(self, evaluations: int) -> PromisingPlanner:
        """See `SearchingPlanner`."""
        ...

    def promise(self, question: Question) -> float:
        """The duration in ns of a step that it will find, or better; beyond all durations where it
        knows none.
        """
        ...


def forms_of(trace: Trace, offered: Mapping[str, Trace]) -> list[StepForm]:
    """The step as it is, then the others."""
    return [StepForm("", trace), *(StepForm(*offer) for offer in offered.items())]


def by_promise(
    forms: Iterable[StepForm], promise: Callable[[Trace], float], clearly: float = 0.0
) -> list[Promised]:
    """The most promising first.

    Args:
        clearly: by what share another form has to be ahead of the step as it is.
    """
    promised = [
        Promised(promise(form.trace) / (1 - clearly if form.rewrite else 1), form) for form in forms
    ]
    return sorted(promised, key=lambda each: each.ns)


@dataclass(frozen=True, slots=True)
class ByPromise:
    """A planner, and the forms among which it chooses by what it promises for each.

    Where all fits, or the step as it is promises most, its plan is the one without offers. In short
    steps none is slower than that: what is planned by rules, not searched, keeps no promise.

    Args:
        offered: see `OfferedPlanner`.
        short: calls of the longest step that is planned as it is, too, where a form is taken.
    """

    planner: PromisingPlanner
    offered: Mapping[str, Trace]
    short: int = 0

    @property
    def name(self) -> str:
        """See `Planner`."""
        return self.planner.name

    def with_evaluations(self, evaluations: int) -> ByPromise:
        """See `SearchingPlanner`."""
        return replace(self, planner=self.planner.with_evaluations(evaluations))

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least of all forms'."""
        question = Question(
            trace, budget_bytes, machine, granule, host_budget_bytes, seed, time_limit_s
        )
        if trace_peak_bytes(trace, granule) <= budget_bytes:
            return question.ask(self.planner)
        deadline = Deadline.after(time_limit_s)
        ordered, cut_short = self._ordered(question)
        best, refusals, failures = None, list[Infeasible](), list[PartFailed]()
        for promised_ns, form in ordered:
            too = not form.rewrite and len(trace.calls) <= self.short
            if best is not None and best.makespan_us * 1000 <= promised_ns and not too:
                break
            asked = replace(question, trace=form.trace, time_limit_s=deadline.left_s())
            try:
                plan = form.named(asked.ask(self.planner))
            except Infeasible as refusal:
                refusals.append(refusal)
                continue
            except PartFailed as failure:
                failures.append(failure)
                continue
            if best is None or plan.makespan_us < best.makespan_us:
                best = plan
        if best is None:
            raise least_refusal(self.name, refusals, budget_bytes, failures)
        best = remarked(best, failures)
        return replace(best, notes={**best.notes, "cut_short": True}) if cut_short else best

    def _ordered(self, question: Question) -> tuple[list[Promised], bool]:
        """The forms by what they promise, and whether the clock ended that."""
        limit_s = question.time_limit_s
        deadline = Deadline.after(limit_s and PROMISE_SHARE * limit_s)

        def promise(trace: Trace) -> float:
            if trace_minimum_bytes(trace, question.granule) > question.budget_bytes:
                return math.inf
            asked = replace(question, trace=trace, time_limit_s=deadline.left_s())
            return self.planner.promise(asked)

        forms = forms_of(question.trace, self.offered)
        return by_promise(forms, promise, CLEARLY), deadline.passed()
