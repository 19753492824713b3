"""Optimizers and schedules of their learning rates, with the names of `torch.optim`.

In: parameters with gradients. Out: their next values. Read next: `base.py`,
`optimizers.py`, then `schedules.py`.
"""

from ooctrain.optim import schedules as lr_scheduler
from ooctrain.optim.base import Optimizer, lr_name
from ooctrain.optim.optimizers import SGD, Adam, AdamW
from ooctrain.optim.schedules import CosineAnnealingLR, LRScheduler, StepLR

__all__ = [
    "SGD", "Adam", "AdamW", "CosineAnnealingLR", "LRScheduler", "Optimizer", "StepLR", "lr_name",
    "lr_scheduler",
]  # fmt: skip
