"""Linear maps as functions: the linear layer, convolution, transposed convolution.

All sizes are known when a call is recorded, so this is where the algorithm of a convolution is
chosen. PyTorch's arguments are turned into the form that operations take. Read next:
`../layers/conv2d.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from operator import index

from ooctrain.engine.tensor import Tensor, call, current_tape
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.layers.conv2d import Conv2d, Geometry, choose_algorithm, conv_shape
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.layout import Pad
from ooctrain.layers.linear import Linear
from ooctrain.layers.losses import ClassWeights
from ooctrain.layers.softmax import SoftmaxAlong
from ooctrain.step.arguments import checked
from ooctrain.step.op import Pair, Sides

IntOrPair = int | Sequence[int]


@checked
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input weight^T + bias: (N, C) and (K, C) give (N, K), and (..., C) gives (..., K).

    Raises:
        ShapeError: features or bias do not fit.
    """
    flat = input.ndim == 2 or not input.shape or input.shape[-1:] != weight.shape[-1:]
    if flat:  # or its error says what to do
        return call(Linear(), input, weight, *present(bias))
    rows = input.reshape(-1, input.shape[-1])
    found = call(Linear(), rows, weight, *present(bias))
    return found.reshape(*input.shape[:-1], weight.shape[0])


@checked
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The product of matrices along the last two axes; see `Tensor.matmul`."""
    return input.matmul(other)


@checked
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Products of equally many matrices, (B, M, K) and (B, K, N): (B, M, N)."""
    return input.bmm(mat2)


@checked
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """softmax(query key^T scale + attn_mask) value, along the last two axes.

    Args:
        query: (..., L, E).
        key, value: (..., S, E) and (..., S, V).
        attn_mask: float32, added to the (..., L, S) products before the softmax.
        dropout_p: 0: attention drops nothing here.
        is_causal: place l sees the places up to l.
        scale: None: 1 / sqrt(E).

    Raises:
        ConfigError: dropout, or a mask with is_causal.
        ShapeError: shapes that do not fit.
    """
    if dropout_p or (is_causal and attn_mask is not None):
        what = "no dropout" if dropout_p else "either a mask or is_causal"
        raise ConfigError(f"scaled_dot_product_attention takes {what}", code="OOC-106")
    if query.ndim < 2:
        raise ShapeError(f"a query (..., L, E) is needed, not {query.shape}")
    by = 1 / math.sqrt(query.shape[-1]) if scale is None else finite(scale, "scale")
    scores = (query * by) @ key.transpose(-2, -1)
    if attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        length, places = scores.shape[-2:]
        rows, columns = (call(ClassWeights(tuple(map(float, range(n))))) for n in (length, places))
        scores = scores.where(rows.unsqueeze(1).ge(columns), -math.inf)
    return call(SoftmaxAlong(scores.ndim - 1), scores) @ value


@checked
def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrPair = 1,
    padding: IntOrPair | str = 0, dilation: IntOrPair = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """2-d convolution: (N, C, H, W) and (K, C / groups, R, S) give (N, K, OH, OW).

    OH = floor((H + 2 padding - dilation (R - 1) - 1) / stride) + 1. Which algorithm computes it is
    fixed here, by its shape and what `oc.trace(conv_algorithm=)` requests.

    Args:
        bias: (K,), or None.
        stride: rows and columns from window to window.
        padding: rows and columns on both sides; "valid" for none, "same" for as many as keep the
            size (stride 1); or four sides (top, bottom, left, right).
        dilation: rows and columns from tap to tap of a filter.
        groups: parts of the channels that do not see each other.

    Raises:
        ShapeError: channels, groups or extents do not fit.
    """
    if input.ndim != 4 or weight.ndim != 4:
        raise ShapeError(
            "conv2d wants images (N, C, H, W) and a weight (K, C, R, S)",
            numbers=f"got {input.shape} and {weight.shape}",
        )
    kernel, step, spread = pair(weight.shape[2:]), pair(stride), pair(dilation)
    geometry = Geometry(step, _sides(padding, kernel, spread, step), spread, groups)
    # The algorithm is looked up for shapes that fit; the operation reports those that do not.
    fits = input.shape[1] == weight.shape[1] * groups
    shape = conv_shape(geometry, input.shape, weight.shape) if fits else None
    algorithm = choose_algorithm(shape, current_tape().conv_algorithm) if shape else "direct"
    return call(Conv2d(geometry, kernel, algorithm), input, weight, *present(bias))


