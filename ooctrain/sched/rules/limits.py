"""R3: both ledgers stay within their budgets. R4: the right calls run, and the end meets the start.

R3 looks at the state after an instruction; R4 looks at a Run or End, or at the state at the end of
the list. A list is a step that can be repeated, so it must leave the state it found, updated. A
rule returns a `Problem` or None. Source: docs/schedule.md, "The verifier's rules". Read next:
`claims.py`.
"""

from __future__ import annotations

from ooctrain.sched.rules.state import Problem, State, by_variable, joined, spell
from ooctrain.sched.schedule import End, Run
from ooctrain.units import format_bytes


def device_budget(state: State) -> Problem | None:
    """The device ledger never exceeds the budget, the start included."""
    held, limit = state.ledger.ledger_bytes, state.budget_bytes
    if limit is None or held <= limit:
        return None
    return Problem(
        f"the device ledger exceeds the budget by {format_bytes(held - limit)}",
        f"{held} bytes of {limit} ({format_bytes(held)} of {format_bytes(limit)})",
        "free or swap out something before it, or raise the budget",
    )


def host_budget(state: State) -> Problem | None:
    """The host ledger never exceeds the host budget, the start included."""
    held, limit = state.ledger.host_ledger_bytes, state.host_budget_bytes
    if limit is None or held <= limit:
        return None
    return Problem(
        f"the host ledger exceeds the host budget by {format_bytes(held - limit)}",
        f"{held} bytes of {limit}",
        "recompute instead of swapping, or raise --host-budget",
    )


def ledgers_positive(state: State) -> Problem | None:
    """Neither ledger falls below zero."""
    device, host = state.ledger.ledger_bytes, state.ledger.host_ledger_bytes
    if device >= 0 and host >= 0:
        return None
    return Problem(
        "a ledger is below zero: more was released than claimed", f"{device}, {host} bytes"
    )


def first_runs_in_order(state: State, index: int, run: Run) -> Problem | None:
    """The first runs of the calls come in trace order."""
    if run.call <= state.next_call:
        return None
    due = state.trace.calls[state.next_call].name
    return Problem(
        f"{state.trace.calls[run.call].name!r} runs before {due!r} has run",
        fix="a change of the order of calls is a rewrite of the trace, not of the list",
    )


def pure_reruns(state: State, index: int, run: Run) -> Problem | None:
    """Only pure calls run again; updates and running statistics run exactly once."""
    call = state.trace.calls[run.call]
    if call.pure or not state.ran[run.call]:
        return None
    return Problem(
        f"{call.name!r} changes persistent state and has run already", fix="swap its outputs"
    )


def end_matches_run(state: State, index: int, end: End) -> Problem | None:
    """End comes once after its Run and before the next."""
    if state.ledger.open_call == end.call:
        return None
    open_call = state.ledger.open_call
    return Problem(
        f"End of {state.trace.calls[end.call].name!r} does not follow its Run",
        "open: " + ("nothing" if open_call is None else state.trace.calls[open_call].name),
    )


def all_calls_run(state: State) -> Problem | None:
    """Every call of the trace runs."""
    if state.next_call == len(state.trace.calls):
        return None
    missing = len(state.trace.calls) - state.next_call
    return Problem(
        f"{state.trace.calls[state.next_call].name!r} never runs",
        f"{missing} of {len(state.trace.calls)} calls do not run",
    )


def device_end(state: State) -> Problem | None:
    """What persists ends where it started: the update W' stands in the ranges of W."""
    start = by_variable(state.schedule.start_device)
    for variable, end in state.trace.end_variables.items():
        wanted, found = joined(start.get(variable, ())), state.ledger.device[end].ranges()
        if wanted != found:
            return Problem(
                f"at the end {state.name(end)!r} is on the device in other ranges than "
                f"{state.name(variable)!r} at the start",
                f"start {spell(wanted)}, end {spell(found)}",
                "bring it in or free it at the end",
            )
    return None


def host_end(state: State) -> Problem | None:
    """The host copies that the start lists are there at the end, of the values after the step."""
    for variable, lo, hi in state.schedule.start_host:
        end = state.trace.end_variables.get(variable)
        gaps = [] if end is None else state.ledger.host[end].gaps(lo, hi)
        if gaps:
            return Problem(
                f"the next step starts with {state.name(variable)!r} on the host, where the "
                f"copy of {state.trace.variables[end or 0].name!r} is missing or stale",
                f"missing {spell(gaps)}",
                "list a SwapOut of the updated value",
            )
    return None


def nothing_else_resident(state: State) -> Problem | None:
    """At the end nothing is on the device but what persists."""
    lasting = set(state.trace.end_variables.values())
    for variable, spans in enumerate(state.ledger.device):
        if spans.items and variable not in lasting:
            return Problem(
                f"{state.name(variable)!r} is still on the device at the end",
                f"resident: {spell(spans.ranges())}",
                "Free it after its last use",
            )
    return None
