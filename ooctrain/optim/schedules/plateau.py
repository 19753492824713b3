"""A schedule that waits for the loss: it lowers the rate when the loss no longer improves.

After each epoch the schedule gets a number to watch and keeps the rates or lowers them. Besides the
rates in force its state is four numbers, the best value so far among them. Read next:
`../optimizer.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, SupportsFloat

from ooctrain.errors import ConfigError
from ooctrain.optim.optimizer import Optimizer, expect_state_of
from ooctrain.optim.schedules.scheduler import LRScheduler
from ooctrain.step.arguments import checked

_COUNTED = ("last_epoch", "best", "cooldown_counter", "num_bad_epochs")


@checked
class ReduceLROnPlateau(LRScheduler):
    """Multiplies the rates by `factor` after more than `patience` epochs without improvement.

    Args:
        optimizer: whose rates it sets.
        mode: "min": less is better, as of a loss; "max": more, as of an accuracy.
        factor: below 1.
        patience: epochs without improvement that are borne.
        threshold: an improvement is more than this: as a share of the best value ("rel"), or the
            difference itself ("abs").
        threshold_mode: "rel" or "abs".
        cooldown: epochs after a reduction in which nothing is counted.
        min_lr: no rate gets below it; one for all, or one for each parameter group.
        eps: a smaller change is left out.

    Attributes:
        best: value so far; None before the first one.

    Raises:
        ConfigError: a setting that it cannot use.
    """

    #: here a number, as in PyTorch, in place of the method of schedules that are a formula
    factor: float  # type: ignore[assignment]

    def __init__(
        self, optimizer: Optimizer, mode: Literal["min", "max"] = "min", factor: float = 0.1,
        patience: float = 10, threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel", cooldown: int = 0,
        min_lr: float | Sequence[float] = 0, eps: float = 1e-8,
    ):  # fmt: skip
        if not factor < 1:
            raise ConfigError(
                f"factor {factor} is not below 1: the rates would never fall", fix="factor=0.1"
            )
        self.optimizer, self.factor, self.patience = optimizer, factor, patience
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.cooldown, self.eps, self.min_lr = cooldown, eps, min_lr
        self.best: float | None = None
        self.last_epoch = self.cooldown_counter = self.num_bad_epochs = 0
        self._least_rates()
        self._is_better(0.0)

    @checked
    def step(self, metrics: SupportsFloat) -> None:  # type: ignore[override]
        """Ends an epoch.

        Args:
            metrics: what is watched, such as the loss on the test part; a value that is not a
                number is not an improvement.
        """
        current, least = float(metrics), self._least_rates()
        better = self._is_better(current)
        self.last_epoch += 1
        self.best = current if better else self.best
        self.num_bad_epochs = 0 if better else self.num_bad_epochs + 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._set(
                [self._lowered(*pair) for pair in zip(self.get_last_lr(), least, strict=True)]
            )
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as plain data."""
        rates = [float(rate) for rate in self.get_last_lr()]
        state = {**{name: getattr(self, name) for name in _COUNTED}, "_last_lr": rates}
        if self.best is not None and math.isinf(self.best):
            state["best"] = str(self.best)  # JSON has no infinity
        return state

    @checked
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The reverse of `state_dict`; the optimizer's rates are those of that epoch again."""
        expect_state_of(self, state_dict, *_COUNTED, "_last_lr")
        for name in _COUNTED:
            setattr(self, name, state_dict[name])
        best = None if self.best is None else float(self.best)
        self.best = None if best == self._worst() else best  # PyTorch begins with the worst
        self._set(list(state_dict["_last_lr"]))

    def _is_better(self, value: float) -> bool:
        """Whether a value is an improvement. Raises ConfigError: an unknown mode."""
        if self.mode not in ("min", "max") or self.threshold_mode not in ("rel", "abs"):
            raise ConfigError(
                f"unknown mode {self.mode!r} or threshold_mode {self.threshold_mode!r}",
                fix="mode is 'min' or 'max', threshold_mode is 'rel' or 'abs'",
            )
        best = self._worst() if self.best is None else self.best
        sign = -1 if self.mode == "min" else 1
        if self.threshold_mode == "rel":
            border = best * (1 + sign * self.threshold)
        else:
            border = best + sign * self.threshold
        return value < border if self.mode == "min" else value > border

    def _worst(self) -> float:
        return math.inf if self.mode == "min" else -math.inf

    def _lowered(self, rate: float, least: float) -> float:
        lower = max(rate * self.factor, least)
        return lower if rate - lower > self.eps else rate

    def _least_rates(self) -> list[float]:
        """For each group. Raises ConfigError: their number is another."""
        count = len(self.optimizer.param_groups)
        if not isinstance(self.min_lr, Sequence):
            return [self.min_lr] * count
        if len(self.min_lr) != count:
            raise ConfigError(
                f"min_lr has {len(self.min_lr)} rates for {count} parameter groups",
                fix="one number for all groups, or one for each",
            )
        return list(self.min_lr)
