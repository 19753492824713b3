"""A sum over some axes has a spread along these axes as its gradient, which is true in reverse too.

A sum leaves extent 1 along the axes that it reduces; a spread repeats one value along them. One
call sums axes that are adjacent in memory, so that it is always (outer, rows, inner) -> (outer,
inner). Axes that are not adjacent are summed by several calls in sequence (`groups_of_axes`). Read
next: `arithmetic.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ooctrain.layers.layout import Reshape
from ooctrain.step.op import Op, Spec, require, require_float
from ooctrain.step.rows import SAME, RowPlace, RowRule

Index = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sum(Op):
    """y = factor * the sum of x over `axes`, each of which stays with extent 1.

    Args:
        axes: ascending, side by side in memory (axes of extent 1 do not count).
        factor: 1 / (the number of summands) for a mean.
    """

    axes: Index
    factor: float = 1.0
    name: ClassVar[str] = "sum"
    untiled: ClassVar[str] = "it adds up pixels of the whole image"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        inside = all(0 <= axis < len(x.shape) for axis in self.axes)
        require(inside, f"sum: no axes {self.axes}", x)
        together = len(groups_of_axes(x.shape, self.axes)) <= 1
        require(together, f"sum: axes {self.axes} do not lie side by side in memory", x)
        return (Spec(_with_ones(x.shape, self.axes), x.dtype),)

    def reference(self, x, scalars):
        return (x.sum(axis=self.axes, keepdims=True) * x.dtype.type(self.factor),)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(Spread(ins[0].shape, self.factor), grads, of=ins)

    def flops(self, ins, outs):
        return ins[0].size

    def extents(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """(outer, rows, inner) of an input of a logical shape, in memory."""
        order = memory_order(shape)
        places = [order.index(axis) for axis in self.axes if shape[axis] > 1]
        first, last = (min(places), max(places) + 1) if places else (len(order), len(order))
        extents = [shape[axis] for axis in order]
        return math.prod(extents[:first]), math.prod(extents[first:last]), math.prod(extents[last:])

    def row_rule(self, ins):
        # Of rows: over all images, or of each image by itself.
        if 2 not in self.axes:
            return None
        adds = 0 in self.axes
        return RowRule((SAME,), lambda place: self, reduces=True, adds_images=adds)

    def samples_apart(self, read, ins, outs, count):
        return 0 not in self.axes


@dataclass(frozen=True, slots=True)
class Spread(Op):
    """y = factor * x, repeated along the axes where x has extent 1 and `shape` has more."""

    shape: Index
    factor: float = 1.0
    name: ClassVar[str] = "spread"
    untiled: ClassVar[str] = "it repeats what has no rows and columns of the image"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        fits = len(x.shape) == len(self.shape) and all(
            a in (1, b) for a, b in zip(x.shape, self.shape, strict=True)
        )
        require(fits, f"spread: the input cannot be repeated to {self.shape}", x)
        return (Spec(self.shape, x.dtype),)

    def reference(self, x, scalars):
        return (np.broadcast_to(x, self.shape) * x.dtype.type(self.factor),)

    def vjp(self, tape, ins, outs, grads):
        return (sum_to(tape, grads[0], ins[0], self.factor),)

    def row_rule(self, ins):
        # Of one number for all rows; a value that has rows already is not repeated along them.
        if ins[0].shape[2] > 1 or len(self.shape) != 4:
            return None
        return RowRule((None,), self.on_rows, of_image=(0,) if ins[0].shape[0] > 1 else ())

    def on_rows(self, place: RowPlace) -> Spread:
        """One number for each channel, repeated over a band."""
        _, c, _, w = place.full
        return Spread((1, c, place.rows.extent, w), self.factor)

    def samples_apart(self, read, ins, outs, count):
        return ins[0][0] == outs[0][0]


def sum_over(call: Callable[[Op, Any], Any], x: Any, axes: Sequence[int], factor: float) -> Any:
    """Records factor * the sum of x over axes, which stay with extent 1.

    Args:
        call: records (operation, input); returns its output, or None.
    """
    groups = groups_of_axes(x.shape, axes) or [()]
    for group in groups[:-1]:
        x = None if x is None else call(Sum(group), x)
    return None if x is None else call(Sum(groups[-1], factor), x)


def sum_to(tape: Any, gradient: Any, of: Any, factor: float = 1.0) -> Any:
    """Records the gradient of an operand that was repeated (as NumPy repeats): the sum over all
    places where it was seen. None where it is not needed.
    """

    def call(op: Op, x: Any) -> Any:
        return tape.gradient(op, (x,), of=of)

    more = gradient.ndim - of.ndim
    axes = [
        axis
        for axis, extent in enumerate(gradient.shape)
        if extent > 1 and (axis < more or of.shape[axis - more] == 1)
    ]
    if axes or factor != 1:
        gradient = sum_over(call, gradient, axes, factor)
    if gradient is not None and gradient.shape != of.shape:
        gradient = call(Reshape(gradient.shape, of.shape), gradient)
    return gradient


def memory_order(shape: Sequence[int]) -> Index:
    """The logical axes in the order in which they lie in memory."""
    return (0, 2, 3, 1) if len(shape) == 4 else tuple(range(len(shape)))


def groups_of_axes(shape: Sequence[int], axes: Sequence[int]) -> list[Index]:
    """The axes of more than one element in groups that lie side by side in memory."""
    groups: list[list[int]] = []
    beside = False
    for axis in memory_order(shape):
        if shape[axis] == 1:
            continue
        if axis in axes:
            groups = [*groups[:-1], [*groups[-1], axis]] if beside else [*groups, [axis]]
        beside = axis in axes
    return [tuple(sorted(group)) for group in groups]


def _with_ones(shape: Sequence[int], axes: Sequence[int]) -> Index:
    return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))


# The gradient of a bias: one value is added everywhere, so its gradient is summed from everywhere,
# dy (N, K, H, W) or (N, K) to db (K). Every layer with a bias, linear or convolution, has it.


@dataclass(frozen=True, slots=True)
class ChannelSum(Op):
    """db[k] = sum of dy over all but the channel axis: the gradient of a bias."""

    name: ClassVar[str] = "channel_sum"
    verb: ClassVar[str] = "grad_bias"
    carries: ClassVar[Literal["batch"]] = "batch"
    untiled: ClassVar[str] = "it adds images of one pixel in one block"

    def infer(self, dy: Spec) -> tuple[Spec, ...]:
        require(len(dy.shape) in (2, 4), "channel_sum: wants (N, C) or (N, C, H, W)", dy)
        return (Spec((dy.shape[1],), dy.dtype),)

    def reference(self, dy, scalars):
        return (dy.sum(axis=(0, 2, 3) if dy.ndim == 4 else 0),)

    def flops(self, ins, outs):
        return ins[0].size

    def row_rule(self, ins):
        # Where images are one pixel each, blocks of the sum hold pixels of several.
        n, _, h, w = ins[0].shape
        pixels = n == 1 or h * w > 1
        return RowRule((SAME,), lambda place: self, reduces=True) if pixels else None
