"""Schedules that are one formula of the epoch: steps, powers, a line, half a cosine.

The rate is computed from the epoch and the first rate by the closed form that PyTorch documents.
PyTorch's own rates are products of all factors so far and differ from these in the last digits.
Read next: `one_cycle.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable

from ooctrain.errors import ConfigError
from ooctrain.optim.optimizer import Optimizer
from ooctrain.optim.schedules.scheduler import LRScheduler
from ooctrain.step.arguments import checked


@checked
class StepLR(LRScheduler):
    """Multiplies the learning rate by `gamma` every `step_size` epochs.

    Raises:
        ConfigError: step_size is not above 0.
    """

    def __init__(
        self, optimizer: Optimizer, step_size: float, gamma: float = 0.1, last_epoch: int = -1
    ):
        _check_epochs("step_size", step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch: int, base_lr: float) -> float:
        return base_lr * self.gamma ** (epoch // self.step_size)


@checked
class MultiStepLR(LRScheduler):
    """Multiplies the learning rate by `gamma` at each of the epochs `milestones`; twice at one that
    is there twice."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1,
        last_epoch: int = -1,
    ):  # fmt: skip
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch: int, base_lr: float) -> float:
        return base_lr * self.gamma ** bisect_right(self.milestones, epoch)


@checked
class ExponentialLR(LRScheduler):
    """Multiplies the learning rate by `gamma` every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch: int, base_lr: float) -> float:
        return base_lr * self.gamma**epoch


@checked
class LinearLR(LRScheduler):
    """From `start_factor` times the base rate to `end_factor` times, along a line, in `total_iters`
    epochs; then it stays there. The rates are multiplied by `start_factor` at once.

    Raises:
        ConfigError: start_factor is not above 0 and at most 1, end_factor not from 0 to 1, or there
            is not an epoch.
    """

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0,
        total_iters: float = 5, last_epoch: int = -1,
    ):  # fmt: skip
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1 or total_iters < 1:
            raise ConfigError(
                f"a line from {start_factor} to {end_factor} in {total_iters} epochs: factors are "
                "from 0 to 1, the first one above 0, and there is at least one epoch",
                fix="start_factor=1/3, end_factor=1.0, total_iters=5",
            )
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)
        if last_epoch == -1:
            self._set([rate * start_factor for rate in self.get_last_lr()])

    def factor(self, epoch: int, base_lr: float) -> float:
        share = min(self.total_iters, epoch) / self.total_iters
        return base_lr * (self.start_factor + (self.end_factor - self.start_factor) * share)

    def _rate(self, epoch: int, base_lr: float) -> float:
        return self.factor(epoch, base_lr)  # at the beginning too


@checked
class CosineAnnealingLR(LRScheduler):
    """From the base rate to `eta_min` along half a cosine, in `T_max` epochs.

    Raises:
        ConfigError: T_max is not above 0.
    """

    def __init__(
        self, optimizer: Optimizer, T_max: float, eta_min: float = 0.0, last_epoch: int = -1
    ):
        _check_epochs("T_max", T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch: int, base_lr: float) -> float:
        return (
            self.eta_min
            + (base_lr - self.eta_min) * (1 + math.cos(math.pi * epoch / self.T_max)) / 2
        )

    def _limit(self) -> float:
        return self.eta_min


def _check_epochs(name: str, epochs: float) -> None:
    """Raises ConfigError: rates would be divided by no epoch, or go backwards."""
    if not epochs > 0:
        raise ConfigError(f"{name}={epochs!r} is no number of epochs", fix=f"{name}=1 or more")
