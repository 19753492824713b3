"""Learning rates over a run of `ooctrain train`, by name: "cosine", "step:epochs=30,gamma=0.1".

All lengths are typed in epochs, as is usual, and counted in training steps. So a run that was
stopped within an epoch continues where it was. From the text, an optimizer and the length of the
run this makes a schedule that is stepped after each training step. Read next:
`../optim/schedules/scheduler.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ooctrain import plugins
from ooctrain.errors import ConfigError
from ooctrain.optim import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    Optimizer,
    StepLR,
)

ENTRY_POINTS = "ooctrain.schedules"


@dataclass(frozen=True, slots=True)
class RunLength:
    """What a schedule goes over.

    Args:
        epochs: in all.
        steps_per_epoch: steps per epoch of training.
        apart: steps more, of epochs that were longer than they are now.
    """

    optimizer: Optimizer
    epochs: int
    steps_per_epoch: int
    apart: int = 0

    @property
    def steps(self) -> int:
        """Of training, in all."""
        return max(1, self.epochs * self.steps_per_epoch + self.apart)

    def steps_of(self, epochs: object, name: str) -> int:
        """The training steps of `epochs` epochs. Raises ConfigError: not a whole number above 0."""
        if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
            raise ConfigError(
                f"{name}={epochs} is not a whole number of epochs, 1 or more",
                where="ooctrain train --lr-schedule", fix=f"such as {name}=30",
            )  # fmt: skip
        return epochs * self.steps_per_epoch


def constant(run: RunLength) -> LRScheduler:
    """The learning rate as it is."""
    return StepLR(run.optimizer, step_size=1, gamma=1.0)


def cosine(run: RunLength, eta_min: float = 0.0) -> LRScheduler:
    """From the learning rate to `eta_min` along half a cosine over the whole run."""
    return CosineAnnealingLR(run.optimizer, run.steps, _rate("eta_min", eta_min))


def step(run: RunLength, epochs: int = 30, gamma: float = 0.1) -> LRScheduler:
    """Times `gamma` after every `epochs` epochs."""
    return StepLR(run.optimizer, run.steps_of(epochs, "epochs"), _rate("gamma", gamma))


def multistep(run: RunLength, epochs: int | str, gamma: float = 0.1) -> LRScheduler:
    """Times `gamma` after each of these epochs: "30+60+80"."""
    words = [int(w) if re.fullmatch("[0-9]+", w) else w for w in str(epochs).split("+")]
    milestones = [run.steps_of(word, "epochs") for word in words]
    return MultiStepLR(run.optimizer, milestones, _rate("gamma", gamma))


def exponential(run: RunLength, gamma: float = 0.95) -> LRScheduler:
    """Times `gamma` after every epoch."""
    return step(run, epochs=1, gamma=gamma)


def linear(
    run: RunLength, epochs: int = 5, start_factor: float = 1 / 3, end_factor: float = 1.0
) -> LRScheduler:
    """From `start_factor` times the learning rate to `end_factor` times it in the first epochs."""
    factors = _rate("start_factor", start_factor), _rate("end_factor", end_factor)
    return LinearLR(run.optimizer, *factors, total_iters=run.steps_of(epochs, "epochs"))


def onecycle(
    run: RunLength, pct_start: float = 0.3, div_factor: float = 25.0, final_div_factor: float = 1e4
) -> LRScheduler:
    """Up to the learning rate and down again over the whole run; a momentum the other way round."""
    groups = run.optimizer.param_groups
    return OneCycleLR(
        run.optimizer, [float(group["lr"]) for group in groups], run.steps,
        pct_start=_rate("pct_start", pct_start), div_factor=_above_0("div_factor", div_factor),
        final_div_factor=_above_0("final_div_factor", final_div_factor),
        cycle_momentum=all("betas" in g or g.get("momentum", 0) > 0 for g in groups),
    )  # fmt: skip


SCHEDULES: Mapping[str, Callable[..., LRScheduler]] = MappingProxyType(
    {
        "constant": constant, "cosine": cosine, "exponential": exponential, "linear": linear,
        "multistep": multistep, "onecycle": onecycle, "step": step,
    }
)  # fmt: skip
#: Whose rates do not depend on how long the run is.
ENDLESS = frozenset({"constant", "exponential", "linear", "multistep", "step"})


def find_schedule(text: str) -> Callable[[RunLength], LRScheduler]:
    """What makes the schedule that a text names.

    Raises:
        ConfigError: unknown name, file or parameter; one that is needed is missing.
    """
    what = "learning-rate schedule"
    factory, settings = plugins.locate(text, SCHEDULES, group=ENTRY_POINTS, what=what, given=1)
    plugins.check_call(factory, (None,), settings, text, what)
    return lambda run: factory(run, **settings)


def depends_on_the_end(text: str) -> bool:
    """Whether a run with another number of epochs would have had other rates from the start."""
    spec = plugins.parse_spec(text)
    return bool(spec.file) or spec.name not in ENDLESS


def _rate(name: str, value: object) -> float:
    """Raises ConfigError: no number of 0 or more."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise ConfigError(
            f"{name}={value} is not a number of 0 or more",
            where="ooctrain train --lr-schedule", fix=f"such as {name}=0.1",
        )  # fmt: skip
    return float(value)


def _above_0(name: str, value: object) -> float:
    number = _rate(name, value)
    if number == 0:
        raise ConfigError(
            f"{name}={value} divides by zero", where="ooctrain train --lr-schedule",
            fix=f"such as {name}=25",
        )  # fmt: skip
    return number
