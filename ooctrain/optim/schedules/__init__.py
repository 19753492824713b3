"""Schedules of learning rates, with names, arguments and defaults of `torch.optim.lr_scheduler`.

A schedule sets the learning rates of an optimizer epoch by epoch. Read next: `scheduler.py`, then
`by_epoch.py`.
"""

from typing import NoReturn

from ooctrain.optim.schedules.by_epoch import (
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    StepLR,
)
from ooctrain.optim.schedules.one_cycle import OneCycleLR
from ooctrain.optim.schedules.plateau import ReduceLROnPlateau
from ooctrain.optim.schedules.scheduler import LRScheduler
from ooctrain.optim.schedules.sequential import SequentialLR

__all__ = [
    "CosineAnnealingLR", "ExponentialLR", "LRScheduler", "LinearLR", "MultiStepLR", "OneCycleLR",
    "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    # Not at the top: a table of words, read when a name is missing.
    from ooctrain.engine.torch_names import refusal

    raise refusal(__name__, name, "lr_scheduler", __all__)
