"""Training within a budget against training in memory: the same values, to the last bit.

Swapping moves bytes and recomputing repeats calls, so any tolerance would hide a race. `in_core`
runs the trace as it was before any rewrite, call by call in plain arrays, and shares nothing with
the executor but the kernels. Both start from the same values and batches, and return by name what
each step left behind. Read next: `../properties/test_same_bits.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ooctrain.devices.cpu.host_vm import whole_pages
from ooctrain.engine.incore import run_trace
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.sessions import input_values, open_session
from ooctrain.execution.settings import Settings
from ooctrain.step.blocks import put_together
from ooctrain.step.op import Scalars
from ooctrain.step.trace import Trace
from ooctrain.testing.byte_list import LawBroken


class OtherBits(LawBroken):
    """A step left other values than it did in memory."""


Batch = tuple[np.ndarray, np.ndarray]
Values = Mapping[str, np.ndarray]


def out_of_core(
    prepared: PreparedStep, how: Settings, start: Values, batches: Sequence[Batch],
    scalars: Scalars,
) -> list[dict[str, np.ndarray]]:  # fmt: skip
    """Outputs and persistent values by name, after each step.

    Args:
        start: of the persistent variables.
        scalars: of every step; "step" is counted here.

    Raises:
        LawBroken: the measured peak is not the plan's, or the arena holds more than the budget.
    """
    trace = prepared.plan.trace
    names = {trace.variables[v].name: v for v in trace.end_variables}
    values = {v: start[name] for name, v in names.items()}
    device, session = open_session(prepared, how, values, tuple(trace.outputs.values()))
    found = []
    try:
        for number, (x, y) in enumerate(batches):
            result = session.run_step(input_values(trace, x, y), {**scalars, "step": number})
            outputs = put_together({n: result.outputs[v] for n, v in trace.outputs.items()})
            found.append({**outputs, **{name: session.read(v) for name, v in names.items()}})
        _check_memory(prepared, result.timeline.peak_bytes, device.memory.used_bytes())
        return found
    finally:
        session.close()
        device.close()


def in_core(
    trace: Trace, start: Values, batches: Sequence[Batch], scalars: Scalars, threads: int = 1
) -> list[dict[str, np.ndarray]]:
    """The same without any plan; `trace` is the one before rewriting."""
    values, found = dict(start), []
    for number, (x, y) in enumerate(batches):
        given = {**values, "input": x, "target": y}
        results = run_trace(trace, given, {**scalars, "step": number}, threads=threads)
        values = {name: results.get(name, value) for name, value in values.items()}
        found.append({**{name: results[name] for name in trace.outputs}, **values})
    return found


def check_same_bits(found: Sequence[Values], expected: Sequence[Values]) -> None:
    """Raises OtherBits with the names of all values that differ after the first wrong step."""
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if ours.keys() != theirs.keys():
            raise OtherBits(f"step {number} left other values: {ours.keys() ^ theirs.keys()}")
        different = [
            name for name in ours if ours[name].tobytes() != np.asarray(theirs[name]).tobytes()
        ]
        if different:
            raise OtherBits(f"step {number} left other bits in {different}")


def _check_memory(prepared: PreparedStep, peak_bytes: int, held_bytes: int) -> None:
    if peak_bytes != prepared.plan.peak_bytes:
        raise LawBroken(f"measured peak {peak_bytes} B, planned {prepared.plan.peak_bytes} B")
    if not peak_bytes <= held_bytes <= whole_pages(prepared.budget_bytes):
        raise LawBroken(f"{held_bytes} B held of a budget of {prepared.budget_bytes} B")
