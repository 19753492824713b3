"""One cycle: the rate rises, then falls below where it began, and the momentum goes the other way.

The total number of steps and the highest rate determine the rate and momentum of each step. A phase
is given by its end and by the values at both of its ends. A momentum that is cycled is a step
scalar, as the rate is, so no step is traced or planned anew. Source: Smith and Topin,
"Super-convergence" (2017), in fastai's form, which PyTorch has. Read next: `sequential.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ooctrain.errors import ConfigError
from ooctrain.optim.optimizer import Optimizer, plain_momentum
from ooctrain.optim.schedules.scheduler import LRScheduler
from ooctrain.step.arguments import checked

Level = Literal["first", "high", "last"]
Each = float | Sequence[float]
Levels = Mapping[Level, float]


class _Phase(NamedTuple):
    """Up to which step it lasts, and the rates at both ends; momentum is low where a rate is
    high."""

    end: float
    start_level: Level
    end_level: Level


@checked
class OneCycleLR(LRScheduler):
    """From max_lr / div_factor to max_lr, then down to max_lr / div_factor / final_div_factor;
    `step()` comes after each training step.

    The ends of rate and momentum are kept in the parameter groups, as in PyTorch: of two cycles of
    one optimizer both go between the ends of the one that was made last.

    Args:
        optimizer: whose rates it sets, and its momentum, or beta1 of Adam.
        max_lr: highest rate; one for all, or one for each parameter group.
        total_steps: steps of the whole cycle; or give the two that follow.
        epochs, steps_per_epoch: whose product it is.
        pct_start: share of the steps, from 0 to 1, in which the rate rises.
        anneal_strategy: "cos" or "linear".
        cycle_momentum: the momentum falls from `max_momentum` to `base_momentum` while the rate
            rises, and comes back.
        three_phase: the rate falls as long as it rose, and only then below its first value.
        last_epoch: see `LRScheduler`.

    Raises:
        ConfigError: a setting that it cannot use, or an optimizer without a momentum to cycle.
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: Each, total_steps: int | None = None,
        epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos", cycle_momentum: bool = True,
        base_momentum: Each = 0.85, max_momentum: Each = 0.95, div_factor: float = 25.0,
        final_div_factor: float = 1e4, three_phase: bool = False, last_epoch: int = -1,
    ):  # fmt: skip
        if anneal_strategy not in ("cos", "linear"):
            raise ConfigError(
                f"unknown anneal_strategy {anneal_strategy!r}", fix="'cos' or 'linear'"
            )
        if not (div_factor > 0 and final_div_factor > 0):
            raise ConfigError(
                f"rates cannot be divided by {div_factor!r} and {final_div_factor!r}",
                fix="div_factor=25, final_div_factor=1e4",
            )
        self.optimizer, self.total_steps = optimizer, _total(total_steps, epochs, steps_per_epoch)
        self._phases = _phases(self.total_steps, pct_start, three_phase)
        self._anneal_func_type = anneal_strategy
        max_lrs = _for_each("max_lr", max_lr, optimizer)
        for group, high in zip(optimizer.param_groups, max_lrs, strict=True):
            first = high / div_factor
            group |= {"initial_lr": first, "max_lr": high, "min_lr": first / final_div_factor}
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._cycle(base_momentum, max_momentum)
        super().__init__(optimizer, last_epoch)
        self._begin(self.last_epoch)

    counts_steps = True

    def expect_steps_left(self, steps: int) -> None:
        """Raises ConfigError: the cycle ends before."""
        if self.last_epoch + steps > self.total_steps:
            raise ConfigError(
                f"{steps} steps more lie beyond the cycle of {self.total_steps} steps",
                numbers=f"{self.last_epoch} have been done",
                fix="total_steps is the number of all training steps, epochs times batches",
            )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as plain data."""
        state = super().state_dict()
        if self.cycle_momentum:
            # Those in force, which another schedule may have set.
            state["_momenta"] = [plain_momentum(group) for group in self.optimizer.param_groups]
        return state

    @checked
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The reverse of `state_dict`; rates and momenta are those of that step again."""
        super().load_state_dict(state_dict)
        momenta = state_dict.get("_momenta", ())
        for group, momentum in zip(self.optimizer.param_groups, momenta, strict=False):
            _set_momentum(group, momentum)

    def _cycle(self, base_momentum: Each, max_momentum: Each) -> None:
        """Notes the momenta in the parameter groups, which makes them step scalars, and begins with
        the highest."""
        low = _for_each("base_momentum", base_momentum, self.optimizer)
        high = _for_each("max_momentum", max_momentum, self.optimizer)
        for group, least, most in zip(self.optimizer.param_groups, low, high, strict=True):
            if "betas" not in group and "momentum" not in group:
                raise ConfigError(
                    f"{type(self.optimizer).__name__} has no momentum to cycle",
                    fix="cycle_momentum=False",
                )
            if not ("betas" in group or min(least, most) > 0) or max(least, most) >= 1:
                raise ConfigError(
                    f"a momentum between {least} and {most} cannot be cycled",
                    fix="0 <= base_momentum <= max_momentum < 1",
                )
            group["base_momentum"], group["max_momentum"] = least, most

    def _planned(self, epoch: int) -> list[float]:
        if epoch > self.total_steps:
            raise ConfigError(
                f"step {epoch} lies beyond the cycle of {self.total_steps} steps",
                fix="total_steps is the number of all training steps",
            )
        rates = []
        for group in self.optimizer.param_groups:
            first, high, last = (group[name] for name in ("initial_lr", "max_lr", "min_lr"))
            rates.append(self._between(epoch, {"first": first, "high": high, "last": last}))
        return rates

    def _scaled(self, rate: float, before: float, after: float) -> float:
        return after  # its rates are not built on those before, as in PyTorch

    def _set(self, rates: list[float]) -> None:
        super()._set(rates)
        if self.cycle_momentum:
            for group in self.optimizer.param_groups:
                low, high = group["base_momentum"], group["max_momentum"]
                levels: Levels = {"first": high, "high": low, "last": high}
                _set_momentum(group, self._between(self.last_epoch, levels))

    def _between(self, step: int, levels: Levels) -> float:
        """The value after `step` steps of what moves from level to level."""
        begin = 0.0
        for phase in self._phases:
            if step <= phase.end or phase is self._phases[-1]:
                if phase.end == begin:
                    raise ConfigError(
                        f"a cycle of {self.total_steps} steps has a phase without a step",
                        fix="more steps, or another pct_start",
                    )
                share = (step - begin) / (phase.end - begin)
                return self._anneal(levels[phase.start_level], levels[phase.end_level], share)
            begin = phase.end
        raise AssertionError("the last phase takes all steps that are left")

    def _anneal(self, start: float, end: float, share: float) -> float:
        if self._anneal_func_type == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)


