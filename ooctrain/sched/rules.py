"""The verifier's rules, one function each.

A rule asks one question about one instruction, and knows the names, the numbers and the likely fix.
It has no memory of its own: it looks at a `State` (a trace, a list and its ledger up to some
instruction) or at a plan's claims, and returns a `Problem`, or None where it holds. `RULES` lists
them all, with the rules that each instruction meets, in order: R1 shape, R2 residency, R3 budget,
R4 order and end, R5 claims of a plan, R6 rewrites. Each has a page with the smallest list that
breaks it, such as `ooctrain/explain/R203.md`; `ooctrain explain R203` prints and draws it. Source:
docs/schedule.md, "The verifier's rules". Read next: `ooctrain/sched/verify.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple

from ooctrain.sched.budget import region
from ooctrain.sched.ledger import Ledger
from ooctrain.sched.schedule import (
    End,
    Fence,
    Free,
    Instruction,
    LowerBound,
    Plan,
    Range,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
)
from ooctrain.sched.spans import Spans
from ooctrain.step.trace import Trace
from ooctrain.units import format_bytes

OTHER_TRACE = "the list was made for another trace"


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken rule in words: what, the numbers, what most likely mends it."""

    what: str
    numbers: str = ""
    fix: str = ""


@dataclass(slots=True)
class State:
    """What the rules look at: the list, the ledger up to here, and which calls have run.

    Args:
        budget_bytes, host_budget_bytes: None: not limited.
        ran: for each call how often it has run.
        next_call: the call whose first run is due.
    """

    trace: Trace
    schedule: Schedule
    ledger: Ledger
    budget_bytes: int | None = None
    host_budget_bytes: int | None = None
    ran: list[int] = field(default_factory=list)
    next_call: int = 0

    def name(self, variable: int) -> str:
        """Name of a variable, for messages."""
        return self.trace.variables[variable].name


