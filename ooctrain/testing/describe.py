"""Traces and lists as lines of text, for the messages of law-checkers.

A line reads "f1(x 12 B) -> y 12 B in place of x, 3 us": a failing example is only useful if it can
be read at a glance. Read next: `check_planner.py`.
"""

from __future__ import annotations

from ooctrain.sched.schedule import Schedule
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace

MAX_LISTED = 40


def describe_trace(trace: Trace, machine: Machine | None = None) -> list[str]:
    """A trace as lines: "f1(x 12 B, w 4 B) -> y 12 B in place of x, workspace 3 B, 2.5 us".

    Args:
        machine: whose times the calls take; None: no times.
    """
    calls = [_describe_call(trace, call.id) for call in trace.calls]
    if machine is not None:
        times_us = [ns / 1000 for ns in call_durations_ns(trace, machine)]
        calls = [f"{call}, {us:g} us" for call, us in zip(calls, times_us, strict=True)]
    return [f"trace of {len(calls)} calls", *calls]


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
