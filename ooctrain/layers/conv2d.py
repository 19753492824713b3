"""2-d convolution and the three calls of its gradient.

The convolution maps x (N, C, H, W), W (K, C / groups, R, S) and b (K) to y (N, K, OH, OW). Forward,
gradient of the input and gradient of the weight are three operations over one geometry. The
algorithm of each is an attribute, fixed when the call is recorded, so a rewrite such as tiling
keeps the algorithm and therefore the bits. Padding is (top, bottom, left, right), because a tile is
padded only where it touches the border. Read next: `channel_sum.py`, the gradient of the bias;
`conv_algorithms.py`; `batch_norm.py`; `kernels/cpu/conv/conv2d.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ooctrain.layers.channel_sum import ChannelSum
from ooctrain.layers.conv_algorithms import choose_algorithm
from ooctrain.layers.conv_shape import ConvShape
from ooctrain.step.op import Op, Pair, Sides, Spec, Window, require, require_float


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the three operations of one convolution share.

    Args:
        stride, dilation: (rows, columns).
        padding: (top, bottom, left, right).
        groups: channel groups.
    """

    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def conv_shape(self, x: tuple[int, ...], w: tuple[int, ...]) -> ConvShape:
        """All extents, from the shapes of input and weight. Raises ShapeError where they do not
        fit.
        """
        n, c, h, width = x
        k, _, r, s = w
        return ConvShape(
            n, c, h, width, k, r, s, self.stride, self.padding, self.dilation, self.groups
        )

    def windows(self, r: int, s: int) -> tuple[Window, Window]:
        """The tile rule in rows and columns."""
        top, bottom, left, right = self.padding
        rows = Window(r, self.stride[0], self.dilation[0], top, bottom)
        return rows, Window(s, self.stride[1], self.dilation[1], left, right)


class Convolution(Op):
    """An operation of a convolution: forward or a gradient, all at the same cost."""

    __slots__ = ()
    geometry: Geometry
    algorithm: str

    def image_and_weight(self, ins: Sequence[Any], outs: Sequence[Any]) -> tuple[Any, Any]:
        """The convolution's x and W, or what has their shapes, among inputs and outputs."""
        raise TypeError(f"{type(self).__name__} lacks image_and_weight()")

    def conv_shape(self, ins: Sequence[Spec], outs: Sequence[Spec]) -> ConvShape:
        """All extents of the convolution."""
        x, w = self.image_and_weight(ins, outs)
        return self.geometry.conv_shape(x.shape, w.shape)

    def flops(self, ins, outs):
        return self.conv_shape(ins, outs).flops


@dataclass(frozen=True, slots=True)
class Conv2d(Convolution):
    """y[n, k, i, j] = sum over c, r, s of W[k, c, r, s] x[n, c, i stride + r dilation - top, ...]
    [+ b[k]].

    Args:
        geometry: stride, padding, dilation, groups.
        kernel: (R, S).
        algorithm: on the cpu device "direct", "im2col", "winograd2", "winograd4" or "depthwise", on
            a GPU "implicit_gemm", "tf32", "tiled" or "naive".
    """

    geometry: Geometry
    kernel: Pair
    algorithm: str = "im2col"
    name: ClassVar[str] = "conv2d"

    def infer(self, x: Spec, w: Spec, *bias: Spec) -> tuple[Spec, ...]:
        require_float(self, x, w, *bias)
        groups = self.geometry.groups
        require(len(x.shape) == 4, "conv2d: the input must be (N, C, H, W)", x, w)
        fits = len(w.shape) == 4 and w.shape[2:] == self.kernel
        require(fits, "conv2d: the weight must be (K, C, R, S)", w)
        wanted = w.shape[1] * groups
        what = f"conv2d: input has {x.shape[1]} channels, the weight wants {wanted}"
        require(x.shape[1] == wanted, what, x, w)
        fits = all(b.shape == w.shape[:1] for b in bias)
        require(fits, "conv2d: bias does not fit the weight", w, *bias)
        shape = self.geometry.conv_shape(x.shape, w.shape)
        return (Spec((shape.n, shape.k, shape.oh, shape.ow), x.dtype),)

    def reference(self, x, w, *bias, scalars):
        shape = self.geometry.conv_shape(x.shape, w.shape)
        y = np.zeros((shape.n, shape.k, shape.oh, shape.ow), x.dtype)
        padded = _pad(x, self.geometry.padding)
        for tap in _taps(shape):
            y[:, tap.filters] += np.einsum(
                "nchw,kc->nkhw", padded[tap.pixels], w[tap.filters, :, tap.r, tap.s], optimize=True
            )
        return (y + bias[0][:, None, None] if bias else y,)

    def vjp(self, tape, ins, outs, grads):
        x, w, *bias = ins
        (dy,) = grads
        shape = self.geometry.conv_shape(x.shape, w.shape)
        algorithm = choose_algorithm(shape, tape.conv_algorithm)
        grad_weight = Conv2dGradWeight(self.geometry, self.kernel, algorithm)
        grad_input = Conv2dGradInput(self.geometry, x.shape[2:], algorithm)
        # The weight first: then x may go before room for dx is needed.
        dw = tape.gradient(grad_weight, (x, dy), of=w)
        db = [tape.gradient(ChannelSum(), (dy,), of=b) for b in bias]
        dx = tape.gradient(grad_input, (dy, w), of=x)
        return dx, dw, *db

    def image_and_weight(self, ins, outs):
        return ins[0], ins[1]

    def window(self):
        return self.geometry.windows(*self.kernel)


