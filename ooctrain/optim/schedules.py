"""Learning-rate schedules, with the names and defaults of `torch.optim.lr_scheduler`.

In: an optimizer, the number of epochs so far. Out: its learning rates. The one idea: a rate is a
function of the epoch and the first rate, not of the rate before; so a resumed run needs nothing but
the epoch. A rate is a step scalar: changing it never traces or plans anew. Read next:
`optimizers.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ooctrain.optim.base import Optimizer


class LRScheduler:
    """Base of the schedules: after each `step()` the learning rate is a function of the step's
    number.

    Args:
        optimizer: whose rates it sets; those that it has now are the first ones.
    """

    def __init__(self, optimizer: Optimizer):
        self.optimizer, self.last_epoch = optimizer, 0
        self.base_lrs = [float(group["lr"]) for group in optimizer.param_groups]

    def factor(self, epoch: int, base_lr: float) -> float:
        """The learning rate (not a factor of it) after `epoch` calls of `step`."""
        raise TypeError(f"{type(self).__name__} lacks factor()")

    def step(self) -> None:
        """Ends an epoch (or whatever the schedule counts)."""
        self.last_epoch += 1
        self._set_rates()

    def get_last_lr(self) -> list[float]:
        """The learning rates in force."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The reverse of `state_dict`; the optimizer's rates are those of that epoch again."""
        self.last_epoch, self.base_lrs = state_dict["last_epoch"], list(state_dict["base_lrs"])
        self._set_rates()

    def _set_rates(self) -> None:
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = self.factor(self.last_epoch, base_lr) if self.last_epoch else base_lr


class StepLR(LRScheduler):
    """Multiplies the learning rate by `gamma` every `step_size` epochs."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1):
        super().__init__(optimizer)
        self.step_size, self.gamma = step_size, gamma

    def factor(self, epoch: int, base_lr: float) -> float:
        return base_lr * self.gamma ** (epoch // self.step_size)


class CosineAnnealingLR(LRScheduler):
    """From the base rate to `eta_min` along half a cosine, in `T_max` epochs."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0):
        super().__init__(optimizer)
        self.T_max, self.eta_min = T_max, eta_min

    def factor(self, epoch: int, base_lr: float) -> float:
        return (
            self.eta_min
            + (base_lr - self.eta_min) * (1 + math.cos(math.pi * epoch / self.T_max)) / 2
        )
