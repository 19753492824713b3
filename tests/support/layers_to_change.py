"""A layer and a loss of each class, for the law that every change of a step's inputs is seen.

`LAYERS` take images (N, 4, H, W); `LOSSES` take three classes or values. Read next:
`../properties/test_what_a_step_reads.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ooctrain as oc
from ooctrain import nn


class Chain(nn.Sequential):
    """One layer between a convolution and a classifier."""

    def __init__(self, layer: nn.Module):
        super().__init__(nn.Conv2d(2, 4, 3, padding=1), layer, nn.AdaptiveAvgPool2d(2),
                         nn.Flatten(), nn.Linear(16, 3))  # fmt: skip


class Listed(nn.Module):
    """Settings that are kept in lists, dictionaries, arrays; a layer with a list of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.Identity()])
        self.slopes, self.named = [0.1, 0.2], {"scale": 0.5}
        self.factors = np.array([2.0, 3.0])

    def forward(self, x):
        for layer, slope in zip(self.layers, self.slopes, strict=True):
            x = oc.functional.leaky_relu(layer(x), slope)
        return x * self.named["scale"] + x * float(self.factors.sum())


class Parts(nn.Module):
    """Layers by name, and one that takes no images."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a": nn.Conv2d(4, 4, 1), "b": nn.Tanh()})
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        x = self.parts["b"](self.parts["a"](x))
        return self.norm(x.flatten(2)).reshape(x.shape)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Conv2d": lambda: nn.Conv2d(4, 4, 3, padding=1),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(4, 4, 2, 2),
    "BatchNorm2d": lambda: nn.BatchNorm2d(4),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(4, affine=True),
    "ReLU": nn.ReLU, "LeakyReLU": nn.LeakyReLU, "Tanh": nn.Tanh, "Sigmoid": nn.Sigmoid,
    "MaxPool2d": lambda: nn.MaxPool2d(2), "AvgPool2d": lambda: nn.AvgPool2d(3, 2, 1),
    "AdaptiveAvgPool2d": lambda: nn.AdaptiveAvgPool2d(3), "ZeroPad2d": lambda: nn.ZeroPad2d(1),
    "ReflectionPad2d": lambda: nn.ReflectionPad2d(1),
    "Upsample": lambda: nn.Upsample(scale_factor=2), "Dropout": lambda: nn.Dropout(0.3),
    "Identity": nn.Identity, "Sequential": lambda: nn.Sequential(nn.Tanh()),
    "GELU": nn.GELU, "SiLU": nn.SiLU, "Hardswish": nn.Hardswish, "Hardsigmoid": nn.Hardsigmoid,
    "ReLU6": nn.ReLU6, "PReLU": lambda: nn.PReLU(4), "Softmax": lambda: nn.Softmax(1),
    "LogSoftmax": lambda: nn.LogSoftmax(1), "GroupNorm": lambda: nn.GroupNorm(2, 4),
    "LayerNorm": lambda: nn.LayerNorm(6), "Dropout2d": lambda: nn.Dropout2d(0.3),
    "StochasticDepth": lambda: nn.StochasticDepth(0.5, "row"),
    "ConstantPad2d": lambda: nn.ConstantPad2d(1, 0.5), "PixelShuffle": lambda: nn.PixelShuffle(1),
    "ELU": nn.ELU, "CELU": nn.CELU, "SELU": nn.SELU, "Mish": nn.Mish,
    "Softplus": lambda: nn.Softplus(2.0, 1.5), "LogSigmoid": nn.LogSigmoid,
    "Hardtanh": nn.Hardtanh, "Softsign": nn.Softsign, "Tanhshrink": nn.Tanhshrink, "GLU": nn.GLU,
    "Softmin": lambda: nn.Softmin(1), "Softmax2d": nn.Softmax2d,
    "LocalResponseNorm": lambda: nn.LocalResponseNorm(3),
    "AdaptiveMaxPool2d": lambda: nn.AdaptiveMaxPool2d(3),
    "ReplicationPad2d": lambda: nn.ReplicationPad2d(1),
    "CircularPad2d": lambda: nn.CircularPad2d(1),
    "PixelUnshuffle": lambda: nn.PixelUnshuffle(1), "ChannelShuffle": lambda: nn.ChannelShuffle(2),
    "ModuleDict": Parts, "BatchNorm1d": nn.Identity,
    "ModuleList": Listed, "Flatten": nn.Identity, "Linear": nn.Identity,  # the chain has these
}  # fmt: skip
WEIGHT = np.array([1.0, 0.5, 2.0], np.float32)
LOSSES: dict[str, Callable[[], Any]] = {
    "CrossEntropyLoss": lambda: nn.CrossEntropyLoss(WEIGHT, ignore_index=1),
    "SmoothL1Loss": nn.SmoothL1Loss, "NLLLoss": lambda: nn.NLLLoss(WEIGHT, ignore_index=1),
    "BCEWithLogitsLoss": lambda: nn.BCEWithLogitsLoss(WEIGHT, pos_weight=WEIGHT),
    "MSELoss": nn.MSELoss, "L1Loss": nn.L1Loss, "named": lambda: "cross_entropy",
}  # fmt: skip
OF_VALUES = nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.BCEWithLogitsLoss
