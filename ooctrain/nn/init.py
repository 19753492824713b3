"""How weights begin.

A parameter, or its shape, is given a way to make its first values. The values are made when they
are first needed, from the generator drawn now, so a model that is only traced and planned never has
them. The functions that end in "_" are those of `torch.nn.init`, by name, argument and
distribution; the numbers are others. Sources: He et al. (2015) for Kaiming's bounds; Glorot and
Bengio (2010); Saxe et al. (2014) for orthogonal ones; PyTorch for which layer uses which. Read
next: `engine/eager.py` (where the values are kept).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NoReturn, TypeVar

import numpy as np

from ooctrain.engine.eager import Storage
from ooctrain.engine.module import Module
from ooctrain.engine.parameter import Parameter
from ooctrain.engine.tensor import Tensor, current_tape
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.step.arguments import checked

T = TypeVar("T", bound=Tensor)
Generator = Callable[[], np.random.Generator]
Shape = tuple[int, ...]
_MOST_DRAWS = 1000
#: {nonlinearity: by how much its inputs' deviation is to be larger}
_GAINS = {
    "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0, "conv_transpose3d": 1.0, "sigmoid": 1.0, "tanh": 5 / 3,
    "relu": math.sqrt(2.0), "selu": 3 / 4,
}  # fmt: skip


@checked
def init_normal(parameter: Parameter, std: float) -> None:
    """The parameter begins with normally distributed values."""
    _begin(parameter, partial(_normal, _generator(), parameter.shape, std))


@checked
def init_kaiming_normal(
    parameter: Parameter, mode: Literal["fan_in", "fan_out"] = "fan_out"
) -> None:
    """He's initialisation for ReLU; in fan-out mode as torchvision's ResNet and VGG use it."""
    channels = parameter.shape[0] if mode == "fan_out" else parameter.shape[1]
    init_normal(parameter, math.sqrt(2 / (channels * math.prod(parameter.shape[2:]))))


@checked
def init_constant(parameter: Parameter, value: float) -> None:
    """The parameter begins with one value everywhere."""
    _begin(parameter, partial(np.full, parameter.shape, value, np.float32))


def require_sizes(module: Module, **sizes: int) -> None:
    """Refuses extents of which no parameter can be made.

    Raises:
        ShapeError: one is no whole number of at least 1.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ShapeError(
                f"{type(module).__name__}: {name} is {size!r}", numbers=f"{name} = {size!r}",
                fix="a whole number of at least 1",
            )  # fmt: skip


def _begin(parameter: T, initial: Callable[[], np.ndarray]) -> T:
    parameter.storage = Storage(shape=parameter.shape, initial=initial)
    return parameter


# PyTorch's


@checked
def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The recommended gain of a nonlinearity; `param` is the slope of "leaky_relu" (0.01).

    Raises:
        ConfigError: no such nonlinearity is known.
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise ConfigError(
            f"no gain is known of {nonlinearity!r}", code="OOC-106",
            fix=f"one of {', '.join([*_GAINS, 'leaky_relu'])}",
        )  # fmt: skip
    return _GAINS[nonlinearity]


@checked
def constant_(tensor: T, val: float) -> T:
    """One value everywhere; returns the tensor, as all of these do."""
    return _begin(tensor, partial(np.full, tensor.shape, val, np.float32))


@checked
def zeros_(tensor: T) -> T:
    """Zeros."""
    return constant_(tensor, 0.0)


@checked
def ones_(tensor: T) -> T:
    """Ones."""
    return constant_(tensor, 1.0)


@checked
def normal_(tensor: T, mean: float = 0.0, std: float = 1.0) -> T:
    """Normally distributed values."""
    return _begin(tensor, partial(_normal, _generator(), tensor.shape, std, mean))


@checked
def uniform_(tensor: T, a: float = 0.0, b: float = 1.0) -> T:
    """Uniform values from a to b."""
    return _begin(tensor, partial(_between, _generator(), tensor.shape, a, b))


