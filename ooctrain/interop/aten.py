"""PyTorch's operations, as `torch.export` names them, by functions of this library.

`ATEN` is the table: {name without "aten.": function with that operation's arguments}. An operation
that changes its input ("add_.Tensor") stands under the name of the one that does not ("add.Tensor",
see `exported.py`). What an operation can do and this library cannot, its function refuses by name.
Read next: `../functional/`, which computes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ooctrain import functional as F
from ooctrain.engine.tensor import Tensor, call
from ooctrain.errors import ConfigError
from ooctrain.layers.combine import Constant

Sizes = Sequence[int]
#: Of an index that becomes as many slices.
MOST_PLACES = 64


def _refuse(what: str) -> ConfigError:
    return ConfigError(what, code="OOC-190", fix="the network without it")


def _one_or_two(values: Any) -> Any:
    """aten's lists of one number stand for both axes."""
    return values[0] if isinstance(values, list | tuple) and len(values) == 1 else values


def _same(input: Tensor, *_args: Any, **_options: Any) -> Tensor:
    return input


# Convolutions and the linear layer


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Padding is numbers or a word."""
    stride, padding, dilation = map(_one_or_two, (stride, padding, dilation))
    return F.conv2d(input, weight, bias, stride, padding, dilation, groups)


def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """A convolution of images of one row."""
    stride, padding, dilation = map(_one_or_two, (stride, padding, dilation))
    sides = padding if isinstance(padding, str) else (0, padding)
    image, filters = input.unsqueeze(2), weight.unsqueeze(2)
    return F.conv2d(image, filters, bias, (1, stride), sides, (1, dilation), groups).squeeze(2)


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """In aten's order of arguments."""
    stride, padding, more, dilation = map(_one_or_two, (stride, padding, output_padding, dilation))
    return F.conv_transpose2d(input, weight, bias, stride, padding, more, groups, dilation)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Of the last axis, however many there are."""
    return F.linear(input, weight, bias)


# Normalisations


def batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, momentum: float, eps: float, _cudnn: bool,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The counter comes from the importer: PyTorch's module counts."""
    settings = weight, bias, training or running_mean is None, momentum, eps, num_batches_tracked
    return F.batch_norm(input, running_mean, running_var, *settings)


def instance_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, use_input_stats: bool, momentum: float, eps: float, _cudnn: bool,
) -> Tensor:  # fmt: skip
    """Without running statistics."""
    if running_mean is not None or running_var is not None:
        raise _refuse("instance_norm with running statistics")
    return F.instance_norm(input, None, None, weight, bias, True, momentum, eps)


def layer_norm(
    input: Tensor, shape: Sizes, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, _cudnn: bool = True,
) -> Tensor:  # fmt: skip
    """Over the last axes."""
    return F.layer_norm(input, shape, weight, bias, eps)


def group_norm(
    input: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, _cudnn: bool = True,
) -> Tensor:  # fmt: skip
    """Over groups of channels."""
    return F.group_norm(input, groups, weight, bias, eps)


# Pooling and images


