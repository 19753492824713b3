"""Layers as modules, with the names, argument orders, defaults and initial weights of `torch.nn`.

In: sizes. Out: modules whose `forward` calls `functional`. The one idea: a layer owns its
parameters and settings; the function does the rest. Weights begin as in PyTorch (Kaiming-uniform
with a = sqrt(5), that is U(-1/sqrt(fan_in), 1/sqrt(fan_in)); biases the same), drawn from the
generator that `oc.manual_seed` seeds. Read next: `weights.py`, `../functional/`,
`../models/resnet.py`.
"""

from ooctrain.engine.module import Module, Parameter
from ooctrain.nn.containers import Identity, ModuleList, Sequential
from ooctrain.nn.init import init_constant, init_kaiming_normal, init_normal
from ooctrain.nn.losses import CrossEntropyLoss, L1Loss, MSELoss
from ooctrain.nn.plain import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    Dropout,
    Flatten,
    LeakyReLU,
    MaxPool2d,
    ReflectionPad2d,
    ReLU,
    Sigmoid,
    Tanh,
    Upsample,
    ZeroPad2d,
)
from ooctrain.nn.weights import BatchNorm2d, Conv2d, ConvTranspose2d, InstanceNorm2d, Linear

__all__ = [
    "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm2d", "Conv2d", "ConvTranspose2d",
    "CrossEntropyLoss", "Dropout", "Flatten", "Identity", "InstanceNorm2d", "L1Loss", "LeakyReLU",
    "Linear", "MSELoss", "MaxPool2d", "Module", "ModuleList", "Parameter", "ReLU",
    "ReflectionPad2d", "Sequential", "Sigmoid", "Tanh", "Upsample", "ZeroPad2d", "init_constant",
    "init_kaiming_normal", "init_normal",
]  # fmt: skip
