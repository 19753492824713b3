"""ReLU, leaky ReLU and their gradient: the smallest operations, to be read first.

Input and output have the same shape, which may be any. The gradient reads the *output* y, because y
> 0 exactly where x > 0. So x need not be kept, and y may overwrite it (paper 004, section 4.2,
"in-place ReLU"). Read next: `linear.py`, then `conv2d.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.step.op import Op, Spec, elements_apart, require, require_float
from ooctrain.step.rows import PIXEL


class Pointwise(Op):
    """y = f(x), element by element: y may overwrite x, and a tile of y needs that tile of x."""

    __slots__ = ()
    reuses: ClassVar[Mapping[int, int]] = {0: 0}

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        return (x,)

    def window(self):
        return PIXEL

    def samples_apart(self, read, ins, outs, count):
        return elements_apart(read, ins)


class PointwiseGrad(Pointwise):
    """dx = dy f', where f' is a function of y. Reads (dy, y)."""

    __slots__ = ()
    verb: ClassVar[str] = "grad"

    def infer(self, dy: Spec, y: Spec) -> tuple[Spec, ...]:
        what = f"{self.name.removesuffix('_grad')}: gradient and output differ in shape"
        require(dy.shape == y.shape, what, dy, y)
        return (dy,)


@dataclass(frozen=True, slots=True)
class ReLU(Pointwise):
    """y = max(x, 0)."""

    name: ClassVar[str] = "relu"

    def reference(self, x, scalars):
        return (np.where(x < 0, x.dtype.type(0), x),)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(ReLUGrad(), (grads[0], outs[0]), of=ins)


@dataclass(frozen=True, slots=True)
class ReLUGrad(PointwiseGrad):
    """dx = dy where y > 0, else 0. Reads (dy, y)."""

    name: ClassVar[str] = "relu_grad"

    def reference(self, dy, y, scalars):
        return (where_positive(y, dy),)


@dataclass(frozen=True, slots=True)
class LeakyReLU(Pointwise):
    """y = x where x > 0, else slope * x; slope > 0, so that y has the sign of x."""

    slope: float = 0.01
    name: ClassVar[str] = "leaky_relu"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        what = f"leaky_relu: slope {self.slope} must be positive"
        require(self.slope > 0, what, fix="for slope 0 use relu")
        return (x,)

    def reference(self, x, scalars):
        return (np.where(x > 0, x, x * x.dtype.type(self.slope)),)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(LeakyReLUGrad(self.slope), (grads[0], outs[0]), of=ins)


@dataclass(frozen=True, slots=True)
class LeakyReLUGrad(PointwiseGrad):
    """dx = dy where y > 0, else slope * dy. Reads (dy, y)."""

    slope: float = 0.01
    name: ClassVar[str] = "leaky_relu_grad"

    def reference(self, dy, y, scalars):
        return (np.where(y > 0, dy, dy * dy.dtype.type(self.slope)),)


def where_positive(y: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """dy where y > 0, else 0: what a ReLU lets through of a gradient."""
    return np.where(y > 0, dy, dy.dtype.type(0))
