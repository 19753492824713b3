"""Layers as modules, with the names, argument orders, defaults and initial weights of `torch.nn`.

In: sizes. Out: modules whose `forward` calls `functional`. The one idea: a layer owns its
parameters and settings; the function does the rest. Weights begin as in PyTorch (Kaiming-uniform
with a = sqrt(5), that is U(-1/sqrt(fan_in), 1/sqrt(fan_in)); biases the same), drawn from the
generator that `oc.manual_seed` seeds. Read next: `functional.py`, `models/resnet.py`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from ooctrain import functional as F
from ooctrain.autograd import Tensor, current_tape
from ooctrain.eager import HostStorage
from ooctrain.errors import ShapeError
from ooctrain.functional import IntOrPair
from ooctrain.layers.weighted_loss import Reduction
from ooctrain.module import Module, Parameter

__all__ = [
    "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm2d", "Conv2d", "ConvTranspose2d",
    "CrossEntropyLoss", "Dropout", "Flatten", "Identity", "InstanceNorm2d", "L1Loss", "LeakyReLU",
    "Linear", "MSELoss", "MaxPool2d", "Module", "ModuleList", "Parameter", "ReLU",
    "ReflectionPad2d", "Sequential", "Sigmoid", "Tanh", "Upsample", "ZeroPad2d",
]  # fmt: skip


class Sequential(Module):
    """Modules one after the other; takes them as arguments, or one OrderedDict of named ones."""

    def __init__(self, *modules: Module | OrderedDict[str, Module]):
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], OrderedDict):
            named = dict(modules[0])
        else:
            named = {str(i): m for i, m in enumerate(modules) if isinstance(m, Module)}
        for name, module in named.items():
            self.add_module(name, module)

    def forward(self, input: Tensor) -> Tensor:
        for module in self.children():
            input = module(input)
        return input

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int | slice) -> Module:
        modules = list(self.children())
        return Sequential(*modules[index]) if isinstance(index, slice) else modules[index]

    def __iter__(self) -> Iterator[Module]:
        return self.children()


class ModuleList(Module):
    """Modules in a list; the owner calls them."""

    def __init__(self, modules: list[Module] | None = None):
        super().__init__()
        for module in modules or []:
            self.append(module)

    def append(self, module: Module) -> ModuleList:
        """Adds one at the end."""
        self.add_module(str(len(self)), module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int) -> Module:
        return list(self.children())[index]

    def __iter__(self) -> Iterator[Module]:
        return self.children()


class Identity(Module):
    """Hands its input on."""

    def forward(self, input: Tensor) -> Tensor:
        return input


class Conv2d(Module):
    """2-d convolution, weight (out_channels, in_channels / groups, R, S)."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrPair, stride: IntOrPair = 1,
        padding: IntOrPair | str = 0, dilation: IntOrPair = 1, groups: int = 1, bias: bool = True,
    ):  # fmt: skip
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"conv2d: {in_channels} channels in and {out_channels} out do not part into "
                f"{groups} groups"
            )
        r, s = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        shape = (out_channels, in_channels // groups, r, s)
        self.weight = _uniform(shape, math.prod(shape[1:]))
        self.register_parameter("bias", None)
        if bias:
            self.bias = _uniform((out_channels,), math.prod(shape[1:]))

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        k, c, r, s = self.weight.shape
        settings = f"stride={self.stride}, padding={self.padding}"
        return f"{c * self.groups}, {k}, kernel_size=({r}, {s}), {settings}"


class ConvTranspose2d(Module):
    """Transposed 2-d convolution, weight (in_channels, out_channels / groups, R, S)."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrPair, stride: IntOrPair = 1,
        padding: IntOrPair = 0, output_padding: IntOrPair = 0, groups: int = 1, bias: bool = True,
        dilation: IntOrPair = 1,
    ):  # fmt: skip
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"conv_transpose2d: {in_channels} channels in and {out_channels} out do not part "
                f"into {groups} groups"
            )
        r, s = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.groups, self.dilation = groups, dilation
        shape = (in_channels, out_channels // groups, r, s)
        self.weight = _uniform(shape, math.prod(shape[1:]))
        self.register_parameter("bias", None)
        if bias:
            self.bias = _uniform((out_channels,), math.prod(shape[1:]))

    def forward(self, input: Tensor) -> Tensor:
        return F.conv_transpose2d(
            input, self.weight, self.bias, self.stride, self.padding, self.output_padding,
            self.groups, self.dilation,
        )  # fmt: skip

    def extra_repr(self) -> str:
        k, c, r, s = self.weight.shape
        settings = f"stride={self.stride}, padding={self.padding}"
        return f"{k}, {c * self.groups}, kernel_size=({r}, {s}), {settings}"


class Linear(Module):
    """y = x W^T + b, weight (out_features, in_features)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        super().__init__()
        self.weight = _uniform((out_features, in_features), in_features)
        self.register_parameter("bias", None)
        if bias:
            self.bias = _uniform((out_features,), in_features)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.weight.shape[1]}, out_features={self.weight.shape[0]}"


