"""Linear layers: y = x W^T + b, and the two products of its gradient; products of any matrices.

The shapes are x (N, C), W (K, C) as in PyTorch, b (K) and y (N, K). All three products are separate
calls, so that a planner sees what each one reads: the input gradient needs W, the weight gradient
needs x. The same three, of two tensors that are computed and of many pairs of matrices at once, are
one operation, `MatMul`: the gradients of each are two of them. Read next: `conv2d.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ooctrain.layers.reduction import ChannelSum
from ooctrain.step.op import Op, Spec, require, require_float


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """y = x W^T [+ b]. Reads (x, W[, b])."""

    name: ClassVar[str] = "linear"
    by_image: ClassVar[bool] = True
    untiled: ClassVar[str] = "it reads all pixels of an image for each output"

    def infer(self, x: Spec, w: Spec, *bias: Spec) -> tuple[Spec, ...]:
        require_float(self, x, w, *bias)
        require(len(x.shape) == 2, "linear: the input must be (N, C)", x, w, fix="flatten it first")
        require(len(w.shape) == 2, "linear: the weight must be (K, C)", x, w)
        what = f"linear: {x.shape[1]} features in, weight wants {w.shape[1]}"
        require(x.shape[1] == w.shape[1], what, x, w)
        fits = all(b.shape == w.shape[:1] for b in bias)
        require(fits, "linear: bias does not fit the weight", w, *bias)
        return (Spec((x.shape[0], w.shape[0]), x.dtype),)

    def reference(self, x, w, *bias, scalars):
        return (x @ w.T + (bias[0] if bias else 0),)

    def vjp(self, tape, ins, outs, grads):
        x, w, *bias = ins
        (dy,) = grads
        # The weight first: then x may go before room for dx is needed.
        dw = tape.gradient(LinearGradWeight(), (x, dy), of=w)
        db = [tape.gradient(ChannelSum(), (dy,), of=b) for b in bias]
        dx = tape.gradient(LinearGradInput(), (dy, w), of=x)
        return dx, dw, *db

    def flops(self, ins, outs):
        return 2 * outs[0].size * ins[0].shape[1]


@dataclass(frozen=True, slots=True)
class LinearGradInput(Op):
    """dx = dy W. Reads (dy, W)."""

    name: ClassVar[str] = "linear_grad_input"
    verb: ClassVar[str] = "grad_input"
    untiled: ClassVar[str] = "it reads all pixels of an image for each output"

    def infer(self, dy: Spec, w: Spec) -> tuple[Spec, ...]:
        require(dy.shape[1] == w.shape[0], "linear: gradient does not fit the weight", dy, w)
        return (Spec((dy.shape[0], w.shape[1]), dy.dtype),)

    def reference(self, dy, w, scalars):
        return (dy @ w,)

    def flops(self, ins, outs):
        return 2 * outs[0].size * ins[0].shape[1]


@dataclass(frozen=True, slots=True)
class LinearGradWeight(Op):
    """dW = dy^T x. Reads (x, dy)."""

    name: ClassVar[str] = "linear_grad_weight"
    verb: ClassVar[str] = "grad_weight"
    untiled: ClassVar[str] = "it reads all pixels of an image for each output"

    def infer(self, x: Spec, dy: Spec) -> tuple[Spec, ...]:
        require(x.shape[0] == dy.shape[0], "linear: gradient and input differ in rows", x, dy)
        return (Spec((dy.shape[1], x.shape[1]), x.dtype),)

    def reference(self, x, dy, scalars):
        return (dy.T @ x,)

    def flops(self, ins, outs):
        return 2 * outs[0].size * ins[0].shape[0]


@dataclass(frozen=True, slots=True)
class MatMul(Op):
    """Products of matrices, of (M, K) and (K, N), or of as many pairs of them as a first axis has.

    Args:
        form: "nn": a b; "nt": a b^T, b then is (N, K); "tn": a^T b, a then is (K, M).
    """

    form: Literal["nn", "nt", "tn"] = "nn"
    name: ClassVar[str] = "matmul"

    def infer(self, a: Spec, b: Spec) -> tuple[Spec, ...]:
        require_float(self, a, b)
        fits = len(a.shape) == len(b.shape) in (2, 3) and a.shape[:-2] == b.shape[:-2]
        require(fits, "matmul: wants two matrices, or equally many of both", a, b)
        rows, inner, columns = self.extents(a.shape, b.shape)
        other = b.shape[-1 if self.form == "nt" else -2]
        require(inner == other, f"matmul: {inner} columns for {other} rows", a, b)
        return (Spec((*a.shape[:-2], rows, columns), a.dtype),)

    def reference(self, a, b, scalars):
        if self.form == "tn":
            a = a.swapaxes(-1, -2)
        return (a @ (b.swapaxes(-1, -2) if self.form == "nt" else b),)

    def vjp(self, tape, ins, outs, grads):
        (a, b), (dy,) = ins, grads
        match self.form:
            case "nn":
                of_a, of_b = (MatMul("nt"), (dy, b)), (MatMul("tn"), (a, dy))
            case "nt":
                of_a, of_b = (MatMul("nn"), (dy, b)), (MatMul("tn"), (dy, a))
            case _:
                of_a, of_b = (MatMul("nt"), (b, dy)), (MatMul("nn"), (a, dy))
        db = tape.gradient(*of_b, of=b)
        return tape.gradient(*of_a, of=a), db

    def flops(self, ins, outs):
        return 2 * outs[0].size * self.extents(ins[0].shape, ins[1].shape)[1]

    def extents(self, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, int, int]:
        """(M, K, N) for the shapes of a and b."""
        rows, inner = a[-2:] if self.form != "tn" else (a[-1], a[-2])
        return rows, inner, b[-2 if self.form == "nt" else -1]

    def samples_apart(self, read, ins, outs, count):
        if len(ins[0]) == 3:
            return list(read) == [0, 1]
        return list(read) == [0] and self.form[0] == "n"