@checked
def trunc_normal_(
    tensor: T, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> T:
    """Normally distributed values, those outside of a to b drawn anew."""
    if not a < b:
        raise ConfigError(f"trunc_normal_: {a} is not below {b}", code="OOC-106")
    return _begin(tensor, partial(_truncated, _generator(), tensor.shape, mean, std, a, b))


@checked
def xavier_uniform_(tensor: T, gain: float = 1.0) -> T:
    """Glorot's, uniform."""
    bound = gain * math.sqrt(6.0 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound)


@checked
def xavier_normal_(tensor: T, gain: float = 1.0) -> T:
    """Glorot's, normally distributed."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans(tensor))))


@checked
def kaiming_uniform_(
    tensor: T, a: float = 0, mode: Literal["fan_in", "fan_out"] = "fan_in",
    nonlinearity: str = "leaky_relu",
) -> T:  # fmt: skip
    """He's, uniform; `a` is the slope of a leaky ReLU behind it."""
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


@checked
def kaiming_normal_(
    tensor: T, a: float = 0, mode: Literal["fan_in", "fan_out"] = "fan_in",
    nonlinearity: str = "leaky_relu",
) -> T:  # fmt: skip
    """He's, normally distributed; `a` is the slope of a leaky ReLU behind it."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity))


@checked
def orthogonal_(tensor: T, gain: float = 1.0) -> T:
    """Orthogonal rows, or columns where there are more rows than values in each."""
    if len(tensor.shape) < 2:
        raise ShapeError(f"orthogonal_ wants two axes or more, not {tensor.shape}")
    return _begin(tensor, partial(_orthogonal, _generator(), tensor.shape, gain))


@checked
def eye_(tensor: T) -> T:
    """The identity, of a matrix."""
    if len(tensor.shape) != 2:
        raise ShapeError(f"eye_ wants a matrix, not {tensor.shape}")
    return _begin(tensor, partial(np.eye, *tensor.shape, dtype=np.float32))


@checked
def dirac_(tensor: T, groups: int = 1) -> T:
    """Kernels that pass as many channels on as they can."""
    shape = tensor.shape
    if len(shape) not in (3, 4, 5) or groups < 1 or shape[0] % groups:
        raise ShapeError(f"dirac_ wants the weights of a convolution, not {shape}")
    return _begin(tensor, partial(_passing, shape, groups))


def _fans(tensor: Tensor) -> tuple[int, int]:
    """(values that each output reads, outputs that read each value). Raises ShapeError."""
    if len(tensor.shape) < 2:
        raise ShapeError(
            f"weights of shape {tensor.shape} have no fan: two axes or more are needed",
            fix="zeros_ or normal_ for a bias",
        )
    outs, ins, *window = tensor.shape
    return ins * math.prod(window), outs * math.prod(window)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ConfigError(f"mode {mode!r} is neither 'fan_in' nor 'fan_out'", code="OOC-106")
    fan = _fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def uniform(shape: tuple[int, ...], fan_in: int) -> Parameter:
    """U(-b, b) with b = 1 / sqrt(fan_in): PyTorch's kaiming_uniform_ with a = sqrt(5)."""
    bound = np.float32(1 / math.sqrt(fan_in) if fan_in else 0.0)
    return Parameter(shape, initial=partial(_uniform, _generator(), shape, bound))


def _generator() -> Generator:
    return current_tape().next_generator()


# The values. At the top, and no closures: a model whose weights have not been read yet goes to
# other processes.


def _normal(generator: Generator, shape: Shape, std: float, mean: float = 0.0) -> np.ndarray:
    drawn = generator().standard_normal(shape, np.float32) * np.float32(std)
    return drawn + np.float32(mean) if mean else drawn


def _uniform(generator: Generator, shape: Shape, bound: np.float32) -> np.ndarray:
    return (2 * generator().random(shape, np.float32) - 1) * bound


def _between(generator: Generator, shape: Shape, a: float, b: float) -> np.ndarray:
    return generator().random(shape, np.float32) * np.float32(b - a) + np.float32(a)


def _truncated(
    generator: Generator, shape: Shape, mean: float, std: float, a: float, b: float
) -> np.ndarray:
    rng, array = generator(), np.full(shape, np.inf, np.float32)
    for _ in range(_MOST_DRAWS):
        outside = (array < a) | (array > b)
        if not outside.any():
            return array
        array[outside] = rng.standard_normal(int(outside.sum())) * std + mean
    return np.clip(array, a, b)  # bounds far from the mean


def _orthogonal(generator: Generator, shape: Shape, gain: float) -> np.ndarray:
    rows, columns = shape[0], math.prod(shape[1:])
    q, r = np.linalg.qr(generator().standard_normal((max(rows, columns), min(rows, columns))))
    q *= np.sign(np.diag(r))  # so that each one is as likely as any other
    whole = q if rows >= columns else q.T
    return (gain * whole).reshape(shape).astype(np.float32)


def _passing(shape: Shape, groups: int) -> np.ndarray:
    array, own = np.zeros(shape, np.float32), shape[0] // groups
    centre = tuple(extent // 2 for extent in shape[2:])
    for group in range(groups):
        for channel in range(min(own, shape[1])):
            array[(group * own + channel, channel, *centre)] = 1
    return array


def __getattr__(name: str) -> NoReturn:
    # Not at the top: a table of words, read when a name is missing.
    from ooctrain.engine.torch_names import refusal

    raise refusal(__name__, name, "init", globals())