@dataclass(frozen=True, slots=True)
class Conv2dGradInput(Convolution):
    """dx: every dy goes back to the pixels that its window read. Reads (dy, W).

    Args:
        size: (H, W) of the input, which the output size alone does not tell.
    """

    geometry: Geometry
    size: Pair
    algorithm: str = "im2col"
    name: ClassVar[str] = "conv2d_grad_input"
    verb: ClassVar[str] = "grad_input"

    def infer(self, dy: Spec, w: Spec) -> tuple[Spec, ...]:
        x_shape = (dy.shape[0], w.shape[1] * self.geometry.groups, *self.size)
        _require_output(self.geometry.conv_shape(x_shape, w.shape), dy)
        return (Spec(x_shape, dy.dtype),)

    def reference(self, dy, w, scalars):
        x_shape = (dy.shape[0], w.shape[1] * self.geometry.groups, *self.size)
        shape = self.geometry.conv_shape(x_shape, w.shape)
        dx = _pad(np.zeros(x_shape, dy.dtype), self.geometry.padding)
        for tap in _taps(shape):
            dx[tap.pixels] += np.einsum(
                "nkhw,kc->nchw", dy[:, tap.filters], w[tap.filters, :, tap.r, tap.s], optimize=True
            )
        top, _, left, _ = self.geometry.padding
        return (dx[:, :, top : top + self.size[0], left : left + self.size[1]].copy(),)

    def image_and_weight(self, ins, outs):
        return outs[0], ins[1]


@dataclass(frozen=True, slots=True)
class Conv2dGradWeight(Convolution):
    """dW: for every tap the product of dy with the pixels that it read. Reads (x, dy).

    Args:
        kernel: (R, S), which the shapes of x and dy alone do not tell.
    """

    geometry: Geometry
    kernel: Pair
    algorithm: str = "im2col"
    name: ClassVar[str] = "conv2d_grad_weight"
    verb: ClassVar[str] = "grad_weight"

    def infer(self, x: Spec, dy: Spec) -> tuple[Spec, ...]:
        w_shape = self._weight_shape(x.shape, dy.shape)
        _require_output(self.geometry.conv_shape(x.shape, w_shape), dy)
        return (Spec(w_shape, x.dtype),)

    def reference(self, x, dy, scalars):
        w_shape = self._weight_shape(x.shape, dy.shape)
        shape = self.geometry.conv_shape(x.shape, w_shape)
        dw = np.zeros(w_shape, x.dtype)
        padded = _pad(x, self.geometry.padding)
        for tap in _taps(shape):
            dw[tap.filters, :, tap.r, tap.s] = np.einsum(
                "nkhw,nchw->kc", dy[:, tap.filters], padded[tap.pixels], optimize=True
            )
        return (dw,)

    def image_and_weight(self, ins, outs):
        return ins[0], outs[0]

    def _weight_shape(self, x: tuple[int, ...], dy: tuple[int, ...]) -> tuple[int, ...]:
        return (dy[1], x[1] // self.geometry.groups, *self.kernel)


@dataclass(frozen=True, slots=True)
class _Tap:
    """One filter position (r, s) of one channel group: which filters, and which pixels it reads."""

    r: int
    s: int
    filters: slice
    pixels: tuple[slice, ...]


def _taps(shape: ConvShape) -> Iterator[_Tap]:
    for group in range(shape.groups):
        filters = slice(group * shape.kg, (group + 1) * shape.kg)
        channels = slice(group * shape.cg, (group + 1) * shape.cg)
        for r in range(shape.r):
            for s in range(shape.s):
                rows = _every(r * shape.dilation[0], shape.stride[0], shape.oh)
                columns = _every(s * shape.dilation[1], shape.stride[1], shape.ow)
                yield _Tap(r, s, filters, (slice(None), channels, rows, columns))


def _every(start: int, step: int, count: int) -> slice:
    return slice(start, start + (count - 1) * step + 1, step)


def _pad(x: np.ndarray, padding: Sides) -> np.ndarray:
    top, bottom, left, right = padding
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))


def _require_output(shape: ConvShape, dy: Spec) -> None:
    wanted = (shape.n, shape.k, shape.oh, shape.ow)
    require(dy.shape == wanted, f"conv2d: the gradient must have shape {wanted}", dy)