def by_variable(ranges: Iterable[Range]) -> dict[int, list[tuple[int, int]]]:
    """Ranges by variable, ascending; empty ones left out."""
    found: dict[int, list[tuple[int, int]]] = {}
    for variable, lo, hi in sorted(ranges):
        if lo < hi:
            found.setdefault(variable, []).append((lo, hi))
    return found


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending ranges with touching ones made one."""
    spans: Spans[None] = Spans()
    for lo, hi in ranges:
        spans.put(lo, hi, None)
    return spans.ranges()


def spell(ranges: Iterable[tuple[int, int]]) -> str:
    """Ranges in words, the first four of them."""
    spelled = [f"[{lo}, {hi})" for lo, hi in ranges]
    return (
        ", ".join(spelled[:4]) + (f" and {len(spelled) - 4} more" if len(spelled) > 4 else "")
        or "nothing"
    )


# R1: every instruction names something that exists, in ranges that can move.
# These rules need no knowledge of what came before.


def known_names(state: State, index: int | None, instruction: Instruction) -> Problem | None:
    """Every instruction names a call or a variable of the trace."""
    match instruction:
        case Run(call) | End(call) if not 0 <= call < len(state.trace.calls):
            return Problem(
                f"the trace has no call {call}", f"{len(state.trace.calls)} calls", OTHER_TRACE
            )
        case SwapOut(var, _, _) | SwapIn(var, _, _) | Free(var, _, _):
            if not 0 <= var < len(state.trace.variables):
                count = f"{len(state.trace.variables)} variables"
                return Problem(f"the trace has no variable {var}", count, OTHER_TRACE)
    return None


def range_inside(state: State, index: int | None, item: SwapOut | SwapIn | Free) -> Problem | None:
    """A range is not empty and lies inside its variable; an empty variable has the range [0, 0)."""
    size = state.trace.variables[item.var].nbytes
    if 0 <= item.lo < item.hi <= size or (size == 0 and item.lo == item.hi == 0):
        return None
    return Problem(
        f"range [{item.lo}, {item.hi}) is not inside {state.name(item.var)!r}",
        f"the variable has {size} bytes",
        "ranges are half-open bytes [lo, hi) with lo < hi",
    )


def range_aligned(state: State, index: int | None, item: SwapOut | SwapIn | Free) -> Problem | None:
    """Both ends of a range are multiples of the granule, except the end of the variable."""
    step, size = state.schedule.granule.size_bytes, state.trace.variables[item.var].nbytes
    if item.lo % step == 0 and (item.hi % step == 0 or item.hi == size):
        return None
    return Problem(
        f"range [{item.lo}, {item.hi}) of {state.name(item.var)!r} cuts a granule",
        f"granule {step} bytes",
        "round ranges to the allocator's granule when planning",
    )


def range_whole(state: State, index: int | None, item: SwapOut | SwapIn | Free) -> Problem | None:
    """Where the allocator has no ranges, variables move as a whole."""
    size = state.trace.variables[item.var].nbytes
    if state.schedule.granule.ranges or (item.lo == 0 and item.hi == size):
        return None
    return Problem(
        f"part [{item.lo}, {item.hi}) of {state.name(item.var)!r} moves on its own",
        f"the variable has {size} bytes; granule.ranges is False",
        "plan with granule.ranges=False, or use the allocator 'va'",
    )


def keep_is_output(state: State, index: int, run: Run) -> Problem | None:
    """`keep` lists outputs of its call, each once."""
    call = state.trace.calls[run.call]
    keep = call.outs if run.keep is None else run.keep
    if len(set(keep)) == len(keep) and set(keep) <= set(call.outs):
        return None
    outs = ", ".join(state.name(v) for v in call.outs)
    return Problem(f"keep {keep} is not a set of outputs of {call.name!r}", f"outputs: {outs}")


def start_is_initial(state: State) -> Problem | None:
    """The start lists ranges of initial variables only, each byte at most once a side."""
    for side, ranges in (
        ("device", state.schedule.start_device),
        ("host", state.schedule.start_host),
    ):
        for entry in ranges:
            problem = _start_range_problem(state, side, entry)
            if problem:
                return problem
        covered = by_variable(ranges)
        for variable, spans in covered.items():
            if any(spans[i][1] > spans[i + 1][0] for i in range(len(spans) - 1)):
                return Problem(
                    f"the start lists bytes of {state.name(variable)!r} on the {side} twice"
                )
    return None


def start_is_complete(state: State) -> Problem | None:
    """Every byte of every initial variable is on the device or on the host at the start."""
    covered = by_variable(state.schedule.start_device + state.schedule.start_host)
    for variable in state.trace.initial:
        reached, size = 0, state.trace.variables[variable].nbytes
        for lo, hi in covered.get(variable, ()):
            if lo > reached:
                break
            reached = max(reached, hi)
        if reached < size:
            return Problem(
                f"{state.name(variable)!r} is neither on the device nor on the host at the start",
                f"byte {reached} of {size} is missing",
                "start from `default_start(trace)`",
            )
    return None


def _start_range_problem(state: State, side: str, entry: Range) -> Problem | None:
    variable, lo, hi = entry
    if not 0 <= variable < len(state.trace.variables) or state.trace.producer[variable] is not None:
        name = state.name(variable) if 0 <= variable < len(state.trace.variables) else variable
        return Problem(
            f"{name!r} cannot be on the {side} at the start: it is not initial", fix=OTHER_TRACE
        )
    item = SwapIn(variable, lo, hi)
    for rule in (range_inside, range_aligned, range_whole):
        problem = rule(state, None, item)
        if problem:
            return problem
    return None


def region_is_counted(state: State) -> Problem | None:
    """What is pinned lies in a region that the granule's constant stands for."""
    size, counted = region(state.trace).size_bytes, state.schedule.granule.fixed_bytes
    if size <= counted:
        return None
    return Problem(
        "the region of small objects is larger than what the ledger counts for it",
        f"{size} bytes are pinned, fixed_bytes is {counted}",
        "plan with the granule of sched.budget.with_region",
    )


# R2: what an instruction needs on the device or the host is there, and nothing is there twice.
# Residency is a set of byte ranges; a call needs whole variables, a copy needs its range.


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
    """Before a Run, none of its outputs that stay is on the device: it would be there twice."""
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


# R3: both ledgers stay within their budgets. R4: the right calls run, and the end meets the start.
# A list is a step that can be repeated, so it must leave the state it found, updated.


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


# R5: what a plan claims is what comes out. R6: its trace is the original one, as rewritten.
# A planner's own numbers are never trusted: the list is walked and timed again.


class Recomputed(NamedTuple):
    """A plan next to what came out when its list was walked and timed again."""

    plan: Plan
    peak_bytes: int
    host_peak_bytes: int
    makespan_us: float | None


def peak_claim(again: Recomputed) -> Problem | None:
    """The claimed device peak is the recomputed one."""
    return _claim("peak_bytes", again.plan.peak_bytes, again.peak_bytes)


