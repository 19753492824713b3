"""How weights begin.

A parameter, or its shape, is given a way to make its first values. The values are made when they
are first needed, from the generator drawn now, so a model that is only traced and planned never has
them. Sources: He et al. (2015) for Kaiming's bounds; PyTorch for which layer uses which. Read next:
`engine/eager.py` (where the values are kept).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np

from ooctrain.engine.eager import Storage
from ooctrain.engine.parameter import Parameter
from ooctrain.engine.tensor import current_tape


def init_normal(parameter: Parameter, std: float) -> None:
    """The parameter begins with normally distributed values."""
    generator = current_tape().next_generator()
    _begin(parameter, partial(_normal, generator, parameter.shape, std))


def init_kaiming_normal(
    parameter: Parameter, mode: Literal["fan_in", "fan_out"] = "fan_out"
) -> None:
    """He's initialisation for ReLU; in fan-out mode as torchvision's ResNet and VGG use it."""
    channels = parameter.shape[0] if mode == "fan_out" else parameter.shape[1]
    init_normal(parameter, math.sqrt(2 / (channels * math.prod(parameter.shape[2:]))))


def init_constant(parameter: Parameter, value: float) -> None:
    """The parameter begins with one value everywhere."""
    _begin(parameter, partial(np.full, parameter.shape, value, np.float32))


def _begin(parameter: Parameter, initial: Callable[[], np.ndarray]) -> None:
    parameter.storage = Storage(shape=parameter.shape, initial=initial)


def uniform(shape: tuple[int, ...], fan_in: int) -> Parameter:
    """U(-b, b) with b = 1 / sqrt(fan_in): PyTorch's kaiming_uniform_ with a = sqrt(5)."""
    bound = np.float32(1 / math.sqrt(fan_in) if fan_in else 0.0)
    generator = current_tape().next_generator()
    return Parameter(shape, initial=partial(_uniform, generator, shape, bound))


# At the top, and no lambdas: a model whose weights nobody has read yet goes to other processes.


def _normal(
    generator: Callable[[], np.random.Generator], shape: tuple[int, ...], std: float
) -> np.ndarray:
    return generator().standard_normal(shape, np.float32) * np.float32(std)


def _uniform(
    generator: Callable[[], np.random.Generator], shape: tuple[int, ...], bound: np.float32
) -> np.ndarray:
    return (2 * generator().random(shape, np.float32) - 1) * bound
