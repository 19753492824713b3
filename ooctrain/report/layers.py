"""What each layer of a network costs: the sums of its variables by kind.

Each row has the bytes of one layer in a trace. A variable belongs to the layer whose path its own
name starts with, so "layer1.0.conv1.weight.momentum" is counted for "layer1.0.conv1". Storage that
an in-place call takes over is counted once. Read next: `text.py`, which prints the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ooctrain.step.trace import Call, Trace, Variable

#: Which column a kind of variable is counted in.
COLUMN_OF = {
    "param": "parameter_bytes",
    "state": "state_bytes",
    "grad": "gradient_bytes",
    "wgrad": "gradient_bytes",
    "input": "activation_bytes",
    "activation": "activation_bytes",
    "stat": "activation_bytes",
    "aux": "activation_bytes",
}
ELSEWHERE = "(other)"


@dataclass(slots=True)
class LayerRow:
    """One layer, or a group of layers.

    Args:
        name: its path, for example "layer1.0".
        shape: of its last output in the forward pass.
        calls: in the whole step.
        parameter_bytes, activation_bytes, gradient_bytes, state_bytes: sums over the whole step;
            state is the optimizer's slots and running statistics.
        workspace_bytes: the largest of its calls.
    """

    name: str
    shape: tuple[int, ...] = ()
    calls: int = 0
    parameter_bytes: int = 0
    activation_bytes: int = 0
    gradient_bytes: int = 0
    state_bytes: int = 0
    workspace_bytes: int = 0


def layer_rows(trace: Trace, depth: int = 2) -> list[LayerRow]:
    """Rows in the order of the forward pass.

    Args:
        trace: of a step.
        depth: parts of a path that name a row: with 2, "layer1.0.conv1" is counted in "layer1.0".
    """
    paths = _layer_paths(trace)
    rows: dict[str, LayerRow] = {}
    for call in trace.calls:
        names = (call.name, *(trace.variables[out].name for out in call.outs))
        path = next((path for name in names if (path := _nearest(name, paths))), ELSEWHERE)
        row = _row(rows, path, depth)
        row.calls += 1
        row.workspace_bytes = max(row.workspace_bytes, call.workspace_bytes)
        row.shape = _output_shape(call, trace) or row.shape
    for variable in _storage_owners(trace):
        row = _row(rows, _nearest(variable.name, paths) or ELSEWHERE, depth)
        column = COLUMN_OF[variable.kind]
        setattr(row, column, getattr(row, column) + variable.value_bytes)
    elsewhere = rows.pop(ELSEWHERE, None)
    return [*rows.values(), *([elsewhere] if elsewhere else [])]


def total_row(rows: Iterable[LayerRow]) -> LayerRow:
    """The sums of all rows; the largest workspace."""
    total = LayerRow("total")
    for row in rows:
        total.calls += row.calls
        total.workspace_bytes = max(total.workspace_bytes, row.workspace_bytes)
        for column in set(COLUMN_OF.values()):
            setattr(total, column, getattr(total, column) + getattr(row, column))
    return total


def _output_shape(call: Call, trace: Trace) -> tuple[int, ...]:
    """Shape of the activation that a forward call writes; () for other calls."""
    outs = [trace.variables[out] for out in call.outs if call.phase == "forward"]
    return next((out.shape for out in outs if out.kind == "activation"), ())


def _layer_paths(trace: Trace) -> set[str]:
    """Paths of the layers: of the forward calls, and of what they write where calls were fused."""
    forward = [call for call in trace.calls if call.phase in ("forward", "loss")]
    names = {call.name for call in forward}
    names |= {trace.variables[out].name for call in forward for out in call.outs}
    paths = {name.rpartition(".")[0] for name in names} - {v.name for v in trace.variables}
    return paths | {v.name for v in trace.variables if v.kind == "input"}


def _nearest(name: str, paths: set[str]) -> str:
    while name and name not in paths:
        name = name.rpartition(".")[0]
    return name


def _row(rows: dict[str, LayerRow], path: str, depth: int) -> LayerRow:
    name = ".".join(path.split(".")[:depth])
    return rows.setdefault(name, LayerRow(name))


def _storage_owners(trace: Trace) -> list[Variable]:
    """The variables that bring storage of their own: all but the in-place ones."""
    taken_over = {out for call in trace.calls for out in call.reuse}
    return [variable for variable in trace.variables if variable.id not in taken_over]
