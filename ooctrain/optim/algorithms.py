"""Optimizers, with the names, argument orders, defaults of `torch.optim`.

An optimizer turns the settings of a parameter group into the operation that updates its parameters
and the names of their slots; `optimizer.py` does the rest. Read next: `layers/update.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from ooctrain import plugins
from ooctrain.errors import ConfigError
from ooctrain.layers.update import AdamUpdate, RMSpropUpdate, SGDUpdate
from ooctrain.optim.optimizer import Optimizer, Params, momentum_in
from ooctrain.step.arguments import checked_but
from ooctrain.step.op import Op


@checked_but("params")
class SGD(Optimizer):
    """Stochastic gradient descent. Slot: "momentum", which PyTorch calls momentum_buffer.

    d = gradient + weight_decay w; m = momentum m + (1 - dampening) d; w = w - lr m, with Nesterov
    w - lr (d + momentum m). Without momentum there is no slot, and w = w - lr d.

    Args:
        params: parameters, or a dictionary for each group: {"params": ..., "lr": ..., ...}.
        lr: learning rate.
        dampening: not applied in the first step, as in PyTorch.
        nesterov: looks ahead (Nesterov 1983, in the form of Sutskever et al. 2013).

    Raises:
        ConfigError: Nesterov without momentum or with dampening; see also `add_param_group`.
    """

    name = "sgd"

    def __init__(
        self, params: Params, lr: float = 1e-3, momentum: float = 0, dampening: float = 0,
        weight_decay: float = 0, nesterov: bool = False,
    ):  # fmt: skip
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ConfigError(
                "Nesterov needs a momentum and no dampening", fix="momentum=0.9, dampening=0"
            )
        super().__init__(
            params,
            {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
             "nesterov": nesterov},
        )  # fmt: skip

    def slot_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("momentum",) if group["momentum"] else ()

    def update_op(self, group: Mapping[str, Any], lr: str) -> Op:
        momentum, dampening = momentum_in(group, lr), float(group["dampening"])
        decay, nesterov = float(group["weight_decay"]), bool(group["nesterov"])
        return SGDUpdate(momentum, dampening, decay, nesterov, lr)


@checked_but("params")
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015). Slots: "exp_avg", "exp_avg_sq".

    m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; w = w - lr / (1 - beta1^t) m /
    (sqrt(v / (1 - beta2^t)) + eps) in step t = 1, 2, ...; g = gradient + weight_decay w.

    Args:
        params, lr: as for `SGD`.
        betas: (beta1, beta2).
        eps: keeps the quotient finite.
    """

    name = "adam"
    decoupled = False

    def __init__(
        self, params: Params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0,
    ):  # fmt: skip
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def slot_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def update_op(self, group: Mapping[str, Any], lr: str) -> Op:
        beta1, beta2 = momentum_in(group, lr), group["betas"][1]
        decay = float(group["weight_decay"])
        return AdamUpdate(beta1, beta2, float(group["eps"]), decay, self.decoupled, lr)


@checked_but("params")
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): g = gradient, and w shrinks by
    lr weight_decay w before. Arguments as for `Adam`.
    """

    name = "adamw"
    decoupled = True

    def __init__(
        self, params: Params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2,
    ):  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay)


@checked_but("params")
class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton 2012). Slots: "square_avg"; centered: "grad_avg"; with momentum:
    "momentum", which PyTorch calls momentum_buffer.

    v = alpha v + (1 - alpha) g^2, centered also a = alpha a + (1 - alpha) g; step = g / (sqrt(v -
    a^2) + eps), a being 0 where not centered; w = w - lr step, with momentum b = momentum b + step;
    w = w - lr b; g = gradient + weight_decay w.

    Args:
        params, lr: as for `SGD`.
        alpha: how much of the mean square stays, from 0 to 1.
        eps: keeps the quotient finite.
        centered: divides by the gradient's deviation from its mean. Where rounding makes v - a^2
            negative it counts as 0.
    """

    name = "rmsprop"

    def __init__(
        self, params: Params, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0, momentum: float = 0, centered: bool = False,
    ):  # fmt: skip
        super().__init__(
            params,
            {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay,
             "momentum": momentum, "centered": centered},
        )  # fmt: skip

    def slot_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        mean = ("grad_avg",) if group["centered"] else ()
        return ("square_avg", *mean, *(("momentum",) if group["momentum"] else ()))

    def update_op(self, group: Mapping[str, Any], lr: str) -> Op:
        decay, centered = float(group["weight_decay"]), bool(group["centered"])
        alpha, eps = float(group["alpha"]), float(group["eps"])
        return RMSpropUpdate(alpha, eps, decay, momentum_in(group, lr), centered, lr)


# Optimizers by name, with parameters: "adam", "adam:betas=0.8+0.9", "mine.py:Mine", as planners and
# allocators are named (`plugins.py`), for the command line and `Trainer(optimizer=...)`. Without a
# learning rate an optimizer takes the default that stands here.

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
