"""Which variable is the gradient of which, read from an operation's own backward calls.

A trace does not say of which variable a backward call's output is the gradient, but the operation
does. So `vjp` is asked to record its calls once more, on shapes alone, and the trace is compared
with that record. The result is `VjpCalls`: the calls that make up the gradient, with the role of
each variable. Read next: `weave.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ooctrain.engine.site import Site
from ooctrain.engine.tensor import Tape, Tensor
from ooctrain.errors import ConfigError
from ooctrain.step.machine import specs_of
from ooctrain.step.op import Op, Scalars, Spec
from ooctrain.step.trace import Call, Trace

#: role of a variable in the gradient of one call, see `Recorded`
Role = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One backward call: its operation, and its variables by role.

    A role is ("in", i), ("out", i) of the forward call, ("seed", 0) for the gradient of its first
    output, or ("new", n) for the n-th variable that the backward calls write.
    """

    op: Op
    ins: tuple[Role, ...]
    outs: tuple[Role, ...]
    specs: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class VjpCalls:
    """The backward calls of one operation; `results[i]` is the gradient of input i, or None."""

    calls: tuple[Recorded, ...]
    results: tuple[Role | None, ...]


class _Recorder:
    """A runner that computes nothing and remembers the calls."""

    def __init__(self, roles: dict[int, Role]) -> None:
        self.roles, self._new = roles, itertools.count()
        self.calls: list[tuple[Op, tuple[Tensor, ...], tuple[Tensor, ...]]] = []

    def run(
        self, op: Op, ins: Sequence[Tensor], outs: Sequence[Tensor], site: Site, scalars: Scalars
    ) -> None:
        self.roles |= {id(tensor): ("new", next(self._new)) for tensor in outs}
        self.calls.append((op, tuple(ins), tuple(outs)))

    def assign(self, target: Tensor, new: Tensor) -> None:
        """Nothing has a value here."""

    def constant(self, tensor: Tensor) -> Tensor:
        """Nothing is trained here."""
        return tensor


def record_vjp(
    op: Any, ins: Sequence[Spec], outs: Sequence[Spec], wanted: Sequence[bool]
) -> VjpCalls:
    """The backward calls of an operation for inputs of which `wanted` need a gradient."""
    images = [Tensor(s, name="x", requires_grad=w) for s, w in zip(ins, wanted, strict=True)]
    results = [Tensor(spec, name="y") for spec in outs]
    seed = Tensor(outs[0], name="dy")
    roles: dict[int, Role] = {id(t): ("in", i) for i, t in enumerate(images)}
    roles |= {id(t): ("out", i) for i, t in enumerate(results)}
    roles[id(seed)] = ("seed", 0)
    recorder = _Recorder(roles)
    tape = Tape(recorder, recording=False)
    gradients = op.vjp(tape, images, results, [seed, *[None] * (len(outs) - 1)])
    kept = [g if w else None for g, w in zip(gradients, wanted, strict=True)]
    calls = tuple(
        Recorded(
            called,
            tuple(roles[id(t)] for t in read),
            tuple(roles[id(t)] for t in written),
            tuple(t.spec for t in written),
        )
        for called, read, written in recorder.calls
    )
    return VjpCalls(calls, tuple(None if g is None else roles[id(g)] for g in kept))


def _unify(record: VjpCalls, backward: Sequence[Call], known: dict[Role, int]) -> bool:
    """Whether the record is what the trace has; fills in `known`, the variables of the roles."""
    if len(record.calls) != len(backward):
        return False
    for recorded, call in zip(record.calls, backward, strict=True):
        pairs = [
            *zip(recorded.ins, call.ins, strict=False),
            *zip(recorded.outs, call.outs, strict=False),
        ]
        same_count = len(recorded.ins) == len(call.ins) and len(recorded.outs) == len(call.outs)
        if type(recorded.op) is not type(call.op) or not same_count:
            return False
        if any(known.setdefault(role, variable) != variable for role, variable in pairs):
            return False
    return True


def match_backward(
    trace: Trace, call: Call, backward: Sequence[Call]
) -> tuple[dict[int, int], int | None]:
    """{input: its gradient}, and the gradient of the output, read off the backward calls."""
    if not backward:
        return {}, None
    for wanted in itertools.product((True, False), repeat=len(call.ins)):
        record = record_vjp(
            call.op,
            specs_of(trace, call.ins),
            specs_of(trace, call.outs),
            wanted,
        )
        known = {("in", i): v for i, v in enumerate(call.ins)}
        known |= {("out", i): v for i, v in enumerate(call.outs)}
        if _unify(record, backward, known):
            results = zip(call.ins, record.results, strict=True)
            return {v: known[role] for v, role in results if role}, known["seed", 0]
    raise ConfigError(
        f"the backward calls of {call.name!r} are not those of its operation",
        code="OOC-113",
        numbers=", ".join(other.name for other in backward),
        fix="tile before rewrites that join backward calls of this segment",
    )
