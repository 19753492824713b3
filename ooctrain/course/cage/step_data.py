"""A step and a machine as plain data: the form in which a planner is asked.

A trace and a machine become lists and numbers; on the other side these become a trace and a machine
again, for which a planner plans the same. A planner never looks inside an operation, so only the
price and the words of each operation are sent: they decide its duration and its fingerprint. The
operations themselves stay. Read next: `../remote.py`, which sends it; `serve.py`, which
reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from ooctrain.step.machine import Machine, specs_of
from ooctrain.step.op import Op, Spec
from ooctrain.step.trace import Call, Trace, Variable


@dataclass(frozen=True, repr=False)
class OpSeen(Op):
    """An operation seen from afar.

    Args:
        words: how it describes itself.
        label: name of its kind.
        price: (floating point operations, bytes moved) of its one call.
    """

    words: str
    label: str
    price: tuple[int, int]

    def __repr__(self) -> str:
        return self.words

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of its kind, such as "conv2d"."""
        return self.label

    def flops(self, ins: Sequence[Spec], outs: Sequence[Spec]) -> int:
        return self.price[0]

    def bytes_moved(self, ins: Sequence[Spec], outs: Sequence[Spec]) -> int:
        return self.price[1]


def trace_data(trace: Trace) -> dict[str, Any]:
    """A trace as lists and numbers."""
    return {
        "variables": [
            [v.name, list(v.shape), v.dtype, v.nbytes, v.kind, v.pinned] for v in trace.variables
        ],
        "calls": [_call_data(trace, call) for call in trace.calls],
        "carries": [[new, old] for new, old in trace.carries.items()],
        "outputs": [[name, variable] for name, variable in trace.outputs.items()],
        "threads": trace.threads,
        "device": trace.device,
    }


def _call_data(trace: Trace, call: Call) -> list[Any]:
    price = [0, 0]  # never requested where the call states its own duration
    if call.duration_ns is None:
        ins, outs = specs_of(trace, call.ins), specs_of(trace, call.outs)
        price = [call.op.flops(ins, outs), call.op.bytes_moved(ins, outs)]
    words, label = repr(call.op), str(getattr(call.op, "name", type(call.op).__name__))
    return [
        call.name, words, label, price, list(call.ins), list(call.outs), call.workspace_bytes,
        [[out, source] for out, source in call.reuse.items()], call.pure, call.phase,
        call.forward_of, call.duration_ns,
    ]  # fmt: skip


def trace_of(data: Mapping[str, Any]) -> Trace:
    """The trace that lists and numbers describe."""
    variables = [
        Variable(place, name, tuple(shape), dtype, nbytes, kind, pinned)
        for place, (name, shape, dtype, nbytes, kind, pinned) in enumerate(data["variables"])
    ]
    calls = [_call(place, row) for place, row in enumerate(data["calls"])]
    return Trace(
        tuple(variables), tuple(calls), _mapping(data["carries"]), _mapping(data["outputs"]),
        data["threads"], data["device"],
    )  # fmt: skip


def _call(place: int, row: Sequence[Any]) -> Call:
    name, words, label, price, ins, outs, workspace_bytes, reuse, pure, phase, of, ns = row
    return Call(
        place, name, OpSeen(words, label, tuple(price)), tuple(ins), tuple(outs), workspace_bytes,
        _mapping(reuse), pure, phase, of, ns,
    )  # fmt: skip


def _mapping(pairs: Iterable[tuple[Any, Any]]) -> Mapping[Any, Any]:
    return MappingProxyType(dict(pairs))


def machine_data(machine: Machine) -> dict[str, Any]:
    """A machine as numbers and words."""
    rows = {field.name: getattr(machine, field.name) for field in fields(Machine)}
    return {**rows, "profile": dict(machine.profile)}


def machine_of(data: Mapping[str, Any]) -> Machine:
    """The machine that numbers and words describe."""
    return Machine(**data)
