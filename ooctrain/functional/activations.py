"""Activations whose gradient reads their input, and softmax, with PyTorch's arguments.

Most are rows of one table of functions (`../layers/function.py`), the others made of a few.
`inplace` is accepted and ignored, as in `pointwise.py`. Read next: `../layers/function.py`.
"""

from __future__ import annotations

from ooctrain.engine.algebra import axes_of
from ooctrain.engine.tensor import Tensor, call
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.functional.conv import finite
from ooctrain.layers.function import LINEAR_FROM, Elementwise, Sigmoid, Tanh
from ooctrain.layers.relu import ReLU
from ooctrain.layers.softmax import SoftmaxAlong
from ooctrain.step.arguments import checked

_GELUS = {"none": "gelu", "tanh": "gelu_tanh"}


@checked
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


@checked
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """input times its sigmoid."""
    return call(Elementwise("silu"), input)


@checked
def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """input times its hard sigmoid."""
    return call(Elementwise("hardswish"), input)


@checked
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """(input + 3) / 6, at least 0 and at most 1."""
    return call(Elementwise("hardsigmoid"), input)


@checked
def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """input, at least 0 and at most 6."""
    return call(Elementwise("relu6"), input)


@checked
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """input above 0, else alpha (exp(input) - 1)."""
    return call(Elementwise("elu", finite(alpha, "alpha")), input)


@checked
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """input above 0, else alpha (exp(input / alpha) - 1).

    Raises:
        ConfigError: alpha is 0.
    """
    if not alpha:
        raise ConfigError("celu: alpha is not 0", code="OOC-106")
    return call(Elementwise("celu", finite(alpha, "alpha")), input)


@checked
def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """1.0507 elu(input, 1.6733), which keep mean 0 and variance 1 from layer to layer."""
    return call(Elementwise("selu"), input)


@checked
def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """input tanh(softplus(input))."""
    return call(Elementwise("mish"), input)


@checked
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta input)) / beta; input itself where beta input is beyond the threshold.

    Raises:
        ConfigError: beta is 0.
    """
    if not finite(beta, "beta"):
        raise ConfigError("softplus: beta is not 0", code="OOC-106")
    until = finite(threshold, "threshold")
    op = Elementwise("softplus_until", until) if until < LINEAR_FROM else Elementwise("softplus")
    return call(op, input) if beta == 1 else call(op, input * beta) / beta


@checked
def logsigmoid(input: Tensor) -> Tensor:
    """The logarithm of the sigmoid."""
    return call(Elementwise("log_sigmoid"), input)


@checked
def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """input, at least min_val and at most max_val; the gradient is 0 at both.

    Raises:
        ConfigError: max_val is less than min_val.
    """
    low, high = finite(min_val, "min_val"), finite(max_val, "max_val")
    if high < low:
        raise ConfigError(f"hardtanh: {max_val} is less than {min_val}", code="OOC-106")
    if (low, high) == (0.0, 6.0):
        return relu6(input)
    return call(Elementwise("below", high), call(Elementwise("above", low), input))


@checked
def softsign(input: Tensor) -> Tensor:
    """input / (1 + |input|)."""
    return input / (input.abs() + 1.0)


@checked
def tanhshrink(input: Tensor) -> Tensor:
    """input - tanh(input)."""
    return input - call(Tanh(), input)


@checked
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half along the axis `dim`, times the sigmoid of the second.

    Raises:
        ShapeError: there is no such axis, or it has no halves.
    """
    axis = axes_of(dim, input.ndim)[0]
    if input.shape[axis] % 2:
        raise ShapeError(f"glu: axis {dim} of extent {input.shape[axis]} has no halves")
    first, second = input.chunk(2, axis)
    return first * call(Sigmoid(), second)


@checked
def softmin(input: Tensor, dim: int | None = None) -> Tensor:
    """`softmax` of -input."""
    return softmax(-input, dim)


@checked
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


@checked
def softmax(input: Tensor, dim: int | None = None) -> Tensor:
    """exp(input) / sum(exp(input)) along the axis `dim`. `cross_entropy` takes logits instead.

    Raises:
        ConfigError: no axis given; PyTorch's guess is deprecated.
        ShapeError: there is no such axis.
    """
    return call(SoftmaxAlong(_axis("softmax", input, dim)), input)


@checked
def log_softmax(input: Tensor, dim: int | None = None) -> Tensor:
    """The logarithm of `softmax`, for `nll_loss`."""
    return call(SoftmaxAlong(_axis("log_softmax", input, dim), log=True), input)


def _axis(name: str, input: Tensor, dim: int | None) -> int:
    if dim is None:
        raise ConfigError(f"{name} wants an axis", code="OOC-106", fix="dim=1 for class scores")
    return axes_of(dim, input.ndim)[0]
