"""The verifier: proves that a list trains the network right and stays within its budget.

The verifier checks a plan (or a bare schedule) against the original trace and a budget. For the
first rule broken it raises a `ScheduleError` with names, numbers and the likely fix. It trusts no
planner: it walks the list once, and each instruction must pass its rules (`rules.py`) before it is
issued. The books are those of `ledger.py`, which no planner uses. Source: docs/schedule.md, "The
verifier's rules". Read next: `simulate.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ooctrain.errors import ScheduleError
from ooctrain.sched.budget import resolve_budget
from ooctrain.sched.ledger import Issued, Ledger, peaks
from ooctrain.sched.rules import (
    AFTER,
    AT_END,
    AT_START,
    BEFORE,
    CLAIMS,
    RULES,
    Problem,
    Recomputed,
    State,
)
from ooctrain.sched.schedule import Instruction, Plan, Run, Schedule, describe_instruction
from ooctrain.sched.simulate import ends_at_us
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.units import Percent

__all__ = ["RULES", "verify"]

Rewrite = Callable[[Trace], Trace]
_NONE: Mapping[str, Rewrite] = MappingProxyType({})
#: Rules on what an instruction names, whatever came before.
_NAMES = ("R101", "R102", "R105")
#: Rewrites before which a percentage is resolved (`budget.py`).
_BEFORE_TILES = ("fuse", "share_storage", "pin_small")


def verify(
    plan: Plan | Schedule,
    trace: Trace,
    budget: int | str | Percent | None,
    machine: Machine | None = None,
    *,
    host_budget_bytes: int | None = None,
    rewrites: Mapping[str, Rewrite] = _NONE,
) -> None:
    """Walks a list through all rules.

    Args:
        plan: a plan, which meets every rule; or a bare schedule for `trace` as it is, which has
            made no claims and no rewrites, and skips those rules.
        trace: the original trace, before the plan's rewrites.
        budget: device budget: bytes, "512MiB", "25%"; None: not limited.
        machine: what the plan is for; None: its makespan is not recomputed.
        host_budget_bytes: None: the machine's host memory, if there is a machine and it has a
            limit.
        rewrites: {name: function} of those that a plan may name; `rewrite.REWRITES` has ours.

    Raises:
        ScheduleError: the first rule broken, with `.rule` and `.index`.
        ConfigError: the budget is not one.

    Cost: O(instructions), times the chunks of the variables concerned.
    """
    host_limit = host_budget_bytes
    if host_limit is None and machine is not None:
        host_limit = machine.host_bytes
    if isinstance(plan, Schedule):
        limit = None if budget is None else resolve_budget(trace, budget, plan.granule)
        _check_list(plan, trace, limit, host_limit)
        return
    resolved_on = _check_rewrites(plan, trace, rewrites)
    limit = None if budget is None else resolve_budget(resolved_on, budget, plan.schedule.granule)
    issued = _check_list(plan.schedule, plan.trace, limit, host_limit)
    _check_claims(plan, issued, machine)


def check_names(schedule: Schedule, trace: Trace) -> None:
    """Whether a list names what the trace has, in ranges inside of it: what a walk through the list
    needs, be it legal or not.

    Raises:
        ScheduleError: the first rule of R1 that is broken.
    """
    state = State(
        trace, schedule, Ledger(trace, Schedule((), granule=schedule.granule)), None, None,
        [0] * len(trace.calls),
    )  # fmt: skip
    _ask("R106", "before the step", state)
    for index, instruction in enumerate(schedule.instructions):
        for code in BEFORE[type(instruction)]:
            if code in _NAMES and (problem := RULES[code](state, index, instruction)):
                raise _error(code, problem, _where(state, index, instruction), index)


def _check_rewrites(plan: Plan, trace: Trace, rewrites: Mapping[str, Rewrite]) -> Trace:
    """R6; returns the trace on which a percentage is resolved: the last before any tiling."""
    _ask("R601", "", plan, rewrites)
    resolved_on, before_tiles = trace, True
    for name in plan.rewrites:
        trace = rewrites[name](trace)
        before_tiles = before_tiles and name.partition(":")[0] in _BEFORE_TILES
        if before_tiles:
            resolved_on = trace
    _ask("R602", "", plan, trace)
    return resolved_on


def _check_list(
    schedule: Schedule, trace: Trace, budget_bytes: int | None, host_budget_bytes: int | None
) -> list[Issued]:
    """R1 to R4, in list order; returns the list as walked."""
    # The ledger can only be filled with the start once the start is known to be sound.
    nothing = Ledger(trace, Schedule((), granule=schedule.granule))
    ran = [0] * len(trace.calls)
    state = State(trace, schedule, nothing, budget_bytes, host_budget_bytes, ran)
    for code in AT_START:
        _ask(code, "before the step", state)
    state.ledger = Ledger(trace, schedule)
    for code in AFTER:
        _ask(code, "before the step", state)
    issued: list[Issued] = []
    for index, instruction in enumerate(schedule.instructions):
        issued += _step(state, index, instruction)
    issued += state.ledger.close()
    for code in AT_END:
        _ask(code, "at the end of the step", state)
    return issued


def _step(state: State, index: int, instruction: Instruction) -> list[Issued]:
    """Applies the rules to one instruction, issues it, and applies the rules to the result."""
    for code in BEFORE[type(instruction)]:
        problem = RULES[code](state, index, instruction)
        if problem is not None:
            raise _error(code, problem, _where(state, index, instruction), index)
    rows = state.ledger.issue(index, instruction)
    if isinstance(instruction, Run):
        state.ran[instruction.call] += 1
        state.next_call = max(state.next_call, instruction.call + 1)
    for code in AFTER:
        problem = RULES[code](state)
        if problem is not None:
            raise _error(code, problem, _where(state, index, instruction), index)
    return rows


def _check_claims(plan: Plan, issued: list[Issued], machine: Machine | None) -> None:
    """R5: everything that the plan claims, worked out again."""
    device, host = peaks(issued, plan.schedule)
    makespan = None
    if machine is not None:
        makespan = ends_at_us(issued, plan.schedule, plan.trace, machine)
    again = Recomputed(plan, device, host, makespan)
    for code in CLAIMS:
        _ask(code, "the plan's claims", again)


def _ask(code: str, where: str, *arguments: Any) -> None:
    """Raises ScheduleError where a rule that belongs to no single instruction is broken."""
    problem = RULES[code](*arguments)
    if problem is not None:
        raise _error(code, problem, where)


def _error(code: str, problem: Problem, where: str, index: int | None = None) -> ScheduleError:
    return ScheduleError(
        problem.what, rule=code, index=index, where=where, numbers=problem.numbers, fix=problem.fix
    )


def _where(state: State, index: int, instruction: Instruction) -> str:
    return f"instruction {index}: {describe_instruction(instruction, state.trace)}"
