"""Optimizers by name, with parameters: "adam", "rmsprop:alpha=0.9,momentum=0.5", "mine.py:Mine".

In: a text, and the parameters to train. Out: an optimizer. The one idea: an optimizer is named as a
planner or an allocator is (`plugins.py`), so the command line and `Trainer(optimizer=...)` know the
same words. A name that has not been told a learning rate takes the one that stands here. Read next:
`optimizers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ooctrain import plugins
from ooctrain.errors import ConfigError
from ooctrain.optim.base import Optimizer, Params
from ooctrain.optim.optimizers import SGD, Adam, AdamW, RMSprop

ENTRY_POINTS = "ooctrain.optimizers"
_WHAT = "optimizer"
DEFAULT_LR = 0.1  # of "sgd"


def sgd(
    params: Params, lr: float = DEFAULT_LR, momentum: float = 0.9, dampening: float = 0.0,
    weight_decay: float = 0.0, nesterov: bool = False,
) -> SGD:  # fmt: skip
    """SGD with a momentum, unless another one is given."""
    return SGD(params, lr, momentum, dampening, weight_decay, nesterov)


def adam(
    params: Params, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Adam:  # fmt: skip
    """Adam, its betas given one by one."""
    return Adam(params, lr, (beta1, beta2), eps, weight_decay)


def adamw(
    params: Params, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> AdamW:  # fmt: skip
    """AdamW, its betas given one by one."""
    return AdamW(params, lr, (beta1, beta2), eps, weight_decay)


OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = MappingProxyType(
    {"adam": adam, "adamw": adamw, "rmsprop": RMSprop, "sgd": sgd}
)


def find_optimizer(text: str) -> tuple[Callable[..., Optimizer], Mapping[str, Any]]:
    """What makes the optimizer that a text names, and the settings in the text.

    Raises:
        ConfigError: unknown name, file or setting.
    """
    return plugins.locate(text, OPTIMIZERS, group=ENTRY_POINTS, what=_WHAT, given=1)


def get_optimizer(text: str, params: Params, lr: float | None = None) -> Optimizer:
    """The optimizer that a text names.

    Args:
        lr: learning rate; None: the one in the text, or the name's own.

    Raises:
        ConfigError: as `find_optimizer`, two learning rates, or a setting out of its range.
    """
    factory, settings = find_optimizer(text)
    if lr is not None and "lr" in settings:
        raise ConfigError(
            "the learning rate is given twice", where=text, numbers=f"{settings['lr']} and {lr}",
            fix="one of the two",
        )  # fmt: skip
    settings = settings if lr is None else {**settings, "lr": lr}
    plugins.check_call(factory, (params,), settings, text, _WHAT)
    found = factory(params, **settings)
    if not isinstance(found, Optimizer):
        raise ConfigError(
            f"{text!r} gave {type(found).__name__}, not an optimizer", code="OOC-106",
            fix="a class that extends oc.optim.Optimizer, or a function that returns one",
        )  # fmt: skip
    return found
