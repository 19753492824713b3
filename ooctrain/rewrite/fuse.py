"""Fusing: ReLU joins the norm or sum before it, and its gradient joins what reads it.

The fused trace has fewer calls and the same bits. These calls are bound by memory, so work that is
done in a pass that happens anyway is free. Forward, the call that applies batch norm also does the
ReLU and the residual sum. Backward, the gradient of a ReLU is dy where y > 0; if all its readers
can apply that mask themselves (the two gradient calls of batch norm, a sum), the masked gradient is
never written. Source: the fusions of cuDNN's batch-norm API. Apply before `share_storage`. Read
next: `share_storage.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ooctrain.layers.batch_norm import BatchNormApply, BatchNormGradApply, BatchNormGradReduce
from ooctrain.layers.combine import Add, AddMasked
from ooctrain.layers.instance_norm import (
    InstanceNormApply,
    InstanceNormGradApply,
    InstanceNormGradReduce,
)
from ooctrain.layers.relu import ReLU, ReLUGrad
from ooctrain.step.trace import Call, Trace


def fuse(trace: Trace) -> Trace:
    """Joins ReLU and residual sums with batch norm, forward and backward; keeps the bits.

    Variables that the trace hands out, or that others read, are never fused away.
    """
    edit = _Edit(trace)
    for call in trace.calls:
        if isinstance(call.op, ReLU):
            _fuse_forward(edit, call)
        elif isinstance(call.op, ReLUGrad):
            _fuse_backward(edit, call)
    return edit.result()


@dataclass
class _Edit:
    """The calls as they stand, each at its place in the old order; None: gone."""

    trace: Trace
    calls: list[Call | None] = field(default_factory=list)
    stands_for: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls = list(self.trace.calls)
        self.handed_out = set(self.trace.outputs.values())

    def writer(self, variable: int) -> Call | None:
        """The call that writes a variable, if it still stands."""
        producer = self.trace.producer[variable]
        return None if producer is None else self.calls[producer]

    def only_reader(self, variable: int) -> bool:
        """Whether one call alone needs a variable, so that it may vanish into that call."""
        return len(self.trace.readers[variable]) == 1 and variable not in self.handed_out

    def join(self, gone: Sequence[Call], into: Call, at: Call) -> None:
        """`into`, changed, stands at the place of `at`; the calls `gone` vanish into it."""
        for call in gone:
            self.calls[call.id] = None
            if call.id != into.id:
                self.stands_for[call.id] = into.id
        self.calls[at.id] = into

    def result(self) -> Trace:
        """The new trace. Workspaces are as before: the fused operations need no more."""
        return self.trace.with_calls(
            [call for call in self.calls if call is not None], self.stands_for
        )


def _fuse_forward(edit: _Edit, relu: Call) -> None:
    """ReLU(BN(x)), ReLU(BN(x) + r), ReLU(a + b): one call each."""
    before = edit.writer(relu.ins[0])
    if before is None or not edit.only_reader(relu.ins[0]):
        return
    match before.op:
        case (
            BatchNormApply(relu=False, residual=False)
            | InstanceNormApply(relu=False, residual=False)
        ) as op:
            edit.join(
                [before, relu], replace(before, op=replace(op, relu=True), outs=relu.outs), relu
            )
        case Add(relu=False):
            norm = _norm_before(edit, before)
            if norm is None:
                edit.join([before, relu], replace(before, op=Add(relu=True), outs=relu.outs), relu)
                return
            residual = before.ins[1] if norm.outs[0] == before.ins[0] else before.ins[0]
            op = replace(norm.op, relu=True, residual=True)
            fused = replace(norm, op=op, ins=(*norm.ins, residual), outs=relu.outs)
            edit.join([norm, before, relu], fused, relu)


def _norm_before(edit: _Edit, add: Call) -> Call | None:
    """The batch norm that a sum can join: one of its terms, with no other reader."""
    for term in add.ins:
        writer = edit.writer(term)
        if writer is None or not edit.only_reader(term) or add.ins.count(term) > 1:
            continue
        match writer.op:
            case (
                BatchNormApply(relu=False, residual=False)
                | InstanceNormApply(relu=False, residual=False)
            ):
                return writer
    return None


def _fuse_backward(edit: _Edit, grad: Call) -> None:
    """All readers of a ReLU's gradient take (dy, y) and mask dy themselves, or none does."""
    (dz,), (dy, y) = grad.outs, grad.ins
    readers = [edit.calls[reader] for reader in edit.trace.readers[dz]]
    masked = [_masked(reader, dz, dy, y) for reader in readers if reader is not None]
    joined = [call for call in masked if call is not None]
    if not joined or len(joined) < len(readers) or dz in edit.handed_out:
        return
    edit.calls[grad.id] = None
    for call in joined:
        edit.calls[call.id] = call


def _masked(reader: Call, dz: int, dy: int, y: int) -> Call | None:
    """`reader` with dy and the mask y > 0 in place of dz; None where it cannot."""
    if dz in reader.ins[1:] and not isinstance(reader.op, Add):
        return None
    match reader.op:
        case (
            BatchNormGradReduce(mask=False)
            | BatchNormGradApply(mask=False)
            | InstanceNormGradReduce(mask=False)
            | InstanceNormGradApply(mask=False)
        ):
            return replace(reader, op=replace(reader.op, mask=True), ins=(dy, *reader.ins[1:], y))
        case Add(relu=False) if reader.ins.count(dz) == 1:
            (other,) = (v for v in reader.ins if v != dz)
            return replace(reader, op=AddMasked(), ins=(other, dy, y))
    return None
