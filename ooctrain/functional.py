"""Functions of layers, with the names, argument orders and defaults of `torch.nn.functional`.

In: tensors. Out: tensors. The one idea: a function turns its arguments into one operation (or a
few, for batch norm) and records it on the tape in force; there is no computing here. Read next:
`nn.py`, and `layers/` for the operations.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ooctrain.autograd import Tensor, call, current_tape
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.layers.activation import Sigmoid, Tanh
from ooctrain.layers.batch_norm import BatchNormApply, BatchNormStats, BatchNormUpdate, InverseStd
from ooctrain.layers.combine import Concat, Constant
from ooctrain.layers.conv2d import Conv2d, Geometry, choose_algorithm
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.instance_norm import InstanceNormApply, InstanceNormStats
from ooctrain.layers.layout import Pad
from ooctrain.layers.linear import Linear
from ooctrain.layers.loss import (
    MeanError,
    SoftmaxCrossEntropy,
    check_labels,
    looks_like_probabilities,
)
from ooctrain.layers.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d, PoolGeometry
from ooctrain.layers.reflection import ReflectionPad2d
from ooctrain.layers.relu import LeakyReLU, ReLU
from ooctrain.layers.upsample import Upsample
from ooctrain.layers.weighted_loss import ClassWeights, ErrorEach, Reduction, WeightedCrossEntropy

IntOrPair = int | Sequence[int]
Pair = tuple[int, int]


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(input, 0). `inplace` is ignored: `share_storage` decides where it is safe."""
    return call(ReLU(), input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """input where positive, else negative_slope * input. `inplace` as in `relu`."""
    return call(LeakyReLU(negative_slope), input)


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return call(Tanh(), input)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input))."""
    return call(Sigmoid(), input)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input weight^T + bias: (N, C) and (K, C) give (N, K)."""
    return call(Linear(), input, weight, *_present(bias))


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrPair = 1,
    padding: IntOrPair | str = 0, dilation: IntOrPair = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """2-d convolution: (N, C, H, W) and (K, C / groups, R, S) give (N, K, OH, OW).

    Args:
        padding: rows and columns on both sides; "valid" for none, "same" for as many as keep the
            size (stride 1); or four sides (top, bottom, left, right).

    Raises:
        ShapeError: channels, groups or extents do not fit.
    """
    if input.ndim != 4 or weight.ndim != 4:
        raise ShapeError(
            "conv2d wants images (N, C, H, W) and a weight (K, C, R, S)",
            numbers=f"got {input.shape} and {weight.shape}",
        )
    kernel, spread = _pair(weight.shape[2:]), _pair(dilation)
    sides = _sides(padding, kernel, spread, _pair(stride))
    geometry = Geometry(_pair(stride), sides, spread, groups)
    # The algorithm is looked up for shapes that fit; the operation reports those that do not.
    fits = input.shape[1] == weight.shape[1] * groups
    shape = geometry.conv_shape(input.shape, weight.shape) if fits else None
    algorithm = choose_algorithm(shape, current_tape().conv_algorithm) if shape else "direct"
    return call(Conv2d(geometry, kernel, algorithm), input, weight, *_present(bias))


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrPair = 1,
    padding: IntOrPair = 0, output_padding: IntOrPair = 0, groups: int = 1,
    dilation: IntOrPair = 1,
) -> Tensor:  # fmt: skip
    """Transposed 2-d convolution: (N, K, H, W) and (K, C / groups, R, S) give (N, C, OH, OW).

    OH = (H - 1) stride - 2 padding + dilation (R - 1) + output_padding + 1.

    Raises:
        ShapeError: channels, groups or extents do not fit.
    """
    if input.ndim != 4 or weight.ndim != 4:
        raise ShapeError(
            "conv_transpose2d wants images (N, K, H, W) and a weight (K, C, R, S)",
            numbers=f"got {input.shape} and {weight.shape}",
        )
    kernel, step, spread = _pair(weight.shape[2:]), _pair(stride), _pair(dilation)
    rows, columns = _pair(padding)
    geometry = Geometry(step, (rows, rows, columns, columns), spread, groups)
    axes = zip(
        input.shape[2:], step, (rows, columns), spread, kernel, _pair(output_padding), strict=True
    )
    height, width = ((n - 1) * s - 2 * p + d * (k - 1) + extra + 1 for n, s, p, d, k, extra in axes)
    fits = input.shape[1] == weight.shape[0] and min(height, width) > 0
    enlarged = (input.shape[0], weight.shape[1] * groups, height, width)
    shape = geometry.conv_shape(enlarged, weight.shape) if fits else None
    algorithm = choose_algorithm(shape, current_tape().conv_algorithm) if shape else "direct"
    op = ConvTranspose2d(geometry, kernel, (height, width), algorithm)
    return call(op, input, weight, *_present(bias))


