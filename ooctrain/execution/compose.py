"""From a step and a planner to a verified plan: the path of every plan.

A trace, the names of rewrites, the allocator's rounding, a planner and a budget give a verified
`Plan`. Planners see the rewritten step; its small objects are pinned in a region that is hidden
from them. The narrow form of the step is there
for planners that can choose. Its list is then
completed with everything else that belongs to a plan, and no plan is returned unverified. Read
next: `sched/planning/question.py`; `fit.py`, which asks again until what the allocator wastes fits
too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from ooctrain.errors import Infeasible, PartFailed, failing_as
from ooctrain.rewrite import REWRITES, apply_rewrites, rewritten_with_remarks
from ooctrain.rewrite.narrow import narrower
from ooctrain.rewrite.pin_small import pinning_for, pinning_lasting
from ooctrain.sched.bounds.closed import lower_bound
from ooctrain.sched.budget import resolve_budget, trace_minimum_bytes, with_region
from ooctrain.sched.planning.planner import (
    Planner,
    call_need_bytes,
    collecting_rarely,
    plan_excluding,
)
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Plan
from ooctrain.sched.verify import verify
from ooctrain.step.trace import Trace
from ooctrain.units import Granule


@dataclass(frozen=True, slots=True)
class RewrittenStep:
    """A step as planners see it.

    Args:
        original: the trace before rewriting.
        trace: after the rewrites.
        rewrites: their names, in order.
        granule: how the allocator rounds, with the trace's region of small objects.
        remarks: what rewrites do otherwise than their names say.
    """

    original: Trace
    trace: Trace
    rewrites: tuple[str, ...]
    granule: Granule = BYTES
    remarks: tuple[str, ...] = ()

    def pinned_for(self, granule: Granule) -> RewrittenStep:
        """The step with what is small for such an allocator in a region; to the byte nothing is."""
        return self._pinned(pinning_for(self.trace, granule), granule)

    def with_lasting_pinned(self, room_bytes: int, granule: Granule) -> RewrittenStep:
        """The step with as many lasting variables in the region as `room_bytes` hold."""
        return self._pinned(pinning_lasting(self.trace, room_bytes), granule)

    def _pinned(self, names: Sequence[str], granule: Granule) -> RewrittenStep:
        trace = apply_rewrites(self.trace, names)
        return replace(self, trace=trace, rewrites=(*self.rewrites, *names)).rounded_by(granule)

    def rounded_by(self, granule: Granule) -> RewrittenStep:
        """The step as such an allocator counts it, with the region that it has."""
        return replace(self, granule=with_region(granule, self.trace))

    def bytes_of(self, budget: int | str) -> int:
        """A budget in bytes, percentages resolved. Raises ConfigError: not a budget."""
        return resolve_budget(self.trace, budget, self.granule)


def rewritten(original: Trace, rewrites: Sequence[str]) -> RewrittenStep:
    """The step after rewrites by name, counted to the byte. Raises ConfigError: no such rewrite."""
    trace, remarks = rewritten_with_remarks(original, rewrites)
    return RewrittenStep(original, trace, tuple(rewrites), remarks=remarks)


@collecting_rarely()
def plan_step(step: RewrittenStep, planner: Planner, question: Question) -> Plan:
    """The planner's plan of a step, completed and verified.

    Args:
        question: about `step.trace`, with `step.granule`.

    Raises:
        Infeasible: the planner finds no schedule; its minimum includes the region.
        ScheduleError: the planner returned an illegal schedule.
        ConfigError: what it returned is not a plan.
    """
    budget_bytes, machine = question.budget_bytes, question.machine
    found = found_by(planner, question)
    said = [*step.remarks, *found.notes.get("remarks", ())]
    remarks = {"remarks": said} if said else {}
    plan = replace(
        found,
        rewrites=(*step.rewrites, *found.rewrites),
        lower_bound=found.lower_bound or lower_bound(found.trace, budget_bytes, machine),
        notes={"planner": planner.name, **found.notes, **remarks},
    )
    host_bytes = question.host_budget_bytes
    verify(
        plan, step.original, budget_bytes, machine, host_budget_bytes=host_bytes, rewrites=REWRITES
    )
    return plan


def found_by(planner: Planner, question: Question) -> Plan:
    """A planner's plan, for the step or for the narrow form of it; not verified yet.

    The form depends on the budget: one that is made for a small budget may need little, and not be
    there at the budget that it needs. So a least budget that only such a form has is looked at once
    more, with the form that is made there.

    Raises:
        Infeasible: it finds no schedule.
        ConfigError: what it returned is not a plan.
        PartFailed: it raised an error that is not the library's.
    """
    forms = NarrowForms(question.trace, question.budget_bytes)
    try:
        return plan_excluding(planner, replace(question, forms=forms))
    except Infeasible as refusal:
        first, least = refusal, refusal.minimum_bytes
    if least is not None and _may_need_a_form(least, forms, question):
        there = NarrowForms(question.trace, least)
        try:
            return plan_excluding(planner, replace(question, forms=there))
        except Infeasible as refusal:
            if refusal.minimum_bytes is not None and refusal.minimum_bytes > least:
                first = refusal
    raise first from first.__cause__


class NarrowForms(Mapping[str, Trace]):
    """The narrow form of a step by its name, written when a planner first looks at it; none where
    there is none, or the rewrite fails: the step as it is remains.
    """

    def __init__(self, trace: Trace, budget_bytes: int):
        self._trace, self._budget_bytes = trace, budget_bytes

    @cached_property
    def _forms(self) -> Mapping[str, Trace]:
        with suppress(PartFailed), failing_as("rewrite 'narrow'"):
            return narrower(self._trace, self._budget_bytes)
        return {}

    def __getitem__(self, name: str) -> Trace:
        return self._forms[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._forms)

    def __len__(self) -> int:
        return len(self._forms)


def _may_need_a_form(least_bytes: int, forms: Mapping[str, Trace], question: Question) -> bool:
    """Whether a form, and not the step as it is, may be what needs no more. Cost: O(calls)."""
    trace, granule = question.trace, question.granule
    if trace_minimum_bytes(trace, granule) <= least_bytes:
        return False
    return any(
        max(call_need_bytes(call, form, granule) for call in form.calls) <= least_bytes
        for form in forms.values()
    )
