"""The interface of every planner: from a question to a plan, or a refusal.

A planner decides *what* moves *when*. It makes a list, usually with a `ListWriter`, and `make_plan`
states of that list what the simulator finds. Where no list fits it refuses, with the least budget
at which it has one (`infeasible`). Planners know nothing of a region of small objects: a granule's
`fixed_bytes` are always taken by it, so `plan_excluding` asks for a plan within the budget less
that constant, and adds it to the ledger and the peak of the plan. Read next: `question.py`, what a
planner is asked; `list_writer.py`; then `sched/planners/keep_all.py`, `sched/planners/naive.py`,
`sched/planners/window.py`; `rewrite/pin_small.py` for what the region holds.
"""

from __future__ import annotations

import gc
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any, Protocol

from ooctrain.errors import ConfigError, Infeasible, OoctrainError, PartFailed, failing_as
from ooctrain.sched.ledger import peaks, walk

# Assignments import these from here, with the interface.
from ooctrain.sched.planning.list_writer import ListWriter as ListWriter
from ooctrain.sched.planning.list_writer import (
    writer_with_resident_parameters as writer_with_resident_parameters,
)
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule, Instruction, Plan, Schedule
from ooctrain.sched.simulate import ends_at_us
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Call, Trace
from ooctrain.units import format_bytes

#: New objects between two looks of the garbage collector: some ten MiB. Python's own 700 mean that
#: all calls, variables and instructions of a long step are walked again and again, and all stay.
RARELY = 50_000


class Planner(Protocol):
    """Turns a question into a plan. A pure function of it."""

    @property
    def name(self) -> str:
        """Its name in tables and messages."""
        ...

    def plan(self, question: Question) -> Plan:
        """A plan whose ledger stays within the question's budgets.

        What ends a search is a number of evaluations; a deadline only interrupts it, and the
        plan's notes then say `cut_short`.

        Raises:
            Infeasible: with the least budget at which this same planner succeeds, host memory
                permitting; or with none where the host's budget is too small (`host_too_small`).
        """
        ...


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Context manager or decorator: meanwhile the collector waits for `RARELY` new objects.

    Where it waits for as many already, in nested planners or in two threads at once, nothing
    changes, so the last one to leave finds it as the first one did.
    """
    first, *others = gc.get_threshold()
    if not 0 < first < RARELY:
        yield
        return
    gc.set_threshold(RARELY, *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)


@collecting_rarely()
def ask(planner: Planner, question: Question) -> Plan:
    """What a planner returns, be it of the library or another one.

    Raises:
        Infeasible: the planner's.
        PartFailed: it raised an error that is not the library's.
    """
    with failing_as(f"planner {planner.name!r}"):
        return planner.plan(question)


def plan_excluding(planner: Planner, question: Question) -> Plan:
    """A plan within the budget, excluding the region of small objects.

    Args:
        question: its granule has `fixed_bytes` if the trace has pinned variables
            (`budget.with_region`).

    Raises:
        Infeasible: the planner's; its minimum includes the region.
        ConfigError: what the planner returned is not a plan, or its refusal names no bytes.
    """
    granule, budget_bytes = question.granule, question.budget_bytes
    fixed, rest = granule.fixed_bytes, replace(granule, fixed_bytes=0)
    try:
        found = ask(planner, replace(question, budget_bytes=budget_bytes - fixed, granule=rest))
    except Infeasible as refusal:
        checked_refusal(refusal, planner)
        least = refusal.minimum_bytes
        if not fixed or least is None:
            raise
        witness = refusal.witness_call
        raise infeasible(planner.name, budget_bytes, least + fixed, witness) from refusal.__cause__
    plan = as_plan(found, planner)
    if not fixed:
        return plan
    schedule = replace(plan.schedule, granule=replace(plan.schedule.granule, fixed_bytes=fixed))
    return replace(plan, schedule=schedule, peak_bytes=plan.peak_bytes + fixed)


def as_plan(found: object, planner: Planner) -> Plan:
    """What a planner returned, if it is a plan at all; ConfigError otherwise."""
    if not isinstance(found, Plan):
        raise ConfigError(
            f"planner {planner.name!r} returned {type(found).__name__}, not a Plan",
            code="OOC-108",
            fix="plan() returns a Plan, such as `make_plan(...)` gives",
        )
    for name, kind in (("trace", Trace), ("schedule", Schedule), ("notes", Mapping)):
        value = getattr(found, name)
        if not isinstance(value, kind):
            raise _wrong_plan(planner, f"has {type(value).__name__} as its {name}")
    for index, instruction in enumerate(found.schedule.instructions):
        if not isinstance(instruction, Instruction):
            what = f"has {instruction!r} as instruction {index}, not an Instruction"
            raise _wrong_plan(planner, what, "Run, End, SwapOut, SwapIn, Free or Fence")
    return found


def _wrong_plan(planner: Planner, what: str, fix: str = "") -> ConfigError:
    return ConfigError(
        f"the plan of planner {planner.name!r} {what}", code="OOC-108",
        fix=fix or "make it with `make_plan(schedule, trace, machine)`",
    )  # fmt: skip


def checked_refusal(refusal: Infeasible, planner: Planner) -> Infeasible:
    """A planner's refusal, if it names its least budget; ConfigError otherwise."""
    least, of_host = refusal.minimum_bytes, refusal.needs != "device"
    is_number = isinstance(least, Integral) and not isinstance(least, bool) and least >= 0
    if not (is_number or (least is None and of_host)):
        raise ConfigError(
            f"planner {planner.name!r} refuses with minimum_bytes={least!r}", code="OOC-108",
            fix="the least budget in bytes at which it has a plan, as `infeasible(...)` takes it",
        )  # fmt: skip
    return refusal


