"""The promises of a planner, each as a function that tries it on one case.

A planner is a pure function with few promises. Each law calls it a few times on a `Case` (a trace,
a machine, a granule) and compares its answers with the verifier, with an independent interpreter
and with each other; a `Breach` says what was seen. Read next: `planner_cases.py`, which calls the
planner; `check_planner.py`, which tries the laws on random cases; `interpreter.py`, `run_list.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ooctrain.errors import ScheduleError
from ooctrain.rewrite import REWRITES
from ooctrain.sched.bounds.closed import lower_bound
from ooctrain.sched.planning.planner import Planner
from ooctrain.sched.schedule import BYTES, Plan
from ooctrain.sched.verify import verify
from ooctrain.testing.byte_list import LawBroken
from ooctrain.testing.interpreter import in_core, interpret
from ooctrain.testing.planner_cases import (
    Breach,
    Case,
    budgets_to_try,
    fresh_fingerprint,
    has_other_views,
    host_refusal,
    least_bytes,
    plan_of,
    refusal_of,
    scaled_case,
    with_other_names,
)
from ooctrain.testing.random_traces import random_values

STEPS = 3
#: Chunked planners may round differently on a scaled trace; more than this is not a rounding.
SCALING_TOLERANCE = 1 / 16


Law = Callable[[Planner, Case], None]


def plans_are_legal(planner: Planner, case: Case) -> None:
    """Every plan passes the verifier within its budget, claims included, at every budget, and can
    be written to a file and read back.
    """
    for budget_bytes in budgets_to_try(planner, case):
        plan = plan_of(planner, case, budget_bytes)
        written = plan.to_json()
        if Plan.from_json(written, plan.trace).to_json() != written:
            raise Breach("its plan file is read back as another plan", plan)
        try:
            verify(plan, case.trace, budget_bytes, case.machine, rewrites=REWRITES)
        except ScheduleError as error:
            raise Breach(f"budget {budget_bytes} bytes: {error}", plan, error.index) from error


def results_are_exact(planner: Planner, case: Case) -> None:
    """Three steps in a row give in-core results, whatever the streams do within the rules."""
    rng = random.Random(case.seed)
    plan = plan_of(planner, case, min(budgets_to_try(planner, case)))
    start = expected = random_values(case.trace, rng)
    for step in range(1, STEPS + 1):
        shared = case.machine.link == "shared"
        try:
            outcome = interpret(case.trace, plan.schedule, start, rng, shared_link=shared)
        except LawBroken as error:
            raise Breach(f"step {step}: {error}", plan, error.index) from error
        truth = in_core(case.trace, expected)
        if outcome.persistent != truth.persistent:
            raise Breach(f"step {step}: values differ from in-core training", plan)
        fresh = random_values(case.trace, rng)
        start, expected = {**fresh, **outcome.persistent}, {**fresh, **truth.persistent}


def infeasible_is_honest(planner: Planner, case: Case) -> None:
    """The minimum does not depend on the budget asked; it is feasible, a byte less is not. The
    witness is a call of the step.
    """
    least = least_bytes(planner, case)
    refused = refusal_of(planner, case, 0)
    if refused and refused.witness_call not in ("", *(call.name for call in case.trace.calls)):
        raise Breach(f"its witness {refused.witness_call!r} is not a call of the step")
    for budget_bytes in {0, least // 2, least - 1} - {-1}:
        if budget_bytes < least:
            refusal = refusal_of(planner, case, budget_bytes)
            if refusal is None:
                raise Breach(f"it says {least} bytes are the least, but plans for {budget_bytes}")
            if refusal.minimum_bytes != least:
                raise Breach(
                    f"the least is {least} bytes when requested 0, {refusal.minimum_bytes} when "
                    f"requested {budget_bytes}"
                )
    for budget_bytes in budgets_to_try(planner, case):
        refusal = refusal_of(planner, case, budget_bytes)
        if refusal is not None:
            raise Breach(
                f"it says {least} bytes are enough, but refuses {budget_bytes} (least then: "
                f"{refusal.minimum_bytes})"
            )


def planning_is_pure(planner: Planner, case: Case) -> None:
    """The same arguments give the same plan, whatever was planned before and whatever their names
    are, and they are left as they were.
    """
    before = (fresh_fingerprint(case.trace), repr(case.machine))
    budgets = budgets_to_try(planner, case)
    budget_bytes, between = budgets[0], budgets[len(budgets) // 2]
    first = plan_of(planner, case, budget_bytes)
    plan_of(planner, case, between)
    second = plan_of(planner, case, budget_bytes)
    if (fresh_fingerprint(case.trace), repr(case.machine)) != before or has_other_views(case.trace):
        raise Breach("it changes the trace or the machine that it is given", first)
    if first.schedule != second.schedule or first.makespan_us != second.makespan_us:
        raise Breach("it plans differently when asked twice", first)
    third = plan_of(planner, replace(case, trace=with_other_names(case.trace)), budget_bytes)
    if first.schedule != third.schedule:
        raise Breach(
            "it plans differently where variables and calls have other names: does it walk a set "
            "of names, whose order is another one in each process?", first,
        )  # fmt: skip


def scale_does_not_matter(planner: Planner, case: Case) -> None:
    """Bytes and bandwidth times 64, or all times times 8: the least and the makespan follow."""
    machine = replace(case.machine, latency_us=0.0)
    plain = Case(case.trace, machine, BYTES, case.seed)
    least = least_bytes(planner, plain)
    makespan = plan_of(planner, plain, least).makespan_us
    for name, scaled, bytes_factor, time_factor in (
        ("bytes and bandwidth times 64", scaled_case(plain, 64, 1), 64, 1),
        ("all times times 8", scaled_case(plain, 1, 8), 1, 8),
    ):
        scaled_least = least_bytes(planner, scaled)
        if not _near(scaled_least, least * bytes_factor):
            raise Breach(f"{name}: the least budget goes from {least} to {scaled_least} bytes")
        budget_bytes = max(scaled_least, least * bytes_factor)
        scaled_us = plan_of(planner, scaled, budget_bytes).makespan_us
        if not _near(scaled_us, makespan * time_factor):
            raise Breach(f"{name}: the makespan goes from {makespan} to {scaled_us} us")


def host_budget_is_kept(planner: Planner, case: Case) -> None:
    """A plan keeps to the host budget, or there is none."""
    budget_bytes = min(budgets_to_try(planner, case))
    used = plan_of(planner, case, budget_bytes).host_peak_bytes
    if host_refusal(planner, case, budget_bytes, used) is not None:
        raise Breach(f"it refuses a host budget of {used} bytes, which is what it uses")
    refusal = host_refusal(planner, case, budget_bytes, max(0, used - 1))
    least = None if refusal is None else refusal.minimum_bytes
    if least is None:
        return
    if least <= budget_bytes:
        raise Breach(f"less host memory, and the least goes from {budget_bytes} to {least} bytes")
    if host_refusal(planner, case, least, max(0, used - 1)) is not None:
        raise Breach(f"with host budget {used - 1} it says {least} bytes are enough; they are not")


def no_plan_beats_the_bound(planner: Planner, case: Case) -> None:
    """A claimed makespan is at least the lower bound."""
    for budget_bytes in budgets_to_try(planner, case):
        plan = plan_of(planner, case, budget_bytes)
        bound = lower_bound(plan.trace, budget_bytes, case.machine)
        if plan.makespan_us < bound.makespan_us * (1 - 1e-9) - 0.001:
            raise Breach(f"makespan {plan.makespan_us} us is below the bound {bound}", plan)


def delays_change_nothing(planner: Planner, case: Case) -> None:
    """Executed with random delays, three steps leave in-core bytes behind, and the allocator's peak
    is the plan's.
    """
    # Not at the top, since it loads Numba: only this law runs kernels.
    from ooctrain.testing.run_list import harm_of_delays, some_allocator

    rng = random.Random(case.seed)
    choice = some_allocator(rng)
    executed = replace(case, granule=choice.granule)
    plan = plan_of(planner, executed, min(budgets_to_try(planner, executed)))
    harm = harm_of_delays(case.trace, plan, choice, case.machine.link, rng)
    if harm:
        raise Breach(harm, plan)


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= SCALING_TOLERANCE * abs(wanted) + 0.01


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
