"""ONNX's operators by functions of this library.

`OPERATORS` is the table: {operator: what computes it}. A function has the operator's inputs as its
positional arguments, in ONNX's order, and the operator's attributes as the others, with ONNX's
names and defaults; so its signature can be read beside the page of the operator. Where a later
opset has made an input of an attribute (`axes` of Squeeze), one argument takes both. What an
operator can do and this library cannot, its function refuses by name. Three arguments are no
attributes: `training`, whether the part is in training; `opset`; `outputs`, how many are asked for.

Source: onnx.ai/onnx/operators. Read next: `onnx_graph.py`, which reads a file; `onnx_numbers.py`,
where operators compute sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from ooctrain import functional as F
from ooctrain.engine.tensor import Tensor, call
from ooctrain.errors import ConfigError
from ooctrain.interop.onnx_resize import Axis, matrix_of
from ooctrain.layers.combine import Constant
from ooctrain.layers.layout import Pad
from ooctrain.layers.losses import ClassWeights
from ooctrain.layers.pooling import AvgPool2d, MaxPool2d, PoolGeometry

Ints = Sequence[int] | np.ndarray
Numbers = np.ndarray | float
Pair = tuple[int, int]
#: How many copies or constants one node may make, and the largest window, step, border or result of
#: a resize: more is a broken file, and would be counted for hours.
MOST_COPIES, MOST_CONSTANTS, MOST_PIXELS = 4096, 1 << 20, 1 << 15


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of ONNX.

    Args:
        function: computes it.
        numbers: places of the inputs that must be numbers when the file is read (sizes, axes,
            bounds); the function gets them as arrays.
        states: places of inputs that training changes, and no optimizer.
        plain: whether a constant without axes may come as a number in place of a tensor.
    """

    function: Callable[..., Any]
    numbers: tuple[int, ...] = ()
    states: tuple[int, ...] = ()
    plain: bool = False


def refused(what: str) -> ConfigError:
    """Why a node cannot be computed here."""
    return ConfigError(what, code="OOC-190", fix="the network without it")


def ints(values: Any) -> tuple[int, ...]:
    """Numbers of a node as whole numbers."""
    return tuple(int(n) for n in np.asarray(values).reshape(-1))


def number(value: Any) -> float:
    """The one number that an array holds."""
    if np.size(value) != 1:
        raise refused(f"{np.size(value)} numbers, where one is taken")
    found = float(np.asarray(value).reshape(()))
    if math.isnan(found):
        raise refused("a setting that is not a number")
    return found


def constant(array: np.ndarray) -> Tensor:
    """A tensor of numbers that are known when the call is recorded."""
    if array.dtype.kind not in "fb":
        raise refused(f"{array.dtype} where float32 is taken")
    values = np.asarray(array, np.float32)
    if values.size and (values == values.flat[0]).all():
        return call(Constant(float(values.flat[0]), values.shape))
    if not 0 < values.size <= MOST_CONSTANTS:
        raise refused(f"{values.size} constants in one node")
    return call(ClassWeights(tuple(values.reshape(-1).tolist()))).reshape(values.shape)


def _within(pixels: Sequence[int], most: int = MOST_PIXELS) -> None:
    if pixels and max(map(abs, pixels)) > most:
        raise refused(f"{max(pixels, key=abs)} pixels")


# Windows: convolutions and pooling


@dataclass(frozen=True, slots=True)
class Windows:
    """Where windows of images lie; images of one axis are images of one row.

    Args:
        pads: (top, bottom, left, right).
    """

    kernel: Pair
    strides: Pair
    dilations: Pair
    pads: tuple[int, int, int, int]


