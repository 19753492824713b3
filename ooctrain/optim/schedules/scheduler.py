"""Epochs, rates in force and state: the parts that all schedules of learning rates share.

A rate is a function of the epoch and the first rate, not of the rate before it, so a resumed run
needs nothing but the epoch. A rate that has been changed meanwhile, for example by another schedule
of the same optimizer, is scaled as the function would have been, so schedules can be chained, as in
PyTorch. A rate is a step scalar: changing it never leads to a new trace or plan. Read next:
`by_epoch.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ooctrain.errors import ConfigError
from ooctrain.optim.optimizer import Optimizer, expect_state_of
from ooctrain.step.arguments import checked


@checked
class LRScheduler:
    """Base of the schedules: after each `step()` the learning rate is a function of the step's
    number.

    Attributes:
        counts_steps: whether `step()` is meant to come after each training step, not each epoch;
            `Trainer.fit` does so.

    Args:
        optimizer: whose rates it sets. Those that it has now are the first ones, or "initial_lr" of
            its groups, where an earlier schedule has noted it.
        last_epoch: -1: begins anew; else the schedule goes on after this epoch.

    Raises:
        ConfigError: it should continue, but the first rates were not saved.
    """

    counts_steps: bool = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1):
        self.optimizer, self.last_epoch = optimizer, last_epoch + 1
        for group in optimizer.param_groups:
            if last_epoch >= 0 and "initial_lr" not in group:
                raise ConfigError(
                    f"a schedule cannot go on after epoch {last_epoch}: its first rate is unknown",
                    fix='"initial_lr" in each parameter group; or load_state_dict, which knows it',
                )
            group.setdefault("initial_lr", float(group["lr"]))
        self.base_lrs = [float(group["initial_lr"]) for group in optimizer.param_groups]
        self._expected = self._planned(self.last_epoch)
        if last_epoch >= 0:
            self._begin(self.last_epoch)

    def factor(self, epoch: int, base_lr: float) -> float:
        """The learning rate (not a factor of it) after `epoch` calls of `step`."""
        raise TypeError(f"{type(self).__name__} lacks factor()")

    def step(self) -> None:
        """Ends an epoch (or whatever the schedule counts).

        Raises:
            ConfigError: the optimizer has other parameter groups than when the schedule was made.
        """
        in_force = self._own_rates()
        before, after = self._planned(self.last_epoch), self._planned(self.last_epoch + 1)
        rates = [
            new if rate == expected else self._scaled(rate, old, new)
            for rate, expected, old, new in zip(
                in_force, self._expected, before, after, strict=True
            )
        ]
        self.last_epoch, self._expected = self.last_epoch + 1, after
        self._set(rates)

    def expect_steps_left(self, steps: int) -> None:
        """Raises ConfigError: it ends before that many calls of `step` more."""

    def get_last_lr(self) -> list[float]:
        """The learning rates in force."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as plain data."""
        rates = [float(rate) for rate in self.get_last_lr()]
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs), "_last_lr": rates}

    @checked
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The reverse of `state_dict`; the optimizer's rates are those of that epoch again. A part
        of PyTorch's `SequentialLR` that has not begun stands below 0, and leaves them alone."""
        expect_state_of(self, state_dict, "last_epoch")
        self.base_lrs = list(state_dict.get("base_lrs", self.base_lrs))
        if state_dict["last_epoch"] < 0:
            self.last_epoch, self._expected = 0, self._planned(0)
            return
        self._begin(state_dict["last_epoch"])
        if "_last_lr" in state_dict:
            self._set(list(state_dict["_last_lr"]))

    def _begin(self, epoch: int) -> None:
        """From now on the rates are those of this epoch, whatever they were."""
        self._own_rates()
        self.last_epoch, self._expected = epoch, self._planned(epoch)
        self._set(self._expected)

    def _planned(self, epoch: int) -> list[float]:
        """The rates of all groups after `epoch` epochs, if nothing else changes them."""
        return [self._rate(epoch, base_lr) for base_lr in self.base_lrs]

    def _rate(self, epoch: int, base_lr: float) -> float:
        return self.factor(epoch, base_lr) if epoch else base_lr

    def _scaled(self, rate: float, before: float, after: float) -> float:
        """What a rate becomes that would have gone from `before` to `after`, had nothing changed
        it."""
        limit = self._limit()
        if before == limit:
            return rate + after - before
        return limit + (rate - limit) * (after - limit) / (before - limit)

    def _limit(self) -> float:
        """What the rates approach: what is scaled is the distance from it."""
        return 0.0

    def _own_rates(self) -> list[float]:
        """The rates in force. Raises ConfigError: groups have come or gone."""
        groups = self.optimizer.param_groups
        if len(groups) != len(self.base_lrs):
            raise ConfigError(
                f"the schedule was made for {len(self.base_lrs)} parameter groups, "
                f"and the optimizer has {len(groups)}",
                fix="make the schedule when all groups are there",
            )
        return self.get_last_lr()

    def _set(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def expect_schedule_of(optimizer: Optimizer, schedule: object) -> None:
    """Raises ConfigError: it is not a schedule, or one of another optimizer, whose rates are
    not read."""
    if not isinstance(schedule, LRScheduler):
        raise ConfigError(
            f"{schedule!r} is not a schedule of learning rates", code="OOC-106",
            fix="one object, such as oc.optim.StepLR(trainer.optimizer, 30); several in turn are "
            "oc.optim.SequentialLR",
        )  # fmt: skip
    if schedule.optimizer is not optimizer:
        raise ConfigError(
            f"{type(schedule).__name__} sets the rates of another optimizer than the trainer's",
            code="OOC-106", fix=f"{type(schedule).__name__}(trainer.optimizer, ...)",
        )  # fmt: skip
