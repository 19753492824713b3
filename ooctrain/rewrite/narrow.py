"""Narrow: calls that alone fill the device are split into calls that work in place.

This rewrite is for a trace after `fuse`, which saves passes through memory, but whose calls hold
more at once. The two gradient calls of a batch norm, and the sum behind a shortcut, read dy, the
mask y and one array more. With 7.5 times too little memory three such arrays hold five sixths of
it, so nothing can be fetched during such a call and the GPU waits. But dz = dy where y > 0 can be
written over dy if no other call reads dy. Then each of these calls holds two arrays, and y may
leave before them. Likewise a norm that adds a residual and may overwrite neither of its inputs
writes a third array; after the split the norm alone writes it, and the sum overwrites it. The pass
that `fuse` saved is paid for again, but only where it makes room for copies: where nothing can be
overwritten there would be no gain, so the calls stay, as do calls of at most a given number of
bytes. The bits are the same. Source: ours; in place as paper 004, section 4.2. Read next:
`fuse.py`, which this undoes in part; `execution/compose.py`, which offers such steps to planners
that choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from ooctrain.errors import ConfigError
from ooctrain.layers.batch_norm import BatchNormApply, BatchNormGradApply, BatchNormGradReduce
from ooctrain.layers.combine import Add, AddMasked
from ooctrain.layers.instance_norm import (
    InstanceNormApply,
    InstanceNormGradApply,
    InstanceNormGradReduce,
)
from ooctrain.layers.kernels.device_tables import TABLES
from ooctrain.layers.relu import ReLUGrad
from ooctrain.sched.budget import lasting_bytes
from ooctrain.sched.planning.planner import call_need_bytes
from ooctrain.sched.schedule import BYTES
from ooctrain.step.op import Op, Spec
from ooctrain.step.trace import Call, Trace

NAME = "narrow"
#: A call that holds more than this fraction (1 / n) of the budget is too wide: little of what the
#: calls around it need fits with it. Measured: docs/planners.md.
PARTS = 3
#: A sum is split only where it is this many times too wide: that frees nothing before its time, as
#: taking a mask out does, and leaves the search one value more.
SUMS = 2


def narrow(trace: Trace, most_bytes: int) -> Trace:
    """Splits calls that hold more than `most_bytes` into some that each hold less, in place.

    Cost: O(calls).
    """
    edit = _Edit(trace, most_bytes)
    for call in trace.calls:
        if _adds(call) and edit.too_wide(call, SUMS):
            edit.split_sum(call)
    for (dy, y), readers in _masking(trace).items():
        if any(map(edit.too_wide, readers)) and _can_be_overwritten(trace, dy, readers):
            edit.split_mask(dy, y, readers)
    return edit.result()


def narrow_by_name(trace: Trace, name: str) -> Trace:
    """The rewrite "narrow:1073741824". Raises ConfigError: no number of bytes."""
    most = name.partition(":")[2]
    if not (most.isascii() and most.isdigit() and int(most) > 0):
        raise ConfigError(
            f"rewrite {name!r} has no size", code="OOC-106",
            fix=f"{NAME}:1073741824 makes calls narrower that hold more than 1 GiB",
        )  # fmt: skip
    return narrow(trace, int(most))


def narrower(trace: Trace, budget_bytes: int) -> dict[str, Trace]:
    """{name: the step after it} of the rewrite that makes calls narrow for a budget; none where
    that changes nothing. Each sum is split that does not fit together with what lasts.
    """
    room_bytes = budget_bytes - lasting_bytes(trace)
    name = f"{NAME}:{max(1, min(budget_bytes // PARTS, room_bytes // SUMS))}"
    found = narrow_by_name(trace, name)
    return {} if found is trace else {name: found}


class _Edit:
    """The calls as they stand: {call of the trace: those in its place}."""

    def __init__(self, trace: Trace, most_bytes: int) -> None:
        self.trace, self.most_bytes = trace, most_bytes
        self._instead: dict[int, list[Call]] = {}
        self._variables = list(trace.variables)
        self._calls = len(trace.calls)

    def too_wide(self, call: Call, times: int = 1) -> bool:
        """Whether a call holds more than `times` what it may."""
        return call_need_bytes(call, self.trace, BYTES) > times * self.most_bytes

    def split_sum(self, call: Call) -> None:
        """y = max(norm + residual, 0): the norm first, then the sum, over it."""
        (y,), residual = call.outs, call.ins[-1]
        norm = self._variable(y, "norm")
        alone = replace(call.op, relu=False, residual=False)
        add = self._call(Add(relu=call.op.relu), "add", (norm, residual), y, call)
        self._instead[call.id] = [replace(call, op=alone, ins=call.ins[:-1], outs=(norm,)), add]

    def split_mask(self, dy: int, y: int, readers: Sequence[Call]) -> None:
        """dz = dy where y > 0, over dy, before the first of those that read both."""
        dz = self._variable(dy, "masked")
        mask = self._call(ReLUGrad(), "mask", (dy, y), dz, readers[0])
        mask = replace(mask, forward_of=self.trace.producer[y])
        for call in readers:
            self._instead[call.id] = [_without_mask(call, dz)]
        self._instead[readers[0].id].insert(0, mask)

    def result(self) -> Trace:
        """The new trace; the old one where nothing was split."""
        if not self._instead:
            return self.trace
        calls = [new for call in self.trace.calls for new in self._instead.get(call.id, [call])]
        return replace(self.trace, variables=tuple(self._variables)).with_calls(calls)

    def _variable(self, like: int, mark: str) -> int:
        old = self._variables[like]
        self._variables.append(replace(old, id=len(self._variables), name=f"{old.name}.{mark}"))
        return len(self._variables) - 1

    def _call(self, op: Op, mark: str, ins: tuple[int, int], out: int, at: Call) -> Call:
        """A call that writes over its first input, where `at` stands."""
        name = self._variables[out].name.removesuffix(f".{mark}ed")
        specs = [Spec(self._variables[v].shape, self._variables[v].dtype) for v in ins]
        space_bytes = TABLES[self.trace.device].workspace_bytes(
            op, specs, specs[:1], self.trace.threads or 1
        )
        self._calls += 1
        reuse = MappingProxyType({out: ins[0]})
        return Call(
            self._calls, f"{name}.{mark}", op, ins, (out,), space_bytes, reuse, phase=at.phase
        )


def _adds(call: Call) -> bool:
    """Whether a norm adds a residual, and has to keep it and what it reads besides."""
    return (
        isinstance(call.op, BatchNormApply | InstanceNormApply)
        and call.op.residual
        and not call.reuse
    )


def _masking(trace: Trace) -> dict[tuple[int, int], list[Call]]:
    """{(gradient, output of the ReLU): the calls that mask the one by the other}."""
    found: dict[tuple[int, int], list[Call]] = {}
    for call in trace.calls:
        match call.op:
            case AddMasked():
                found.setdefault((call.ins[1], call.ins[2]), []).append(call)
            case (
                BatchNormGradReduce(mask=True) | BatchNormGradApply(mask=True)
                | InstanceNormGradReduce(mask=True) | InstanceNormGradApply(mask=True)
            ):  # fmt: skip
                found.setdefault((call.ins[0], call.ins[-1]), []).append(call)
    return found


def _can_be_overwritten(trace: Trace, dy: int, readers: Sequence[Call]) -> bool:
    """Whether only these need a gradient from the first of them on, once each."""
    asked = {call.id for call in readers}
    others = [reader for reader in trace.readers[dy] if reader not in asked]
    return (
        trace.producer[dy] is not None
        and dy not in trace.outputs.values()
        and dy not in trace.carries
        and dy not in trace.taker
        and all(reader < readers[0].id for reader in others)
        and all(call.ins.count(dy) == 1 for call in readers)
    )


def _without_mask(call: Call, dz: int) -> Call:
    """A call that reads what is masked already."""
    if isinstance(call.op, AddMasked):
        return replace(call, op=Add(), ins=(call.ins[0], dz))
    return replace(call, op=replace(call.op, mask=False), ins=(dz, *call.ins[1:-1]))
