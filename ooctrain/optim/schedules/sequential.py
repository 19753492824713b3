"""Schedules one after another: a warm-up, then something else.

The schedules belong to one optimizer; a list of epochs says when the next one begins, and each
counts its epochs from its own beginning. Read next: `plateau.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from ooctrain.errors import ConfigError
from ooctrain.optim.optimizer import Optimizer, expect_state_of
from ooctrain.optim.schedules.plateau import ReduceLROnPlateau
from ooctrain.optim.schedules.scheduler import LRScheduler
from ooctrain.step.arguments import checked


@checked
class SequentialLR(LRScheduler):
    """One schedule up to the first milestone, the next one from there on, and so on.

    Args:
        optimizer: of all of them.
        schedulers: in their order; none of `ReduceLROnPlateau`, which wants to be told a loss.
        milestones: the epoch at which each but the first begins.

    Raises:
        ConfigError: another number of milestones, another optimizer, a schedule that wants a loss.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int],
        last_epoch: int = -1,
    ):  # fmt: skip
        if not schedulers or len(milestones) != len(schedulers) - 1:
            raise ConfigError(
                f"{len(schedulers)} schedules one after another, and {len(milestones)} milestones",
                fix="one milestone fewer than schedules",
            )
        if list(milestones) != sorted(milestones):
            raise ConfigError(
                f"milestones {list(milestones)} are not in order",
                fix="milestones that grow, from 0 on",
            )
        for schedule in schedulers:
            if isinstance(schedule, ReduceLROnPlateau):
                raise ConfigError(
                    "ReduceLROnPlateau wants a loss, but SequentialLR has none to give",
                    fix="call its step(loss) beside the other schedule's step()",
                )
            if schedule.optimizer is not optimizer:
                raise ConfigError(
                    f"a {type(schedule).__name__} belongs to another optimizer",
                    fix="schedules made with the same optimizer",
                )
        self._schedulers, self._milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, last_epoch)
        self._begin(self.last_epoch)
        if last_epoch == -1:
            self._start()

    def _start(self) -> None:
        """Begins at the first rates that the groups note, as in PyTorch: a `OneCycleLR` that comes
        later in the row has noted its own."""
        schedule, groups = self._at(0)[0], self.optimizer.param_groups
        noted = [float(group["initial_lr"]) for group in groups]
        triples = zip(noted, schedule.base_lrs, self._expected, strict=True)
        self._set(
            [
                planned if first == base else schedule._scaled(first, base, planned)
                for first, base, planned in triples
            ]
        )

    @property
    def counts_steps(self) -> bool:  # type: ignore[override]
        """Whether any of them counts training steps: the milestones then count them, too."""
        return any(schedule.counts_steps for schedule in self._schedulers)

    def expect_steps_left(self, steps: int) -> None:
        """Raises ConfigError: the last one that is reached ends before."""
        schedule, passed = self._at(self.last_epoch + steps)
        if schedule is self._at(self.last_epoch)[0]:
            schedule.expect_steps_left(steps)
        else:
            schedule.expect_steps_left(passed - schedule.last_epoch)

    def step(self) -> None:
        if self.last_epoch + 1 in self._milestones:
            self._begin(self.last_epoch + 1)
        else:
            super().step()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as plain data."""
        states = [schedule.state_dict() for schedule in self._schedulers]
        return {**super().state_dict(), "_schedulers": states}

    @checked
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The reverse of `state_dict`; the optimizer's rates are those of that epoch again."""
        expect_state_of(self, state_dict, "_schedulers", "last_epoch")
        for schedule, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            schedule.load_state_dict(state)
        super().load_state_dict(state_dict)  # last: the rates are those of all together

    def _at(self, epoch: int) -> tuple[LRScheduler, int]:
        """Which schedule it is, and how many epochs of its own have passed."""
        place = bisect_right(self._milestones, epoch)
        return self._schedulers[place], epoch - ([0, *self._milestones][place])

    def _planned(self, epoch: int) -> list[float]:
        schedule, passed = self._at(epoch)
        return schedule._planned(passed)

    def _scaled(self, rate: float, before: float, after: float) -> float:
        return self._at(self.last_epoch)[0]._scaled(rate, before, after)

    def _set(self, rates: list[float]) -> None:
        schedule, passed = self._at(self.last_epoch)
        schedule.last_epoch = passed
        schedule._set(rates)