def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float | None = 0.1, eps: float = 1e-5,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Normalises each channel by the batch (training) or by the running statistics.

    Args:
        momentum: weight of this batch in the running statistics; None: cumulative average.
        num_batches_tracked: counter beside the running statistics (in PyTorch the module counts);
            None: not counted, and `momentum` must be given.
    """
    tape, channels = current_tape(), input.shape[1:2]
    gamma = weight if weight is not None else call(Constant(1.0, channels))
    beta = bias if bias is not None else call(Constant(0.0, channels))
    if not training:
        if running_mean is None or running_var is None:
            raise ConfigError("batch_norm in evaluation needs running statistics")
        inv_std = call(InverseStd(eps), running_var)
        apply = BatchNormApply(batch_stats=False)
        return tape.call(apply, (input, running_mean, inv_std, gamma, beta))[0]
    mean, inv_std, var = tape.call(BatchNormStats(eps), (input,))
    y = call(BatchNormApply(), input, mean, inv_std, gamma, beta)
    if running_mean is not None and running_var is not None:
        state = running_mean, running_var, *_present(num_batches_tracked)
        update = BatchNormUpdate(momentum, input.numel() // input.shape[1], len(state) == 3)
        tape.update(update, (mean, var, *state), state, {})
    return y


def instance_norm(
    input: Tensor, running_mean: None = None, running_var: None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalises each channel of each image by its own mean and deviation.

    Raises:
        ConfigError: running statistics, which this library does not keep here (nor does PyTorch,
            unless asked), or one of weight and bias without the other.
    """
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise ConfigError("instance_norm keeps no running statistics", code="OOC-106")
    affine = _present(weight, bias)
    if len(affine) == 1:
        raise ConfigError("instance_norm takes weight and bias, or neither", code="OOC-106")
    mean, inv_std = current_tape().call(InstanceNormStats(eps), (input,))
    return call(InstanceNormApply(affine=bool(affine)), input, mean, inv_std, *affine)


