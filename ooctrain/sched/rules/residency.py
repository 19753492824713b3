"""R2: what an instruction needs on the device or the host is there, and nothing is there twice.

Residency is a set of byte ranges; a call needs whole variables, a copy needs its range. A rule
looks at one instruction and the ledger before it, and returns a `Problem` or None. Source:
docs/schedule.md, "The verifier's rules". Read next: `limits.py`.
"""

from __future__ import annotations

from ooctrain.sched.rules.state import Problem, State, spell
from ooctrain.sched.schedule import Free, Run, SwapIn, SwapOut


def inputs_resident(state: State, index: int, run: Run) -> Problem | None:
    """All inputs of a Run are fully resident, or their SwapIn is listed before it."""
    for variable in dict.fromkeys(state.trace.calls[run.call].ins):
        gaps = state.ledger.missing(variable)
        if gaps and overwriter(state, index, variable) is None:
            return Problem(
                f"{state.trace.calls[run.call].name!r} reads {state.name(variable)!r}, "
                "which is not resident",
                f"missing {spell(gaps)} of {state.trace.variables[variable].nbytes} bytes",
                why_absent(state, index, variable),
            )
    return None


def inputs_not_overwritten(state: State, index: int, run: Run) -> Problem | None:
    """What a Run has taken over by `reuse` is gone: no later call may read the old value."""
    for variable in dict.fromkeys(state.trace.calls[run.call].ins):
        taker = overwriter(state, index, variable) if state.ledger.missing(variable) else None
        if state.trace.variables[variable].pinned:
            taker = _updated_in_place(state, variable)
        if taker is not None:
            return Problem(
                f"{state.trace.calls[run.call].name!r} reads {state.name(variable)!r}, "
                f"whose storage {taker!r} has taken over",
                fix="run its producer again, or swap it out before and in again",
            )
    return None


def _updated_in_place(state: State, variable: int) -> str | None:
    """Name of the call that has written over a pinned variable, which takes no room but has one."""
    taker = state.trace.taker.get(variable)
    return None if taker is None or not state.ran[taker] else state.trace.calls[taker].name


def outputs_absent(state: State, index: int, run: Run) -> Problem | None:
    """No part of an output to be kept is resident before its Run."""
    call = state.trace.calls[run.call]
    for out in call.outs if run.keep is None else run.keep:
        if state.ledger.device[out].items:
            return Problem(
                f"{call.name!r} would put {state.name(out)!r} on the device a second time",
                f"resident: {spell(state.ledger.device[out].ranges())}",
                "leave it out of `keep` (it is then written to scratch), or Free it before",
            )
    return None


def range_resident(state: State, index: int, item: SwapOut | Free) -> Problem | None:
    """SwapOut and Free concern bytes that are resident."""
    gaps = state.ledger.device[item.var].gaps(item.lo, item.hi)
    if not gaps:
        return None
    return Problem(
        f"{state.name(item.var)!r} is not resident in all of [{item.lo}, {item.hi})",
        f"missing {spell(gaps)}",
        why_absent(state, index, item.var),
    )


def range_absent(state: State, index: int, item: SwapIn) -> Problem | None:
    """SwapIn concerns bytes that are not resident."""
    over = state.ledger.device[item.var].over(item.lo, item.hi)
    if not over:
        return None
    return Problem(
        f"{state.name(item.var)!r} would come onto the device a second time",
        f"resident: {spell([(lo, hi) for lo, hi, _ in over])}",
        "Free it before, or drop this SwapIn",
    )


def host_copy_listed(state: State, index: int, item: SwapIn) -> Problem | None:
    """SwapIn reads a host copy that the start has or a SwapOut listed before it makes."""
    gaps = state.ledger.host[item.var].gaps(item.lo, item.hi)
    if not gaps or overwritten_on_host(state, index, item.var):
        return None
    return Problem(
        f"{state.name(item.var)!r} has no host copy of {spell(gaps)}",
        fix="list its SwapOut before it is freed",
    )


def host_copy_current(state: State, index: int, item: SwapIn) -> Problem | None:
    """A variable and its update share one host slot: SwapOut of either ends the other's copy."""
    gaps = state.ledger.host[item.var].gaps(item.lo, item.hi)
    mate = overwritten_on_host(state, index, item.var) if gaps else ""
    if not mate:
        return None
    return Problem(
        f"the host copy of {state.name(item.var)!r} is stale: SwapOut of {mate!r} wrote over it",
        f"stale {spell(gaps)}",
        "read the old value before the new one is swapped out",
    )


def overwriter(state: State, index: int, variable: int) -> str | None:
    """Name of the call that took over the storage of `variable`, if nothing came after that."""
    for instruction in reversed(state.schedule.instructions[:index]):
        match instruction:
            case Run(call):
                if variable in state.trace.calls[call].reuse.values():
                    return state.trace.calls[call].name
                if variable in state.trace.calls[call].outs:
                    return None
            case Free(var, _, _) | SwapIn(var, _, _) if var == variable:
                return None
    return None


def why_absent(state: State, index: int, variable: int) -> str:
    """What most likely mends an absent range."""
    if state.ledger.host[variable].items:
        return "it has a host copy: list a SwapIn before"
    producer = state.trace.producer[variable]
    if producer is None:
        return "swap it out before it is freed, then in again"
    name = state.trace.calls[producer].name
    return f"run its producer {name!r} " + (
        "again" if state.ran[producer] else "before, and keep it"
    )


def overwritten_on_host(state: State, index: int, variable: int) -> str:
    """Name of the other tenant of the host slot if it was swapped out before `index`."""
    mate = state.trace.carries.get(variable, state.trace.carried_from.get(variable))
    for instruction in reversed(state.schedule.instructions[:index]):
        if isinstance(instruction, SwapOut) and instruction.var == variable:
            return ""
        if isinstance(instruction, SwapOut) and instruction.var == mate:
            return state.trace.variables[mate].name
    return ""
