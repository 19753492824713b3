"""Average pooling over windows, and to a given size, with their gradients.

The pooling maps x (N, C, H, W) to y (N, C, OH, OW). A mean is linear, so the gradient distributes
each dy over the cells that were averaged and needs no value of the forward pass. It only has to
know which cells count, that is, whether padding does. Read next: `pooling.py`, which defines the
windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.layers.pooling import PoolGeometry
from ooctrain.step.op import Op, Pair, Spec, require, require_float


@dataclass(frozen=True, slots=True)
class AvgPool2d(Op):
    """y = mean of each window; cells of the padding count unless told otherwise, as in PyTorch."""

    geometry: PoolGeometry
    count_include_pad: bool = True
    name: ClassVar[str] = "avg_pool2d"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        # As in PyTorch; the kernels do not look at it.
        require(self.geometry.dilation == (1, 1), "avg_pool2d: its windows have no dilation", x)
        return (self.geometry.infer(x),)

    def reference(self, x, scalars):
        size = self.geometry.output_size(*x.shape[2:])
        padded = self.geometry.pad(x, 0)
        total = sum(padded[pixels] for _, pixels in self.geometry.cells(size))
        return (total / _cells(self, x.shape[2:]).astype(x.dtype),)

    def vjp(self, tape, ins, outs, grads):
        grad = AvgPool2dGrad(self.geometry, ins[0].shape[2:], self.count_include_pad)
        return tape.call(grad, grads, of=ins)

    def flops(self, ins, outs):
        return outs[0].size * self.geometry.kernel[0] * self.geometry.kernel[1]

    def window(self):
        return self.geometry.windows()


@dataclass(frozen=True, slots=True)
class AvgPool2dGrad(Op):
    """dx: each dy is shared out evenly over the cells that were averaged. Reads (dy).

    Args:
        size: (H, W) of the input.
    """

    geometry: PoolGeometry
    size: Pair
    count_include_pad: bool = True
    name: ClassVar[str] = "avg_pool2d_grad"
    verb: ClassVar[str] = "grad"

    def infer(self, dy: Spec) -> tuple[Spec, ...]:
        return (Spec((*dy.shape[:2], *self.size), dy.dtype),)

    def reference(self, dy, scalars):
        dx = self.geometry.pad(np.zeros((*dy.shape[:2], *self.size), dy.dtype), 0)
        share = dy / _cells(self, self.size).astype(dy.dtype)
        for _, pixels in self.geometry.cells(dy.shape[2:]):
            dx[pixels] += share
        return (self.geometry.crop(dx, self.size),)

    def flops(self, ins, outs):
        return ins[0].size * self.geometry.kernel[0] * self.geometry.kernel[1]


@dataclass(frozen=True, slots=True)
class AdaptiveAvgPool2d(Op):
    """y of size (OH, OW): means over windows [floor(o H / OH), ceil((o + 1) H / OH))."""

    size: Pair
    name: ClassVar[str] = "adaptive_avg_pool2d"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        require(len(x.shape) == 4, "adaptive_avg_pool2d: wants (N, C, H, W)", x)
        require(min(self.size) > 0, f"adaptive_avg_pool2d: {self.size} is not an image size", x)
        return (Spec((*x.shape[:2], *self.size), x.dtype),)

    def reference(self, x, scalars):
        y = np.empty((*x.shape[:2], *self.size), x.dtype)
        for i, j, rows, columns in _adaptive(x.shape[2:], self.size):
            y[:, :, i, j] = x[:, :, rows, columns].mean(axis=(2, 3))
        return (y,)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(AdaptiveAvgPool2dGrad(ins[0].shape[2:]), grads, of=ins)

    def flops(self, ins, outs):
        return ins[0].size


@dataclass(frozen=True, slots=True)
class AdaptiveAvgPool2dGrad(Op):
    """dx: each dy is shared out evenly over its window. Reads (dy).

    Args:
        size: (H, W) of the input.
    """

    size: Pair
    name: ClassVar[str] = "adaptive_avg_pool2d_grad"
    verb: ClassVar[str] = "grad"

    def infer(self, dy: Spec) -> tuple[Spec, ...]:
        return (Spec((*dy.shape[:2], *self.size), dy.dtype),)

    def reference(self, dy, scalars):
        dx = np.zeros((*dy.shape[:2], *self.size), dy.dtype)
        for i, j, rows, columns in _adaptive(self.size, dy.shape[2:]):
            cells = (rows.stop - rows.start) * (columns.stop - columns.start)
            dx[:, :, rows, columns] += dy[:, :, i : i + 1, j : j + 1] / cells
        return (dx,)


def _cells(op: AvgPool2d | AvgPool2dGrad, size: Pair) -> np.ndarray:
    """Number of counted cells of each window, (OH, OW)."""
    g = op.geometry
    output = g.output_size(*size)
    ones = g.pad(np.ones((1, 1, *size)), 1.0 if op.count_include_pad else 0.0)
    return np.sum([ones[pixels] for _, pixels in g.cells(output)], axis=0)[0, 0]


def _adaptive(size: Pair, output: Pair) -> Iterator[tuple[int, int, slice, slice]]:
    for i in range(output[0]):
        for j in range(output[1]):
            yield i, j, _share(i, size[0], output[0]), _share(j, size[1], output[1])


def _share(o: int, extent: int, outputs: int) -> slice:
    return slice(o * extent // outputs, -(-(o + 1) * extent // outputs))
