"""What each layer of a network costs: the sums of its variables by kind.

Each row has the bytes of one layer in a trace. A variable belongs to the layer whose path its own
name starts with, so "layer1.0.conv1.weight.momentum" is counted for "layer1.0.conv1". A layer
without parameters that is called at several places has a row for each, "relu after conv1": what
stands before it is found by following the data back to a layer with parameters, so that the parts
of a batch and the tiles of an image share the rows. Storage that an in-place call takes over is
counted once. Read next: `text.py`, which prints the rows.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
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
        shape: shape of its last output in the forward pass; for an input its own.
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
    """Rows in the order of the forward pass; an input stands before the first call that reads it.

    Args:
        trace: trace of a step.
        depth: parts of a path that name a row: with 2, "layer1.0.conv1" is counted in "layer1.0".
    """
    names = _Names(trace, depth)
    rows: dict[str, LayerRow] = {}

    def row_of(name: str) -> LayerRow:
        return rows.setdefault(name, LayerRow(name))

    for call in trace.calls:
        for read in call.ins:
            if trace.variables[read].kind == "input":
                row_of(names.of_variable(read)).shape = trace.variables[read].shape
        row = row_of(names.of_call(call))
        row.calls += 1
        row.workspace_bytes = max(row.workspace_bytes, call.workspace_bytes)
        for out in _activations(call, trace):
            row.shape = trace.variables[out].shape
            row_of(names.of_variable(out)).shape = row.shape
    for variable in _storage_owners(trace):
        row = row_of(names.of_variable(variable.id))
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


def _activations(call: Call, trace: Trace) -> list[int]:
    """The activations that a call of the forward pass writes."""
    if call.phase != "forward":
        return []
    return [out for out in call.outs if trace.variables[out].kind == "activation"]


def _layer_paths(trace: Trace) -> set[str]:
    """Paths of the layers: of the forward calls, and of what they write where calls were fused."""
    forward = [call for call in trace.calls if call.phase in ("forward", "loss")]
    names = {call.name for call in forward}
    names |= {trace.variables[out].name for call in forward for out in call.outs}
    paths = {name.rpartition(".")[0] for name in names} - {v.name for v in trace.variables}
    return paths | {v.name for v in trace.variables if v.kind == "input"}


class _Names:
    """The row of each call and of each variable.

    Attributes:
        paths: {path of a layer: whether it has parameters or statistics of its own}.
        before: {value of the forward pass: the layer with parameters, or the input, from which
            it was made}.
        several: paths of the layers that are called at more than one place.
    """

    def __init__(self, trace: Trace, depth: int) -> None:
        self.trace, self.depth = trace, depth
        self.paths = dict.fromkeys(_layer_paths(trace), False)
        for variable in trace.variables:
            if variable.persistent:
                self.paths[_nearest(variable.name, self.paths)] = True
        self.before = {trace.variables[v].name: trace.variables[v].name for v in trace.initial}
        places: dict[str, set[str]] = {}
        for call in trace.calls:
            if call.ins and call.phase in ("forward", "loss"):
                before = self._before(call)
                for out in call.outs:
                    name = trace.variables[out].name
                    self.before[name] = before
                    places.setdefault(_nearest(name, self.paths), set()).add(before)
        self.several = {path for path, found in places.items() if len(found) > 1}

    def _before(self, call: Call) -> str:
        """The layer with parameters that a forward call belongs to, or follows."""
        path = self._path_of(call)
        if self.paths.get(path):
            return path
        return self.before.get(self.trace.variables[call.ins[0]].name, "")

    def _path_of(self, call: Call) -> str:
        names = (call.name, *(self.trace.variables[out].name for out in call.outs))
        return next((path for name in names if (path := _nearest(name, self.paths))), ELSEWHERE)

    def of_call(self, call: Call) -> str:
        """The name of a call's row; a backward call is counted with its forward call."""
        forward = call if call.forward_of is None else self.trace.calls[call.forward_of]
        value = self.trace.variables[forward.outs[0]].name if forward.outs else ""
        return self._row_name(self._path_of(call), value)

    def of_variable(self, variable: int) -> str:
        """The name of a variable's row; a gradient is counted with its value."""
        name = self.trace.variables[variable].name
        return self._row_name(_nearest(name, self.paths) or ELSEWHERE, name)

    def _row_name(self, path: str, name: str) -> str:
        """The path, cut to the depth; with the place of the value that `name` begins with, where
        the layer is called at several.
        """
        parts = path.split(".")
        if path not in self.several or len(parts) > self.depth:
            return ".".join(parts[: self.depth])
        before = self.before.get(_nearest(name, self.before), "").split(".")
        inside = len(parts) - 1 if before[: len(parts) - 1] == parts[:-1] else 0
        place = ".".join(before[inside : self.depth])
        return f"{path} after {place}" if place else path


def _nearest(name: str, paths: Container[str]) -> str:
    """The longest beginning of a name, cut at a dot, that is one of the paths; "" if none is."""
    while name and name not in paths:
        name = name.rpartition(".")[0]
    return name


def _storage_owners(trace: Trace) -> list[Variable]:
    """The variables that bring storage of their own: all but the in-place ones."""
    taken_over = {out for call in trace.calls for out in call.reuse}
    return [variable for variable in trace.variables if variable.id not in taken_over]
