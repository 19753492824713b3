"""The cases on which the laws of planners are tried: a planner's answer, and the same case changed.

A planner answers a `Case` with a plan or a refusal. When names, sizes or times of the case are
changed, the answer must change accordingly. Planners are called in this module only, always with
everything that the case fixes, so a law contains nothing but its comparison. Read next:
`planner_laws.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ooctrain.errors import Infeasible
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planning.planner import Planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class Case:
    """What a law is tried on.

    Args:
        trace: trace of a small step.
        machine: that it is planned for.
        granule: what sizes are rounded to.
        seed: seed of all else that is random.
    """

    trace: Trace
    machine: Machine
    granule: Granule
    seed: int


class Breach(Exception):
    """What a law says of a case; `plan` and `index` name the list and the instruction, if any."""

    def __init__(self, what: str, plan: Plan | None = None, index: int | None = None):
        super().__init__(what)
        self.plan, self.index = plan, index


def plan_of(planner: Planner, case: Case, budget_bytes: int) -> Plan:
    """Its plan within a budget that it has called enough; Breach where it refuses."""
    try:
        return planner.plan(question_of(case, budget_bytes))
    except Infeasible as refusal:
        raise Breach(f"it refuses {budget_bytes} bytes: {refusal}") from refusal


def refusal_of(planner: Planner, case: Case, budget_bytes: int) -> Infeasible | None:
    """How it refuses a budget; None where it has a plan."""
    try:
        planner.plan(question_of(case, budget_bytes))
    except Infeasible as refusal:
        return refusal
    return None


def question_of(case: Case, budget_bytes: int, host_bytes: int | None = None) -> Question:
    """A case as a question within these budgets."""
    trace, machine, granule, seed = case.trace, case.machine, case.granule, case.seed
    return Question(trace, budget_bytes, machine, granule, host_bytes, seed)


def least_bytes(planner: Planner, case: Case) -> int:
    """The least budget, by its own word; Breach where it names none."""
    refusal = refusal_of(planner, case, 0)
    if refusal is None:
        return 0
    if refusal.minimum_bytes is None:
        raise Breach(
            f"its refusal names no least budget, though the host is not limited: {refusal}"
        )
    return refusal.minimum_bytes


def budgets_to_try(planner: Planner, case: Case) -> list[int]:
    """The least, some above it, and what is enough for the whole step in-core."""
    least = least_bytes(planner, case)
    most = max(least, trace_peak_bytes(case.trace, case.granule))
    return sorted({least, least + 1, (least + most) // 2, (least + 3 * most) // 4, most, 2 * most})


def host_refusal(
    planner: Planner, case: Case, budget_bytes: int, host_bytes: int
) -> Infeasible | None:
    """How it refuses a host budget; None where it keeps to it."""
    try:
        plan = planner.plan(question_of(case, budget_bytes, host_bytes))
    except Infeasible as refusal:
        return refusal
    if plan.host_peak_bytes > host_bytes:
        raise Breach(f"host budget {host_bytes} bytes, used {plan.host_peak_bytes}", plan)
    return None


def fresh_fingerprint(trace: Trace) -> str:
    """A trace's fingerprint, of a fresh object: its own is cached."""
    return Trace(trace.variables, trace.calls, trace.carries, trace.outputs).fingerprint


def has_other_views(trace: Trace) -> bool:
    """Whether what a trace keeps of itself (`readers`, `uses`, ...) no longer follows from it."""
    fresh = replace(trace)
    return any(getattr(fresh, name) != kept for name, kept in vars(trace).items())


def with_other_names(trace: Trace) -> Trace:
    """The same step with other names in the same alphabetical order."""
    variables = tuple(replace(v, name=f"renamed/{v.name}") for v in trace.variables)
    calls = tuple(replace(c, name=f"renamed/{c.name}") for c in trace.calls)
    return replace(trace, variables=variables, calls=calls)


def scaled_case(case: Case, bytes_factor: int, time_factor: int) -> Case:
    """Sizes and times multiplied, the link's rates with them."""
    rate = bytes_factor / time_factor
    machine = replace(
        case.machine,
        link_bytes_per_us=case.machine.link_bytes_per_us * rate,
        link_out_bytes_per_us=case.machine.out_bytes_per_us * rate,
        link_in_bytes_per_us=case.machine.in_bytes_per_us * rate,
    )
    trace = case.trace
    variables = [
        replace(v, nbytes=v.nbytes * bytes_factor, shape=(v.nbytes * bytes_factor,))
        for v in trace.variables
    ]
    calls = [
        replace(
            c,
            workspace_bytes=c.workspace_bytes * bytes_factor,
            duration_ns=(c.duration_ns or 0) * time_factor,
        )
        for c in trace.calls
    ]
    larger = Trace(tuple(variables), tuple(calls), trace.carries, trace.outputs)
    return replace(case, trace=larger, machine=machine)
