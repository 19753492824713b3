"""Optimizers and their state: a run begun in PyTorch goes on here, and the other way round.

The classes have the same names, settings and slots, but for PyTorch's "momentum_buffer", and
PyTorch's SGD counts no steps. Parameters are found by their names in the two networks. Read next:
`importing.py`; `../optim/optimizer.py`, whose state it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ooctrain.engine.module import Module
from ooctrain.errors import ConfigError
from ooctrain.optim import SGD, Adam, AdamW, Optimizer, RMSprop

if TYPE_CHECKING:
    import torch

_CLASSES = MappingProxyType({kind.__name__: kind for kind in (SGD, Adam, AdamW, RMSprop)})
#: {name of a slot in PyTorch: its name here}, where they differ.
_SLOTS = MappingProxyType({"momentum_buffer": "momentum"})
_TORCH_SLOTS = MappingProxyType({here: there for there, here in _SLOTS.items()})
#: Settings of PyTorch that change an update and are not here.
_CHANGING = ("amsgrad", "maximize")


def optimizer_from_torch(
    optimizer: torch.optim.Optimizer, net: torch.nn.Module, model: Module
) -> Optimizer:
    """The optimizer of a PyTorch network for its import, with groups, settings and state.

    Args:
        optimizer: SGD, Adam, AdamW or RMSprop over parameters of `net`.
        model: what `from_torch(net, ...)` has made.

    Raises:
        ConfigError: another class, a setting that is not here (amsgrad, maximize), or parameters
            that are not the network's.
    """
    kind = _CLASSES.get(type(optimizer).__name__)
    settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    refused = [name for g in settings for name in _CHANGING if g.get(name)]
    if kind is None or refused:
        setting = f" with {refused[0]}" if refused else ""
        raise ConfigError(
            f"{type(optimizer).__name__}{setting} is not here",
            code="OOC-190", fix=f"one of {', '.join(_CLASSES)}",
        )  # fmt: skip
    if kind is Adam and any(g.get("decoupled_weight_decay") for g in settings):
        kind = AdamW
    mine, names = dict(model.named_parameters()), list(_names(optimizer, net))
    known = kind([next(iter(mine.values()))]).defaults
    left, groups = iter(names), []
    for group, given in zip(optimizer.param_groups, settings, strict=True):
        here = {k: _plain(given[k]) for k in known if k in given}
        groups.append({"params": [mine[next(left)] for _ in group["params"]], **here})
    made = kind(groups)
    made.load_state_dict(_state_here(optimizer, made))
    return made


def optimizer_to_torch(
    optimizer: Optimizer, model: Module, torch_optimizer: torch.optim.Optimizer,
    net: torch.nn.Module,
) -> torch.optim.Optimizer:  # fmt: skip
    """Writes an optimizer's settings and state into that of the PyTorch network.

    Args:
        torch_optimizer: of the same class, over the same groups of parameters of `net`.

    Returns:
        `torch_optimizer`.

    Raises:
        ConfigError: it is another one.
    """
    import torch  # the user's own

    name_of = {parameter: name for name, parameter in model.named_parameters()}
    mine = [[name_of[p] for p in g["params"]] for g in optimizer.param_groups]
    names = iter(list(_names(torch_optimizer, net)))
    theirs = [[next(names) for _ in g["params"]] for g in torch_optimizer.param_groups]
    if type(optimizer).__name__ != type(torch_optimizer).__name__ or mine != theirs:
        raise ConfigError(
            f"{type(torch_optimizer).__name__} is not the optimizer that "
            f"{type(optimizer).__name__} continues", code="OOC-112",
            fix="the same class, with the same parameters in the same groups",
        )  # fmt: skip
    ours, known = optimizer.state_dict(), torch_optimizer.state_dict()
    groups = [
        {**theirs, **{k: v for k, v in group.items() if k in theirs and k != "params"}}
        for theirs, group in zip(known["param_groups"], ours["param_groups"], strict=True)
    ]
    counts = "step" if not isinstance(optimizer, SGD) else ""
    state = {
        number: {
            _TORCH_SLOTS.get(name, name): torch.as_tensor(value, dtype=torch.float32)
            for name, value in slots.items() if name != "step" or counts
        }
        for number, slots in ours["state"].items()
    }  # fmt: skip
    torch_optimizer.load_state_dict({"state": state, "param_groups": groups})
    return torch_optimizer


def _names(optimizer: torch.optim.Optimizer, net: torch.nn.Module) -> Iterator[str]:
    """The names of an optimizer's parameters, in its order."""
    name_of = {parameter: name for name, parameter in net.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in name_of:
                raise ConfigError(
                    "the optimizer has a parameter that the network has not", code="OOC-112",
                    numbers=f"of shape {tuple(parameter.shape)}", fix="the network that it trains",
                )  # fmt: skip
            yield name_of[parameter]


def _state_here(optimizer: torch.optim.Optimizer, made: Optimizer) -> dict[str, Any]:
    """PyTorch's state as `Optimizer.load_state_dict` takes it."""
    groups, state = made.state_dict()["param_groups"], {}
    for number, slots in optimizer.state_dict()["state"].items():
        kept = {_SLOTS.get(k, k): v for k, v in slots.items() if v is not None and k != "step"}
        if kept:  # SGD without momentum has a slot that is None
            step = int(_plain(slots.get("step", 1)))
            state[number] = {"step": step, **{k: v.detach().numpy() for k, v in kept.items()}}
    return {"param_groups": groups, "state": state}


def _plain(value: Any) -> Any:
    """PyTorch keeps some numbers as tensors."""
    return value.item() if hasattr(value, "item") else value
