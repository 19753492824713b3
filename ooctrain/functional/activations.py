"""Activations whose gradient reads their input, and softmax, with PyTorch's arguments.

All but PReLU and softmax are rows of one table of functions, and PReLU is made of two of those.
`inplace` is accepted and ignored, as in `pointwise.py`. Read next: `../layers/function.py`.
"""

from __future__ import annotations

from ooctrain.engine.algebra import axes_of
from ooctrain.engine.tensor import Tensor, call
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.layers.function import Elementwise
from ooctrain.layers.relu import ReLU
from ooctrain.layers.softmax import SoftmaxAlong

_GELUS = {"none": "gelu", "tanh": "gelu_tanh"}


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input times the normal distribution of it.

    Args:
        approximate: "none", or "tanh" for the formula with a hyperbolic tangent.

    Raises:
        ConfigError: neither of these.
    """
    if approximate not in _GELUS:
        raise ConfigError(
            f"gelu: approximate {approximate!r} is neither 'none' nor 'tanh'", code="OOC-106"
        )
    return call(Elementwise(_GELUS[approximate]), input)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """input times its sigmoid."""
    return call(Elementwise("silu"), input)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """input times its hard sigmoid."""
    return call(Elementwise("hardswish"), input)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """(input + 3) / 6, at least 0 and at most 1."""
    return call(Elementwise("hardsigmoid"), input)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """input, at least 0 and at most 6."""
    return call(Elementwise("relu6"), input)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """input where positive, else weight * input.

    Args:
        weight: (1,), or (C,) with one slope for each channel.

    Raises:
        ShapeError: another number of slopes.
    """
    channels = input.shape[1] if input.ndim > 1 else 1
    if weight.ndim != 1 or weight.shape[0] not in (1, channels):
        raise ShapeError(
            f"prelu takes one slope, or one for each of {channels} channels",
            numbers=f"got {weight.shape}",
        )
    if weight.shape[0] > 1 and input.ndim > 2:
        weight = weight.reshape(-1, *(1,) * (input.ndim - 2))
    return call(ReLU(), input) + weight * input.clamp(max=0.0)


def softmax(input: Tensor, dim: int | None = None) -> Tensor:
    """exp(input) / sum(exp(input)) along the axis `dim`. `cross_entropy` takes logits instead.

    Raises:
        ConfigError: no axis given; PyTorch's guess is deprecated.
        ShapeError: there is no such axis.
    """
    return call(SoftmaxAlong(_axis("softmax", input, dim)), input)


def log_softmax(input: Tensor, dim: int | None = None) -> Tensor:
    """The logarithm of `softmax`, for `nll_loss`."""
    return call(SoftmaxAlong(_axis("log_softmax", input, dim), log=True), input)


def _axis(name: str, input: Tensor, dim: int | None) -> int:
    if dim is None:
        raise ConfigError(f"{name} wants an axis", code="OOC-106", fix="dim=1 for class scores")
    return axes_of(dim, input.ndim)[0]
