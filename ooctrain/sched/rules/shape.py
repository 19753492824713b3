"""R1: every instruction names something that exists, in ranges that can move.

These rules check one instruction, or the start of the list, without knowledge of what came before,
and return a `Problem` or None. Source: docs/schedule.md, "The verifier's rules". Read next:
`residency.py`.
"""

from __future__ import annotations

from ooctrain.sched.budget import region
from ooctrain.sched.rules.state import OTHER_TRACE, Problem, State, by_variable
from ooctrain.sched.schedule import End, Free, Instruction, Range, Run, SwapIn, SwapOut


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
