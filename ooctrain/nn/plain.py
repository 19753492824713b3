"""Layers that only apply a function: activations, poolings, padding, resizing, dropout.

These modules own nothing but their settings (PReLU alone has a parameter). A setting is kept as it
was given, under PyTorch's name, and handed to the function of `functional` that does the rest.
`inplace` is accepted and ignored: `share_storage` decides where that is safe. Read next:
`loss_modules.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ooctrain import functional as F
from ooctrain.engine.module import Module
from ooctrain.engine.parameter import Parameter
from ooctrain.engine.tensor import Tensor
from ooctrain.functional import IntOrPair
from ooctrain.functional.images import Each, mean_and_std
from ooctrain.nn.init import require_sizes
from ooctrain.step.arguments import checked


@checked
class ReLU(Module):
    """max(x, 0). `inplace` is accepted and ignored: `share_storage` decides where that is safe."""

    def __init__(self, inplace: bool = False):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(input)


@checked
class LeakyReLU(Module):
    """x where positive, else negative_slope * x. `inplace` as in `ReLU`."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False):
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, input: Tensor) -> Tensor:
        return F.leaky_relu(input, self.negative_slope)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        return F.tanh(input)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, input: Tensor) -> Tensor:
        return F.sigmoid(input)


@checked
class FromBytes(Module):
    """(x - mean) / std of uint8 images; a model with one takes its images as bytes.

    Args:
        mean, std: from 0 to 255; one number, or one for each channel.

    Raises:
        ConfigError: they are not finite numbers, std is not positive, or their numbers differ.
    """

    def __init__(self, mean: Each = 0.0, std: Each = 255.0):
        super().__init__()
        self.mean, self.std = mean_and_std(mean, std)

    def forward(self, input: Tensor) -> Tensor:
        return F.from_bytes(input, self.mean, self.std)


@checked
class MaxPool2d(Module):
    """Maximum of each window; arguments as of `functional.max_pool2d`."""

    def __init__(
        self, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: IntOrPair = 0,
        dilation: IntOrPair = 1, *, ceil_mode: bool = False,
    ):  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.dilation, self.ceil_mode = dilation, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        return F.max_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


@checked
class AvgPool2d(Module):
    """Mean of each window; arguments as of `functional.avg_pool2d`."""

    def __init__(
        self, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: IntOrPair = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        settings = self.stride, self.padding, self.ceil_mode, self.count_include_pad
        return F.avg_pool2d(input, self.kernel_size, *settings)


@checked
class AdaptiveAvgPool2d(Module):
    """Means over as many windows as `output_size` = (OH, OW) says; None: as the input has."""

    def __init__(self, output_size: int | Sequence[int | None] | None):
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool2d(AdaptiveAvgPool2d):
    """Maxima over the windows of `AdaptiveAvgPool2d`."""

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_max_pool2d(input, self.output_size)


@checked
class LocalResponseNorm(Module):
    """Each value by those of neighbouring channels; see `functional.local_response_norm`."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0):
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


@checked
class ZeroPad2d(Module):
    """Zero padding by an int, or by (left, right, top, bottom)."""

    def __init__(self, padding: int | tuple[int, int, int, int]):
        super().__init__()
        self.padding = (padding,) * 4 if isinstance(padding, int) else padding

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding)


@checked
class ConstantPad2d(Module):
    """Padding with a value, by an int, or by (left, right, top, bottom)."""

    def __init__(self, padding: int | tuple[int, int, int, int], value: float):
        super().__init__()
        self.padding = (padding,) * 4 if isinstance(padding, int) else padding
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, value=self.value)


@checked
class ReflectionPad2d(Module):
    """Mirrored padding by an int, or by (left, right, top, bottom)."""

    def __init__(self, padding: int | tuple[int, int, int, int]):
        super().__init__()
        self.padding = (padding,) * 4 if isinstance(padding, int) else padding

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, mode="reflect")


class ReplicationPad2d(ReflectionPad2d):
    """The outermost pixels again, by an int, or by (left, right, top, bottom)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, mode="replicate")


class CircularPad2d(ReflectionPad2d):
    """The image again on its other side, by an int, or by (left, right, top, bottom)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, mode="circular")


@checked
class Upsample(Module):
    """Images in another size; arguments as of `functional.interpolate`."""

    def __init__(
        self, size: IntOrPair | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest", align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ):  # fmt: skip
        super().__init__()
        self.size, self.scale_factor = size, scale_factor
        self.mode, self.align_corners = mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners,
            self.recompute_scale_factor,
        )  # fmt: skip


@checked
class PixelShuffle(Module):
    """Channels become pixels, `upscale_factor` times as many in each direction."""

    def __init__(self, upscale_factor: int):
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)


@checked
class PixelUnshuffle(Module):
    """Pixels become channels, `downscale_factor` times fewer in each direction."""

    def __init__(self, downscale_factor: int):
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)


@checked
class ChannelShuffle(Module):
    """Channels of all groups in turn; see `functional.channel_shuffle`."""

    def __init__(self, groups: int):
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups)


@checked
class Flatten(Module):
    """Joins the axes from `start_dim` to `end_dim`; the first stays by default."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return F.flatten(input, self.start_dim, self.end_dim)