def interpolate(
    input: Tensor, size: IntOrPair | None = None, scale_factor: float | None = None,
    mode: str = "nearest", align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """Images in another size.

    Args:
        size: (OH, OW); or
        scale_factor: that makes whole numbers of both extents.
        mode: "nearest" or "bilinear".
        align_corners: bilinear: True lets the centres of the corner pixels fall on each other, else
            the borders of the images do.

    Raises:
        ConfigError: both or neither of size and scale_factor, or a factor that leaves fractions.
    """
    if (size is None) == (scale_factor is None):
        raise ConfigError("interpolate takes either size or scale_factor", code="OOC-106")
    if size is None:
        extents = [n * (scale_factor or 1) for n in input.shape[2:]]
        if any(extent != int(extent) for extent in extents):
            raise ConfigError(
                f"scale_factor {scale_factor} makes {extents[0]} x {extents[1]} of "
                f"{input.shape[2]} x {input.shape[3]}", code="OOC-106", fix="give size",
            )  # fmt: skip
        size = [int(extent) for extent in extents]
    return call(Upsample(_pair(size), mode, bool(align_corners)), input)


def max_pool2d(
    input: Tensor, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: IntOrPair = 0,
    dilation: IntOrPair = 1, ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """Maximum of each window; `stride` defaults to the window.

    Args:
        dilation: rows and columns from cell to cell of a window.
        ceil_mode: windows that only begin in the image count too.
    """
    geometry = _pool_geometry(kernel_size, stride, padding, dilation)
    return call(MaxPool2d(_rounded(geometry, input, ceil_mode)), input)


def avg_pool2d(
    input: Tensor, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: IntOrPair = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """Mean of each window; `stride` defaults to the window.

    Args:
        ceil_mode: windows that only begin in the image count too; what lies behind the padding is
            in no mean.
        count_include_pad: whether the padding's zeros are.

    Raises:
        ConfigError: ceil_mode with padding that counts.
    """
    geometry = _pool_geometry(kernel_size, stride, padding)
    counted = count_include_pad and any(geometry.padding)
    if ceil_mode and counted:
        raise ConfigError(
            "avg_pool2d: ceil_mode=True with padding that counts is not supported",
            fix="count_include_pad=False, or pad the input instead",
        )
    counts = counted if ceil_mode else count_include_pad
    return call(AvgPool2d(_rounded(geometry, input, ceil_mode), counts), input)


def adaptive_avg_pool2d(input: Tensor, output_size: IntOrPair) -> Tensor:
    """Means over as many windows as the output has pixels."""
    return call(AdaptiveAvgPool2d(_pair(output_size)), input)


def pad(
    input: Tensor, pad: Sequence[int], mode: Literal["constant", "reflect"] = "constant"
) -> Tensor:
    """Padding of images by (left, right, top, bottom), PyTorch's order: with zeros, or mirrored."""
    left, right, top, bottom = pad
    kind = ReflectionPad2d if mode == "reflect" else Pad
    return call(kind((top, bottom, left, right)), input)


def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """One after the other along `dim` (PyTorch: `torch.cat`)."""
    return call(Concat(dim % tensors[0].ndim), *tensors)


cat = concat


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Joins axes."""
    return input.flatten(start_dim, end_dim)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drops each element with probability p and scales the others by 1 / (1 - p), in training."""
    if not 0 <= p <= 1:
        raise ConfigError(f"dropout: probability {p} is not in [0, 1]")
    if not training or p == 0:
        return input
    return call(Dropout(p, current_tape().next_dropout()), input)


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
    reduction: Reduction = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """-log softmax(input)[target]: class numbers per image (N) or per pixel (N, H, W).

    Args:
        input: logits, (N, K) or (N, K, H, W); not probabilities.
        target: int64 class numbers; rows with `ignore_index` do not count.
        weight: of each class, (K,), a constant of the step; the mean is by weight.
        reduction: "mean", "sum", or "none" for the loss of each row by itself.
        label_smoothing: share of each label that is spread evenly over all classes.

    Raises:
        ShapeError: shapes or dtypes do not fit.
        ConfigError: a label that is not a class number, or an option that is none.
    """
    _check_reduction("cross_entropy", reduction)
    if not 0 <= label_smoothing <= 1:
        raise ConfigError(f"cross_entropy: label_smoothing {label_smoothing} is not in [0, 1]")
    if weight is not None and (weight.requires_grad or weight.storage is None):
        raise ConfigError("cross_entropy: class weights are constants, they get no gradient")
    plain = SoftmaxCrossEntropy(ignore_index, "sum" if reduction == "sum" else "mean")
    if input.storage is not None and target.storage is not None:
        plain.infer(input.spec, target.spec)
        check_labels(target.numpy(), input.shape[1], ignore_index)
        _hint_at_softmax(input)
    if weight is None and not label_smoothing and reduction != "none":
        return call(plain, input, target)
    values = (1.0,) * input.shape[1] if weight is None else _class_weights(weight)
    op = WeightedCrossEntropy(ignore_index, float(label_smoothing), reduction)
    return call(op, input, target, call(ClassWeights(values)))


def _class_weights(weight: Tensor) -> tuple[float, ...]:
    values = weight.numpy().reshape(-1)
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ConfigError("cross_entropy: class weights are finite and not negative")
    return tuple(values.tolist())


def mse_loss(input: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Squared differences: their mean, their sum, or ("none") each."""
    return _error("mse_loss", input, target, False, reduction)


def l1_loss(input: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Absolute differences: their mean, their sum, or ("none") each."""
    return _error("l1_loss", input, target, True, reduction)


def _error(
    name: str, input: Tensor, target: Tensor, absolute: bool, reduction: Reduction
) -> Tensor:
    _check_reduction(name, reduction)
    if reduction == "none":
        return call(ErrorEach(absolute), input, target)
    return call(MeanError(absolute, reduction), input, target)


def _check_reduction(name: str, reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ConfigError(f"{name}: reduction {reduction!r} is not 'mean', 'sum' or 'none'")


def _hint_at_softmax(logits: Tensor) -> None:
    warned = current_tape().warned
    if "softmax" not in warned and looks_like_probabilities(logits.numpy()):
        warned.add("softmax")
        warnings.warn(
            "cross_entropy takes logits, but each row sums to 1: remove the softmax before it",
            stacklevel=3,
        )


def _present(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _pair(value: IntOrPair) -> Pair:
    if isinstance(value, int):
        return value, value
    rows, columns = value
    return int(rows), int(columns)


def _sides(
    padding: IntOrPair | str, kernel: Pair, dilation: Pair, stride: Pair
) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) of what a convolution takes as padding."""
    if padding == "valid":
        return 0, 0, 0, 0
    if padding == "same":
        if stride != (1, 1):
            raise ConfigError("conv2d: padding='same' needs stride 1")
        rows, columns = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
        return rows // 2, rows - rows // 2, columns // 2, columns - columns // 2
    if isinstance(padding, str):
        raise ConfigError(f"conv2d: padding {padding!r} is neither 'same' nor 'valid'")
    if not isinstance(padding, int) and len(padding) == 4:
        top, bottom, left, right = padding
        return top, bottom, left, right
    rows, columns = _pair(padding)
    return rows, rows, columns, columns


def _pool_geometry(
    kernel_size: IntOrPair, stride: IntOrPair | None, padding: IntOrPair, dilation: IntOrPair = 1
) -> PoolGeometry:
    kernel, (rows, columns) = _pair(kernel_size), _pair(padding)
    step = kernel if stride is None else _pair(stride)
    geometry = PoolGeometry(kernel, step, (rows, rows, columns, columns), _pair(dilation))
    if any(2 * p > extent for p, extent in zip((rows, columns), geometry.extent, strict=True)):
        raise ConfigError(
            f"pooling: padding {(rows, columns)} is more than half of the window {geometry.extent}"
        )
    return geometry


def _rounded(geometry: PoolGeometry, input: Tensor, ceil_mode: bool) -> PoolGeometry:
    if not ceil_mode or input.ndim != 4 or min(geometry.stride) < 1:
        return geometry
    return geometry.rounded_up(*input.shape[2:])