def _pads(
    extents: Sequence[int], kernel: Ints, strides: Ints, dilations: Ints, pads: Ints, auto_pad: str
) -> list[Pair]:
    """(before, behind) along each axis.

    SAME_*: ceil(extent / stride) windows; what is odd goes behind (UPPER) or before (LOWER).
    """
    axes = len(extents)
    if auto_pad == "NOTSET":
        given = list(pads) or [0] * 2 * axes
        if len(given) != 2 * axes:
            raise refused(f"{len(given)} pads for {axes} axes")
        _within(given)
        return [(given[i], given[axes + i]) for i in range(axes)]
    if auto_pad == "VALID":
        return [(0, 0)] * axes
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise refused(f"auto_pad={auto_pad}")
    sides = []
    for extent, k, s, d in zip(extents, kernel, strides, dilations, strict=True):
        total = max((-(-extent // s) - 1) * s + (k - 1) * d + 1 - extent, 0)
        less, more = total // 2, total - total // 2
        sides.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    return sides


def _windows(
    x: Tensor, kernel: Ints, strides: Ints, dilations: Ints, pads: Ints, auto_pad: str
) -> Windows:
    axes = x.ndim - 2
    if axes not in (1, 2):
        raise refused(f"a tensor of {x.ndim} axes: images have 4 here, and rows of values 3")
    settings: list[Any] = [
        tuple(kernel),
        tuple(strides) or (1,) * axes,
        tuple(dilations) or (1,) * axes,
    ]
    if any(len(each) != axes or min(each) < 1 for each in settings):
        raise refused(f"kernel, strides and dilations {settings} for {axes} axes of windows")
    _within([n for each in settings for n in each])
    spans, steps, spread = settings
    sides = _pads(x.shape[2:], spans, steps, spread, pads, auto_pad)
    if axes == 1:
        settings, sides = [(1, *each) for each in settings], [(0, 0), *sides]
    spans, steps, spread = settings
    return Windows(spans, steps, spread, (*sides[0], *sides[1]))


def _image(x: Tensor) -> Tensor:
    """A row of values as an image of one row."""
    return x.unsqueeze(2) if x.ndim == 3 else x


def _as_given(image: Tensor, x: Tensor) -> Tensor:
    return image.squeeze(2) if x.ndim == 3 else image


def conv(
    x: Tensor, w: Tensor, b: Tensor | None = None, *, auto_pad: str = "NOTSET",
    dilations: Ints = (), group: int = 1, kernel_shape: Ints = (), pads: Ints = (),
    strides: Ints = (),
) -> Tensor:  # fmt: skip
    """Also of rows of values (N, C, L)."""
    _agree(kernel_shape, w)
    at = _windows(x, w.shape[2:], strides, dilations, pads, auto_pad)
    y = F.conv2d(_image(x), _image(w), b, at.strides, at.pads, at.dilations, group)
    return _as_given(y, x)


def _agree(kernel_shape: Ints, w: Tensor) -> None:
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        raise refused(f"kernel_shape {tuple(kernel_shape)} beside weights of shape {w.shape}")


def conv_transpose(
    x: Tensor, w: Tensor, b: Tensor | None = None, *, auto_pad: str = "NOTSET",
    dilations: Ints = (), group: int = 1, kernel_shape: Ints = (), output_padding: Ints = (),
    output_shape: Ints = (), pads: Ints = (), strides: Ints = (),
) -> Tensor:  # fmt: skip
    """The whole transposed convolution, of which the pads are cut off."""
    _agree(kernel_shape, w)
    at = _windows(x, w.shape[2:], strides, dilations, (), "NOTSET")
    axes = x.ndim - 2
    more = (*(0,) * (2 - axes), *(output_padding or (0,) * axes))
    _within([*more, *output_shape])
    if len(more) != 2 or min(more) < 0:
        raise refused(f"output_padding {tuple(output_padding)}")
    image = _image(x)
    rows = zip(image.shape[2:], at.kernel, at.strides, at.dilations, more, strict=True)
    full = [(n - 1) * s + (k - 1) * d + 1 + extra for n, k, s, d, extra in rows]
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(output_shape)[-axes:]
        if not wanted:
            own = zip(image.shape[2:], at.strides, strict=True)
            wanted = tuple(n * s for n, s in own)[-axes:]
        totals = [n - size for n, size in zip(full[-axes:], wanted, strict=True)]
        upper = auto_pad == "SAME_UPPER"
        before = [total // 2 if upper else total - total // 2 for total in totals]
        pads = (*before, *(total - b for total, b in zip(totals, before, strict=True)))
        auto_pad = "NOTSET"
    cut = [(0, 0)] * (2 - axes) + _pads(x.shape[2:], (), (), (), pads, auto_pad)
    if all(a == b for a, b in cut) and min(a for a, _ in cut) >= 0:
        even = cut[0][0], cut[1][0]
        y = F.conv_transpose2d(image, _image(w), b, at.strides, even, more, group, at.dilations)
        return _as_given(y, x)
    if b is not None and min(min(each) for each in cut) < 0:
        raise refused("an output_shape beyond what the windows reach, with a bias")
    y = F.conv_transpose2d(image, _image(w), b, at.strides, 0, more, group, at.dilations)
    (top, bottom), (left, right) = cut
    return _as_given(F.pad(y, (-left, -right, -top, -bottom)), x)


def max_pool(
    x: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Ints = (),
    kernel_shape: Ints = (), pads: Ints = (), storage_order: int = 0, strides: Ints = (),
    outputs: int = 1,
) -> Tensor:  # fmt: skip
    """Padding is never the maximum; the places of the maxima are not given."""
    if outputs > 1:
        raise refused("the places of the maxima as an output")
    geometry = _geometry(x, kernel_shape, strides, dilations, pads, auto_pad)
    if ceil_mode:
        geometry = geometry.rounded_up(*_image(x).shape[2:])
    return _as_given(call(MaxPool2d(geometry), _image(x)), x)


def _geometry(x: Tensor, *settings: Any) -> PoolGeometry:
    at = _windows(x, *settings)
    return PoolGeometry(at.kernel, at.strides, at.pads, at.dilations)


def average_pool(
    x: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0,
    dilations: Ints = (), kernel_shape: Ints = (), pads: Ints = (), strides: Ints = (),
) -> Tensor:  # fmt: skip
    """Padding counts if asked; what `ceil_mode` adds behind it never does."""
    geometry = _geometry(x, kernel_shape, strides, dilations, pads, auto_pad)
    image, counts = _image(x), bool(count_include_pad)
    whole = geometry.rounded_up(*image.shape[2:]) if ceil_mode else geometry
    if counts and ceil_mode and any(geometry.padding):
        # Padding that counts becomes part of the image; what rounding adds behind stays padding.
        image = call(Pad(geometry.padding), image)
        behind = [b - a for a, b in zip(geometry.padding, whole.padding, strict=True)]
        whole, counts = replace(whole, padding=(0, behind[1], 0, behind[3])), False
    if geometry.dilation == (1, 1):
        return _as_given(call(AvgPool2d(whole, counts), image), x)
    if any(whole.padding):
        raise refused("means of windows with dilations and pads")
    channels, cells = image.shape[1], math.prod(whole.kernel)
    share = call(Constant(1 / cells, (channels, 1, *whole.kernel)))
    y = F.conv2d(image, share, None, whole.stride, 0, whole.dilation, channels)
    return _as_given(y, x)


def global_average_pool(x: Tensor) -> Tensor:
    """Over all axes but the first two."""
    if x.ndim == 4:
        return F.adaptive_avg_pool2d(x, 1)
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


def global_max_pool(x: Tensor) -> Tensor:
    """Over all axes but the first two."""
    if x.ndim == 4:
        return F.adaptive_max_pool2d(x, 1)
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)


# Products of matrices


def gemm(
    a: Tensor, b: Tensor, c: Any = None, *, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0,  # ONNX's names
) -> Tensor:  # fmt: skip
    """alpha A B + beta C."""
    if a.ndim != 2 or b.ndim != 2:
        raise refused(f"matrices of {a.ndim} and {b.ndim} axes")
    a = a.transpose(0, 1) if transA else a
    bias = c if isinstance(c, Tensor) and c.ndim == 1 and beta == 1.0 == alpha else None
    if transB:
        bias = bias if bias is not None and bias.shape == b.shape[:1] else None
        y = F.linear(a, b, bias)
    else:
        y, bias = a.matmul(b), None
    y = y if alpha == 1.0 else y * alpha
    if c is None or bias is not None:
        return y
    return y + (c if beta == 1.0 else c * beta)


# Normalisations


def batch_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-5,
    momentum: float = 0.9, spatial: int = 1, training_mode: int = 0, training: bool,
) -> Tensor:  # fmt: skip
    """By the running statistics in evaluation; in training by the batch, whose part in the running
    statistics is 1 - momentum."""
    if training_mode or not spatial:
        raise refused("training_mode=1" if training_mode else "spatial=0")
    share = round(1.0 - momentum, 6)  # an attribute has 32 bits
    return F.batch_norm(x, mean, var, scale, bias, training, share, epsilon)


def instance_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5
) -> Tensor:
    """Each channel of each image by itself."""
    return _as_given(F.instance_norm(_image(x), None, None, scale, bias, eps=epsilon), x)


def group_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5,
    stash_type: int = 1, opset: int,
) -> Tensor:  # fmt: skip
    """From opset 21 on with one scale for each channel."""
    if opset < 21:
        raise refused("a scale for each group (opset 18 to 20)")
    return F.group_norm(x, num_groups, scale, bias, epsilon)