def host_peak_claim(again: Recomputed) -> Problem | None:
    """The claimed host peak is the recomputed one."""
    return _claim("host_peak_bytes", again.plan.host_peak_bytes, again.host_peak_bytes)


def makespan_claim(again: Recomputed) -> Problem | None:
    """The claimed makespan is the one simulated on the planner's machine, to the nanosecond."""
    claimed = again.plan.makespan_us
    if not isinstance(claimed, Real):
        return _no_time("makespan_us", claimed)
    if again.makespan_us is None or abs(claimed - again.makespan_us) < 0.0005:
        return None
    return _claim("makespan_us", claimed, again.makespan_us)


def bound_claim(again: Recomputed) -> Problem | None:
    """No plan beats its own lower bound."""
    bound = again.plan.lower_bound
    if bound is not None and not (
        isinstance(bound, LowerBound) and isinstance(bound.makespan_us, Real)
    ):
        return _no_time("lower_bound", bound)
    if bound is None or bound.makespan_us <= again.plan.makespan_us * (1 + 1e-9) + 0.001:
        return None
    return _claim(f"lower bound ({bound.kind})", bound.makespan_us, again.plan.makespan_us)


def rewrites_known(plan: Plan, rewrites: Mapping[str, Any]) -> Problem | None:
    """Every rewrite that a plan names exists."""
    unknown = [name for name in plan.rewrites if not isinstance(name, str) or name not in rewrites]
    if not unknown:
        return None
    return Problem(f"no rewrite is called {unknown[0]!r}", f"known: {', '.join(sorted(rewrites))}")


def rewrites_declared(plan: Plan, rewritten: Trace) -> Problem | None:
    """The plan's trace is the original one after the rewrites that it names, in their order."""
    if plan.trace.fingerprint == rewritten.fingerprint:
        return None
    names = ", ".join(plan.rewrites) or "no rewrite"
    return Problem(
        f"the plan's trace is not the original one after {names}",
        f"{plan.trace!r} against {rewritten!r}",
        "plan again for this trace, or name all rewrites in their order",
    )


def _no_time(name: str, claimed: object) -> Problem:
    return Problem(f"the plan claims {name} {claimed!r}, which is not a time")


def _claim(name: str, claimed: float, found: float) -> Problem | None:
    if claimed == found:
        return None
    return Problem(
        f"the plan claims {name} {claimed}, but it is {found}",
        fix="fill in the claims from `simulate` on the machine that the plan is for",
    )


#: {code: the rule, as a function}
RULES: Mapping[str, Callable[..., Problem | None]] = {
    "R101": known_names,
    "R102": range_inside,
    "R103": range_aligned,
    "R104": range_whole,
    "R105": keep_is_output,
    "R106": start_is_initial,
    "R107": start_is_complete,
    "R108": region_is_counted,
    "R201": inputs_resident,
    "R202": inputs_not_overwritten,
    "R203": outputs_absent,
    "R204": range_resident,
    "R205": range_absent,
    "R206": host_copy_listed,
    "R207": host_copy_current,
    "R301": device_budget,
    "R302": host_budget,
    "R303": ledgers_positive,
    "R401": all_calls_run,
    "R402": first_runs_in_order,
    "R403": pure_reruns,
    "R404": end_matches_run,
    "R405": device_end,
    "R406": host_end,
    "R407": nothing_else_resident,
    "R501": peak_claim,
    "R502": host_peak_claim,
    "R503": makespan_claim,
    "R504": bound_claim,
    "R601": rewrites_known,
    "R602": rewrites_declared,
}
_RANGE = ("R101", "R102", "R103", "R104")
#: Which rules an instruction meets before it is issued, in order.
BEFORE: Mapping[type, tuple[str, ...]] = {
    Run: ("R101", "R105", "R402", "R403", "R202", "R201", "R203"),
    End: ("R101", "R404"),
    SwapOut: (*_RANGE, "R204"),
    SwapIn: (*_RANGE, "R205", "R207", "R206"),
    Free: (*_RANGE, "R204"),
    Fence: (),
}
#: Which rules the state must meet after each instruction, and before the first.
AFTER = ("R301", "R302", "R303")
AT_START = ("R106", "R107", "R108")
AT_END = ("R401", "R405", "R406", "R407")
CLAIMS = ("R501", "R502", "R503", "R504")
