"""Gradient clipping: by the norm of all gradients together, or value by value.

Clipping by norm needs all gradients before the first update, so in a trace all updates move to the
end of the step. Clipping by value leaves them where they are. Names as in `torch.nn.utils`.
Read next: `layers/update.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import NoReturn

import numpy as np

from ooctrain.engine.parameter import Parameter
from ooctrain.engine.tensor import Tensor, current_tape
from ooctrain.errors import AutogradError, ConfigError
from ooctrain.layers.update import ClipFactor, ClipValue, ScaleBy, SumOfSquares
from ooctrain.step.arguments import checked


@dataclass(frozen=True, slots=True)
class ClipNorm:
    """Scales all gradients by one factor, so that their common norm is at most `max_norm`."""

    max_norm: float

    def __post_init__(self) -> None:
        _check_bound(self.max_norm, "norm")

    def record(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Clipped gradients, recorded on the tape in force."""
        tape = current_tape()
        squares: list[Tensor] = []
        for parameter in parameters:
            with tape.at(path=f"clip.{parameter.name}", leaf=True, forward_of=None, phase="update"):
                squares += tape.call(SumOfSquares(), (gradient_of(parameter),))
        with tape.at(path="clip", leaf=False, forward_of=None, phase="update"):
            (factor,) = tape.call(ClipFactor(self.max_norm), squares)
        return [_scaled(ScaleBy(), parameter, factor) for parameter in parameters]


@dataclass(frozen=True, slots=True)
class ClipEach:
    """Limits every element of every gradient to [-limit, limit]."""

    limit: float

    def __post_init__(self) -> None:
        _check_bound(self.limit, "value")

    def record(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Clipped gradients, recorded on the tape in force."""
        return [_scaled(ClipValue(self.limit), parameter) for parameter in parameters]


Clip = ClipNorm | ClipEach


def as_clip(clip: Clip | float | None) -> Clip | None:
    """What a number for the norm, or a way to clip, stands for.

    Raises:
        ConfigError: it is neither, or no number of 0 or more.
    """
    return clip if clip is None or isinstance(clip, Clip) else ClipNorm(clip)


def _check_bound(bound: object, what: str) -> None:
    if not (isinstance(bound, Real) and float(bound) >= 0):
        raise ConfigError(
            f"gradients cannot be clipped to a {what} of {bound!r}", code="OOC-106",
            fix="a number of 0 or more, such as 1.0",
        )  # fmt: skip


@checked
def clip_grad_norm_(
    parameters: Iterable[Parameter] | Parameter, max_norm: float, norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> float:  # fmt: skip
    """Clips `.grad` of all parameters by their common norm; returns the norm before.

    One gradient that is not a number makes all of them so, and infinite ones make the others 0, as
    in PyTorch.

    Args:
        parameters: those without a gradient are left out.
        max_norm: bound of the 2-norm of all gradients as one vector.
        norm_type: 2, the only one supported.
        error_if_nonfinite: refuses a norm that is not a finite number.

    Raises:
        AutogradError: with `error_if_nonfinite`; no gradient has changed.
        ConfigError: another norm.
    """
    if norm_type != 2:
        raise ConfigError(
            f"clip_grad_norm_: norm_type {norm_type} is not supported, only 2", code="OOC-106"
        )
    with_grad = _with_grad(parameters)
    squares = [np.sum(np.square(gradient_of(p).numpy(), dtype=np.float64)) for p in with_grad]
    norm = float(np.sqrt(sum(squares)))
    if error_if_nonfinite and not math.isfinite(norm):
        raise AutogradError(
            f"the gradients cannot be clipped: their common norm is {norm}",
            fix="find the number in the loss that is not finite, or leave error_if_nonfinite out",
        )
    _clip(ClipNorm(max_norm), with_grad)
    return norm


@checked
def clip_grad_value_(parameters: Iterable[Parameter] | Parameter, clip_value: float) -> None:
    """Limits every element of `.grad` to [-clip_value, clip_value]."""
    _clip(ClipEach(clip_value), _with_grad(parameters))


def _clip(clip: Clip, parameters: list[Parameter]) -> None:
    if parameters:
        for parameter, grad in zip(parameters, clip.record(parameters), strict=True):
            parameter.grad = grad


def gradient_of(parameter: Tensor) -> Tensor:
    """The gradient of a parameter that has one."""
    assert parameter.grad is not None, f"{parameter.name!r} has no gradient"
    return parameter.grad


def _with_grad(parameters: Iterable[Parameter] | Parameter) -> list[Parameter]:
    several = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [parameter for parameter in several if parameter.grad is not None]


def _scaled(op: ScaleBy | ClipValue, parameter: Tensor, *factor: Tensor) -> Tensor:
    tape = current_tape()
    with tape.at(path=f"clip.{parameter.name}", leaf=True, forward_of=None, phase="update"):
        return tape.call(op, (gradient_of(parameter), *factor), of=(parameter,))[0]


def __getattr__(name: str) -> NoReturn:
    # Not at the top: a table of words, read when a name is missing.
    from ooctrain.engine.torch_names import refusal

    raise refusal("ooctrain.utils", name, "utils", ("clip_grad_norm_", "clip_grad_value_"))