def layer_normalization(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1,
    epsilon: float = 1e-5, stash_type: int = 1, outputs: int = 1,
) -> Any:  # fmt: skip
    """Over the axes from `axis` on; the mean and 1 / deviation are further outputs."""
    first = axis % x.ndim
    y = F.layer_norm(x, x.shape[first:], None, None, epsilon)
    y = y * scale
    y = y if bias is None else y + bias
    if outputs == 1:
        return y
    axes = tuple(range(first, x.ndim))
    mean = x.mean(axes, keepdim=True)
    deviation = ((x - mean) ** 2).mean(axes, keepdim=True) + epsilon
    return y, mean, deviation.rsqrt()


def lrn(
    x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    """By the squares of the channels around."""
    if size % 2 == 0:
        raise refused("an even size: PyTorch, and this library, has its odd channel before")
    return F.local_response_norm(x, size, alpha, beta, bias)


def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """Divided by its norm along one axis; 0 stays 0."""
    norm = x.norm(p, (axis,), keepdim=True)
    return x / (norm + norm.eq(0.0))


# Activations


def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """alpha x below 0."""
    return F.leaky_relu(x, alpha)


def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """alpha (exp(x) - 1) below 0."""
    return F.elu(x, alpha)


def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """alpha (exp(x / alpha) - 1) below 0."""
    return F.celu(x, alpha)


#: Of float32, as the operator has them by default.
_SELU = 1.6732631921768188, 1.0507010221481323


def selu(x: Tensor, *, alpha: float = _SELU[0], gamma: float = _SELU[1]) -> Tensor:
    """gamma elu(x, alpha)."""
    return F.selu(x) if (alpha, gamma) == _SELU else F.elu(x, alpha) * gamma


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """slope x below 0; the slope is repeated to fit."""
    if slope.numel() == 1 or slope.shape == (x.shape[1], *(1,) * (x.ndim - 2)):
        return F.prelu(x, slope.reshape(-1))
    return F.relu(x) - slope * F.relu(-x)


def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x above alpha, else 0."""
    return x * x.gt(alpha)


def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """alpha x + beta, at least 0 and at most 1."""
    if round(alpha * 6, 6) == 1.0 and beta == 0.5:
        return F.hardsigmoid(x)
    return (x * alpha + beta).clamp(0.0, 1.0)


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """The formula is named by keyword."""
    return F.gelu(x, approximate)


def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x times the sigmoid of alpha x."""
    return F.silu(x) if alpha == 1.0 else x * F.sigmoid(x * alpha)


def clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:  # noqa: A002
    """Between two numbers, of which each may be left out."""
    low, high = (None if bound is None else number(bound) for bound in (min, max))
    return x if low is None and high is None else x.clamp(low, high)


def softmax(x: Tensor, *, axis: int | None = None, opset: int) -> Tensor:
    """Along one axis; before opset 13 along all from `axis` on."""
    return _softmax(F.softmax, x, axis, opset)


def log_softmax(x: Tensor, *, axis: int | None = None, opset: int) -> Tensor:
    """Along one axis; before opset 13 along all from `axis` on."""
    return _softmax(F.log_softmax, x, axis, opset)


def _softmax(function: Callable[..., Tensor], x: Tensor, axis: int | None, opset: int) -> Tensor:
    if opset >= 13:
        return function(x, -1 if axis is None else axis)
    first = (1 if axis is None else axis) % x.ndim
    rows = x.reshape(math.prod(x.shape[:first]), -1)
    return function(rows, 1).reshape(x.shape)


def dropout(
    x: Tensor, ratio: Any = 0.5, training_mode: Any = False, *, seed: int = 0, outputs: int = 1,
    training: bool,
) -> Tensor:  # fmt: skip
    """In training; `training_mode` would drop in evaluation, too."""
    rate = 0.5 if ratio is None else number(ratio)
    if outputs > 1:
        raise refused("the mask as an output")
    if training_mode is not None and np.any(training_mode) and rate:
        raise refused("training_mode=True, which drops in evaluation, too")
    if x.ndim in (2, 4) or not training or not rate:
        return F.dropout(x, rate, training)
    return F.dropout(x.reshape(x.shape[0], -1), rate).reshape(x.shape)


# Arithmetic


def power(x: Tensor, exponent: Any) -> Tensor:
    """To a power that is one number."""
    return x ** number(exponent)


def total(*tensors: Tensor) -> Tensor:
    """The sum of all."""
    return reduce(operator.add, tensors)


def mean(*tensors: Tensor) -> Tensor:
    """The mean of all."""
    return total(*tensors) * (1 / len(tensors))


def maximum(*tensors: Tensor) -> Tensor:
    """The largest of all."""
    return reduce(F.maximum, tensors)


def minimum(*tensors: Tensor) -> Tensor:
    """The smallest of all."""
    return reduce(F.minimum, tensors)


def negated(x: Tensor) -> Tensor:
    """The other one of 1 and 0."""
    return 1.0 - x


def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """To float32 (1), which all tensors are here, or to a condition (9), which is 1.0 or 0.0."""
    if to == 9:
        return x.ne(0.0)
    if to != 1:
        raise refused(f"tensors of another type than float32 (type {to})")
    return x


# Sums and extremes


def _reduction(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An operator that takes axes as an attribute or as an input."""

    def reduce_over(
        x: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Tensor:
        over = () if axes is None else ints(axes)
        if not over and noop_with_empty_axes:
            return x
        return method(x, over or tuple(range(x.ndim)), bool(keepdims))

    return reduce_over


def _absolute_sum(x: Tensor, axes: Sequence[int], keepdim: bool) -> Tensor:
    return x.abs().sum(axes, keepdim)


def _square_sum(x: Tensor, axes: Sequence[int], keepdim: bool) -> Tensor:
    return (x * x).sum(axes, keepdim)


def _length(x: Tensor, axes: Sequence[int], keepdim: bool) -> Tensor:
    return (x * x).sum(axes, keepdim).sqrt()


# Shapes


def reshape(x: Tensor, shape: Ints, *, allowzero: int = 0) -> Tensor:
    """0: the extent of the input; -1: what is left."""
    wanted = ints(shape)
    if not allowzero:
        if any(n == 0 and place >= x.ndim for place, n in enumerate(wanted)):
            raise refused(f"shape {wanted} of a tensor of {x.ndim} axes")
        wanted = tuple(n or x.shape[place] for place, n in enumerate(wanted))
    if sum(n == -1 for n in wanted) > 1 or min(wanted, default=1) < -1:
        raise refused(f"shape {wanted}")
    return x.reshape(wanted)


def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    """To a matrix: the axes before `axis`, and those from it on."""
    if not -x.ndim <= axis <= x.ndim:
        raise refused(f"axis {axis} of {x.ndim}")
    first = axis if axis >= 0 else axis + x.ndim
    return x.reshape(math.prod(x.shape[:first]), math.prod(x.shape[first:]))


def transpose(x: Tensor, *, perm: Ints = ()) -> Tensor:
    """The axes in another order; by default backwards."""
    order = tuple(perm) or tuple(range(x.ndim))[::-1]
    if sorted(order) != list(range(x.ndim)):
        raise refused(f"perm {order} of {x.ndim} axes")
    return x.permute(order)


def squeeze(x: Tensor, axes: Any = None) -> Tensor:
    """Without axes of extent 1; by default all of them."""
    over = None if axes is None else ints(axes)
    if over and any(x.shape[a] != 1 for a in over):
        raise refused(f"axes {over} of shape {x.shape}")
    return x.squeeze(over)


def unsqueeze(x: Tensor, axes: Ints) -> Tensor:
    """With new axes, at places of the result."""
    count = x.ndim + np.size(axes)
    places = {axis % count for axis in ints(axes) if -count <= axis < count}
    if len(places) != np.size(axes):
        raise refused(f"axes {ints(axes)} of {count}")
    old = iter(x.shape)
    return x.reshape(tuple(1 if place in places else next(old) for place in range(count)))


def concat(*tensors: Tensor, axis: int) -> Tensor:
    """One after the other."""
    return F.cat(tensors, axis)


def split(
    x: Tensor, split: Any = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int
) -> tuple[Tensor, ...]:
    """In parts of these sizes, or of the same size, of which the last may be smaller."""
    if num_outputs not in (None, outputs):
        raise refused(f"num_outputs={num_outputs} with {outputs} outputs")
    if split is not None:
        return x.split(ints(split), axis)
    return x.split(-(-x.shape[axis] // outputs), axis)


def slice_of(x: Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Tensor:
    """Along some axes, also backwards."""
    first, last = ints(starts), ints(ends)
    over = tuple(range(len(first))) if axes is None else ints(axes)
    by = (1,) * len(first) if steps is None else ints(steps)
    for start, end, axis, step in zip(first, last, over, by, strict=True):
        extent = x.shape[axis]
        if step == 0:
            raise refused("steps of 0")
        places = range(extent)[start:end:step]
        if not places:
            raise refused("a tensor without elements")
        if step < 0:
            x = x.flip(axis)
            start, end = (extent - 1 - places[0], extent - places[-1])
        else:
            start, end = places[0], places[-1] + 1
        if (start, end, abs(step)) != (0, extent, 1):
            keys = [slice(None)] * x.ndim
            keys[axis] = slice(start, end, abs(step))
            x = x[tuple(keys)]
    return x


def gather(x: Tensor, indices: Any, *, axis: int = 0) -> Tensor:
    """Places along an axis that are known."""
    places, extent = np.asarray(indices), x.shape[axis]
    named = [int(i) for i in places.reshape(-1)]
    if any(not -extent <= i < extent for i in named) or not 0 < len(named) <= MOST_COPIES:
        raise refused(f"{len(named)} indices into an axis of extent {extent}")
    if not places.ndim:
        return x.select(axis, named[0])
    taken = [i % extent for i in named]
    if all(b == a + 1 for a, b in pairwise(taken)):
        found = x.narrow(axis, taken[0], len(taken))
    else:
        found = F.cat([x.narrow(axis, i, 1) for i in taken], axis)
    place = axis % x.ndim
    return found.reshape((*x.shape[:place], *places.shape, *x.shape[place + 1 :]))


def expand(x: Tensor, shape: Ints) -> Tensor:
    """Repeated to fit a shape, which may in turn be repeated to fit."""
    wanted = np.broadcast_shapes(x.shape, ints(shape))
    if not 0 < math.prod(wanted) <= MOST_CONSTANTS * MOST_COPIES:
        raise refused(f"shape {wanted}")
    return x.expand(wanted)


def tile(x: Tensor, repeats: Ints) -> Tensor:
    """So often along each axis."""
    times = ints(repeats)
    if not 0 < math.prod(times) <= MOST_COPIES:
        raise refused(f"repeats {times}")
    return x.repeat(times)


def pad(
    x: Tensor, pads: Any, value: Any = 0.0, axes: Any = None, *, mode: str = "constant"
) -> Tensor:
    """All places before come first, then all behind; negative ones cut off."""
    over = tuple(range(x.ndim)) if axes is None else tuple(a % x.ndim for a in ints(axes))
    numbers = ints(pads)
    if len(numbers) != 2 * len(over):
        raise refused(f"{len(numbers)} pads for {len(over)} axes")
    _within(numbers, MOST_PIXELS if mode == "constant" else MOST_COPIES)
    sides = {axis: (numbers[i], numbers[len(over) + i]) for i, axis in enumerate(over)}
    pairs = [sides.get(axis, (0, 0)) for axis in range(x.ndim)]
    if mode == "constant":
        filled = 0.0 if value is None else number(value)
        return F.pad(x, [n for pair in reversed(pairs) for n in pair], "constant", filled)
    known = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    if mode not in known or x.ndim != 4 or pairs[:2] != [(0, 0)] * 2:
        raise refused(f"mode={mode} of other axes than rows and columns")
    (top, bottom), (left, right) = pairs[2:]
    return F.pad(x, (left, right, top, bottom), known[mode])  # type: ignore[arg-type]


def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Channels as pixels: the block's place is the slowest part of the channel (DCR) or the fastest
    (CRD)."""
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    n, c, h, w = x.shape
    blocks = x.reshape(n, blocksize, blocksize, c // blocksize**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c // blocksize**2, h * blocksize, w * blocksize)


def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Pixels as channels, the reverse of `depth_to_space`."""
    if mode == "CRD":
        return F.pixel_unshuffle(x, blocksize)
    n, c, h, w = x.shape
    rows, columns = h // blocksize, w // blocksize
    blocks = x.reshape(n, c, rows, blocksize, columns, blocksize).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * blocksize**2, rows, columns)


def resize(
    x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None, *, antialias: int = 0,
    axes: Ints = (), coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor", opset: int,
) -> Tensor:  # fmt: skip
    """Rows and columns in another number. Each way of doing it is a matrix for the rows and one for
    the columns; the common ones have a kernel."""
    if opset < 11:  # (x, scales), and the ways of `Upsample`
        return upsample(x, roi, mode=mode)
    if coordinate_transformation_mode == "tf_crop_and_resize":
        raise refused("a part of the image, by roi")
    over = tuple(axis % x.ndim for axis in axes) or tuple(range(x.ndim))
    factors, extents = dict.fromkeys(range(x.ndim), 1.0), dict(enumerate(x.shape))
    if sizes is not None and np.size(sizes):
        if len(ints(sizes)) != len(over):
            raise refused(f"{np.size(sizes)} sizes for {len(over)} axes")
        ratios = [n / x.shape[axis] for axis, n in zip(over, ints(sizes), strict=True)]
        extents |= dict(zip(over, ints(sizes), strict=True))
        if keep_aspect_ratio_policy != "stretch":
            one = (min if keep_aspect_ratio_policy == "not_larger" else max)(ratios)
            ratios = [one] * len(over)
            extents |= {axis: math.floor(one * x.shape[axis] + 0.5) for axis in over}
        factors |= dict(zip(over, ratios, strict=True))
    elif scales is not None and np.size(scales) == len(over):
        factors |= dict(zip(over, np.asarray(scales, float).reshape(-1).tolist(), strict=True))
        extents = {axis: math.floor(n * factors[axis]) for axis, n in extents.items()}
    else:
        raise refused(f"neither sizes nor scales for {len(over)} axes")
    if x.ndim != 4 or (extents[0], extents[1]) != x.shape[:2]:
        raise refused("other axes than rows and columns")
    if min(extents.values()) < 1:
        raise refused("a result without pixels")
    _within([extents[2], extents[3]])
    how = Axis(mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a,
               bool(exclude_outside), bool(antialias))  # fmt: skip
    found = [(x.shape[axis], extents[axis], factors[axis]) for axis in (2, 3)]
    return _resized(x, how, found)


def _resized(x: Tensor, how: Axis, axes: Sequence[tuple[int, int, float]]) -> Tensor:
    """By a kernel of this library if there is one, else by two matrices."""
    size = axes[0][1], axes[1][1]
    if (kernel := how.kernel(axes)) is not None:
        return F.interpolate(x, size, None, *kernel)
    if any(extent * out > MOST_CONSTANTS for extent, out, _ in axes):
        raise refused(f"mode={how.mode} from {x.shape[2:]} to {size}, in this form")
    rows, columns = (constant(matrix_of(how, *axis)) for axis in axes)
    return rows.matmul(x.matmul(columns.transpose(0, 1)))


def upsample(x: Tensor, scales: Any, *, mode: str = "nearest") -> Tensor:
    """Before opset 10: pixel i is taken at i / scale."""
    return resize(
        x, None, scales, coordinate_transformation_mode="asymmetric", mode=mode,
        nearest_mode="floor", opset=11,
    )  # fmt: skip


#: {operator: what computes it}
OPERATORS: Mapping[str, Operator] = MappingProxyType({
    "Conv": Operator(conv), "ConvTranspose": Operator(conv_transpose),
    "Gemm": Operator(gemm), "MatMul": Operator(F.matmul),
    "MaxPool": Operator(max_pool), "AveragePool": Operator(average_pool),
    "GlobalAveragePool": Operator(global_average_pool),
    "GlobalMaxPool": Operator(global_max_pool),
    "BatchNormalization": Operator(batch_normalization, states=(3, 4)),
    "InstanceNormalization": Operator(instance_normalization),
    "GroupNormalization": Operator(group_normalization),
    "LayerNormalization": Operator(layer_normalization),
    "LRN": Operator(lrn), "LpNormalization": Operator(lp_normalization),
    "Relu": Operator(F.relu), "LeakyRelu": Operator(leaky_relu), "PRelu": Operator(prelu),
    "ThresholdedRelu": Operator(thresholded_relu), "Elu": Operator(elu), "Celu": Operator(celu),
    "Selu": Operator(selu), "Gelu": Operator(gelu), "Mish": Operator(F.mish),
    "Swish": Operator(swish), "HardSwish": Operator(F.hardswish),
    "HardSigmoid": Operator(hard_sigmoid), "Sigmoid": Operator(F.sigmoid),
    "Tanh": Operator(F.tanh), "Softplus": Operator(F.softplus), "Softsign": Operator(F.softsign),
    "Softmax": Operator(softmax), "LogSoftmax": Operator(log_softmax),
    "Clip": Operator(clip, numbers=(1, 2)), "Dropout": Operator(dropout, numbers=(1, 2)),
    "Add": Operator(operator.add, plain=True), "Sub": Operator(operator.sub, plain=True),
    "Mul": Operator(operator.mul, plain=True), "Div": Operator(operator.truediv, plain=True),
    "Neg": Operator(operator.neg), "Pow": Operator(power, numbers=(1,)),
    "Sum": Operator(total), "Mean": Operator(mean), "Max": Operator(maximum),
    "Min": Operator(minimum), "Exp": Operator(Tensor.exp), "Log": Operator(Tensor.log),
    "Sqrt": Operator(Tensor.sqrt), "Abs": Operator(Tensor.abs), "Erf": Operator(Tensor.erf),
    "Reciprocal": Operator(Tensor.reciprocal),
    "Greater": Operator(Tensor.gt), "GreaterOrEqual": Operator(Tensor.ge),
    "Less": Operator(Tensor.lt), "LessOrEqual": Operator(Tensor.le),
    "Equal": Operator(Tensor.eq), "Not": Operator(negated), "Where": Operator(F.where),
    "Cast": Operator(cast),
    "ReduceMean": Operator(_reduction(Tensor.mean), numbers=(1,)),
    "ReduceSum": Operator(_reduction(Tensor.sum), numbers=(1,)),
    "ReduceMax": Operator(_reduction(Tensor.amax), numbers=(1,)),
    "ReduceMin": Operator(_reduction(Tensor.amin), numbers=(1,)),
    "ReduceL1": Operator(_reduction(_absolute_sum), numbers=(1,)),
    "ReduceL2": Operator(_reduction(_length), numbers=(1,)),
    "ReduceSumSquare": Operator(_reduction(_square_sum), numbers=(1,)),
    "ReduceLogSumExp": Operator(_reduction(Tensor.logsumexp), numbers=(1,)),
    "Reshape": Operator(reshape, numbers=(1,)), "Flatten": Operator(flatten),
    "Transpose": Operator(transpose), "Squeeze": Operator(squeeze, numbers=(1,)),
    "Unsqueeze": Operator(unsqueeze, numbers=(1,)), "Concat": Operator(concat),
    "Split": Operator(split, numbers=(1,)), "Slice": Operator(slice_of, numbers=(1, 2, 3, 4)),
    "Gather": Operator(gather, numbers=(1,)), "Expand": Operator(expand, numbers=(1,)),
    "Tile": Operator(tile, numbers=(1,)), "Pad": Operator(pad, numbers=(1, 2, 3)),
    "DepthToSpace": Operator(depth_to_space), "SpaceToDepth": Operator(space_to_depth),
    "Resize": Operator(resize, numbers=(1, 2, 3)), "Upsample": Operator(upsample, numbers=(1,)),
})  # fmt: skip
