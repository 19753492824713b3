"""Sums, products, quotients and comparisons of two tensors, with broadcasting; bytes to floats.

The shapes of a and b fit as in NumPy and PyTorch: they are aligned at the last axis, and an axis
that is missing or has extent 1 is repeated. Nothing is repeated in memory; a kernel reads the same
element again. The gradient of a repeated operand is a sum over its repetitions (`reduction.py`).
Sums of two equal shapes are `combine.Add`, which fuses with the operation before it. A comparison
is 1.0 where it holds and 0.0 elsewhere, since no tensor has truth values; a choice between two
tensors is the sum of what is kept of either. `BytesToFloat` turns an image of bytes into floats.
Read next: `permute.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ooctrain.layers.combine import Scale
from ooctrain.layers.reduction import Index, sum_to
from ooctrain.step.op import Op, Spec, elements_apart, require, require_float
from ooctrain.step.rows import PIXEL, SAME, RowRule

Arithmetics = Literal[
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "keep", "drop", "greater",
    "greater_equal", "equal", "share",
]  # fmt: skip
COMPARISONS = ("greater", "greater_equal", "equal", "share")
#: Where NumPy has a function of the name, it is that one. `keep` is a where b is not 0, and `drop`
#: where it is; `share` is how much of the gradient of the larger one a has.
VALUES: Mapping[Arithmetics, Callable[[Any, Any], Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "maximum": np.maximum, "minimum": np.minimum,
    "keep": lambda a, b: np.where(b != 0, a, a.dtype.type(0)),
    "drop": lambda a, b: np.where(b != 0, a.dtype.type(0), a),
    "greater": np.greater, "greater_equal": np.greater_equal, "equal": np.equal,
    "share": lambda a, b: (a > b) + (a == b) / 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Arithmetic(Op):
    """y = a + b, a - b, a * b, a / b, or another function of `VALUES`."""

    function: Arithmetics
    untiled: ClassVar[str] = "it joins several tensors"

    @property
    def name(self) -> str:
        """That of the function."""
        return self.function

    @property
    def may_fail(self) -> bool:
        """Whether its gradients grow without bound: near b = 0 those of a / b do."""
        return self.function == "divide"

    @property
    def has_gradient(self) -> bool:
        """Whether it is more than a comparison."""
        return self.function not in COMPARISONS

    def infer(self, a: Spec, b: Spec) -> tuple[Spec, ...]:
        require_float(self, a, b)
        shape = common_shape(a.shape, b.shape)
        require(shape is not None, f"{self.function}: the shapes do not fit", a, b)
        return (Spec(shape or (), a.dtype),)

    def reference(self, a, b, scalars):
        with np.errstate(divide="ignore", invalid="ignore"):
            return (np.asarray(VALUES[self.function](a, b), a.dtype),)

    def vjp(self, tape, ins, outs, grads):
        (a, b), (dy,) = ins, grads
        match self.function:
            case "add":
                return sum_to(tape, dy, a), sum_to(tape, dy, b)
            case "subtract":
                return sum_to(tape, dy, a), _negative_sum(tape, dy, b)
            case "multiply":
                return _product_sum(tape, "multiply", dy, b, a), _product_sum(
                    tape, "multiply", dy, a, b
                )
            case "maximum":
                return _share_sum(tape, dy, a, b, a), _share_sum(tape, dy, b, a, b)
            case "minimum":
                return _share_sum(tape, dy, b, a, a), _share_sum(tape, dy, a, b, b)
            case "keep" | "drop":
                return _product_sum(tape, self.function, dy, b, a), None
        # d(a / b) = da / b - db y / b
        da = _product_sum(tape, "divide", dy, b, a)
        share = tape.gradient(Arithmetic("divide"), (outs[0], b), of=b)
        if share is None:
            return da, None
        each = tape.gradient(Arithmetic("multiply"), (dy, share), of=b)
        return da, _negative_sum(tape, each, b)

    def row_rule(self, ins):
        # Of two images, or of an image and what is repeated along its rows: weights of a loss.
        image, b = ins[0].shape, ins[1].shape
        if len(b) == 4 and b[2] == image[2]:
            return RowRule((SAME, SAME), lambda place: self) if b[0] == image[0] else None
        if len(b) == 4 and b[0] > 1:
            of_image = RowRule((SAME, None), lambda place: self, of_image=(1,))
            return of_image if b[2:] == (1, 1) else None
        return RowRule((SAME, None), lambda place: self) if len(b) < 2 or b[-2] == 1 else None

    def samples_apart(self, read, ins, outs, count):
        return elements_apart(read, ins)


def common_shape(a: Index, b: Index) -> Index | None:
    """The shape that both are repeated to; None where they do not fit."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    extents = [(m, n) for m, n in pairs]
    if any(m != n and 1 not in (m, n) for m, n in extents):
        return None
    return tuple(n if m == 1 else m for m, n in extents)


def _share_sum(tape, dy, larger, smaller, of):
    """The gradient of one of two numbers that are compared; equal ones have half each."""
    share = tape.gradient(Arithmetic("share"), (larger, smaller), of=of)
    return None if share is None else _product_sum(tape, "multiply", dy, share, of)


def _product_sum(tape, function: Arithmetics, dy, other, of):
    """The gradient of one factor."""
    each = tape.gradient(Arithmetic(function), (dy, other), of=of)
    return None if each is None else sum_to(tape, each, of)


def _negative_sum(tape, gradient, of):
    found = sum_to(tape, gradient, of)
    return None if found is None else tape.gradient(Scale(-1.0), (found,), of=of)


@dataclass(frozen=True, slots=True)
class BytesToFloat(Op):
    """y = (x - mean) / std of pixels as bytes, uint8, which have no gradient.

    `mean` and `std` are numbers, or both have one for each channel (axis 1).

    An image is stored, moved and kept as bytes, a quarter of what floats take, and becomes floats
    on the device, where they are read. One subtraction and one division, so that all devices give
    the same bits. Such images come from `data/row_image.py`.
    """

    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 255.0
    name: ClassVar[str] = "from_bytes"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        if isinstance(self.mean, tuple):
            channels = x.shape[1] if len(x.shape) > 1 else 1
            what = f"from_bytes has {len(self.mean)} means for {channels} channels"
            require(len(self.mean) == channels, what, x, fix="one mean for each channel, or one")
        what = f"from_bytes wants uint8, got {x.dtype}"
        require(x.dtype == "uint8", what, x, fix="leave the operation out for float32 images")
        return (Spec(x.shape),)

    def reference(self, x, scalars):
        axes = (1,) * (x.ndim - 2)
        mean, std = (
            np.asarray(v, np.float32).reshape(-1, *axes) if isinstance(v, tuple) else np.float32(v)
            for v in (self.mean, self.std)
        )
        return ((x.astype(np.float32) - mean) / std,)

    def vjp(self, tape, ins, outs, grads):
        return [None]

    def flops(self, ins, outs):
        return 2 * outs[0].size

    def window(self):
        return PIXEL

    def samples_apart(self, read, ins, outs, count):
        return elements_apart(read, ins)
