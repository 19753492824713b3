"""The same elements in another shape, or with zeros around them.

A reshape keeps the logical (N, C, H, W) order. Although memory is channels-last, nothing moves when
H * W = 1 or C = 1, where both orders agree. A reshape from one 4-d shape to another goes through
the workspace: to logical order first, and then to the new channels-last order. Read next:
`pooling.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ooctrain.layers.regions import Index, Slice
from ooctrain.step.op import Op, Sides, Spec, require, require_float
from ooctrain.step.rows import Window


@dataclass(frozen=True, slots=True)
class Reshape(Op):
    """The same elements, in logical order, under another shape.

    Args:
        source: shape of the input (part of the operation: whether memory moves depends on it).
        shape: shape of the output.
    """

    source: Index
    shape: Index
    name: ClassVar[str] = "reshape"
    untiled: ClassVar[str] = "its output has no rows and columns of the image"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require(x.shape == self.source, f"reshape: made for shape {self.source}", x)
        fits = math.prod(self.shape) == x.size and all(extent >= 0 for extent in self.shape)
        require(fits, f"reshape: {x.size} elements do not fit shape {self.shape}", x)
        return (Spec(self.shape, x.dtype),)

    def reference(self, x, scalars):
        return (x.reshape(self.shape).copy(),)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(Reshape(self.shape, self.source), grads, of=ins)

    @property
    def keeps_memory_order(self) -> bool:
        """Whether channels-last order and logical order agree on both sides."""
        return self.source == self.shape or all(map(logical_in_memory, (self.source, self.shape)))

    @property
    def goes_by_logical_order(self) -> bool:
        """Whether a copy in logical order lies between two channels-last ones."""
        both_4d = not any(map(logical_in_memory, (self.source, self.shape)))
        return both_4d and not self.keeps_memory_order

    def flops(self, ins, outs):
        return 0

    def reusable(self):
        return {0: 0} if self.keeps_memory_order else {}

    def samples_apart(self, read, ins, outs, count):
        return all(shape and shape[0] % count == 0 for shape in (*ins, *outs))


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

    def vjp(self, tape, ins, outs, grads):
        start = (0, 0, self.padding[0], self.padding[2])
        return tape.call(Slice(outs[0].shape, start, ins[0].shape), grads, of=ins)

    def flops(self, ins, outs):
        return 0

    def window(self):
        top, bottom, left, right = self.padding
        return Window(pad_lo=top, pad_hi=bottom), Window(pad_lo=left, pad_hi=right)

    def with_padding(self, padding: Sides) -> Pad:
        """The same operation with other sides."""
        return replace(self, padding=padding)


@dataclass(frozen=True, slots=True)
class ConstantPad(Op):
    """As `Pad`, with another value than zero around the image."""

    padding: tuple[int, int, int, int]
    value: float
    name: ClassVar[str] = "constant_pad"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        return Pad(self.padding).infer(x)

    def reference(self, x, scalars):
        top, bottom, left, right = self.padding
        sides = (0, 0), (0, 0), (top, bottom), (left, right)
        return (np.pad(x, sides, constant_values=x.dtype.type(self.value)),)

    def vjp(self, tape, ins, outs, grads):
        return Pad(self.padding).vjp(tape, ins, outs, grads)

    def flops(self, ins, outs):
        return 0

    def window(self):
        top, bottom, left, right = self.padding
        return Window(pad_lo=top, pad_hi=bottom), Window(pad_lo=left, pad_hi=right)

    def with_padding(self, padding: Sides) -> ConstantPad:
        """The same operation with other sides."""
        return replace(self, padding=padding)


def logical_in_memory(shape: Index) -> bool:
    """Whether a variable of this shape lies in logical order, although 4-d is channels-last."""
    return len(shape) != 4 or shape[1] == 1 or shape[2] * shape[3] == 1
