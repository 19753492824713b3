"""Activations as modules, those of `functional/activations.py`.

A module keeps the settings of its activation under PyTorch's names; PReLU alone has a parameter.
`inplace` is accepted and ignored: `share_storage` decides where that is safe. Read next:
`plain.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain import functional as F
from ooctrain.engine.module import Module
from ooctrain.engine.parameter import Parameter
from ooctrain.engine.tensor import Tensor


class GELU(Module):
    """x times the normal distribution of x; `approximate` as in `functional.gelu`."""

    def __init__(self, approximate: str = "none"):
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        return F.gelu(input, self.approximate)


class SiLU(Module):
    """x times its sigmoid."""

    def __init__(self, inplace: bool = False):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return F.silu(input)


class Hardswish(Module):
    """x times its hard sigmoid."""

    def __init__(self, inplace: bool = False):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return F.hardswish(input)


class Hardsigmoid(Module):
    """(x + 3) / 6, at least 0 and at most 1."""

    def __init__(self, inplace: bool = False):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return F.hardsigmoid(input)


class ReLU6(Module):
    """x, at least 0 and at most 6."""

    def __init__(self, inplace: bool = False):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return F.relu6(input)


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
        self.num_parameters = num_parameters
        self.weight = Parameter(np.full(num_parameters, init))

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class Softmax(Module):
    """exp(x) / sum(exp(x)) along the axis `dim`; `CrossEntropyLoss` takes logits instead."""

    def __init__(self, dim: int | None = None):
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Module):
    """The logarithm of `Softmax`, for `NLLLoss`."""

    def __init__(self, dim: int | None = None):
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.log_softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
