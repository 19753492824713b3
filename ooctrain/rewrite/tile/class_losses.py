"""Taking a loss of class numbers apart for bands: the loss of each pixel, and their total.

In the rewritten step, which has the same bits, a mean over pixels is two calls: the loss of each
pixel, and their total with its divisor. The loss of each pixel is computed row by row. The total is
a sum over all rows, which goes on from band to band. The gradient of a mean divides by a number
that is known only after the last band, so it reads that number from the total. Source: ours;
docs/tiling.md. Read next: `carried_sums.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ooctrain.layers.class_loss import ClassLossGrad, TotalLoss
from ooctrain.layers.cross_entropy import SoftmaxCrossEntropy
from ooctrain.layers.kernels.tables import TABLES
from ooctrain.layers.weighted_loss import ClassWeights, WeightedCrossEntropy
from ooctrain.rewrite.edit import with_calls
from ooctrain.rewrite.tile.segment import named_calls
from ooctrain.step.machine import specs_of
from ooctrain.step.op import Op, Spec
from ooctrain.step.trace import ITEM_BYTES, Call, Kind, Trace, Variable


def losses_apart(trace: Trace, last: str | None) -> Trace:
    """The trace with the losses of class numbers per pixel taken apart that `last` names.

    Cost: O(calls).
    """
    if last is None:
        return trace
    named = [call for call in named_calls(trace, last, ("forward", "loss")) if _can_be(trace, call)]
    if not named:
        return trace
    parts = _Parts(trace, list(trace.variables))
    ids = {call.id for call in named}
    calls: list[Call] = []
    for call in trace.calls:
        if call.id in ids:
            calls += parts.of(call)
        elif call.forward_of in parts.divisors and isinstance(call.op, ClassLossGrad):
            calls.append(replace(call, ins=(*call.ins, parts.divisors[call.forward_of])))
        else:
            calls.append(call)
    return with_calls(replace(trace, variables=tuple(parts.variables)), calls)


def _can_be(trace: Trace, call: Call) -> bool:
    """Whether a call is the mean or sum of a loss of each pixel."""
    if not isinstance(call.op, SoftmaxCrossEntropy | WeightedCrossEntropy):
        return False
    return call.op.reduction != "none" and len(trace.variables[call.ins[0]].shape) == 4


@dataclass(slots=True)
class _Parts:
    """The calls that losses are taken apart into.

    Args:
        variables: of the trace, and those in between.
        divisors: {loss: the variable that its mean is divided by}, where bands find that out.
        calls: how many there are.
    """

    trace: Trace
    variables: list[Variable]
    divisors: dict[int, int] = field(default_factory=dict)
    calls: int = 0

    def of(self, call: Call) -> Iterator[Call]:
        """The calls in place of one."""
        op, (logits, labels, *rest), (loss, lse) = call.op, call.ins, call.outs
        smoothing, base = 0.0, call.name.removesuffix(".fwd")
        if isinstance(op, WeightedCrossEntropy):
            smoothing, weights, *given = op.label_smoothing, *rest
        else:
            given = rest
            one = ClassWeights((1.0,) * self.trace.variables[logits].shape[1])
            weights = self._variable(f"{base}.weights", one.infer()[0], "aux")
            yield self._call(call, f"{base}.ones", one, (), (weights,))
        each_op = WeightedCrossEntropy(op.ignore_index, smoothing, "none")
        each = self._variable(f"{base}.each", self._spec(lse), "activation")
        yield replace(
            self._call(call, call.name, each_op, (logits, labels, weights), (each, lse)), id=call.id
        )
        counts = op.reduction == "mean" and not given
        total = TotalLoss(op.ignore_index, counts)
        weighted = (weights,) if isinstance(op, WeightedCrossEntropy) else ()
        ins = (each, labels, *weighted) if counts else (each, *given)
        outs: tuple[int, ...] = (loss,)
        if counts:
            _, divisor = total.infer(*specs_of(self.trace, (lse,)), self._spec(labels))
            self.divisors[call.id] = self._variable(f"{base}.divisor", divisor, "stat")
            outs = loss, self.divisors[call.id]
        yield self._call(call, f"{base}.total", total, ins, outs)

    def _call(
        self, like: Call, name: str, op: Op, ins: tuple[int, ...], outs: tuple[int, ...]
    ) -> Call:
        trace = replace(self.trace, variables=tuple(self.variables))
        scratch = TABLES[trace.device].workspace_bytes(
            op, specs_of(trace, ins), specs_of(trace, outs), trace.threads or 1
        )
        self.calls += 1
        number = len(self.trace.calls) + self.calls
        return replace(
            like, id=number, name=name, op=op, ins=ins, outs=outs, workspace_bytes=scratch, reuse={}
        )

    def _spec(self, variable: int) -> Spec:
        (spec,) = specs_of(self.trace, (variable,))
        return spec

    def _variable(self, name: str, spec: Spec, kind: Kind) -> int:
        number = len(self.variables)
        size = spec.size * ITEM_BYTES[spec.dtype]
        self.variables.append(Variable(number, name, spec.shape, spec.dtype, size, kind))
        return number
