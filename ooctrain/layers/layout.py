"""The same elements in another shape, or with zeros around them.

In: a tensor. Out: a reshaped or a padded one. The one idea: a reshape keeps the logical (N, C, H,
W) order; in memory, channels-last, it moves nothing when H * W = 1 or C = 1. From one 4-d shape to
another it goes by way of the workspace: to logical order, and from there to the new channels-last
order. Read next: `pooling.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.layers.regions import Index, Slice, copy_unless_same
from ooctrain.step.op import Op, Spec, require, require_float, to_logical


@dataclass(frozen=True, slots=True)
class Reshape(Op):
    """The same elements, in logical order, under another shape.

    Args:
        source: shape of the input (part of the operation: whether memory moves depends on it).
        shape: of the output.
    """

    source: Index
    shape: Index
    name: ClassVar[str] = "reshape"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require(x.shape == self.source, f"reshape: made for shape {self.source}", x)
        fits = math.prod(self.shape) == x.size and all(extent >= 0 for extent in self.shape)
        require(fits, f"reshape: {x.size} elements do not fit shape {self.shape}", x)
        return (Spec(self.shape, x.dtype),)

    def reference(self, x, scalars):
        return (x.reshape(self.shape).copy(),)

    def cpu(self, pool, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cpu import layout

        x, y = ins[0], outs[0]
        if self.keeps_memory_order:
            copy_unless_same(x, y)
        elif x.dtype != np.float32:
            # The kernels know float32 only; images of whole numbers are rare: NumPy copies them.
            to_logical(y)[...] = to_logical(x).reshape(self.shape)
        elif _logical_in_memory(self.source):
            layout.nchw_to_nhwc(pool, x.reshape(self.shape), y)
        elif _logical_in_memory(self.shape):
            layout.nhwc_to_nchw(pool, x, y.reshape(self.source))
        else:
            logical = workspace[: x.nbytes].view(x.dtype)
            layout.nhwc_to_nchw(pool, x, logical.reshape(self.source))
            layout.nchw_to_nhwc(pool, logical.reshape(self.shape), y)

    def cuda(self, launcher, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cuda import layout, regions

        if self.keeps_memory_order:
            regions.copy_unless_same(launcher, ins[0], outs[0])
        elif _logical_in_memory(self.source):
            layout.nchw_to_nhwc(launcher, ins[0], outs[0])
        elif _logical_in_memory(self.shape):
            layout.nhwc_to_nchw(launcher, ins[0], outs[0])
        else:
            logical = launcher.part(workspace, 0, ins[0].size, "float32")
            layout.nhwc_to_nchw(launcher, ins[0], logical)
            layout.nchw_to_nhwc(launcher, logical, outs[0])

    def workspace_bytes(self, ins, outs, threads):
        return self._logical_bytes(ins[0])

    def cuda_workspace_bytes(self, ins, outs):
        return self._logical_bytes(ins[0])

    def vjp(self, tape, ins, outs, grads):
        return tape.call(Reshape(self.shape, self.source), grads, of=ins)

    @property
    def keeps_memory_order(self) -> bool:
        """Whether channels-last order and logical order agree on both sides."""
        return self.source == self.shape or all(map(_logical_in_memory, (self.source, self.shape)))

    def flops(self, ins, outs):
        return 0

    def reusable(self):
        return {0: 0} if self.keeps_memory_order else {}

    def _logical_bytes(self, x: Spec) -> int:
        """Size of the copy in logical order that lies between two channels-last ones."""
        both_4d = not any(map(_logical_in_memory, (self.source, self.shape)))
        return x.nbytes if both_4d and not self.keeps_memory_order else 0


@dataclass(frozen=True, slots=True)
class Pad(Op):
    """Zero padding of (N, C, H, W) by `padding` = (top, bottom, left, right)."""

    padding: tuple[int, int, int, int]
    name: ClassVar[str] = "pad"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        require(
            len(x.shape) == 4 and min(self.padding) >= 0,
            "pad: wants (N, C, H, W) and sides >= 0",
            x,
        )
        n, c, h, w = x.shape
        top, bottom, left, right = self.padding
        return (Spec((n, c, h + top + bottom, w + left + right), x.dtype),)

    def reference(self, x, scalars):
        top, bottom, left, right = self.padding
        return (np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))),)

    def cpu(self, pool, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cpu import layout

        layout.pad_nhwc(pool, ins[0], outs[0], *self.padding)

    def cuda(self, launcher, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cuda import layout

        layout.pad_nhwc(launcher, ins[0], outs[0], *self.padding)

    def vjp(self, tape, ins, outs, grads):
        start = (0, 0, self.padding[0], self.padding[2])
        return tape.call(Slice(outs[0].shape, start, ins[0].shape), grads, of=ins)

    def flops(self, ins, outs):
        return 0


def _logical_in_memory(shape: Index) -> bool:
    """Whether a variable of this shape lies in logical order, although 4-d is channels-last."""
    return len(shape) != 4 or shape[1] == 1 or shape[2] * shape[3] == 1
