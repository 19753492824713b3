"""Traces and lists as lines of text, for the messages of law-checkers.

In: a trace, a list. Out: lines such as "f1(x 12 B) -> y 12 B in place of x, 3 us". The one idea: a
failing example is only worth having if it can be read at a glance. Read next: `check_planner.py`.
"""

from __future__ import annotations

from ooctrain.cost import Machine, call_durations_ns
from ooctrain.sched.schedule import Schedule
from ooctrain.trace import Trace

MAX_LISTED = 40


def describe_trace(trace: Trace, machine: Machine) -> list[str]:
    """A trace as lines: "f1(x 12 B, w 4 B) -> y 12 B in place of x, workspace 3 B, 2.5 us"."""
    durations_ns = call_durations_ns(trace, machine)
    return [
        f"trace of {len(trace.calls)} calls",
        *(f"{_describe_call(trace, c.id)}, {durations_ns[c.id] / 1000:g} us" for c in trace.calls),
    ]


def _describe_call(trace: Trace, call_id: int) -> str:
    call = trace.calls[call_id]
    ins = ", ".join(_describe_variable(trace, v) for v in call.ins)
    outs = ", ".join(
        _describe_variable(trace, v)
        + (f" in place of {trace.variables[call.reuse[v]].name}" if v in call.reuse else "")
        for v in call.outs
    )
    workspace = f", workspace {call.workspace_bytes} B" if call.workspace_bytes else ""
    once = "" if call.pure else ", runs once"
    return f"{call.name}({ins}) -> {outs}{workspace}{once}"


def _describe_variable(trace: Trace, variable: int) -> str:
    return f"{trace.variables[variable].name} {trace.variables[variable].nbytes} B"


def describe_list(schedule: Schedule, trace: Trace, index: int | None) -> list[str]:
    """A list as lines, up to an instruction, or all of it; of a long one the last lines."""
    end = len(schedule) if index is None else index + 1
    first = max(0, end - MAX_LISTED)
    lines = [f"list, instructions {first} to {end - 1} of {len(schedule)}:"]
    lines += [f"{i:4d} {schedule.describe(i, trace)}" for i in range(first, end)]
    return lines
