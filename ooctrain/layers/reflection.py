"""Reflection padding and its gradient.

It maps x (N, C, H, W) to y (N, C, top + H + bottom, left + W + right), mirrored at the outermost
pixels, which are not repeated. Generators of images use it because a border of zeros would be
visible in their output. A tile of an image cannot be padded this way without the pixels that are
mirrored, so there is no tile rule. Read next: `upsample.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.step.op import Op, Sides, Spec, require, require_float


@dataclass(frozen=True, slots=True)
class ReflectionPad2d(Op):
    """Mirrored borders.

    Args:
        padding: (top, bottom, left, right), each less than the image's extent.
    """

    padding: Sides
    name: ClassVar[str] = "reflection_pad2d"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        what = "reflection_pad2d: wants (N, C, H, W) and sides >= 0"
        require(len(x.shape) == 4 and min(self.padding) >= 0, what, x)
        top, bottom, left, right = self.padding
        n, c, h, w = x.shape
        fits = max(top, bottom) < h and max(left, right) < w
        require(fits, f"reflection_pad2d: padding {self.padding} must be less than the image", x)
        return (Spec((n, c, top + h + bottom, left + w + right), x.dtype),)

    def reference(self, x, scalars):
        top, bottom, left, right = self.padding
        return (np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), mode="reflect"),)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(ReflectionPad2dGrad(self.padding), grads, of=ins)

    def flops(self, ins, outs):
        return 0


@dataclass(frozen=True, slots=True)
class ReflectionPad2dGrad(Op):
    """dx: each pixel sums the gradients of all places where it is seen. Reads (dy)."""

    padding: Sides
    name: ClassVar[str] = "reflection_pad2d_grad"
    verb: ClassVar[str] = "grad"

    def infer(self, dy: Spec) -> tuple[Spec, ...]:
        top, bottom, left, right = self.padding
        n, c, h, w = dy.shape
        return (Spec((n, c, h - top - bottom, w - left - right), dy.dtype),)

    def reference(self, dy, scalars):
        top, bottom, left, right = self.padding
        h, w = dy.shape[2:]
        rows = np.pad(np.arange(h - top - bottom), (top, bottom), mode="reflect")
        columns = np.pad(np.arange(w - left - right), (left, right), mode="reflect")
        shown_rows = (rows[:, None] == np.arange(h - top - bottom)).astype(dy.dtype)
        shown_columns = (columns[:, None] == np.arange(w - left - right)).astype(dy.dtype)
        return (shown_rows.T @ dy @ shown_columns,)