@checked
class Dropout(Module):
    """Drops elements with probability p in training. `inplace` as in `ReLU`."""

    def __init__(self, p: float = 0.5, inplace: bool = False):
        super().__init__()
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


@checked
class Dropout2d(Module):
    """Drops whole channels with probability p in training. `inplace` as in `ReLU`."""

    def __init__(self, p: float = 0.5, inplace: bool = False):
        super().__init__()
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout2d(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


@checked
class StochasticDepth(Module):
    """Zeroes samples with probability p in training; see `functional.stochastic_depth`.

    Args:
        mode: "row": each sample by itself; "batch": all together.
    """

    def __init__(self, p: float, mode: Literal["batch", "row"]):
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, input: Tensor) -> Tensor:
        return F.stochastic_depth(input, self.p, self.mode, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}, mode={self.mode}"


# The activations of `functional/activations.py`.


@checked
class GELU(Module):
    """x times the normal distribution of x; `approximate` as in `functional.gelu`."""

    def __init__(self, approximate: str = "none"):
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        return F.gelu(input, self.approximate)


@checked
class SiLU(Module):
    """x times its sigmoid."""

    def __init__(self, inplace: bool = False):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return F.silu(input)


@checked
class Hardswish(Module):
    """x times its hard sigmoid."""

    def __init__(self, inplace: bool = False):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return F.hardswish(input)


@checked
class Hardsigmoid(Module):
    """(x + 3) / 6, at least 0 and at most 1."""

    def __init__(self, inplace: bool = False):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return F.hardsigmoid(input)


@checked
class ReLU6(Module):
    """x, at least 0 and at most 6."""

    def __init__(self, inplace: bool = False):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return F.relu6(input)


@checked
class ELU(Module):
    """x above 0, else alpha (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        super().__init__()
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        return F.elu(input, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class CELU(ELU):
    """x above 0, else alpha (exp(x / alpha) - 1)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.celu(input, self.alpha)


@checked
class SELU(Module):
    """1.0507 elu(x, 1.6733); see `functional.selu`."""

    def __init__(self, inplace: bool = False):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return F.selu(input)


@checked
class Mish(Module):
    """x tanh(softplus(x))."""

    def __init__(self, inplace: bool = False):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return F.mish(input)


@checked
class Softplus(Module):
    """log(1 + exp(beta x)) / beta; x itself where beta x is beyond the threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0):
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Tensor) -> Tensor:
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class LogSigmoid(Module):
    """The logarithm of the sigmoid."""

    def forward(self, input: Tensor) -> Tensor:
        return F.logsigmoid(input)


@checked
class Hardtanh(Module):
    """x, at least min_val and at most max_val."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False):
        super().__init__()
        self.min_val, self.max_val = min_val, max_val

    def forward(self, input: Tensor) -> Tensor:
        return F.hardtanh(input, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.softsign(input)


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.tanhshrink(input)


@checked
class GLU(Module):
    """The first half along the axis `dim`, times the sigmoid of the second."""

    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


@checked
class PReLU(Module):
    """x where positive, else a trained slope times x.

    Args:
        num_parameters: 1, or the number of channels for a slope each.
        init: first value of the slopes.

    Attributes:
        weight: (num_parameters,).
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25):
        super().__init__()
        require_sizes(self, num_parameters=num_parameters)
        self.num_parameters = num_parameters
        self.weight = Parameter(np.full(num_parameters, init))

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


@checked
class Softmax(Module):
    """exp(x) / sum(exp(x)) along the axis `dim`; `CrossEntropyLoss` takes logits instead."""

    def __init__(self, dim: int | None = None):
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmin(Softmax):
    """`Softmax` of -x."""

    def forward(self, input: Tensor) -> Tensor:
        return F.softmin(input, self.dim)


class Softmax2d(Module):
    """`Softmax` along the channels of images."""

    def forward(self, input: Tensor) -> Tensor:
        return F.softmax(input, -3)


@checked
class LogSoftmax(Module):
    """The logarithm of `Softmax`, for `NLLLoss`."""

    def __init__(self, dim: int | None = None):
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.log_softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
