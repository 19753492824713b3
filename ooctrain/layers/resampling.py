"""Images whose pixels come from other places: enlarged, reduced, or mirrored at a border.

The operations have no parameters and are linear, so a gradient reads dy alone. Read next:
`instance_norm.py`; `kernels/cpu/resampling.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ooctrain.step.op import Op, Pair, Sides, Spec, require, require_float
from ooctrain.step.rows import RowPlace, RowRule, RowsRead, ScaledRows, Window

# Another size, by the nearest pixel or bilinearly: x (N, C, H, W) to y (N, C, OH, OW). Both methods
# are separable: y = A x B^T, with a sparse matrix for the rows and one for the columns, so that dx
# = A^T dy B.

BILINEAR_FLOPS = 8


@dataclass(frozen=True, slots=True)
class Upsample(Op):
    """y[.., i, j] = x at (i H / OH, j W / OW), by `mode`.

    Args: size: (OH, OW). mode: "nearest" or "bilinear". corners: for "bilinear": whether the
    centres of the corner pixels of x and y coincide (PyTorch: `align_corners`); if not, the borders
    of the images coincide. place: where rows lie that are a part of larger images (first row of x,
    all its rows, first of y, rows of all y); (): x and y are whole.
    """

    size: Pair
    mode: str = "nearest"
    corners: bool = False
    place: tuple[int, ...] = ()
    name: ClassVar[str] = "upsample"
    by_image: ClassVar[bool] = True

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        require(len(x.shape) == 4, "upsample: wants (N, C, H, W)", x)
        require(min(self.size) > 0, f"upsample: {self.size} is not an image size", x)
        require(self.mode in ("nearest", "bilinear"), f"upsample: no mode {self.mode!r}", x)
        return (Spec((*x.shape[:2], *self.size), x.dtype),)

    def reference(self, x, scalars):
        rows, columns = _matrices(self, x.shape[2:], self.size, x.dtype)
        return (rows @ x @ columns.T,)

    def vjp(self, tape, ins, outs, grads):
        op = UpsampleGrad(ins[0].shape[2:], self.mode, self.corners, self.place)
        return tape.call(op, grads, of=ins)

    def flops(self, ins, outs):
        return 0 if self.mode == "nearest" else BILINEAR_FLOPS * outs[0].size

    def row_rule(self, ins):
        rows, outputs = ins[0].shape[2], self.size[0]
        if _has_whole_factor(self, rows, outputs):  # row o reads row o // f, as a gradient gathers
            window = Window(outputs // rows, outputs // rows)
            return RowRule((RowsRead(window, gathers=True),), lambda place: _giving(self, place))
        before, size, after, whole = self.place or (0, rows, 0, outputs)
        read = ScaledRows(self.mode, self.corners, (before, size, after, whole))

        def cut(place: RowPlace) -> Upsample:
            first = before + read.first(place.rows.lo, rows)
            return replace(_giving(self, place), place=(first, size, after + place.rows.lo, whole))

        return RowRule((read,), cut)


@dataclass(frozen=True, slots=True)
class UpsampleGrad(Op):
    """dx: for each pixel the weighted sum of the gradients of all outputs that read it. Reads (dy).

    Args:
        size: (H, W) of the input.
        place: as of `Upsample`; dy then is some rows, among them all that read those of dx.
    """

    size: Pair
    mode: str = "nearest"
    corners: bool = False
    place: tuple[int, ...] = ()
    name: ClassVar[str] = "upsample_grad"
    verb: ClassVar[str] = "grad"

    def infer(self, dy: Spec) -> tuple[Spec, ...]:
        return (Spec((*dy.shape[:2], *self.size), dy.dtype),)

    def reference(self, dy, scalars):
        rows, columns = _matrices(self, self.size, dy.shape[2:], dy.dtype)
        return (rows.T @ dy @ columns,)

    def flops(self, ins, outs):
        return ins[0].size if self.mode == "nearest" else BILINEAR_FLOPS * ins[0].size

    def row_rule(self, ins):
        rows, outputs = self.size[0], ins[0].shape[2]
        if _has_whole_factor(self, rows, outputs):
            window = Window(outputs // rows, outputs // rows)
            return RowRule((RowsRead(window),), lambda place: _giving(self, place))
        before, size, after, whole = self.place or (0, rows, 0, outputs)
        read = ScaledRows(self.mode, self.corners, (before, size, after, whole), gathers=True)

        def cut(place: RowPlace) -> UpsampleGrad:
            first = after + read.read(place.rows, outputs).inside.lo
            return replace(_giving(self, place), place=(before + place.rows.lo, size, first, whole))

        return RowRule((read,), cut)


def _has_whole_factor(op: Upsample | UpsampleGrad, rows: int, outputs: int) -> bool:
    return op.mode == "nearest" and outputs % rows == 0 and not op.place


def _giving(op: Any, place: RowPlace) -> Any:
    """The operation that gives the rows of a band."""
    return replace(op, size=(place.rows.extent, op.size[1]))


def _matrices(
    op: Upsample | UpsampleGrad, size: Pair, out: Pair, dtype: np.dtype
) -> list[np.ndarray]:
    """For rows and for columns the (outputs, inputs) matrix of weights."""
    weights = _nearest_weights if op.mode == "nearest" else _bilinear_weights
    before, height, after, outputs = op.place or (0, size[0], 0, out[0])
    rows = weights(height, outputs, op.corners)[after : after + out[0], before : before + size[0]]
    return [rows.astype(dtype), weights(size[1], out[1], op.corners).astype(dtype)]


def _nearest_weights(size: int, out: int, corners: bool) -> np.ndarray:
    return (np.arange(size) == (np.arange(out) * size // out)[:, None]).astype(float)


def _bilinear_weights(size: int, out: int, corners: bool) -> np.ndarray:
    if corners:
        at = np.arange(out) * ((size - 1) / max(out - 1, 1))
    else:
        at = np.maximum((np.arange(out) + 0.5) * (size / out) - 0.5, 0)
    lower = np.minimum(at.astype(int), size - 1)
    matrix = np.zeros((out, size))
    matrix[np.arange(out), lower] += 1 - (at - lower)
    matrix[np.arange(out), np.minimum(lower + 1, size - 1)] += at - lower
    return matrix


# Reflection padding: x (N, C, H, W) to y (N, C, top + H + bottom, left + W + right), mirrored at
# the outermost pixels, which are not repeated. Generators of images use it because a border of
# zeros would be visible in their output. A tile of an image cannot be padded this way without the
# pixels that are mirrored, so there is no tile rule.


@dataclass(frozen=True, slots=True)
class ReflectionPad2d(Op):
    """Mirrored borders.

    Args:
        padding: (top, bottom, left, right), each less than the image's extent.
    """

    padding: Sides
    name: ClassVar[str] = "reflection_pad2d"
    by_image: ClassVar[bool] = True

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