def max_pool2d(
    input: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """An empty stride is the window."""
    settings = _one_or_two(stride) if stride else None, _one_or_two(padding), _one_or_two(dilation)
    return F.max_pool2d(input, _one_or_two(kernel), *settings, ceil_mode)


def avg_pool2d(
    input: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """An empty stride is the window."""
    if divisor_override is not None:
        raise _refuse("avg_pool2d with divisor_override")
    step = _one_or_two(stride) if stride else None
    settings = step, _one_or_two(padding), ceil_mode, count_include_pad
    return F.avg_pool2d(input, _one_or_two(kernel), *settings)


def max_pool2d_with_indices(input: Tensor, *settings: Any) -> tuple[Tensor, None]:
    """Without the places, which backward alone would read."""
    return max_pool2d(input, *settings), None


def adaptive_max_pool2d(input: Tensor, size: Sizes) -> tuple[Tensor, None]:
    """Without the places."""
    return F.adaptive_max_pool2d(input, size), None


def avg_pool3d(
    input: Tensor, kernel: Sizes, stride: Sizes = (), padding: Any = 0, *_rest: Any
) -> Tensor:
    """Along the third last axis alone, as response normalisation takes it."""
    if tuple(kernel[1:]) != (1, 1) or set(stride or kernel) != {1} or padding not in (0, (0, 0, 0)):
        raise _refuse("avg_pool3d of images")
    means = F.avg_pool2d(input.flatten(3).squeeze(1).unsqueeze(1), (kernel[0], 1), 1)
    return means.reshape(means.shape[:3] + input.shape[3:])


def upsample_nearest2d(input: Tensor, size: Sizes | None, factors: Any = None) -> Tensor:
    """By a size or by factors."""
    return F.interpolate(input, size, None if size is not None else factors, "nearest")


def upsample_bilinear2d(
    input: Tensor, size: Sizes | None, align_corners: bool, factors: Any = None
) -> Tensor:
    """By a size or by factors."""
    by = None if size is not None else factors
    return F.interpolate(input, size, by, "bilinear", align_corners)


def pad(input: Tensor, sides: Sizes, mode: str = "constant", value: float | None = None) -> Tensor:
    """PyTorch's order of sides; where all are 0 it is the same tensor."""
    return F.pad(input, sides, mode, value) if any(sides) else input  # type: ignore[arg-type]


# Activations


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """In aten the formula is named by keyword."""
    return F.gelu(input, approximate)


def addcmul(input: Any, first: Any, second: Any, *, value: float = 1) -> Any:
    """input + value first second."""
    return input + (first * second if value == 1 else value * (first * second))


def clamp(input: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    """Between two numbers."""
    return input.clamp(low, high)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Linear where beta times the input is above the threshold."""
    return F.softplus(input, beta, threshold)


def elu(input: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    """Also SELU and CELU, which have scales in aten."""
    if (scale, input_scale) != (1.0, 1.0):
        raise _refuse("elu with scales")
    return F.elu(input, alpha)


def softmax(input: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    """Along one axis."""
    _only_float(dtype)
    return F.softmax(input, dim)


def log_softmax(input: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    """Along one axis."""
    _only_float(dtype)
    return F.log_softmax(input, dim)


def _only_float(dtype: str | None) -> None:
    if dtype not in (None, "float32"):
        raise _refuse(f"a result of type {dtype}")


# Dropout and stochastic depth


def dropout(input: Tensor, p: float, training: bool) -> Tensor:
    """Of single elements, of tensors with any number of axes."""
    if input.ndim in (2, 4) or not training or p == 0:
        return F.dropout(input, p, training)
    return F.dropout(input.reshape(input.shape[0], -1), p).reshape(input.shape)


def feature_dropout(input: Tensor, p: float, training: bool) -> Tensor:
    """Of whole channels."""
    return F.dropout2d(input, p, training)


def bernoulli(input: Tensor, p: float) -> Tensor:
    """1 with probability p, else 0: one draw for each sample, as stochastic depth wants it."""
    if input.ndim < 2 or math.prod(input.shape[1:]) != 1:
        raise _refuse(f"random numbers of shape {input.shape}: one for each sample is drawn here")
    survives = call(Constant(p, (input.shape[0], 1)))
    return F.dropout(survives, 1 - p).reshape(input.shape)


# One value everywhere: a tensor that is empty is what a draw will fill


def full(size: Sizes, value: float, dtype: str | None = None, **_options: Any) -> Tensor:
    """A new tensor."""
    _only_float(dtype)
    return call(Constant(value, tuple(size)))


def full_like(input: Tensor, value: float, **options: Any) -> Tensor:
    """With the shape of another."""
    return full(input.shape, value, **options)


def new_full(_input: Tensor, size: Sizes, value: float, **options: Any) -> Tensor:
    """Of the type of another."""
    return full(size, value, **options)


def empty(size: Sizes, **options: Any) -> Tensor:
    """Zeros."""
    return full(size, 0.0, **options)


def new_empty(_input: Tensor, size: Sizes, **options: Any) -> Tensor:
    """Zeros, of the type of another."""
    return full(size, 0.0, **options)


def ones(size: Sizes, **options: Any) -> Tensor:
    """Ones."""
    return full(size, 1.0, **options)


def new_ones(_input: Tensor, size: Sizes, **options: Any) -> Tensor:
    """Ones, of the type of another."""
    return full(size, 1.0, **options)


def zeros_like(input: Tensor, **options: Any) -> Tensor:
    """With the shape of another."""
    return full(input.shape, 0.0, **options)


def ones_like(input: Tensor, **options: Any) -> Tensor:
    """With the shape of another."""
    return full(input.shape, 1.0, **options)


# Arithmetic


def add(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input + alpha other."""
    return input + (other if alpha == 1 else alpha * other)


def subtract(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input - alpha other."""
    return input - (other if alpha == 1 else alpha * other)


def reverse_subtract(input: Any, other: Any, alpha: float = 1) -> Any:
    """other - alpha input."""
    return other - (input if alpha == 1 else alpha * input)


def addmm(
    input: Any, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """beta input + alpha first second."""
    product = F.matmul(first, second)
    return add(input if beta == 1 else beta * input, product, alpha=alpha)


def square(input: Tensor) -> Tensor:
    """input^2."""
    return input**2


def mean(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: str | None = None
) -> Tensor:
    """Over some axes, or over all."""
    _only_float(dtype)
    return input.mean(dim if dim != [] else None, keepdim)


def total(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: str | None = None
) -> Tensor:
    """Over some axes, or over all."""
    _only_float(dtype)
    return input.sum(dim if dim != [] else None, keepdim)


# Shapes


def reshape(input: Tensor, shape: Sizes) -> Tensor:
    """One extent may be -1."""
    return input.reshape(tuple(shape))


def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """In the shape of another."""
    return input.reshape(other.shape)


def unflatten(input: Tensor, dim: int, sizes: Sizes) -> Tensor:
    """One axis apart into several."""
    place = dim % input.ndim
    wanted = (*input.shape[:place], *sizes, *input.shape[place + 1 :])
    return input.reshape(wanted)


def slice_of(
    input: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """Along one axis; an end behind the last element is the last."""
    keys = [slice(None)] * input.ndim
    keys[dim] = slice(start, None if end is None else min(end, input.shape[dim]), step)
    return input if keys[dim] in (slice(None), slice(0, None, 1)) else input[tuple(keys)]


def index(input: Tensor, places: Sequence[Any]) -> Tensor:
    """Elements along one axis, at places that are constants."""
    axes = [axis for axis, along in enumerate(places) if along is not None]
    if len(axes) != 1:
        raise _refuse("an index along several axes")
    return index_select(input, axes[0], places[axes[0]])


def index_select(input: Tensor, dim: int, places: Any) -> Tensor:
    """The same, by the axis's number."""
    whole = isinstance(places, list | tuple) and all(isinstance(i, int) for i in places)
    if not whole or not 0 < len(places) <= MOST_PLACES:
        raise _refuse(f"an index that is not at most {MOST_PLACES} constants along one axis")
    return F.cat([input.narrow(dim, i % input.shape[dim], 1) for i in places], dim)


def roll(input: Tensor, shifts: Sizes, dims: Sizes = ()) -> Tensor:
    """Along some axes, or along all as one."""
    if not dims:
        return input.flatten().roll(shifts, (0,)).reshape(input.shape)
    return input.roll(shifts, dims)


def flip(input: Tensor, dims: Sizes) -> Tensor:
    """Along some axes."""
    return input.flip(*dims)


def repeat(input: Tensor, sizes: Sizes) -> Tensor:
    """So often along each axis."""
    return input.repeat(*sizes)


def expand(input: Tensor, sizes: Sizes) -> Tensor:
    """Axes of extent 1 repeated; -1 leaves an extent as it is."""
    return input.expand(*sizes)


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Softmax of products of queries and keys, times values."""
    if dropout_p or enable_gqa:
        raise _refuse("attention with dropout, or with fewer keys than queries")
    return F.scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, scale=scale)


def transposed(input: Tensor) -> Tensor:
    """The last two axes exchanged."""
    return input.transpose(-2, -1)


def vector_norm(
    input: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False,
    *, dtype: str | None = None,
) -> Tensor:  # fmt: skip
    """Over some axes."""
    _only_float(dtype)
    return input.norm(order, dim, keepdim)


def variance(
    input: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False
) -> Tensor:
    """Over some axes."""
    return input.var(dim, unbiased=unbiased, keepdim=keepdim)


def deviation(
    input: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False
) -> Tensor:
    """Over some axes."""
    return input.std(dim, unbiased=unbiased, keepdim=keepdim)


def deviation_and_mean(
    input: Tensor, dim: Any = None, *, correction: float = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Over some axes."""
    return Tensor.std(input, dim, correction=correction, keepdim=keepdim), mean(input, dim, keepdim)


def variance_and_mean(
    input: Tensor, dim: Any = None, *, correction: float = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Over some axes."""
    return Tensor.var(input, dim, correction=correction, keepdim=keepdim), mean(input, dim, keepdim)


def clamp_by(input: Tensor, low: Any = None, high: Any = None) -> Tensor:
    """Between tensors or numbers."""
    if isinstance(low, Tensor):
        input, low = F.maximum(input, low), None
    if isinstance(high, Tensor):
        input, high = F.minimum(input, high), None
    return input if low is high is None else input.clamp(low, high)


def to_type(input: Tensor, dtype: str, *_rest: Any, **_options: Any) -> Tensor:
    """As float32, which all numbers are here; a condition is 1.0 or 0.0 already."""
    _only_float(dtype)
    return input


def detach(input: Any) -> Any:
    """Without its history; what the code has made of a number has none."""
    return input.detach() if isinstance(input, Tensor) else input


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """With the shape of another."""
    return expand(input, other.shape)


#: {operation: what computes it}
ATEN: Mapping[str, Callable[..., Any]] = {
    "conv1d.default": conv1d, "conv1d.padding": conv1d,
    "conv2d.default": conv2d, "conv2d.padding": conv2d,
    "conv_transpose2d.input": conv_transpose2d, "linear.default": linear,
    "batch_norm.default": batch_norm, "instance_norm.default": instance_norm,
    "layer_norm.default": layer_norm, "group_norm.default": group_norm,
    "max_pool2d.default": max_pool2d, "avg_pool2d.default": avg_pool2d,
    "max_pool2d_with_indices.default": max_pool2d_with_indices,
    "adaptive_max_pool2d.default": adaptive_max_pool2d,
    "adaptive_avg_pool2d.default": F.adaptive_avg_pool2d, "avg_pool3d.default": avg_pool3d,
    "pixel_unshuffle.default": F.pixel_unshuffle, "channel_shuffle.default": F.channel_shuffle,
    "upsample_nearest2d.vec": upsample_nearest2d, "upsample_bilinear2d.vec": upsample_bilinear2d,
    "pixel_shuffle.default": F.pixel_shuffle, "pad.default": pad,
    "relu.default": F.relu, "relu6.default": F.relu6, "leaky_relu.default": F.leaky_relu,
    "prelu.default": F.prelu, "elu.default": elu, "celu.default": F.celu, "selu.default": F.selu,
    "mish.default": F.mish, "softplus.default": softplus, "log_sigmoid.default": F.logsigmoid,
    "glu.default": F.glu, "sigmoid.default": F.sigmoid, "tanh.default": F.tanh,
    "silu.default": F.silu, "hardswish.default": F.hardswish, "gelu.default": gelu,
    "hardsigmoid.default": F.hardsigmoid, "hardtanh.default": F.hardtanh, "clamp.default": clamp,
    "clamp_min.default": clamp, "softmax.int": softmax, "log_softmax.int": log_softmax,
    "dropout.default": dropout, "feature_dropout.default": feature_dropout,
    "empty.memory_format": empty, "new_empty.default": new_empty,
    "zeros.default": empty, "new_zeros.default": new_empty, "zeros_like.default": zeros_like,
    "ones.default": ones, "new_ones.default": new_ones, "ones_like.default": ones_like,
    "full.default": full, "new_full.default": new_full, "full_like.default": full_like,
    "bernoulli.float": bernoulli,
    "add.Scalar": add, "sub.Scalar": subtract, "mul.Scalar": operator.mul,
    "div.Scalar": operator.truediv, "add.Tensor": add, "sub.Tensor": subtract,
    "rsub.Scalar": reverse_subtract,
    "mul.Tensor": operator.mul, "div.Tensor": operator.truediv, "neg.default": operator.neg,
    "pow.Tensor_Scalar": operator.pow, "square.default": square,
    "exp.default": Tensor.exp, "log.default": Tensor.log, "sqrt.default": Tensor.sqrt,
    "rsqrt.default": Tensor.rsqrt, "abs.default": Tensor.abs, "erf.default": Tensor.erf,
    "reciprocal.default": Tensor.reciprocal, "maximum.default": F.maximum,
    "minimum.default": F.minimum, "matmul.default": F.matmul, "mm.default": F.matmul,
    "bmm.default": F.bmm, "addmm.default": addmm, "mT.default": transposed, "t.default": transposed,
    "scaled_dot_product_attention.default": attention,
    "linalg_vector_norm.default": vector_norm, "norm.ScalarOpt_dim": vector_norm,
    "gt.Scalar": Tensor.gt, "gt.Tensor": Tensor.gt, "ge.Scalar": Tensor.ge, "ge.Tensor": Tensor.ge,
    "lt.Scalar": Tensor.lt, "lt.Tensor": Tensor.lt, "le.Scalar": Tensor.le, "le.Tensor": Tensor.le,
    "eq.Scalar": Tensor.eq, "eq.Tensor": Tensor.eq, "ne.Scalar": Tensor.ne, "ne.Tensor": Tensor.ne,
    "max.dim": Tensor.max, "min.dim": Tensor.min, "max.default": Tensor.max,
    "min.default": Tensor.min, "clamp.Tensor": clamp_by, "clamp_min.Tensor": clamp_by,
    "where.self": F.where, "masked_fill.Scalar": Tensor.masked_fill, "to.dtype": to_type,
    "amax.default": Tensor.amax, "amin.default": Tensor.amin, "logsumexp.default": Tensor.logsumexp,
    "var.correction": Tensor.var, "std.correction": Tensor.std, "var.dim": variance,
    "std.dim": deviation, "var_mean.correction": variance_and_mean,
    "std_mean.correction": deviation_and_mean,
    "mean.dim": mean, "mean.default": mean, "sum.dim_IntList": total, "sum.default": total,
    "flatten.using_ints": F.flatten, "unflatten.int": unflatten,
    "view.default": reshape, "reshape.default": reshape, "reshape_as.default": reshape_as,
    "view_as.default": reshape_as, "permute.default": Tensor.permute,
    "transpose.int": Tensor.transpose, "squeeze.dim": Tensor.squeeze,
    "squeeze.dims": Tensor.squeeze, "squeeze.default": Tensor.squeeze,
    "unsqueeze.default": Tensor.unsqueeze, "expand.default": expand,
    "expand_as.default": expand_as, "addcmul.default": addcmul,
    "cat.default": F.cat, "stack.default": F.stack, "slice.Tensor": slice_of,
    "select.int": Tensor.select, "split.Tensor": Tensor.split,
    "split_with_sizes.default": Tensor.split,
    "chunk.default": Tensor.chunk, "unbind.int": Tensor.unbind, "narrow.default": Tensor.narrow,
    "index.Tensor": index, "index_select.default": index_select, "roll.default": roll,
    "flip.default": flip, "repeat.default": repeat,
    "contiguous.default": _same, "clone.default": _same, "alias.default": _same,
    "lift_fresh_copy.default": _same,
    "detach.default": detach, "sym_size.int": Tensor.size,
    "getitem": operator.getitem, "mul": operator.mul, "add": operator.add, "sub": operator.sub,
    "floordiv": operator.floordiv, "mod": operator.mod, "neg": operator.neg,
}  # fmt: skip