def call_need_bytes(call: Call, trace: Trace, granule: Granule) -> int:
    """Granted bytes that a call needs by itself: distinct storages of what it touches, and
    workspace.
    """
    variables = (v for v in call.touched() if v not in call.reuse)
    touched = sum(granule.granted(trace.variables[v].nbytes) for v in variables)
    return touched + granule.granted(call.workspace_bytes)


def turning_point(trace: Trace) -> int:
    """The first call after the forward phase; past the end where no call follows."""
    return next((call.id for call in trace.calls if call.phase != "forward"), len(trace.calls))


def make_plan(
    schedule: Schedule, trace: Trace, machine: Machine, notes: Mapping[str, Any] | None = None
) -> Plan:
    """A plan that claims of the schedule what the simulator finds."""
    issued = walk(trace, schedule)
    took_us = ends_at_us(issued, schedule, trace, machine)
    device_peak, host_peak = peaks(issued, schedule)
    return Plan(trace, (), schedule, took_us, device_peak, host_peak, notes=dict(notes or {}))


# What is no planner, and parameters that cannot be


def expect_planner(planner: object) -> None:
    """Raises ConfigError where it has no `name`, or no `plan` that takes one question."""
    plan = getattr(planner, "plan", None)
    if not callable(plan) or not hasattr(planner, "name"):
        raise ConfigError(
            f"{type(planner).__name__} is not a planner: it has no `name` or no `plan`",
            code="OOC-108",
            fix="ooctrain/sched/planning/planner.py says what a planner has",
        )
    try:
        inspect.signature(plan).bind(None)
    except TypeError as error:
        raise ConfigError(
            f"{type(planner).__name__}.plan does not take one question: {error}", code="OOC-108",
            fix="def plan(self, question): trace, budget_bytes, machine, granule, "
            "host_budget_bytes, seed are attributes of the question; `ooctrain docs howto/planner` "
            "has an adapter for planners that take them one by one",
        ) from error  # fmt: skip


def check_whole_numbers(planner: str, parameters: Mapping[str, object], least: int = 1) -> None:
    """Raises ConfigError for a planner's parameter that is not a whole number, or is too small.

    Args:
        parameters: {name: value}.
        least: the smallest value that is allowed.
    """
    for name, value in parameters.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise ConfigError(
                f"{planner}: {name}={value!r} is not a whole number of at least {least}",
                code="OOC-105",
                fix=f"such as {planner}:{name}={max(least, 1)}, or leave {name} out",
            )


def check_true_or_false(planner: str, parameters: Mapping[str, object]) -> None:
    """Raises ConfigError for a planner's switch that is neither true nor false.

    Args:
        parameters: {name: value}.
    """
    for name, value in parameters.items():
        if not isinstance(value, bool):
            raise ConfigError(
                f"{planner}: {name}={value!r} is neither true nor false",
                code="OOC-105",
                fix=f"such as {planner}:{name}=false, or leave {name} out",
            )


