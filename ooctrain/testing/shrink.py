"""Makes a trace smaller as long as it still fails.

Given a trace and a question ("does it still fail?"), the search tries one small change after the
other (a call less, an input less, no workspace, fewer bytes) and keeps those after which the answer
is still yes, until nothing more can be removed. Source: delta debugging (Zeller and Hildebrandt
2002), in its greedy form. Read next: `check_planner.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ooctrain.errors import ConfigError
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.trace import Call, Trace, Variable

MAX_QUESTIONS = 400


def shrink(
    trace: Trace, fails: Callable[[Trace], bool], max_questions: int = MAX_QUESTIONS
) -> Trace:
    """The smallest trace that small changes lead to.

    Args:
        trace: fails.
        fails: whether a trace does.
        max_questions: how many are asked before the best so far is returned.
    """
    questions = 0
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in _smaller(trace):
            questions += 1
            if questions > max_questions:
                return trace
            if fails(smaller):
                trace, shrunk = smaller, True
                break
    return trace


def _smaller(trace: Trace) -> Iterator[Trace]:
    for call in reversed(trace.calls):
        if not any(trace.readers[out] for out in call.outs):
            yield _rebuild(trace.variables, [c for c in trace.calls if c is not call], trace)
    yield from filter(None, (_without(trace, call) for call in trace.calls))
    for call in trace.calls:
        yield from _simpler_calls(trace, call)
    storage = trace.storage
    for leader in sorted({_leader(trace, storage, v) for v in range(len(storage))}):
        size = trace.variables[leader].nbytes
        for smaller in dict.fromkeys((1, size // 2, size - 1)):
            if 0 < smaller < size:
                group = [v for v in range(len(storage)) if _leader(trace, storage, v) == leader]
                yield _rebuild(_resized(trace, group, smaller), trace.calls, trace)


def _without(trace: Trace, call: Call) -> Trace | None:
    """The trace without a call, whose readers read its first input instead; None where that is
    illegal.
    """
    if not call.ins:
        return None

    def instead(variable: int) -> int:
        return call.ins[0] if variable in call.outs else variable

    others = [
        replace(
            other,
            ins=tuple(map(instead, other.ins)),
            reuse={out: instead(source) for out, source in other.reuse.items()},
        )
        for other in trace.calls
        if other is not call
    ]
    try:
        return _rebuild(trace.variables, others, trace)
    except ConfigError:
        return None


def _simpler_calls(trace: Trace, call: Call) -> Iterator[Trace]:
    def with_call(changed: Call) -> Trace:
        calls = [changed if c is call else c for c in trace.calls]
        return _rebuild(trace.variables, calls, trace)

    if call.workspace_bytes:
        yield with_call(replace(call, workspace_bytes=0))
    for position, variable in enumerate(call.ins):
        if len(call.ins) > 1 and variable not in call.reuse.values():
            yield with_call(replace(call, ins=call.ins[:position] + call.ins[position + 1 :]))
    for out in call.outs:
        if len(call.outs) > 1 and not trace.readers[out] and out not in trace.carries:
            yield with_call(
                replace(
                    call,
                    outs=tuple(v for v in call.outs if v != out),
                    reuse={o: i for o, i in call.reuse.items() if o != out},
                )
            )


def _leader(trace: Trace, storage: Sequence[int], variable: int) -> int:
    """Names the variables that must have one size: those of a storage, and both of a carry."""
    root = storage[variable]
    return storage[trace.carries.get(root, root)]


def _resized(trace: Trace, group: list[int], size_bytes: int) -> list[Variable]:
    return [
        replace(v, nbytes=size_bytes, shape=(size_bytes,)) if v.id in group else v
        for v in trace.variables
    ]


def _rebuild(variables: Sequence[Variable], calls: Sequence[Call], old: Trace) -> Trace:
    """A trace of these calls, with the variables that they touch, renumbered."""
    used = sorted({v for call in calls for v in call.touched()})
    number = {variable: position for position, variable in enumerate(used)}
    builder = TraceBuilder()
    builder.variables = [replace(variables[v], id=number[v]) for v in used]
    for call in calls:
        ins, outs = (tuple(number[v] for v in side) for side in (call.ins, call.outs))
        builder.call(
            call.name, call.op, ins, outs, workspace_bytes=call.workspace_bytes, pure=call.pure,
            reuse={number[o]: number[i] for o, i in call.reuse.items()}, phase=call.phase,
            duration_ns=call.duration_ns,
        )  # fmt: skip
    written = {out for call in calls for out in call.outs}
    builder.carries = {
        number[n]: number[o] for n, o in old.carries.items() if n in written and o in number
    }
    return builder.build()