class BatchNorm2d(Module):
    """Batch normalisation of (N, C, H, W) over N, H, W."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True,
    ):  # fmt: skip
        super().__init__()
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


class InstanceNorm2d(Module):
    """Normalisation of each channel of each image; without weights by default, as in PyTorch."""

    def __init__(self, num_features: int, eps: float = 1e-5, *, affine: bool = False):
        super().__init__()
        self.num_features, self.eps = num_features, eps
        self.register_parameter("weight", Parameter(np.ones(num_features)) if affine else None)
        self.register_parameter("bias", Parameter(np.zeros(num_features)) if affine else None)

    def forward(self, input: Tensor) -> Tensor:
        return F.instance_norm(input, None, None, self.weight, self.bias, eps=self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}"


class ReLU(Module):
    """max(x, 0). `inplace` is accepted and ignored: `share_storage` decides where that is safe."""

    def __init__(self, inplace: bool = False):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(input)


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


class MaxPool2d(Module):
    """Maximum of each window."""

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


class AvgPool2d(Module):
    """Mean of each window."""

    def __init__(
        self, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: IntOrPair = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
        )


class AdaptiveAvgPool2d(Module):
    """Means to a given output size."""

    def __init__(self, output_size: IntOrPair):
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class ZeroPad2d(Module):
    """Zero padding by an int, or by (left, right, top, bottom)."""

    def __init__(self, padding: int | tuple[int, int, int, int]):
        super().__init__()
        self.padding = (padding,) * 4 if isinstance(padding, int) else padding

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding)


class ReflectionPad2d(Module):
    """Mirrored padding by an int, or by (left, right, top, bottom)."""

    def __init__(self, padding: int | tuple[int, int, int, int]):
        super().__init__()
        self.padding = (padding,) * 4 if isinstance(padding, int) else padding

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, mode="reflect")


class Upsample(Module):
    """Images in another size, by the nearest pixel or bilinear."""

    def __init__(
        self, size: IntOrPair | None = None, scale_factor: float | None = None,
        mode: str = "nearest", align_corners: bool | None = None,
    ):  # fmt: skip
        super().__init__()
        self.size, self.scale_factor = size, scale_factor
        self.mode, self.align_corners = mode, align_corners

    def forward(self, input: Tensor) -> Tensor:
        return F.interpolate(input, self.size, self.scale_factor, self.mode, self.align_corners)


class Flatten(Module):
    """Joins the axes from `start_dim` to `end_dim`; the first stays by default."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return F.flatten(input, self.start_dim, self.end_dim)


class Dropout(Module):
    """Drops elements with probability p in training."""

    def __init__(self, p: float = 0.5, inplace: bool = False):
        super().__init__()
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class CrossEntropyLoss(Module):
    """Softmax cross-entropy of logits and class numbers; options as in `F.cross_entropy`."""

    def __init__(
        self, weight: np.ndarray | None = None, *, ignore_index: int = -100,
        reduction: Reduction = "mean", label_smoothing: float = 0.0,
    ):  # fmt: skip
        super().__init__()
        self.register_buffer("weight", None if weight is None else np.asarray(weight, np.float32))
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(
            input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip


class MSELoss(Module):
    """Squared differences."""

    def __init__(self, *, reduction: Reduction = "mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(input, target, reduction=self.reduction)


class L1Loss(Module):
    """Absolute differences."""

    def __init__(self, *, reduction: Reduction = "mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(input, target, reduction=self.reduction)


def init_normal(parameter: Parameter, std: float) -> None:
    """The parameter begins with normally distributed values."""
    generator, shape = current_tape().next_generator(), parameter.shape
    _begin(parameter, lambda: generator().standard_normal(shape, np.float32) * np.float32(std))


def init_kaiming_normal(
    parameter: Parameter, mode: Literal["fan_in", "fan_out"] = "fan_out"
) -> None:
    """He's initialisation for ReLU; in fan-out mode as torchvision's ResNet and VGG use it."""
    channels = parameter.shape[0] if mode == "fan_out" else parameter.shape[1]
    init_normal(parameter, math.sqrt(2 / (channels * math.prod(parameter.shape[2:]))))


def init_constant(parameter: Parameter, value: float) -> None:
    """The parameter begins with one value everywhere."""
    shape = parameter.shape
    _begin(parameter, lambda: np.full(shape, value, np.float32))


def _begin(parameter: Parameter, initial: Callable[[], np.ndarray]) -> None:
    parameter.storage = HostStorage(shape=parameter.shape, initial=initial)


def _uniform(shape: tuple[int, ...], fan_in: int) -> Parameter:
    """U(-b, b) with b = 1 / sqrt(fan_in): PyTorch's kaiming_uniform_ with a = sqrt(5)."""
    bound = np.float32(1 / math.sqrt(fan_in) if fan_in else 0.0)
    generator = current_tape().next_generator()
    return Parameter(shape, initial=lambda: (2 * generator().random(shape, np.float32) - 1) * bound)
