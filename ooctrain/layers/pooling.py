"""Pooling: each window of an image becomes one value, its maximum or its mean.

The operations map x (N, C, H, W) to y (N, C, OH, OW). Padding has four sides, so that a tile is
padded only at the border of the image. Read next: `resampling.py`; `kernels/cpu/pooling.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ooctrain.layers.reduction import Spread, Sum
from ooctrain.step.op import Op, OverWindows, Pair, Sides, Spec, require, require_float
from ooctrain.step.rows import SAME, RowRule, RowsRead, Window
from ooctrain.step.trace import Kind

MOST_CELLS = 256  # positions in a window are stored in one byte


@dataclass(frozen=True, slots=True)
class PoolGeometry:
    """Windows of a pooling.

    Args:
        kernel, stride: (rows, columns).
        padding: padding of the four sides, each less than the window's extent.
        dilation: rows and columns from cell to cell of a window.
    """

    kernel: Pair
    stride: Pair
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)

    @property
    def extent(self) -> Pair:
        """Rows and columns that a window spans."""
        (rows, columns), (down, right) = self.kernel, self.dilation
        return (rows - 1) * down + 1, (columns - 1) * right + 1

    def output_size(self, height: int, width: int) -> Pair:
        """(OH, OW)."""
        top, bottom, left, right = self.padding
        rows = (height + top + bottom - self.extent[0]) // self.stride[0] + 1
        return rows, (width + left + right - self.extent[1]) // self.stride[1] + 1

    def rounded_up(self, height: int, width: int) -> PoolGeometry:
        """The same windows and, below and to the right, those that only begin in the image.

        PyTorch's ceil_mode, as padding: a window that would begin in the padding is left out.
        """
        top, bottom, left, right = self.padding
        bottom = _enough(height, top, bottom, self.extent[0], self.stride[0])
        right = _enough(width, left, right, self.extent[1], self.stride[1])
        return replace(self, padding=(top, bottom, left, right))

    def infer(self, x: Spec) -> Spec:
        """Shape of the output. Raises ShapeError where windows do not fit."""
        require(len(x.shape) == 4, "pooling: wants (N, C, H, W)", x)
        top, bottom, left, right = self.padding
        fits = max(top, bottom) < self.extent[0] and max(left, right) < self.extent[1]
        positive = min(*self.stride, *self.dilation, *self.kernel) > 0
        require(positive, "pooling: kernel, stride and dilation are at least 1", x)
        require(fits, f"pooling: padding {self.padding} needs a larger kernel", x)
        size = self.output_size(*x.shape[2:])
        what = f"pooling: the window {self.kernel} is larger than the padded image"
        require(min(size) > 0, what, x, fix="a larger image, --image-size on the command line")
        return Spec((*x.shape[:2], *size), x.dtype)

    def windows(self) -> tuple[Window, Window]:
        """The tile rule in rows and columns."""
        top, bottom, left, right = self.padding
        rows = Window(self.kernel[0], self.stride[0], self.dilation[0], top, bottom)
        return rows, Window(self.kernel[1], self.stride[1], self.dilation[1], left, right)

    def cells(self, size: Pair) -> Iterator[tuple[int, tuple[slice, ...]]]:
        """For each position in the window, the padded pixels that sit there."""
        for r in range(self.kernel[0]):
            for s in range(self.kernel[1]):
                down, right = r * self.dilation[0], s * self.dilation[1]
                rows = slice(down, down + (size[0] - 1) * self.stride[0] + 1, self.stride[0])
                columns = slice(right, right + (size[1] - 1) * self.stride[1] + 1, self.stride[1])
                yield r * self.kernel[1] + s, (slice(None), slice(None), rows, columns)

    def pad(self, x: np.ndarray, value: float) -> np.ndarray:
        """x with a border of `value`."""
        top, bottom, left, right = self.padding
        return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)

    def crop(self, padded: np.ndarray, size: Pair) -> np.ndarray:
        """The image without its border."""
        top, _, left, _ = self.padding
        return padded[:, :, top : top + size[0], left : left + size[1]].copy()


# Max pooling also gives the place of each maximum in its window, one byte per output (r * S + s).
# The gradient needs these bytes only: neither x nor y is kept.


@dataclass(frozen=True, slots=True)
class MaxPool2d(OverWindows):
    """y = maximum of each window; the first of equal ones counts."""

    geometry: PoolGeometry
    name: ClassVar[str] = "max_pool2d"
    out_names: ClassVar[tuple[str, ...]] = ("out", "index")
    out_kinds: ClassVar[tuple[Kind, ...]] = ("activation", "aux")

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        rows, columns = self.geometry.kernel
        require(
            rows * columns <= MOST_CELLS, f"max_pool2d: windows have at most {MOST_CELLS} cells", x
        )
        y = self.geometry.infer(x)
        return y, Spec(y.shape, "uint8")

    def reference(self, x, scalars):
        size = self.geometry.output_size(*x.shape[2:])
        padded = self.geometry.pad(x, -np.inf)
        cells = np.stack([padded[pixels] for _, pixels in self.geometry.cells(size)])
        return cells.max(axis=0), cells.argmax(axis=0).astype(np.uint8)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(
            MaxPool2dGrad(self.geometry, ins[0].shape[2:]), (grads[0], outs[1]), of=ins
        )

    def flops(self, ins, outs):
        return outs[0].size * self.geometry.kernel[0] * self.geometry.kernel[1]

    def window(self):
        return self.geometry.windows()


@dataclass(frozen=True, slots=True)
class MaxPool2dGrad(OverWindows):
    """dx: each dy goes to where the maximum sat. Reads (dy, index).

    Args:
        size: (H, W) of the input.
    """

    geometry: PoolGeometry
    size: Pair
    name: ClassVar[str] = "max_pool2d_grad"
    verb: ClassVar[str] = "grad"

    def infer(self, dy: Spec, index: Spec) -> tuple[Spec, ...]:
        require(
            dy.shape == index.shape, "max_pool2d: gradient and indices differ in shape", dy, index
        )
        return (Spec((*dy.shape[:2], *self.size), dy.dtype),)

    def reference(self, dy, index, scalars):
        dx = self.geometry.pad(np.zeros((*dy.shape[:2], *self.size), dy.dtype), 0)
        for cell, pixels in self.geometry.cells(dy.shape[2:]):
            dx[pixels] += np.where(index == cell, dy, dy.dtype.type(0))
        return (self.geometry.crop(dx, self.size),)

    def flops(self, ins, outs):
        return ins[0].size * self.geometry.kernel[0] * self.geometry.kernel[1]

    def row_rule(self, ins):
        gathered = RowsRead(self.geometry.windows()[0], gathers=True)
        return RowRule((gathered, gathered), self.giving_rows)


def _enough(extent: int, before: int, after: int, window: int, stride: int) -> int:
    """Padding behind with which the last window that begins in the image is whole."""
    outputs = -(-(extent + before + after - window) // stride) + 1
    if (outputs - 1) * stride >= extent + before:
        outputs -= 1
    return max(after, (outputs - 1) * stride + window - extent - before)


# Average pooling, over windows or to a given size. A mean is linear, so the gradient distributes
# each dy over the cells that were averaged and needs no value of the forward pass. It only has to
# know which cells count, that is, whether padding does.


@dataclass(frozen=True, slots=True)
class AvgPool2d(OverWindows):
    """y = mean of each window; cells of the padding count by default, as in PyTorch."""

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
class AvgPool2dGrad(OverWindows):
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

    def row_rule(self, ins):
        if not self.count_include_pad and any(self.geometry.padding):
            return None  # a window counts its cells in the image, and a band does not see them all
        gathered = RowsRead(self.geometry.windows()[0], gathers=True)
        return RowRule(
            (gathered,), lambda place: replace(self.giving_rows(place), count_include_pad=True)
        )


@dataclass(frozen=True, slots=True)
class AdaptiveAvgPool2d(Op):
    """y of size (OH, OW): means over windows [floor(o H / OH), ceil((o + 1) H / OH))."""

    size: Pair
    name: ClassVar[str] = "adaptive_avg_pool2d"
    by_image: ClassVar[bool] = True
    untiled: ClassVar[str] = "its windows have no fixed stride"

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

    def row_rule(self, ins):
        # Global average pooling is a sum over all rows of an image, divided by its pixels.
        if self.size != (1, 1):
            return None
        mean = Sum((2, 3), 1 / math.prod(ins[0].shape[2:]))
        return RowRule((SAME,), lambda place: mean, reduces=True, adds_images=False)


@dataclass(frozen=True, slots=True)
class AdaptiveAvgPool2dGrad(Op):
    """dx: each dy is shared out evenly over its window. Reads (dy).

    Args:
        size: (H, W) of the input.
    """

    size: Pair
    name: ClassVar[str] = "adaptive_avg_pool2d_grad"
    verb: ClassVar[str] = "grad"
    untiled: ClassVar[str] = "its windows have no fixed stride"

    def infer(self, dy: Spec) -> tuple[Spec, ...]:
        return (Spec((*dy.shape[:2], *self.size), dy.dtype),)

    def reference(self, dy, scalars):
        dx = np.zeros((*dy.shape[:2], *self.size), dy.dtype)
        for i, j, rows, columns in _adaptive(self.size, dy.shape[2:]):
            cells = (rows.stop - rows.start) * (columns.stop - columns.start)
            dx[:, :, rows, columns] += dy[:, :, i : i + 1, j : j + 1] / cells
        return (dx,)

    def row_rule(self, ins):
        if ins[0].shape[2:] != (1, 1):
            return None
        share = Spread(ins[0].shape, 1 / math.prod(self.size))
        return RowRule((None,), share.on_rows, of_image=(0,))


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
