"""The gradient of a bias: one value is added everywhere, so its gradient is summed from everywhere.

It sums dy (N, K, H, W) or (N, K) to db (K). Every layer with a bias, linear or convolution, has the
same bias gradient, so it is a call of its own. Read next: `batch_norm.py`, whose reductions work
the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ooctrain.step.op import Op, Spec, require


@dataclass(frozen=True, slots=True)
class ChannelSum(Op):
    """db[k] = sum of dy over all but the channel axis: the gradient of a bias."""

    name: ClassVar[str] = "channel_sum"
    verb: ClassVar[str] = "grad_bias"

    def infer(self, dy: Spec) -> tuple[Spec, ...]:
        require(len(dy.shape) in (2, 4), "channel_sum: wants (N, C) or (N, C, H, W)", dy)
        return (Spec((dy.shape[1],), dy.dtype),)

    def reference(self, dy, scalars):
        return (dy.sum(axis=(0, 2, 3) if dy.ndim == 4 else 0),)

    def flops(self, ins, outs):
        return ins[0].size