def _phases(total_steps: int, pct_start: float, three_phase: bool) -> tuple[_Phase, ...]:
    if not 0 <= pct_start <= 1:
        raise ConfigError(
            f"pct_start {pct_start!r} is not a share from 0 to 1", fix="pct_start=0.3"
        )
    rising = _Phase(pct_start * total_steps - 1, "first", "high")
    last = float(total_steps - 1)
    if three_phase:
        falling = _Phase(2 * pct_start * total_steps - 2, "high", "first")
        return rising, falling, _Phase(last, "first", "last")
    return rising, _Phase(last, "high", "last")


def _total(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    given = [total_steps] if total_steps is not None else [epochs, steps_per_epoch]
    if any(count is None or count < 1 for count in given):
        raise ConfigError(
            "the number of steps in a cycle is not known", fix="total_steps, or epochs and "
            "steps_per_epoch, whole numbers of 1 or more",
        )  # fmt: skip
    return math.prod(count for count in given if count is not None)


def _for_each(name: str, value: Each, optimizer: Optimizer) -> list[float]:
    """One value for each parameter group. Raises ConfigError: others are given."""
    count = len(optimizer.param_groups)
    if not isinstance(value, Sequence):
        return [float(value)] * count
    if len(value) != count:
        raise ConfigError(
            f"{name} has {len(value)} values for {count} parameter groups",
            fix="one number for all groups, or one for each",
        )
    return [float(one) for one in value]


def _set_momentum(group: dict[str, Any], momentum: float) -> None:
    if "betas" in group:
        group["betas"] = (momentum, *group["betas"][1:])
    else:
        group["momentum"] = momentum
