"""Optimizers by name, with parameters: "adam", "adam:betas=0.8+0.9", "mine.py:Mine".

An optimizer is named as a planner or an allocator is (`plugins.py`), so the command line and
`Trainer(optimizer=...)` take the same names. An optimizer that is named without a learning rate
takes the default that stands here. Read next: `optimizers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from ooctrain import plugins
from ooctrain.errors import ConfigError
from ooctrain.optim.base import Optimizer, Params
from ooctrain.optim.optimizers import SGD, Adam, AdamW, RMSprop

ENTRY_POINTS = "ooctrain.optimizers"
_WHAT = "optimizer"
DEFAULT_LR = 0.1  # of "sgd"


OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = MappingProxyType(
    {
        "adam": Adam, "adamw": AdamW, "rmsprop": RMSprop,
        "sgd": partial(SGD, lr=DEFAULT_LR, momentum=0.9),
    }
)  # fmt: skip


def find_optimizer(text: str) -> tuple[Callable[..., Optimizer], Mapping[str, Any]]:
    """What makes the optimizer that a text names, and the settings in the text.

    Raises:
        ConfigError: unknown name, file or setting.
    """
    factory, settings = plugins.locate(text, OPTIMIZERS, group=ENTRY_POINTS, what=_WHAT, given=1)
    return factory, {**settings, **_betas(settings)}


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


def _betas(settings: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Adam's two, typed as "0.9+0.999"."""
    if not isinstance(settings.get("betas"), str):
        return {name: (value,) for name, value in settings.items() if name == "betas"}
    return {"betas": tuple(map(plugins.parse_value, settings["betas"].split("+")))}
