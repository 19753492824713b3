"""What a step depends on is seen: whatever is changed between two steps, the next step has it.

The attributes are found by introspection of modules, losses, optimizers, schedules and trainers, so
one that is added later is tried too, or lacks an alternative and says so. Each is changed after two
steps; the steps that follow must be, to the bit, those of a fresh trainer that begins from the same
state with the change already made, or the same typed error must come. What is no part of the model
any more keeps its value.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from support.layers_to_change import LAYERS, LOSSES, OF_VALUES, WEIGHT, Chain

import ooctrain as oc
from ooctrain import nn, optim
from ooctrain.devices.interface import Debug
from ooctrain.devices.spill import as_spill
from ooctrain.engine.clip import ClipEach
from ooctrain.errors import OoctrainError
from ooctrain.testing.thread_ranks import lone_rank

SHAPE = (4, 2, 6, 6)

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: optim.Adam(p, lr=0.01), "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}  # fmt: skip
SCHEDULES: dict[str, Callable[[optim.Optimizer], optim.LRScheduler]] = {
    "StepLR": lambda o: optim.StepLR(o, 1, 0.5),
    "CosineAnnealingLR": lambda o: optim.CosineAnnealingLR(o, 5),
    "MultiStepLR": lambda o: optim.MultiStepLR(o, [1, 3], 0.5),
    "ExponentialLR": lambda o: optim.ExponentialLR(o, 0.5),
    "LinearLR": optim.LinearLR,
    "OneCycleLR": lambda o: optim.OneCycleLR(o, 0.1, total_steps=8),
    # A loss that is not halved is no improvement, so the rates fall at once.
    "ReduceLROnPlateau": lambda o: optim.ReduceLROnPlateau(o, patience=0, threshold=0.5),
    "SequentialLR": lambda o: optim.SequentialLR(
        o, [optim.LinearLR(o), optim.OneCycleLR(o, 0.1, total_steps=8)], [1]
    ),
}


@dataclass
class World:
    """What a training consists of."""

    model: Any
    loss: Any
    optimizer: Any
    schedule: Any
    trainer: Any = None

    def begin(self) -> None:
        self.trainer = oc.Trainer(self.model, self.loss, self.optimizer, threads=1, seed=5)

    def step(self, number: int) -> float:
        rng = np.random.default_rng(number)
        x, y = rng.standard_normal(SHAPE, np.float32), rng.integers(0, 3, 4)
        if isinstance(self.loss, OF_VALUES):
            y = rng.standard_normal((4, 3), np.float32)
        loss = self.trainer.step(x, y)
        plateau = isinstance(self.schedule, optim.ReduceLROnPlateau)
        self.schedule.step(loss) if plateau else self.schedule.step()
        return loss

    def values(self) -> dict[str, str]:
        return {
            name: sha256(value).hexdigest() for name, value in self.trainer.state_arrays().items()
        }


def world(layer="Identity", loss="named", optimizer="SGD", schedule="StepLR") -> World:
    oc.manual_seed(3)
    model = Chain(LAYERS[layer]())
    chosen = OPTIMIZERS[optimizer](model.parameters())
    return World(model, LOSSES[loss](), chosen, SCHEDULES[schedule](chosen))


# What is there to change: (where it is found, name), and what else it could be.

Find = Callable[[World], Any]


def parameter() -> nn.Parameter:
    return nn.Parameter(np.random.default_rng(8).standard_normal((4, 4, 3, 3)) / 9)


#: {name of an attribute: what it may become}; a function of the owner and the old value
BY_NAME: dict[str, Callable[[Any, Any], Any]] = {
    "training": lambda owner, old: not old,
    "weight": lambda owner, old: type(old)(old.numpy() * 1.5) if isinstance(old, nn.Parameter)
    else oc.tensor(old.numpy() * 1.5 + WEIGHT),
    "bias": lambda owner, old: None,
    "running_mean": lambda owner, old: oc.tensor(old.numpy() + 1),
    "running_var": lambda owner, old: oc.tensor(old.numpy() + 1),
    "num_batches_tracked": lambda owner, old: oc.tensor(old.numpy() + 7),
    "padding": lambda owner, old: (0, 0, 0, 0) if isinstance(old, tuple) else 0,
    "groups": lambda owner, old: 2,
    "stride": lambda owner, old: 2, "dilation": lambda owner, old: 2,
    "kernel_size": lambda owner, old: 3, "output_padding": lambda owner, old: 1,
    "size": lambda owner, old: (12, 12), "scale_factor": lambda owner, old: 3,
    "mode": lambda owner, old: {"min": "max", "row": "batch"}.get(old, "bilinear"),
    "align_corners": lambda owner, old: True, "threshold_mode": lambda owner, old: "abs",
    "milestones": lambda owner, old: [3],
    "approximate": lambda owner, old: "tanh", "normalized_shape": lambda owner, old: (6, 6),
    "pos_weight": lambda owner, old: oc.tensor(old.numpy() * 2),
    "parts": lambda owner, old: nn.ModuleDict({"a": nn.Tanh(), "b": nn.Identity()}),
    "start_dim": lambda owner, old: 2, "end_dim": lambda owner, old: 2,
    "reduction": lambda owner, old: "sum", "ignore_index": lambda owner, old: 2,
    "model": lambda owner, old: world("Dropout").model,
    "loss": lambda owner, old: nn.CrossEntropyLoss(label_smoothing=0.2),
    "optimizer": lambda owner, old: other_optimizer(old),
    "clip": lambda owner, old: ClipEach(1e-3), "conv_algorithm": lambda owner, old: "im2col",
    "accumulate": lambda owner, old: 2, "param_groups": lambda owner, old: one_less(old),
    "state": lambda owner, old: {}, "steps": lambda owner, old: {},
    "debug": lambda owner, old: Debug(poison=0x7F), "device": lambda owner, old: "cuda",
    "planner": lambda owner, old: "naive", "allocator": lambda owner, old: "best-fit",
    "machine": lambda owner, old: "v100-pcie", "budget": lambda owner, old: "60%",
    "link_bandwidth": lambda owner, old: 5000.0, "host_budget": lambda owner, old: "1MiB",
    "time_limit_s": lambda owner, old: 1.0, "rewrites": lambda owner, old: ("fuse",),
    "threads": lambda owner, old: 2, "timeline": lambda owner, old: None,
    "prepared": lambda owner, old: None, "momentum": lambda owner, old: 0.5,
    "betas": lambda owner, old: (0.5, 0.9), "layer": lambda owner, old: nn.Sigmoid(),
    "slopes": lambda owner, old: [0.3, 0.4], "factors": lambda owner, old: old * 2,
    "named": lambda owner, old: {"scale": 0.1},
    "layers": lambda owner, old: nn.ModuleList([nn.Tanh(), nn.Identity()]),
    "tiling": lambda owner, old: "bands:2", "ranks": lambda owner, old: lone_rank(),
    "settings": lambda owner, old: replace(old, seed=9, planner="naive"),
    "defaults": lambda owner, old: {**old, "lr": 7.0},
    "memory": lambda owner, old: "3GiB", "recompute_scale_factor": lambda owner, old: True,
    "spill": lambda owner, old: as_spill(tempfile.gettempdir()),
}  # fmt: skip
#: the same for what no name is known of
BY_TYPE: dict[type, Callable[[Any, Any], Any]] = {
    bool: lambda owner, old: not old, int: lambda owner, old: old + 1,
    float: lambda owner, old: old * 0.5 + 0.125,
    list: lambda owner, old: [value * 0.5 for value in old],
    nn.Module: lambda owner, old: other_layer(old),
}  # fmt: skip


def other_layer(old: nn.Module) -> nn.Module:
    """One of the same kind with other parameters, or of another kind where there are none."""
    state = old.state_dict()
    if not state:
        return nn.Tanh()
    new = copy.deepcopy(old)
    new.load_state_dict({name: value * 1.5 for name, value in state.items()})
    return new


def other_optimizer(old: optim.Optimizer) -> optim.Optimizer:
    """One with the same parameters, and with what a schedule keeps in their group."""
    new = optim.Adam(old.param_groups[0]["params"], lr=0.02)
    new.param_groups[0] = {**old.param_groups[0], **new.param_groups[0]}
    return new


def one_less(old: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**old[0], "params": old[0]["params"][1:], "weight_decay": 0.1}]


def other(owner: Any, name: str, old: Any) -> Any:
    if name in BY_NAME:
        return BY_NAME[name](owner, old)
    for kind, alternative in BY_TYPE.items():
        if isinstance(old, kind):
            return alternative(owner, old)
    raise AssertionError(f"{type(owner).__name__}.{name} = {old!r}: what else could it be?")


def attributes(owner: Any) -> Iterator[str]:
    """Public names of what an object holds, parts of a module included."""
    yield from (name for name in vars(owner) if not name.startswith("_"))
    if isinstance(owner, nn.Module):
        for registry in (owner._parameters, owner._buffers, owner._modules):
            yield from (name for name, value in registry.items() if value is not None)


@dataclass(frozen=True)
class Change:
    """One attribute that gets another value, or one entry of a parameter group."""

    made: str
    path: str
    name: str
    find: Find

    def __call__(self, there: World) -> None:
        owner = self.find(there)
        if isinstance(owner, dict):
            owner[self.name] = other(owner, self.name, owner[self.name])
        elif self.path == "settings":
            new = other(owner, self.name, getattr(owner, self.name))
            there.trainer.settings = replace(owner, **{self.name: new})
        else:
            setattr(owner, self.name, other(owner, self.name, getattr(owner, self.name)))
        if owner is there.trainer:
            there.model, there.loss = there.trainer.model, there.trainer.loss

    def __str__(self) -> str:
        return f"{self.made}:{self.path}.{self.name}"


class InPlace(Change):
    """The same object, holding something else."""

    def __call__(self, there: World) -> None:
        old = getattr(self.find(there), self.name)
        new = other(self.find(there), self.name, old)
        if isinstance(old, dict):
            old.update(new)
        else:
            old[:] = new

    def __str__(self) -> str:
        return f"{super().__str__()}[:]"


class Called(Change):
    """A method with one argument."""

    def __call__(self, there: World) -> None:
        getattr(self.find(there), self.name)(False)


class Frozen(Change):
    """A parameter that is trained no longer."""

    def __call__(self, there: World) -> None:
        getattr(self.find(there), self.name).requires_grad = False

    def __str__(self) -> str:
        return f"{super().__str__()}.requires_grad"


def changes(made: str, there: World) -> list[Change]:
    found: list[Change] = []

    def add(path: str, find: Find, names: Iterator[str]) -> None:
        found.extend(Change(made, path, name, find) for name in names)

    for path, part in there.model.named_modules():
        index = [name for name, _ in there.model.named_modules()].index(path)

        def find(w: World, i: int = index) -> Any:
            return list(w.model.modules())[i]

        where = path or "model"
        add(where, find, attributes(part))
        loose = [n for n, v in vars(part).items() if isinstance(v, list | dict | np.ndarray)]
        found.extend(InPlace(made, where, n, find) for n in loose if not n.startswith("_"))
        found.extend(Called(made, where, name, find) for name in ("train", "requires_grad_"))
        found.extend(Frozen(made, where, name, find) for name in part._parameters)
    if isinstance(there.loss, nn.Module):
        add("loss", lambda w: w.loss, attributes(there.loss))
    add("optimizer", lambda w: w.optimizer, attributes(there.optimizer))
    group = there.optimizer.param_groups[0]
    add("group", lambda w: w.optimizer.param_groups[0], iter(set(group) - {"params"}))
    add("schedule", lambda w: w.schedule, attributes(there.schedule))
    add("trainer", lambda w: w.trainer, attributes(there.trainer))
    names = (field.name for field in fields(there.trainer.settings))
    add("settings", lambda w: w.trainer.settings, names)
    return found


WORLDS = {
    **{layer: {"layer": layer} for layer in LAYERS},
    **{loss: {"loss": loss} for loss in LOSSES},
    **{optimizer: {"optimizer": optimizer} for optimizer in OPTIMIZERS},
    **{schedule: {"schedule": schedule} for schedule in SCHEDULES},
}


def all_changes() -> dict[str, Change]:
    found: dict[str, Change] = {}
    for made, names in WORLDS.items():
        there = world(**names)
        there.begin()
        found |= {str(change): change for change in changes(made, there)}
        there.trainer.close()
    # What all worlds have is tried in one of them.
    return {
        name: change for name, change in found.items()
        if change.path.split(".")[0] in ("1", change.made.lower()) or change.made == "Identity"
        or (change.path, change.made, change.name) == ("model", "BatchNorm2d", "train")
        or (change.path == "loss" and change.made in LOSSES)
        or (change.path in ("optimizer", "group") and change.made in (*OPTIMIZERS, "OneCycleLR"))
        or (change.path == "schedule" and change.made in SCHEDULES)
    }  # fmt: skip


def outcome(there: World, numbers: tuple[int, ...]) -> list[Any]:
    """What steps give, the values afterwards included; an error by its class."""
    try:
        return [there.step(number) for number in numbers] + [there.values()]
    except OoctrainError as error:
        return [type(error)]
    finally:
        there.trainer.close()


def tensors(there: World) -> list[Any]:
    """All that persists."""
    slots = (t for state in there.optimizer.state.values() for t in state.values())
    return [*there.model.parameters(), *there.model.buffers(), *slots]


def changed_late(change: Change) -> tuple[list[Any], tuple[dict, dict, dict]]:
    """Two steps, the change, two steps more; and the state at the change."""
    late = world(**WORLDS[change.made])
    late.begin()
    for number in (0, 1):
        late.step(number)
    state = late.model.state_dict(), late.optimizer.state_dict(), late.schedule.state_dict()
    before = {tensor: tensor.numpy().copy() for tensor in tensors(late)}
    change(late)
    now = {*tensors(late), *tensors(replace(late, optimizer=late.trainer.optimizer))}
    gone = {tensor: value for tensor, value in before.items() if tensor not in now}
    result = outcome(late, (2, 3))
    for tensor, value in gone.items():
        assert np.array_equal(tensor.numpy(), value), f"{change} changes what is gone"
    return result, state


def changed_early(change: Change, state: tuple[dict, dict, dict]) -> list[Any]:
    """The state, the change, two steps of a fresh trainer."""
    early = world(**WORLDS[change.made])
    early.model.load_state_dict(state[0])
    early.optimizer.load_state_dict(state[1])
    early.schedule.load_state_dict(state[2])
    if change.path in ("trainer", "settings"):
        early.begin()
        change(early)
    else:
        change(early)
        early.begin()
    return outcome(early, (2, 3))


def check(change: Change) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        late, state = changed_late(change)
        assert late == changed_early(change, state), f"{change} is not seen"


CHANGES = all_changes()
#: What was ignored without a word before there was this law.
NAMED = [
    "Dropout:1.p", "LeakyReLU:1.negative_slope", "BatchNorm2d:1.momentum", "BatchNorm2d:1.eps",
    "CrossEntropyLoss:loss.label_smoothing", "CrossEntropyLoss:loss.weight", "Identity:model.4",
    "Identity:trainer.clip", "Identity:trainer.accumulate", "ModuleList:1.slopes[:]",
    "Identity:4.weight.requires_grad", "BatchNorm2d:model.train", "Adam:optimizer.steps",
    "SGD:optimizer.state",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_what_was_ignored_is_seen(name):
    check(CHANGES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CHANGES) - set(NAMED)))
def test_every_change_is_seen(name):
    check(CHANGES[name])


def test_every_class_is_tried():
    """A layer, loss, optimizer or schedule that is added needs a world of its own here."""

    def classes(room, base):
        found = (value for value in vars(room).values() if isinstance(value, type))
        return {kind.__name__ for kind in found if issubclass(kind, base) and kind is not base}

    # Of bytes no other layer can stand in front; the next test is its world.
    assert classes(nn, nn.Module) <= set(LAYERS) | set(LOSSES) | {"FromBytes"}
    assert classes(optim, optim.Optimizer) == set(OPTIMIZERS)
    assert classes(optim, optim.LRScheduler) == set(SCHEDULES)


@pytest.mark.parametrize("name", ["mean", "std"])
def test_what_bytes_become_is_seen(name):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (4, 3, 4, 4), np.uint8), rng.integers(0, 3, 4)

    def steps(change):
        oc.manual_seed(3)
        model = nn.Sequential(nn.FromBytes(), nn.Flatten(), nn.Linear(48, 3))
        sgd = optim.SGD(model.parameters(), lr=0.1)
        with oc.Trainer(model, optimizer=sgd, threads=1) as trainer:
            trainer.step(x, y)
            if change:
                setattr(model[0], name, 100.0)
            return trainer.step(x, y)

    assert steps(change=True) != steps(change=False)
