"""Transposed convolution: the gradient of a convolution's input, used forwards to enlarge images.

It maps x (N, K, H, W), W (K, C / groups, R, S) and b (C) to y (N, C, OH, OW), and needs no kernel
of its own. It computes what `Conv2dGradInput` computes, its own input gradient is the convolution,
and its weight gradient is that of the convolution with input and gradient exchanged. PyTorch's
weight layout is chosen so that the same W serves both. Source: Dumoulin and Visin 2016, chapter 4.
Read next: `resampling.py`, the other way to enlarge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ooctrain.layers.conv2d import (
    Conv2d,
    Conv2dGradInput,
    Conv2dGradWeight,
    Convolution,
    Geometry,
    conv_shape,
)
from ooctrain.layers.reduction import ChannelSum
from ooctrain.step.op import Pair, Spec, require, require_float
from ooctrain.step.rows import RowRule, RowsRead


@dataclass(frozen=True, slots=True)
class ConvTranspose2d(Convolution):
    """Every x is spread by W over the pixels that a convolution's window would read [+ b].

    Args:
        geometry: geometry of the convolution that leads back from y to x.
        kernel: (R, S).
        size: (OH, OW), one of the sizes that this convolution takes to (H, W).
        algorithm: algorithm of the three convolutions, as in `Conv2d`.
    """

    geometry: Geometry
    kernel: Pair
    size: Pair
    algorithm: str = "im2col"
    name: ClassVar[str] = "conv_transpose2d"
    by_image: ClassVar[bool] = True

    def infer(self, x: Spec, w: Spec, *bias: Spec) -> tuple[Spec, ...]:
        require_float(self, x, w, *bias)
        require(len(x.shape) == 4, "conv_transpose2d: the input must be (N, K, H, W)", x, w)
        fits = len(w.shape) == 4 and w.shape[2:] == self.kernel and w.shape[0] == x.shape[1]
        what = f"conv_transpose2d: the weight must be ({x.shape[1]}, C / groups, R, S)"
        require(fits, what, x, w)
        channels = w.shape[1] * self.geometry.groups
        fits = all(b.shape == (channels,) for b in bias)
        require(fits, "conv_transpose2d: bias does not fit the weight", w, *bias)
        shape = conv_shape(self.geometry, (x.shape[0], channels, *self.size), w.shape)
        what = f"a convolution does not lead from {self.size} to {x.shape[2:]}"
        fix = "output_padding must be less than stride or dilation"
        fits = (shape.oh, shape.ow) == x.shape[2:]
        require(fits, f"conv_transpose2d: {what}", x, w, fix=fix)
        return (Spec((x.shape[0], channels, *self.size), x.dtype),)

    def reference(self, x, w, *bias, scalars):
        spread = Conv2dGradInput(self.geometry, self.size, self.algorithm)
        (y,) = spread.reference(x, w, scalars=scalars)
        return (y + bias[0][:, None, None] if bias else y,)

    def vjp(self, tape, ins, outs, grads):
        x, w, *bias = ins
        (dy,) = grads
        grad_weight = Conv2dGradWeight(self.geometry, self.kernel, self.algorithm)
        grad_input = Conv2d(self.geometry, self.kernel, self.algorithm)
        dw = tape.gradient(grad_weight, (dy, x), of=w)
        db = [tape.gradient(ChannelSum(), (dy,), of=b) for b in bias]
        dx = tape.gradient(grad_input, (dy, w), of=x)
        return dx, dw, *db

    def image_and_weight(self, ins, outs):
        return outs[0], ins[1]

    def row_rule(self, ins):
        # As the gradient of a convolution in its input; its own gradients are a convolution's.
        rows, _ = self.geometry.windows(*self.kernel)
        others = (None,) * (len(ins) - 1)
        return RowRule((RowsRead(rows, gathers=True), *others), self.giving_rows)
