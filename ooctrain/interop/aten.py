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
    flat = input if input.ndim == 2 else input.reshape(-1, input.shape[-1])
    return F.linear(flat, weight, bias).reshape(*input.shape[:-1], weight.shape[0])


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
    """Of images; PyTorch's order of sides, which may leave out the outer ones. A negative side cuts
    off."""
    for pair in range(len(sides) // 2):
        before, after = sides[2 * pair], sides[2 * pair + 1]
        dim, extent = input.ndim - 1 - pair, input.shape[input.ndim - 1 - pair]
        input = slice_of(input, dim, max(-before, 0), extent - max(-after, 0))
    sides = [max(side, 0) for side in sides]
    if not any(sides):
        return input
    if len(sides) == 2 and input.ndim > 1:  # of one axis, as of (N, C, L) or (N, L, C)
        lines = input.reshape(1, 1, -1, input.shape[-1])
        padded = F.pad(lines, (*sides, 0, 0), mode, value)  # type: ignore[arg-type]
        return padded.reshape(*input.shape[:-1], padded.shape[-1])
    return F.pad(input, sides, mode, value)  # type: ignore[arg-type]


# Activations


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """In aten the formula is named by keyword."""
    return F.gelu(input, approximate)


def hardtanh(input: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    """At least `low` and at most `high`; 0 to 6 is ReLU6, with its slope of 0 at both ends."""
    return F.relu6(input) if (low, high) == (0, 6) else input.clamp(low, high)


def addcmul(input: Any, first: Any, second: Any, *, value: float = 1) -> Any:
    """input + value first second."""
    return input + (first * second if value == 1 else value * (first * second))


def clamp(input: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    """Between two numbers."""
    return input.clamp(low, high)


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


def empty(size: Sizes, **_options: Any) -> Tensor:
    """What a draw will fill."""
    return call(Constant(0.0, tuple(size)))


def new_empty(_input: Tensor, size: Sizes, **options: Any) -> Tensor:
    """What a draw will fill, of the type of another."""
    return empty(size, **options)


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


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """One place of an axis, which goes."""
    place = index % input.shape[dim]
    return slice_of(input, dim, place, place + 1).squeeze(dim)


def split(input: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    """Parts of `size`; the last may be smaller."""
    extent = input.shape[dim]
    return [slice_of(input, dim, at, min(at + size, extent)) for at in range(0, extent, size)]


def split_with_sizes(input: Tensor, sizes: Sizes, dim: int = 0) -> list[Tensor]:
    """Parts of given sizes."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [slice_of(input, dim, e - n, e) for e, n in zip(ends, sizes, strict=True)]


def chunk(input: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    """`chunks` parts of equal size, or fewer; the last may be smaller."""
    return split(input, -(-input.shape[dim] // chunks), dim)


def unbind(input: Tensor, dim: int = 0) -> list[Tensor]:
    """Every place of an axis."""
    return [select(input, dim, index) for index in range(input.shape[dim])]


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Along an axis that is new."""
    return F.cat([tensor.unsqueeze(dim) for tensor in tensors], dim)


def expand(input: Tensor, sizes: Sizes) -> Tensor:
    """Axes of extent 1 repeated; -1 leaves an extent as it is."""
    new = len(sizes) - input.ndim
    own = (1,) * new + input.shape
    wanted = tuple(mine if n == -1 else n for n, mine in zip(sizes, own, strict=True))
    grown = input.reshape(own) if new else input
    return grown if wanted == own else grown + call(Constant(0.0, wanted))


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
    "adaptive_avg_pool2d.default": F.adaptive_avg_pool2d,
    "upsample_nearest2d.vec": upsample_nearest2d, "upsample_bilinear2d.vec": upsample_bilinear2d,
    "pixel_shuffle.default": F.pixel_shuffle, "pad.default": pad,
    "relu.default": F.relu, "relu6.default": F.relu6, "leaky_relu.default": F.leaky_relu,
    "prelu.default": F.prelu, "sigmoid.default": F.sigmoid, "tanh.default": F.tanh,
    "silu.default": F.silu, "hardswish.default": F.hardswish, "gelu.default": gelu,
    "hardsigmoid.default": F.hardsigmoid, "hardtanh.default": hardtanh, "clamp.default": clamp,
    "clamp_min.default": clamp, "softmax.int": softmax, "log_softmax.int": log_softmax,
    "dropout.default": dropout, "feature_dropout.default": feature_dropout,
    "empty.memory_format": empty, "new_empty.default": new_empty,
    "bernoulli.float": bernoulli,
    "add.Tensor": add, "sub.Tensor": subtract, "rsub.Scalar": reverse_subtract,
    "mul.Tensor": operator.mul, "div.Tensor": operator.truediv, "neg.default": operator.neg,
    "pow.Tensor_Scalar": operator.pow, "square.default": square,
    "mean.dim": mean, "mean.default": mean, "sum.dim_IntList": total, "sum.default": total,
    "flatten.using_ints": F.flatten, "unflatten.int": unflatten,
    "view.default": reshape, "reshape.default": reshape, "reshape_as.default": reshape_as,
    "view_as.default": reshape_as, "permute.default": Tensor.permute,
    "transpose.int": Tensor.transpose, "squeeze.dim": Tensor.squeeze,
    "squeeze.dims": Tensor.squeeze, "squeeze.default": Tensor.squeeze,
    "unsqueeze.default": Tensor.unsqueeze, "expand.default": expand,
    "expand_as.default": expand_as, "addcmul.default": addcmul,
    "cat.default": F.cat, "stack.default": stack, "slice.Tensor": slice_of,
    "select.int": select, "split.Tensor": split, "split_with_sizes.default": split_with_sizes,
    "chunk.default": chunk, "unbind.int": unbind,
    "contiguous.default": _same, "clone.default": _same, "alias.default": _same,
    "lift_fresh_copy.default": _same,
    "detach.default": detach, "sym_size.int": Tensor.size,
    "getitem": operator.getitem, "mul": operator.mul, "add": operator.add, "sub": operator.sub,
    "floordiv": operator.floordiv, "mod": operator.mod, "neg": operator.neg,
}  # fmt: skip
