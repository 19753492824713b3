"""Optimizers and schedules of their learning rates, with the names of `torch.optim`.

An optimizer computes the next values of parameters from their gradients. Read next: `optimizer.py`,
`algorithms.py`, then `schedules/scheduler.py`.
"""

from typing import NoReturn

from ooctrain.optim import schedules as lr_scheduler
from ooctrain.optim.algorithms import SGD, Adam, AdamW, RMSprop
from ooctrain.optim.optimizer import Optimizer, lr_name
from ooctrain.optim.schedules import (
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

__all__ = [
    "SGD", "Adam", "AdamW", "CosineAnnealingLR", "ExponentialLR", "LRScheduler", "LinearLR",
    "MultiStepLR", "OneCycleLR", "Optimizer", "RMSprop", "ReduceLROnPlateau", "SequentialLR",
    "StepLR", "lr_name", "lr_scheduler",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    # Not at the top: a table of words, read when a name is missing.
    from ooctrain.engine.torch_names import refusal

    raise refusal(__name__, name, "optim", __all__)