def check_evaluations(planner: str, evaluations: object) -> None:
    """Checks that `evaluations` is a finite number of 0 or more; None: the planner's own."""
    if evaluations is None:
        return
    is_switch = isinstance(evaluations, bool)
    if is_switch or not isinstance(evaluations, int | float) or not 0 <= evaluations < math.inf:
        raise ConfigError(
            f"{planner}: evaluations={evaluations!r} is not a finite number of 0 or more",
            code="OOC-105",
            fix=f"such as {planner}:evaluations=20000, or leave it out",
        )


# Refusals


def infeasible(
    planner: str, budget_bytes: int, minimum_bytes: int, witness_call: str
) -> Infeasible:
    """The error of a planner whose least budget is above the given one."""
    return Infeasible(
        f"planner {planner!r} finds no schedule within the budget",
        minimum_bytes=minimum_bytes,
        witness_call=witness_call,
        where=f"call {witness_call}" if witness_call else "",
        numbers=f"budget {format_bytes(budget_bytes)} ({budget_bytes} bytes), "
        f"least {format_bytes(minimum_bytes)} ({minimum_bytes} bytes)",
        fix=f"a budget of {minimum_bytes} bytes, a smaller batch, or another planner",
    )


def host_too_small(planner: str, numbers: str = "") -> Infeasible:
    """The error of a planner whose host budget is too small. It names no device budget that makes
    up for it: there is no such plan, or the planner has not looked for one.
    """
    return Infeasible(
        f"planner {planner!r} needs more host memory than its budget", minimum_bytes=None,
        needs="host", numbers=numbers, fix="a larger host budget, or a planner that swaps less",
    )  # fmt: skip


def check_host(planner: str, plan: Plan, host_budget_bytes: int | None) -> None:
    """Raises Infeasible (`host_too_small`) where a plan's host copies exceed the host budget."""
    needed = plan.host_peak_bytes
    if host_budget_bytes is not None and needed > host_budget_bytes:
        inputs = sum(
            hi - lo
            for variable, lo, hi in plan.schedule.start_host
            if not plan.trace.variables[variable].persistent
        )
        raise host_too_small(
            planner,
            f"host budget {format_bytes(host_budget_bytes)} ({host_budget_bytes} bytes), "
            f"needed {format_bytes(needed)} ({needed} bytes), of these {inputs} for the inputs, "
            "which wait there before the step",
        )


def remarked(plan: Plan, failures: Sequence[PartFailed]) -> Plan:
    """A plan whose remarks name the planners and rewrites that failed meanwhile, each once."""
    said = [*plan.notes.get("remarks", ()), *(failure.what for failure in failures)]
    return replace(plan, notes={**plan.notes, "remarks": [*dict.fromkeys(said)]}) if said else plan


def least_refusal(
    planner: str, refusals: Sequence[Infeasible], budget_bytes: int,
    failures: Sequence[PartFailed] = (),
) -> OoctrainError:  # fmt: skip
    """The refusal of a composed planner, all of whose parts refused.

    It names the least device budget that a part named. Where a part had enough of that but too
    little host memory, the budgets of other parts may meet the same limit: then no budget is named.
    Parts that failed are its cause, or all that there is to raise.
    """
    if failures and not refusals:
        return failures[0]
    found = least_of(refusals)
    if found.minimum_bytes is None:
        found = host_too_small(planner, found.numbers)
    else:
        found = infeasible(planner, budget_bytes, found.minimum_bytes, found.witness_call)
    found.__cause__ = next(iter(failures), None)
    return found


def least_of(refusals: Iterable[Infeasible]) -> Infeasible:
    """The refusal that names the least budget, or the first that names none."""
    return min(
        refusals,
        key=lambda refusal: (refusal.minimum_bytes is not None, refusal.minimum_bytes or 0),
    )


def smallest_budget(
    feasible: Callable[[int], bool], low: int, high: int,
    is_over: Callable[[], bool] = lambda: False,
) -> int:  # fmt: skip
    """The least budget in [low, high] that a planner manages, by bisection.

    Args:
        feasible: whether it manages a budget; true at `high`.
        low, high: bytes.
        is_over: whether the time for it is.

    Returns:
        A budget that is feasible, while the one a byte below is not (or is under `low`, or time was
        over).
    """
    while low < high and not is_over():
        middle = (low + high) // 2
        if feasible(middle):
            high = middle
        else:
            low = middle + 1
    return high
