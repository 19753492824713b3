"""Computing a trace on storages that show every wrong sharing of memory.

An operation that works in place promises only that it reads each element of the input that it
overwrites before it writes there. So for the worst such operation everything else in that storage
is spoilt before the call reads it: the same value at another of its inputs, a value that is read
later, one that is handed out at the end. Wrong sharing then gives NaN, and not by luck the right
bits. Outputs are in float64. Read next: `tests/properties/test_rewrites_of_calls.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ooctrain.engine.incore import run_reference
from ooctrain.step.op import Scalars, to_logical, to_physical
from ooctrain.step.trace import Call, Trace


def run_strictly(
    trace: Trace, values: Mapping[str, np.ndarray], scalars: Scalars
) -> dict[str, np.ndarray]:
    """Outputs, and what initial variables are after the step.

    Args:
        values: {name: logical array} of all initial variables.
    """
    held = [np.zeros(0)] * len(trace.variables)
    for v in trace.initial:
        held[v] = to_physical(_exact(values[trace.variables[v].name]))
    for call in trace.calls:
        outs = run_reference(call.op, _as_read(call, held), scalars)
        for out, value in zip(call.outs, outs, strict=True):
            held[out] = np.array(value)
        for source in call.reuse.values():
            held[source] = _spoilt(held[source])  # its storage has another value now
    found = {name: held[v] for name, v in trace.outputs.items()}
    found |= {trace.variables[old].name: held[new] for old, new in trace.end_variables.items()}
    return {name: to_logical(value) for name, value in found.items()}


def _as_read(call: Call, held: list[np.ndarray]) -> list[np.ndarray]:
    """What a call in place reads: what it overwrites is itself at one place only."""
    ins = [held[v] for v in call.ins]
    for index, position in call.op.reusable().items():
        source = call.ins[position]
        if call.reuse.get(call.outs[index]) == source:
            again = [p for p, v in enumerate(call.ins) if v == source and p != position]
            for place in again:
                ins[place] = _spoilt(ins[place])
    return ins


def _exact(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64) if value.dtype.kind == "f" else value


def _spoilt(value: np.ndarray) -> np.ndarray:
    """As many elements that are not numbers."""
    return np.full_like(value, np.nan) if value.dtype.kind == "f" else np.full_like(value, -1)
