"""A 2-d convolution is three operations over one geometry: forward, gradient of input, of weight.

It maps x (N, C, H, W), W (K, C / groups, R, S) and b (K) to y (N, K, OH, OW). The algorithm of each
operation is an attribute, fixed when the call is recorded, so a rewrite such as tiling keeps the
algorithm and therefore the bits. Padding is (top, bottom, left, right), because a tile is padded
only where it touches the border. Letters are those of the papers: N images, input C x H x W, output
K x OH x OW, filter R x S. Read next: `reduction.py`, the gradient of the bias; `batch_norm.py`;
`kernels/cpu/conv/conv2d.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from ooctrain.errors import ConfigError, ShapeError
from ooctrain.layers.reduction import ChannelSum
from ooctrain.step.op import OverWindows, Pair, Sides, Spec, require, require_float
from ooctrain.step.rows import SAME, RowRule, RowsRead, Window


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

    def windows(self, r: int, s: int) -> tuple[Window, Window]:
        """The tile rule in rows and columns."""
        top, bottom, left, right = self.padding
        rows = Window(r, self.stride[0], self.dilation[0], top, bottom)
        return rows, Window(s, self.stride[1], self.dilation[1], left, right)


@lru_cache(maxsize=1024)
def conv_shape(geometry: Geometry, x: tuple[int, ...], w: tuple[int, ...]) -> ConvShape:
    """All extents, from the shapes of input and weight: derived once, for shape rule, choice of an
    algorithm, scratch and kernel. Raises ShapeError where they do not fit.
    """
    n, c, h, width = x
    k, _, r, s = w
    return ConvShape(
        n, c, h, width, k, r, s, geometry.stride, geometry.padding, geometry.dilation,
        geometry.groups,
    )  # fmt: skip


class Convolution(OverWindows):
    """An operation of a convolution: forward or a gradient, all at the same cost."""

    __slots__ = ()
    algorithm: str

    def image_and_weight(self, ins: Sequence[Any], outs: Sequence[Any]) -> tuple[Any, Any]:
        """The convolution's x and W, or what has their shapes, among inputs and outputs."""
        raise TypeError(f"{type(self).__name__} lacks image_and_weight()")

    def conv_shape(self, ins: Sequence[Spec], outs: Sequence[Spec]) -> ConvShape:
        """All extents of the convolution."""
        x, w = self.image_and_weight(ins, outs)
        return conv_shape(self.geometry, x.shape, w.shape)

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
        shape = conv_shape(self.geometry, x.shape, w.shape)
        return (Spec((shape.n, shape.k, shape.oh, shape.ow), x.dtype),)

    def reference(self, x, w, *bias, scalars):
        shape = conv_shape(self.geometry, x.shape, w.shape)
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
        shape = conv_shape(self.geometry, x.shape, w.shape)
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
        size: (H, W) of the input, which does not follow from the output size alone.
    """

    geometry: Geometry
    size: Pair
    algorithm: str = "im2col"
    name: ClassVar[str] = "conv2d_grad_input"
    verb: ClassVar[str] = "grad_input"

    def infer(self, dy: Spec, w: Spec) -> tuple[Spec, ...]:
        x_shape = (dy.shape[0], w.shape[1] * self.geometry.groups, *self.size)
        _require_output(conv_shape(self.geometry, x_shape, w.shape), dy)
        return (Spec(x_shape, dy.dtype),)

    def reference(self, dy, w, scalars):
        x_shape = (dy.shape[0], w.shape[1] * self.geometry.groups, *self.size)
        shape = conv_shape(self.geometry, x_shape, w.shape)
        dx = _pad(np.zeros(x_shape, dy.dtype), self.geometry.padding)
        for tap in _taps(shape):
            dx[tap.pixels] += np.einsum(
                "nkhw,kc->nchw", dy[:, tap.filters], w[tap.filters, :, tap.r, tap.s], optimize=True
            )
        top, _, left, _ = self.geometry.padding
        return (dx[:, :, top : top + self.size[0], left : left + self.size[1]].copy(),)

    def image_and_weight(self, ins, outs):
        return outs[0], ins[1]

    def row_rule(self, ins):
        rows, _ = self.geometry.windows(*ins[1].shape[2:])
        return RowRule((RowsRead(rows, gathers=True), None), self.giving_rows)


@dataclass(frozen=True, slots=True)
class Conv2dGradWeight(Convolution):
    """dW: for every tap the product of dy with the pixels that it read. Reads (x, dy).

    Args:
        kernel: (R, S), which does not follow from the shapes of x and dy alone.
    """

    geometry: Geometry
    kernel: Pair
    algorithm: str = "im2col"
    name: ClassVar[str] = "conv2d_grad_weight"
    verb: ClassVar[str] = "grad_weight"

    def infer(self, x: Spec, dy: Spec) -> tuple[Spec, ...]:
        w_shape = self._weight_shape(x.shape, dy.shape)
        _require_output(conv_shape(self.geometry, x.shape, w_shape), dy)
        return (Spec(w_shape, x.dtype),)

    def reference(self, x, dy, scalars):
        w_shape = self._weight_shape(x.shape, dy.shape)
        shape = conv_shape(self.geometry, x.shape, w_shape)
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

    def row_rule(self, ins):
        rows, _ = self.geometry.windows(*self.kernel)
        return RowRule((RowsRead(rows), SAME), self.on_rows, reduces=True)


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


# The shape of a convolution, which every kernel and blocking takes: extents, stride, padding,
# dilation and groups as one checked, frozen value that knows its output size and its work.


@dataclass(frozen=True, slots=True)
class ConvShape:
    """Extents of a convolution; all counts, no bytes.

    Args:
        n, c, h, w: input images, channels, rows, columns.
        k, r, s: filters, filter rows, filter columns.
        stride: (rows, columns).
        padding: zeros added (top, bottom, left, right).
        dilation: (rows, columns) from one filter tap to the next.
        groups: channel groups; C and K are multiples of it.

    Raises:
        ShapeError: an extent below 1, a negative padding, groups that do not divide, an empty
        output.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    #: output rows, output columns
    oh: int = field(init=False, repr=False, compare=False)
    ow: int = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        extents = (self.n, self.c, self.h, self.w, self.k, self.r, self.s, self.groups)
        if (
            min(extents) < 1
            or min(self.stride) < 1
            or min(self.dilation) < 1
            or min(self.padding) < 0
        ):
            raise ShapeError(
                "extents, strides, dilations and groups must be positive, padding not negative",
                numbers=str(self),
            )
        if self.c % self.groups or self.k % self.groups:
            raise ShapeError(
                f"groups={self.groups} must divide input channels {self.c} and filters {self.k}",
                numbers=str(self),
            )
        rows, columns = self.h + sum(self.padding[:2]), self.w + sum(self.padding[2:])
        object.__setattr__(self, "oh", (rows - self.filter_h) // self.stride[0] + 1)
        object.__setattr__(self, "ow", (columns - self.filter_w) // self.stride[1] + 1)
        if self.oh < 1 or self.ow < 1:
            raise ShapeError(
                f"the dilated filter ({self.filter_h} x {self.filter_w}) is larger than the input",
                numbers=str(self),
                fix="pad the input, or use fewer pooling layers for so small an image",
            )

    @property
    def filter_h(self) -> int:
        """Rows that the dilated filter spans."""
        return (self.r - 1) * self.dilation[0] + 1

    @property
    def filter_w(self) -> int:
        """Columns that the dilated filter spans."""
        return (self.s - 1) * self.dilation[1] + 1

    @property
    def cg(self) -> int:
        """Input channels of one group."""
        return self.c // self.groups

    @property
    def kg(self) -> int:
        """Filters of one group."""
        return self.k // self.groups

    @property
    def flops(self) -> int:
        """Operations of the direct algorithm, forward and either gradient: a multiply and an add
        for each output, tap and input channel of its group.
        """
        return 2 * self.n * self.k * self.oh * self.ow * self.cg * self.r * self.s

    def ends(self, *, backward: bool) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """(H, W, channels) of what is read and of what is written; backward reads dy, writes dx."""
        inner, outer = (self.h, self.w, self.c), (self.oh, self.ow, self.k)
        return (outer, inner) if backward else (inner, outer)


# Which algorithm a convolution uses, on either device: a name, from a `ConvShape` and the user's
# request. The choice depends on the shape alone, never on a machine's load or its instruction set,
# and is recorded with the call. So a trace says what will run, and every machine gives the same
# bits. The two devices' algorithms have different names, so the name also says the device.

CpuAlgorithm = Literal["direct", "winograd2", "winograd4", "im2col", "depthwise"]
CudaAlgorithm = Literal["implicit_gemm", "tf32", "tiled", "naive"]
#: What can be requested on the cpu device, apart from "auto"; "depthwise" is chosen where every
#: channel has its own filter.
CPU_ALGORITHMS: tuple[CpuAlgorithm, ...] = ("direct", "winograd2", "winograd4", "im2col")
#: What can be requested on a GPU; the first is the usual one.
CUDA_ALGORITHMS: tuple[CudaAlgorithm, ...] = ("implicit_gemm", "tf32", "tiled", "naive")

# Measured: what the transforms cost relative to the products, and below what sizes they never pay.
WINOGRAD_OVERHEAD = 1.3
MIN_TILES = 12
MIN_CHANNELS = 32
#: Winograd's kernels take channels and filters in whole vectors, the widest of the machine.
CHANNEL_UNIT = 16
#: GPU kernels count pixels and weights of one call in 31 bits; addresses have 64.
MOST_COUNTED = 2**31 - 1
#: With fewer channels in a group than this a product of matrices is mostly padding, on a GPU.
FEW_CHANNELS = 8


def choose_algorithm(shape: ConvShape, requested: str = "auto") -> CpuAlgorithm | CudaAlgorithm:
    """The algorithm for a shape: as requested where it can be.

    Args:
        shape: the convolution.
        requested: one of `CPU_ALGORITHMS`, or "auto" for the cheapest of them; or one of
            `CUDA_ALGORITHMS`.

    Raises:
        ConfigError: an unknown name.
        ShapeError: more pixels or weights than kernels can count.
    """
    for algorithm in CUDA_ALGORITHMS:
        if requested == algorithm:
            return _on_cuda(shape, algorithm)
    return _on_cpu(shape, requested)


def _on_cuda(shape: ConvShape, requested: CudaAlgorithm) -> CudaAlgorithm:
    """As requested; groups of few channels are left to "naive", one thread for each result."""
    _require_countable(shape)
    if shape.groups > 1 and min(shape.cg, shape.kg) < FEW_CHANNELS:
        return "naive"
    return requested


def _on_cpu(shape: ConvShape, requested: str) -> CpuAlgorithm:
    """As requested; a request that does not apply to the shape falls back to "direct"."""
    if requested not in (*CPU_ALGORITHMS, "auto"):
        raise ConfigError(
            f"unknown convolution algorithm {requested!r}",
            fix=f"one of auto, {', '.join(CPU_ALGORITHMS)}",
        )
    if requested == "im2col":
        return "im2col"
    if requested == "auto" and 1 < shape.groups == shape.c == shape.k:
        return "depthwise"
    if requested == "direct" or not _winograd_applies(shape):
        return "direct"
    if requested == "winograd2":
        return "winograd2"
    return "winograd4" if requested == "winograd4" else _cheapest(shape)


def _winograd_applies(shape: ConvShape) -> bool:
    """3x3, stride 1, no dilation, no groups, whole vectors of channels."""
    plain = (shape.r, shape.s, shape.stride, shape.dilation) == (3, 3, (1, 1), (1, 1))
    whole = shape.c % CHANNEL_UNIT == 0 and shape.k % CHANNEL_UNIT == 0
    return plain and shape.groups == 1 and whole


def _cheapest(shape: ConvShape) -> CpuAlgorithm:
    """The algorithm with the fewest multiplications; "direct" where few tiles share a transformed
    weight.
    """
    tiles2, tiles4 = (shape.n * -(-shape.oh // m) * -(-shape.ow // m) for m in (2, 4))
    costs: dict[CpuAlgorithm, float] = {
        "direct": 9 * shape.n * shape.oh * shape.ow,
        "winograd2": 16 * WINOGRAD_OVERHEAD * tiles2,
        "winograd4": 36 * WINOGRAD_OVERHEAD * tiles4,
    }
    if tiles4 < MIN_TILES or min(shape.c, shape.k) < MIN_CHANNELS:
        return "direct"
    return min(costs, key=costs.__getitem__)


def _require_countable(shape: ConvShape) -> None:
    counted = {
        "output pixels": shape.n * shape.oh * shape.ow,
        "input pixels": shape.n * shape.h * shape.w,
        "weights": shape.k * shape.cg * shape.r * shape.s,
    }
    for what, count in counted.items():
        if count > MOST_COUNTED:
            raise ShapeError(
                f"a convolution with {count} {what} is too large for the cuda device",
                numbers=f"at most {MOST_COUNTED}", fix="split the batch, or the image",
            )  # fmt: skip


def algorithm_for(device: str, requested: str, allow_tf32: bool) -> str:
    """The algorithm that is requested. Raises ConfigError: the device has no such thing."""
    if device == "cpu" and not allow_tf32 and requested not in CUDA_ALGORITHMS:
        return requested  # the rules of the cpu kernels know the rest
    if device == "cuda" and requested == "auto":
        return "tf32" if allow_tf32 else "implicit_gemm"
    if device == "cuda" and requested in CUDA_ALGORITHMS:
        return requested
    if device not in ("cpu", "cuda"):
        raise ConfigError(
            f"device {device!r} is neither 'cpu' nor 'cuda'", code="OOC-106", fix="--device cpu"
        )
    if device == "cpu" and allow_tf32:
        raise ConfigError(
            "TF32 is a number format of GPUs", code="OOC-106", fix="--device cuda, or no TF32"
        )
    raise ConfigError(
        f"no convolution algorithm {requested!r} on device {device}", code="OOC-106",
        fix=f"on a GPU: auto, {', '.join(CUDA_ALGORITHMS)}",
    )  # fmt: skip
