"""The settings of a parameter group: their ranges, and which of them are step scalars.

A learning rate changes without a new trace, so a call knows it by a name: "lr" for the first
parameter group, "lr.1" for the second. So is the momentum of a group that a schedule cycles. All
other settings are part of the operation that updates a parameter. Read next: `base.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeGuard

from ooctrain.errors import ConfigError

#: What schedules keep in a parameter group. The last two say that its momentum is cycled: it is a
#: step scalar then, as the learning rate is.
OF_SCHEDULES = ("initial_lr", "base_momentum", "max_momentum")


def lr_name(group: int) -> str:
    """Name of a group's learning rate among the step scalars."""
    return "lr" if group == 0 else f"lr.{group}"


def momentum_name(group: int) -> str:
    """Name of a group's momentum among the step scalars, while a schedule cycles it."""
    return "momentum" if group == 0 else f"momentum.{group}"


def is_cycled(group: Mapping[str, Any]) -> bool:
    """Whether a schedule changes the momentum of a group with each step."""
    return "base_momentum" in group


def plain_momentum(group: Mapping[str, Any]) -> float:
    """The momentum of a group in this step, or beta1."""
    return float(group["betas"][0] if "betas" in group else group["momentum"])


def momentum_in(group: Mapping[str, Any], lr: str) -> float | str:
    """The momentum of a group, or beta1; the step scalar that holds it while it is cycled.

    Args:
        lr: name of the group's learning rate.
    """
    return f"momentum{lr.removeprefix('lr')}" if is_cycled(group) else plain_momentum(group)


def no_rate(scalars: Mapping[str, object]) -> ConfigError:
    """The error of step scalars that are not all finite numbers."""
    return ConfigError(
        f"{', '.join(f'{name} {value!r}' for name, value in scalars.items())} is not finite",
        fix="look at what has set it: a schedule, or param_groups; nothing has been changed",
    )


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises ConfigError for the first setting that is not a number, or out of its range."""
    for name in ("lr", "momentum", "weight_decay", "eps"):
        value = settings.get(name, 0)
        if not (_is_finite(value) and value >= 0):
            raise ConfigError(
                f"{name} {value!r} is not a number of 0 or more", fix=f"{name}=0.01, for example"
            )
    if not _is_finite(settings.get("dampening", 0)):
        raise ConfigError(
            f"dampening {settings['dampening']!r} is not a finite number", fix="dampening=0"
        )
    betas = settings.get("betas", (0, 0))
    pair = isinstance(betas, Sequence) and len(betas) == 2
    if not (pair and all(_is_finite(beta) and 0 <= beta < 1 for beta in betas)):
        raise ConfigError(
            f"betas {betas!r} are not two numbers from 0 to below 1", fix="betas=(0.9, 0.999)"
        )
    alpha = settings.get("alpha", 0)
    if not (_is_finite(alpha) and 0 <= alpha <= 1):
        raise ConfigError(f"alpha {alpha!r} is not a number from 0 to 1", fix="alpha=0.99")


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and math.isfinite(value)
