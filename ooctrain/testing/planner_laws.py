"""What a planner promises, each promise as a function that tries it on one case.

In: a planner and a `Case` (a trace, a machine, a granule). Out: nothing, or `Broken` with what was
seen. The one idea: a planner is a pure function with few promises; each law asks it a few times and
compares answers, with the verifier, with an independent interpreter, with itself. Read next:
`check_planner.py`, which tries them on random cases; `interpreter.py`, `jitter.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ooctrain.cost import Machine
from ooctrain.errors import Infeasible, ScheduleError
from ooctrain.sched.base import HOST_LACKS, Planner
from ooctrain.sched.bounds import lower_bound
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.sched.verify import verify
from ooctrain.testing.byte_list import LawBroken
from ooctrain.testing.interpreter import in_core, interpret
from ooctrain.testing.random_traces import random_values
from ooctrain.trace import Trace

STEPS = 3
#: Chunked planners may round differently on a scaled trace; more than this is no rounding.
SCALING_TOLERANCE = 1 / 16


@dataclass(frozen=True, slots=True)
class Case:
    """What a law is tried on.

    Args:
        seed: of whatever else is random about it.
    """

    trace: Trace
    machine: Machine
    granule: Granule
    seed: int


class Broken(Exception):
    """What a law says of a case; `plan` and `index` name the list and the instruction, if any."""

    def __init__(self, what: str, plan: Plan | None = None, index: int | None = None):
        super().__init__(what)
        self.plan, self.index = plan, index


Law = Callable[[Planner, Case], None]


def plans_are_legal(planner: Planner, case: Case) -> None:
    """Every plan passes the verifier within its budget, claims included, at every budget, and can
    be written to a file and read back.
    """
    for budget_bytes in _budgets(planner, case):
        plan = _plan(planner, case, budget_bytes)
        written = plan.to_json()
        if Plan.from_json(written, plan.trace).to_json() != written:
            raise Broken("its plan file is read back as another plan", plan)
        try:
            verify(plan, case.trace, budget_bytes, case.machine)
        except ScheduleError as error:
            raise Broken(f"budget {budget_bytes} bytes: {error}", plan, error.index) from error


def results_are_exact(planner: Planner, case: Case) -> None:
    """Three steps in a row give in-core results, whatever the streams do within the rules."""
    rng = random.Random(case.seed)
    plan = _plan(planner, case, min(_budgets(planner, case)))
    start = expected = random_values(case.trace, rng)
    for step in range(1, STEPS + 1):
        shared = case.machine.link == "shared"
        try:
            outcome = interpret(case.trace, plan.schedule, start, rng, shared_link=shared)
        except LawBroken as error:
            raise Broken(f"step {step}: {error}", plan, error.index) from error
        truth = in_core(case.trace, expected)
        if outcome.persistent != truth.persistent:
            raise Broken(f"step {step}: values differ from in-core training", plan)
        fresh = random_values(case.trace, rng)
        start, expected = {**fresh, **outcome.persistent}, {**fresh, **truth.persistent}


def infeasible_is_honest(planner: Planner, case: Case) -> None:
    """The minimum does not depend on the budget asked; it is feasible, a byte less is not. The
    witness is a call of the step.
    """
    least = _least(planner, case)
    refused = _refusal(planner, case, 0)
    if refused and refused.witness_call not in ("", *(call.name for call in case.trace.calls)):
        raise Broken(f"its witness {refused.witness_call!r} is no call of the step")
    for budget_bytes in {0, least // 2, least - 1} - {-1}:
        if budget_bytes < least:
            refusal = _refusal(planner, case, budget_bytes)
            if refusal is None:
                raise Broken(f"it says {least} bytes are the least, but plans for {budget_bytes}")
            if refusal.minimum_bytes != least:
                raise Broken(
                    f"the least is {least} bytes when asked for 0, {refusal.minimum_bytes} when "
                    f"asked for {budget_bytes}"
                )
    for budget_bytes in _budgets(planner, case):
        refusal = _refusal(planner, case, budget_bytes)
        if refusal is not None:
            raise Broken(
                f"it says {least} bytes are enough, but refuses {budget_bytes} (least then: "
                f"{refusal.minimum_bytes})"
            )


def planning_is_pure(planner: Planner, case: Case) -> None:
    """The same arguments give the same plan, whatever was planned before and whatever their names
    are, and they are left as they were.
    """
    before = (_fingerprint(case.trace), repr(case.machine))
    budgets = _budgets(planner, case)
    budget_bytes, between = budgets[0], budgets[len(budgets) // 2]
    first = _plan(planner, case, budget_bytes)
    _plan(planner, case, between)
    second = _plan(planner, case, budget_bytes)
    if (_fingerprint(case.trace), repr(case.machine)) != before or _has_other_views(case.trace):
        raise Broken("it changes the trace or the machine that it is given", first)
    if first.schedule != second.schedule or first.makespan_us != second.makespan_us:
        raise Broken("it plans differently when asked twice", first)
    third = _plan(planner, replace(case, trace=_renamed(case.trace)), budget_bytes)
    if first.schedule != third.schedule:
        raise Broken(
            "it plans differently where variables and calls have other names: does it walk a set "
            "of names, whose order is another one in each process?", first,
        )  # fmt: skip


def scale_does_not_matter(planner: Planner, case: Case) -> None:
    """Bytes and bandwidth times 64, or all times times 8: the least and the makespan follow."""
    machine = replace(case.machine, latency_us=0.0)
    plain = Case(case.trace, machine, BYTES, case.seed)
    least = _least(planner, plain)
    makespan = _plan(planner, plain, least).makespan_us
    for name, scaled, bytes_factor, time_factor in (
        ("bytes and bandwidth times 64", _scaled(plain, 64, 1), 64, 1),
        ("all times times 8", _scaled(plain, 1, 8), 1, 8),
    ):
        scaled_least = _least(planner, scaled)
        if not _near(scaled_least, least * bytes_factor):
            raise Broken(f"{name}: the least budget goes from {least} to {scaled_least} bytes")
        budget_bytes = max(scaled_least, least * bytes_factor)
        scaled_us = _plan(planner, scaled, budget_bytes).makespan_us
        if not _near(scaled_us, makespan * time_factor):
            raise Broken(f"{name}: the makespan goes from {makespan} to {scaled_us} us")


def host_budget_is_kept(planner: Planner, case: Case) -> None:
    """A plan keeps to the host budget, or there is none."""
    budget_bytes = min(_budgets(planner, case))
    used = _plan(planner, case, budget_bytes).host_peak_bytes
    if _host_refusal(planner, case, budget_bytes, used) is not None:
        raise Broken(f"it refuses a host budget of {used} bytes, which is what it uses")
    least = _host_refusal(planner, case, budget_bytes, max(0, used - 1))
    if least is None or least == HOST_LACKS:
        return
    if least <= budget_bytes:
        raise Broken(f"less host memory, and the least goes from {budget_bytes} to {least} bytes")
    if _host_refusal(planner, case, least, max(0, used - 1)) is not None:
        raise Broken(f"with host budget {used - 1} it says {least} bytes are enough; they are not")


def _host_refusal(planner: Planner, case: Case, budget_bytes: int, host_bytes: int) -> int | None:
    """None where the planner keeps to a host budget, else the least device budget that it names."""
    try:
        plan = planner.plan(
            case.trace, budget_bytes, case.machine, granule=case.granule, seed=case.seed,
            host_budget_bytes=host_bytes,
        )  # fmt: skip
    except Infeasible as refusal:
        return refusal.minimum_bytes
    if plan.host_peak_bytes > host_bytes:
        raise Broken(f"host budget {host_bytes} bytes, used {plan.host_peak_bytes}", plan)
    return None


def no_plan_beats_the_bound(planner: Planner, case: Case) -> None:
    """A claimed makespan is at least the lower bound."""
    for budget_bytes in _budgets(planner, case):
        plan = _plan(planner, case, budget_bytes)
        bound = lower_bound(plan.trace, budget_bytes, case.machine)
        if plan.makespan_us < bound.makespan_us * (1 - 1e-9) - 0.001:
            raise Broken(f"makespan {plan.makespan_us} us is below the bound {bound}", plan)


def delays_change_nothing(planner: Planner, case: Case) -> None:
    """Executed with random delays, three steps leave in-core bytes behind, and the allocator's peak
    is the plan's.
    """
    # The executor is heavy: only this law loads it.
    from ooctrain.testing.jitter import harm_of_delays, some_allocator

    rng = random.Random(case.seed)
    choice = some_allocator(rng)
    executed = replace(case, granule=choice.granule)
    plan = _plan(planner, executed, min(_budgets(planner, executed)))
    harm = harm_of_delays(case.trace, plan, choice, case.machine.link, rng)
    if harm:
        raise Broken(harm, plan)


LAWS: Mapping[str, Law] = MappingProxyType(
    {
        "plans are legal": plans_are_legal,
        "results are exact": results_are_exact,
        "infeasible is honest": infeasible_is_honest,
        "planning is pure": planning_is_pure,
        "scale does not matter": scale_does_not_matter,
        "the host budget is kept": host_budget_is_kept,
        "no plan beats the bound": no_plan_beats_the_bound,
        "delays change nothing": delays_change_nothing,
    }
)


# ---------------------------------------------------------------- asking the planner


def _plan(planner: Planner, case: Case, budget_bytes: int) -> Plan:
    try:
        return planner.plan(
            case.trace, budget_bytes, case.machine, granule=case.granule, seed=case.seed
        )
    except Infeasible as refusal:
        raise Broken(f"it refuses {budget_bytes} bytes: {refusal}") from refusal


def _refusal(planner: Planner, case: Case, budget_bytes: int) -> Infeasible | None:
    try:
        planner.plan(case.trace, budget_bytes, case.machine, granule=case.granule, seed=case.seed)
    except Infeasible as refusal:
        return refusal
    return None


def _least(planner: Planner, case: Case) -> int:
    refusal = _refusal(planner, case, 0)
    return 0 if refusal is None else refusal.minimum_bytes


def _budgets(planner: Planner, case: Case) -> list[int]:
    """The least, some above it, and what is enough for the whole step in-core."""
    least = _least(planner, case)
    most = max(least, trace_peak_bytes(case.trace, case.granule))
    return sorted({least, least + 1, (least + most) // 2, (least + 3 * most) // 4, most, 2 * most})


def _fingerprint(trace: Trace) -> str:
    # A fresh object: the trace's own fingerprint is cached.
    return Trace(trace.variables, trace.calls, trace.carries, trace.outputs).fingerprint


def _has_other_views(trace: Trace) -> bool:
    """Whether what a trace keeps of itself (`readers`, `uses`, ...) no longer follows from it."""
    fresh = replace(trace)
    return any(getattr(fresh, name) != kept for name, kept in vars(trace).items())


def _renamed(trace: Trace) -> Trace:
    """The same step with other names in the same alphabetical order."""
    variables = tuple(replace(v, name=f"renamed/{v.name}") for v in trace.variables)
    calls = tuple(replace(c, name=f"renamed/{c.name}") for c in trace.calls)
    return replace(trace, variables=variables, calls=calls)


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= SCALING_TOLERANCE * abs(wanted) + 0.01


def _scaled(case: Case, bytes_factor: int, time_factor: int) -> Case:
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
    scaled = Trace(tuple(variables), tuple(calls), trace.carries, trace.outputs)
    return replace(case, trace=scaled, machine=machine)