@checked
def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrPair = 1,
    padding: IntOrPair = 0, output_padding: IntOrPair = 0, groups: int = 1,
    dilation: IntOrPair = 1,
) -> Tensor:  # fmt: skip
    """Transposed 2-d convolution: (N, K, H, W) and (K, C / groups, R, S) give (N, C, OH, OW).

    OH = (H - 1) stride - 2 padding + dilation (R - 1) + output_padding + 1.

    Args:
        bias: (C,), or None.
        stride, padding, dilation, groups: as of the convolution from output back to input.
        output_padding: rows and columns more below and to the right, fewer than stride or dilation.

    Raises:
        ShapeError: channels, groups or extents do not fit.
    """
    if input.ndim != 4 or weight.ndim != 4:
        raise ShapeError(
            "conv_transpose2d wants images (N, K, H, W) and a weight (K, C, R, S)",
            numbers=f"got {input.shape} and {weight.shape}",
        )
    kernel, step, spread = pair(weight.shape[2:]), pair(stride), pair(dilation)
    rows, columns = pair(padding)
    geometry = Geometry(step, (rows, rows, columns, columns), spread, groups)
    input, more = _whole_strides(input, pair(output_padding), step, spread)
    axes = zip(input.shape[2:], step, (rows, columns), spread, kernel, more, strict=True)
    height, width = ((n - 1) * s - 2 * p + d * (k - 1) + extra + 1 for n, s, p, d, k, extra in axes)
    fits = input.shape[1] == weight.shape[0] and min(height, width) > 0
    enlarged = (input.shape[0], weight.shape[1] * groups, height, width)
    shape = conv_shape(geometry, enlarged, weight.shape) if fits else None
    algorithm = choose_algorithm(shape, current_tape().conv_algorithm) if shape else "direct"
    op = ConvTranspose2d(geometry, kernel, (height, width), algorithm)
    return call(op, input, weight, *present(bias))


def _whole_strides(input: Tensor, more: Pair, stride: Pair, dilation: Pair) -> tuple[Tensor, Pair]:
    """A transposed convolution's input and output padding, the latter below the stride.

    A stride more of output is what one more pixel of zeros below would be spread over.
    """
    below, right = (
        extra // s if 0 < s <= extra < d else 0
        for extra, s, d in zip(more, stride, dilation, strict=True)
    )
    if below or right:
        input = call(Pad((0, below, 0, right)), input)
    return input, (more[0] - below * stride[0], more[1] - right * stride[1])


def _sides(padding: IntOrPair | str, kernel: Pair, dilation: Pair, stride: Pair) -> Sides:
    """The four sides of what a convolution takes as padding."""
    if padding == "valid":
        return 0, 0, 0, 0
    if padding == "same":
        if stride != (1, 1):
            raise ConfigError("conv2d: padding='same' needs stride 1")
        rows, columns = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
        return rows // 2, rows - rows // 2, columns // 2, columns - columns // 2
    if isinstance(padding, str):
        raise ConfigError(f"conv2d: padding {padding!r} is neither 'same' nor 'valid'")
    if not isinstance(padding, int | Integral) and len(padding) == 4:
        top, bottom, left, right = padding
        return top, bottom, left, right
    rows, columns = pair(padding)
    return rows, rows, columns, columns


# PyTorch's arguments in the form that the operations take. PyTorch takes one number for both axes
# and None for an absent tensor; operations take pairs (rows, columns) and lists of only the tensors
# that are present.


def present(*tensors: Tensor | None) -> list[Tensor]:
    """Those of the tensors that are not None, in order."""
    return [tensor for tensor in tensors if tensor is not None]


def pair(value: IntOrPair) -> Pair:
    """(rows, columns), from one whole number for both or from two.

    Raises:
        ConfigError: `value` is neither.
    """
    try:
        rows, columns = (value, value) if isinstance(value, int | Integral) else value
        return index(rows), index(columns)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{value!r} is not a whole number or a pair of whole numbers") from error


def sides(value: Sequence[int]) -> Sides:
    """(top, bottom, left, right), from PyTorch's (left, right, top, bottom).

    Raises:
        ConfigError: `value` is not four whole numbers.
    """
    try:
        left, right, top, bottom = map(index, value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"pad: {value!r} is not four whole numbers", code="OOC-106",
            fix="(left, right, top, bottom)",
        ) from error  # fmt: skip
    return top, bottom, left, right


def whole(value: object, what: str) -> int:
    """A whole number. Raises ConfigError: `value` is not one."""
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigError(f"{what} {value!r} is not a whole number", code="OOC-106") from error


def finite(value: float, what: str) -> float:
    """A finite number. Raises ConfigError: `value` is not one."""
    if not (isinstance(value, Real) and math.isfinite(value)):
        raise ConfigError(f"{what} {value!r} is not a finite number", code="OOC-106")
    return float(value)
