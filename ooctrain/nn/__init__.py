"""Layers as modules, with the names, argument orders, defaults and initial weights of `torch.nn`.

A layer owns its parameters and settings, and its `forward` calls the function of `functional` that
does the rest. Weights begin as in PyTorch (Kaiming-uniform with a = sqrt(5), that is
U(-1/sqrt(fan_in), 1/sqrt(fan_in)); biases the same), drawn from the generator that `oc.manual_seed`
seeds. Read next: `weights.py`, `../functional/`, `../models/resnet.py`.
"""

from typing import NoReturn

from ooctrain import functional
from ooctrain.engine import clip as utils
from ooctrain.engine.module import Module
from ooctrain.engine.parameter import Parameter
from ooctrain.nn import init
from ooctrain.nn.containers import Identity, ModuleDict, ModuleList, Sequential
from ooctrain.nn.init import init_constant, init_kaiming_normal, init_normal
from ooctrain.nn.loss_modules import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from ooctrain.nn.norms import GroupNorm, InstanceNorm2d, LayerNorm
from ooctrain.nn.plain import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool2d,
    ChannelShuffle,
    CircularPad2d,
    ConstantPad2d,
    Dropout,
    Dropout2d,
    Flatten,
    FromBytes,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LocalResponseNorm,
    LogSigmoid,
    LogSoftmax,
    MaxPool2d,
    Mish,
    PixelShuffle,
    PixelUnshuffle,
    PReLU,
    ReflectionPad2d,
    ReLU,
    ReLU6,
    ReplicationPad2d,
    Sigmoid,
    SiLU,
    Softmax,
    Softmax2d,
    Softmin,
    Softplus,
    Softsign,
    StochasticDepth,
    Tanh,
    Tanhshrink,
    Upsample,
    ZeroPad2d,
)
from ooctrain.nn.weights import BatchNorm1d, BatchNorm2d, Conv2d, ConvTranspose2d, Linear

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "ChannelShuffle",
    "CircularPad2d",
    "ConstantPad2d",
    "Conv2d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout2d",
    "Flatten",
    "FromBytes",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "InstanceNorm2d",
    "L1Loss",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LocalResponseNorm",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "NLLLoss",
    "PReLU",
    "Parameter",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReLU",
    "ReLU6",
    "ReflectionPad2d",
    "ReplicationPad2d",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softsign",
    "StochasticDepth",
    "Tanh",
    "Tanhshrink",
    "Upsample",
    "ZeroPad2d",
    "functional",
    "init",
    "init_constant",
    "init_kaiming_normal",
    "init_normal",
    "utils",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    # Not at the top: a table of words, read when a name is missing.
    from ooctrain.engine.torch_names import refusal

    raise refusal(__name__, name, "nn", __all__)
