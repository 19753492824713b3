"""Normalisations: by the batch, by each image itself, or by groups of channels.

Images are brought to mean 0 and deviation 1, then scaled and shifted. The statistics and their use
are separate calls, so that each can be recomputed by itself; the running statistics are updated by
a third call, which runs once. A layer or group norm is the instance norm of one image that has a
channel for each set of values. Read next: `../layers/batch_norm.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ooctrain.engine.tensor import Tensor, call, current_tape
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.functional.conv import finite, present, whole
from ooctrain.layers.batch_norm import BatchNormApply, BatchNormStats, BatchNormUpdate, InverseStd
from ooctrain.layers.combine import Constant
from ooctrain.layers.instance_norm import InstanceNormApply, InstanceNormStats
from ooctrain.layers.pooling import AvgPool2d, PoolGeometry
from ooctrain.step.arguments import checked


@checked
def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float | None = 0.1, eps: float = 1e-5,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Normalises each channel by the batch (training) or by the running statistics.

    y = weight (x - mean) / sqrt(var + eps) + bias, with one mean and one (biased) variance for each
    channel. In training the running statistics are updated by a call of its own.

    Args:
        input: (N, C, H, W), (N, C, L) or (N, C), in training with more than one value for each
            channel.
        running_mean, running_var: (C,); None in training: not kept.
        weight, bias: (C,); None: 1 and 0.
        training: by the batch.
        momentum: weight of this batch in the running statistics; None: cumulative average.
        num_batches_tracked: counter of the running statistics (in PyTorch the module counts);
            None: not counted, and `momentum` must be given.
        eps: added to the variance.

    Raises:
        ConfigError: evaluation without running statistics.
        ShapeError: shapes do not fit, or one value has no variance.
    """
    if input.ndim == 3:
        settings = running_mean, running_var, weight, bias, training, momentum, eps
        found = batch_norm(input.unsqueeze(3), *settings, num_batches_tracked)
        return found.reshape(input.shape)
    tape, channels = current_tape(), input.shape[1:2]
    gamma = weight if weight is not None else call(Constant(1.0, channels))
    beta = bias if bias is not None else call(Constant(0.0, channels))
    if not training:
        if running_mean is None or running_var is None:
            raise ConfigError("batch_norm in evaluation needs running statistics")
        inv_std = call(InverseStd(eps), running_var)
        fixed = BatchNormApply(batch_stats=False)
        return tape.call(fixed, (input, running_mean, inv_std, gamma, beta))[0]
    statistics, apply = tape.call(BatchNormStats(eps), (input,)), BatchNormApply()
    rows = input.numel() // input.shape[1]
    if tape.parts is not None:
        statistics, apply, rows = tape.parts.batch_statistics(tape, statistics, eps, rows)
    mean, inv_std, var = statistics
    y = call(apply, input, mean, inv_std, gamma, beta)
    if running_mean is not None and running_var is not None:
        state = running_mean, running_var, *present(num_batches_tracked)
        update = BatchNormUpdate(momentum, rows, len(state) == 3)
        tape.update(update, (mean, var, *state), state, {})
    return y


@checked
def instance_norm(
    input: Tensor, running_mean: None = None, running_var: None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalises each channel of each image by its own mean and deviation.

    Args:
        input: (N, C, H, W), of more than one pixel.
        weight, bias: (C,), or neither.
        eps: added to the variance.
        running_mean, running_var, use_input_stats, momentum: PyTorch's, for its order of arguments.

    Raises:
        ConfigError: running statistics, which this library does not keep here (nor does PyTorch,
            unless asked), or one of weight and bias without the other.
    """
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise ConfigError("instance_norm keeps no running statistics", code="OOC-106")
    affine = present(weight, bias)
    if len(affine) == 1:
        raise ConfigError("instance_norm takes both weight and bias, or neither", code="OOC-106")
    mean, inv_std = current_tape().call(InstanceNormStats(eps), (input,))
    return call(InstanceNormApply(affine=bool(affine)), input, mean, inv_std, *affine)


@checked
def layer_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalises over the last axes, those of `normalized_shape`, by their own mean and deviation.

    Args:
        weight, bias: in the shape `normalized_shape`; None: 1 and 0.
        eps: added to the variance.

    Raises:
        ShapeError: the input ends with other extents, or one value has no variance.
    """
    wanted = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
    tail = tuple(wanted)
    if not tail or input.shape[-len(tail) :] != tail:
        raise ShapeError(f"layer_norm over {tail}", numbers=f"got {input.shape}")
    y = _standardised("layer_norm", input, math.prod(tail), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@checked
def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalises each group of channels of each image by its own mean and deviation.

    Args:
        input: (N, C, ...).
        num_groups: parts of the channels, of equal size.
        weight, bias: (C,); None: 1 and 0.
        eps: added to the variance.

    Raises:
        ShapeError: `num_groups` does not divide the channels, or one value has no variance.
    """
    if input.ndim < 2 or num_groups < 1 or input.shape[1] % num_groups:
        raise ShapeError(f"group_norm in {num_groups} groups", numbers=f"got {input.shape}")
    channels = input.shape[1]
    rows = channels // num_groups * math.prod(input.shape[2:])
    y = _standardised("group_norm", input, rows, eps)
    if weight is None and bias is None:
        return y
    gamma = call(Constant(1.0, (channels,))) if weight is None else weight
    beta = call(Constant(0.0, (channels,))) if bias is None else bias
    flat = y if y.ndim in (2, 4) else y.reshape(*input.shape[:2], -1, 1)
    mean, inv_std = call(Constant(0.0, (channels,))), call(Constant(1.0, (channels,)))
    flat = call(BatchNormApply(batch_stats=False), flat, mean, inv_std, gamma, beta)
    return flat if flat.shape == input.shape else flat.reshape(input.shape)


def _standardised(name: str, input: Tensor, rows: int, eps: float) -> Tensor:
    """Each run of `rows` values, in logical order, with mean 0 and deviation 1."""
    if rows < 2:
        raise ShapeError(f"{name}: one value has no variance", numbers=f"got {input.shape}")
    columns = input.reshape(1, input.numel() // rows, rows, 1)
    mean, inv_std = current_tape().call(InstanceNormStats(eps), (columns,))
    return call(InstanceNormApply(), columns, mean, inv_std).reshape(input.shape)


@checked
def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """input / (k + alpha mean)^beta, the mean being that of the squares of `size` channels.

    Channels beyond the first and the last count as 0. Source: Krizhevsky et al. 2012, with
    PyTorch's mean in place of the sum.

    Args:
        input: (N, C, ...).

    Raises:
        ConfigError: a size that is not a whole number, others that are not finite.
        ShapeError: no channels, or no size.
    """
    size = whole(size, "size")
    if input.ndim < 3 or size < 1:
        raise ShapeError(
            f"local_response_norm wants (N, C, ...) and a size, not {size}",
            numbers=f"got {input.shape}",
        )
    n, c, *tail = input.shape
    windows = PoolGeometry((size, 1), (1, 1), (size // 2, (size - 1) // 2, 0, 0))
    squares = (input * input).reshape(n, 1, c, math.prod(tail))
    means = call(AvgPool2d(windows), squares).reshape(input.shape)
    return input / (means * finite(alpha, "alpha") + finite(k, "k")) ** beta


@checked
def normalize(
    input: Tensor, p: float = 2.0, dim: int | Sequence[int] = 1, eps: float = 1e-12
) -> Tensor:
    """input / its p-norm over the axes `dim`, which is at least eps."""
    return input / input.norm(p, dim, keepdim=True).clamp(min=eps)
