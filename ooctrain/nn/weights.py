"""Layers with weights: convolutions, the linear layer, batch norm.

The module owns the parameters and settings of a layer, and `functional` makes the call. Parameters
begin as in PyTorch. Read next: `init.py` (how weights begin), `norms.py`, `plain.py`.
"""

from __future__ import annotations

import math

import numpy as np

from ooctrain import functional as F
from ooctrain.engine.module import Module
from ooctrain.engine.parameter import Parameter
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ShapeError
from ooctrain.functional.conv import IntOrPair, pair
from ooctrain.nn.init import require_sizes, uniform
from ooctrain.step.arguments import checked


@checked
class Conv2d(Module):
    """2-d convolution: (N, in_channels, H, W) to (N, out_channels, OH, OW).

    OH = floor((H + 2 padding - dilation (R - 1) - 1) / stride) + 1.

    Args:
        kernel_size: (R, S), or one number for both.
        stride, padding, dilation, groups: as in `functional.conv2d`.
        bias: with one value for each output channel.

    Attributes:
        weight: (out_channels, in_channels / groups, R, S).
        bias: (out_channels,) or None.

    Raises:
        ShapeError: `groups` does not divide the channels, or these are fewer than 1.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrPair, stride: IntOrPair = 1,
        padding: IntOrPair | str = 0, dilation: IntOrPair = 1, groups: int = 1, bias: bool = True,
    ):  # fmt: skip
        super().__init__()
        require_sizes(self, in_channels=in_channels, out_channels=out_channels)
        _require_groups("conv2d", in_channels, out_channels, groups)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        shape = (out_channels, in_channels // groups, *pair(kernel_size))
        _register_weights(self, shape, out_channels, bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        k, c, r, s = self.weight.shape
        settings = f"stride={self.stride}, padding={self.padding}"
        return f"{c * self.groups}, {k}, kernel_size=({r}, {s}), {settings}"

    @property
    def in_channels(self) -> int:
        """Of the input."""
        return self.weight.shape[1] * self.groups

    @property
    def out_channels(self) -> int:
        """Of the output."""
        return self.weight.shape[0]

    @property
    def kernel_size(self) -> tuple[int, int]:
        """(R, S)."""
        return self.weight.shape[2], self.weight.shape[3]


@checked
class ConvTranspose2d(Module):
    """Transposed 2-d convolution: (N, in_channels, H, W) to (N, out_channels, OH, OW).

    OH = (H - 1) stride - 2 padding + dilation (R - 1) + output_padding + 1.

    Args:
        kernel_size: (R, S), or one number for both.
        stride, padding, output_padding, groups, dilation: as in `functional.conv_transpose2d`.
        bias: with one value for each output channel.

    Attributes:
        weight: (in_channels, out_channels / groups, R, S).
        bias: (out_channels,) or None.

    Raises:
        ShapeError: `groups` does not divide the channels, or these are fewer than 1.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrPair, stride: IntOrPair = 1,
        padding: IntOrPair = 0, output_padding: IntOrPair = 0, groups: int = 1, bias: bool = True,
        dilation: IntOrPair = 1,
    ):  # fmt: skip
        super().__init__()
        require_sizes(self, in_channels=in_channels, out_channels=out_channels)
        _require_groups("conv_transpose2d", in_channels, out_channels, groups)
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.groups, self.dilation = groups, dilation
        shape = (in_channels, out_channels // groups, *pair(kernel_size))
        _register_weights(self, shape, out_channels, bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.conv_transpose2d(
            input, self.weight, self.bias, self.stride, self.padding, self.output_padding,
            self.groups, self.dilation,
        )  # fmt: skip

    def extra_repr(self) -> str:
        k, c, r, s = self.weight.shape
        settings = f"stride={self.stride}, padding={self.padding}"
        return f"{k}, {c * self.groups}, kernel_size=({r}, {s}), {settings}"

    @property
    def in_channels(self) -> int:
        """Of the input."""
        return self.weight.shape[0]

    @property
    def out_channels(self) -> int:
        """Of the output."""
        return self.weight.shape[1] * self.groups

    @property
    def kernel_size(self) -> tuple[int, int]:
        """(R, S)."""
        return self.weight.shape[2], self.weight.shape[3]


@checked
class Linear(Module):
    """y = x W^T + b: (N, in_features) to (N, out_features).

    Attributes:
        weight: (out_features, in_features).
        bias: (out_features,) or None.

    Raises:
        ShapeError: fewer than one feature.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        super().__init__()
        require_sizes(self, in_features=in_features, out_features=out_features)
        _register_weights(self, (out_features, in_features), out_features, bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"

    @property
    def in_features(self) -> int:
        """Of the input."""
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        """Of the output."""
        return self.weight.shape[0]


@checked
class _BatchNorm(Module):
    """Batch normalisation: each channel over all other axes.

    Source: Ioffe and Szegedy 2015.

    Args:
        num_features: C.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None: cumulative average.
        affine: with a weight and a bias for each channel.
        track_running_stats: keep running statistics for evaluation; else it goes by the batch.

    Attributes:
        weight, bias: (C,) or None.
        running_mean, running_var, num_batches_tracked: (C,), (C,) and one number, or None.

    Raises:
        ShapeError: fewer than one channel.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True,
    ):  # fmt: skip
        super().__init__()
        require_sizes(self, num_features=num_features)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.register_parameter("weight", Parameter(np.ones(num_features)) if affine else None)
        self.register_parameter("bias", Parameter(np.zeros(num_features)) if affine else None)
        tracked = track_running_stats
        self.register_buffer(
            "running_mean", np.zeros(num_features, np.float32) if tracked else None
        )
        self.register_buffer("running_var", np.ones(num_features, np.float32) if tracked else None)
        self.register_buffer("num_batches_tracked", np.array(0) if tracked else None)

    def forward(self, input: Tensor) -> Tensor:
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias,
            self.training or self.running_mean is None, self.momentum, self.eps,
            self.num_batches_tracked,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, C, H, W) over N, H, W, or of (N, C) over N.

    Source: Ioffe and Szegedy 2015. Arguments and attributes as in `_BatchNorm`.
    """


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C) over N, or of (N, C, L) over N and L; else as `BatchNorm2d`.

    Raises:
        ShapeError: when called with another number of axes.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (2, 3):
            raise ShapeError(
                "BatchNorm1d wants (N, C) or (N, C, L)", numbers=f"got {input.shape}",
                fix="BatchNorm2d for images",
            )  # fmt: skip
        return super().forward(input)


def _register_weights(module: Module, shape: tuple[int, ...], outputs: int, bias: bool) -> None:
    """Gives a layer its weight and, where wanted, a bias, whose first values have one bound.

    The fan-in that sets it is the product of all extents but the first, as in PyTorch; so also for
    a transposed convolution, where these are its outputs.
    """
    fan_in = math.prod(shape[1:])
    module.weight = uniform(shape, fan_in)
    module.register_parameter("bias", uniform((outputs,), fan_in) if bias else None)


def _require_groups(name: str, in_channels: int, out_channels: int, groups: int) -> None:
    if groups < 1 or in_channels % groups or out_channels % groups:
        raise ShapeError(
            f"{name}: {in_channels} channels in and {out_channels} out cannot be split into "
            f"{groups} groups"
        )
