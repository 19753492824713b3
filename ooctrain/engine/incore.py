"""Computing a trace in memory, call by call: what out-of-core runs are compared with.

This is the reference for results: a few lines that run the calls in order from the values of the
initial variables, and keep each variable in an array of its own, or, where the trace says so, in
that of the input it overwrites. Calls run with the kernels, or in float64 with the NumPy
definitions. Read next: `execution/executor.py`, which does the same within a budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any, Literal, Protocol

import numpy as np

from ooctrain.engine.eager import Storage, aligned_bytes, make_pool
from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.step.blocks import put_together, value_of
from ooctrain.step.machine import specs_of
from ooctrain.step.op import Op, Scalars, physical_shape, to_logical, to_physical
from ooctrain.step.trace import Call, Trace, Variable

Mode = Literal["cpu", "reference"]


class HasSlots(Protocol):
    """What a step needs of an optimizer: the tensors that it keeps with a parameter."""

    def updates(self, parameter: Tensor) -> bool:
        """Whether the parameter is among those that it updates."""

    def slots(self, parameter: Tensor) -> Mapping[str, Tensor]:
        """{name: tensor}, such as "momentum"."""


def named_tensors(model: Module, optimizer: HasSlots | None = None) -> dict[str, Tensor]:
    """All that persists from step to step, by the names that traces give it: parameters, buffers,
    the optimizer's slots ("conv1.weight.momentum").
    """
    found: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, parameter in model.named_parameters():
        if optimizer is not None and optimizer.updates(parameter):
            slots = optimizer.slots(parameter).items()
            found |= {f"{name}.{slot}": tensor for slot, tensor in slots}
    return found


def storages(trace: Trace, model: Module, optimizer: HasSlots | None = None) -> dict[int, Storage]:
    """Where the values of a trace's persistent variables lie: {variable: storage}.

    Slots of an optimizer that is not given are left out (they begin with zeros).
    """
    by_name = named_tensors(model, optimizer)
    persistent = [trace.variables[v] for v in trace.initial if trace.variables[v].persistent]
    return {v.id: by_name[v.name].storage for v in persistent if v.name in by_name}


def initial_values(
    trace: Trace, model: Module, optimizer: HasSlots | None = None
) -> dict[str, np.ndarray]:
    """Copies of the persistent variables' values before the step, by name; slots of no optimizer
    are 0.
    """
    found = storages(trace, model, optimizer)
    return {
        variable.name: np.array(found[variable.id].read())
        if variable.id in found
        else np.zeros(variable.shape, variable.dtype)
        for variable in (trace.variables[v] for v in trace.initial)
        if variable.persistent
    }


def run_trace(
    trace: Trace, values: Mapping[str, np.ndarray], scalars: Scalars, mode: Mode = "cpu",
    *, wanted: Sequence[str] = (), threads: int = 1,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Computes a trace in memory, one call after the other: what out-of-core runs are compared
    with.

    Args:
        values: {name: logical array} of all initial variables; they are not changed. Of what is
            cut into blocks the whole will do.
        scalars: the step scalars, {"lr": 0.1, "step": 0, "seed": 0}.
        mode: "cpu": the kernels, in place where the trace says so; "reference": the NumPy
            definitions in float64, never in place.
        wanted: names of variables to hand out besides.
        threads: threads of the kernels, no more than the trace was made for.

    Returns:
        Logical arrays: the trace's outputs by output name, the next values of carried variables by
            the name of the old ones, and `wanted` by variable name.
    """
    held = {v: _initial(trace.variables[v], values, mode) for v in trace.initial}
    handed_out = {**trace.outputs}
    handed_out |= {trace.variables[old].name: new for new, old in trace.carries.items()}
    asked = {name: trace.variable_by_name[name].id for name in wanted}
    # As the executor does, results are copied after the last call that touches them; what is wanted
    # besides is copied when it is written, since a later call may overwrite it.
    due: dict[int | None, list[tuple[str, int]]] = {}
    for name, v in handed_out.items():
        due.setdefault(trace.uses[v][-1] if trace.uses[v] else None, []).append((name, v))
    for name, v in asked.items():
        due.setdefault(trace.producer[v], []).append((name, v))
    found = {name: to_logical(held[v]).copy() for name, v in due.get(None, [])}
    with closing(make_pool(threads)) if mode == "cpu" else nullcontext() as pool:
        for call in trace.calls:
            if pool is None:
                outs = run_reference(call.op, [held[v] for v in call.ins], scalars)
            else:
                outs = _run_cpu(trace, call, held, pool, scalars)
            held |= zip(call.outs, outs, strict=True)
            found |= {name: to_logical(held[v]).copy() for name, v in due.get(call.id, [])}
            for v in call.touched():
                if trace.uses[v][-1] == call.id:
                    del held[v]
    return put_together({n: found[n] for n in handed_out}) | {n: found[n] for n in asked}


def run_reference(op: Op, ins: Sequence[np.ndarray], scalars: Scalars) -> list[np.ndarray]:
    """Outputs of the NumPy definition, physical in and out."""
    results = op.reference(*(to_logical(array) for array in ins), scalars=scalars)
    return [to_physical(np.asarray(result)) for result in results]


def _run_cpu(
    trace: Trace, call: Call, held: Mapping[int, np.ndarray], pool: Any, scalars: Scalars
) -> list[np.ndarray]:
    arrays = [
        held[call.reuse[v.id]].reshape(physical_shape(v.shape))
        if v.id in call.reuse
        else np.empty(physical_shape(v.shape), v.dtype)
        for v in (trace.variables[out] for out in call.outs)
    ]
    in_specs, out_specs = specs_of(trace, call.ins), specs_of(trace, call.outs)
    needed = CPU.workspace_bytes(call.op, in_specs, out_specs, pool.threads)
    if needed > call.workspace_bytes:
        raise ConfigError(
            f"this trace was made for fewer than {pool.threads} threads", where=call.name
        )
    workspace = aligned_bytes(call.workspace_bytes)
    CPU.run(call.op, pool, [held[v] for v in call.ins], arrays, workspace, scalars)
    return arrays


def _initial(variable: Variable, values: Mapping[str, np.ndarray], mode: Mode) -> np.ndarray:
    value = np.asarray(value_of(variable.name, values))
    if value.shape != variable.shape:
        raise ConfigError(
            f"{variable.name!r} has shape {variable.shape}, got {value.shape}", code="OOC-110"
        )
    exact = mode == "reference" and variable.dtype == "float32"
    return np.array(to_physical(value.astype("float64" if exact else variable.dtype)), order="C")
