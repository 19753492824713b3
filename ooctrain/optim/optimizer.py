"""Parameter groups, slots, counted steps and state: the parts that all optimizers share.

An update is an operation (`layers/update.py`) that the optimizer records: at once in eager mode,
and as one call per parameter in a trace. So `step()` and a planned training step do the same
arithmetic. Learning rates are step scalars: "lr" for the first parameter group, "lr.1" for the
second. Read next: `algorithms.py`, `tracing.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, TypeGuard, TypeVar

import numpy as np

from ooctrain.engine.eager import Storage, Written, write_all
from ooctrain.engine.fingerprint import described
from ooctrain.engine.parameter import Parameter, clear_grad
from ooctrain.engine.tensor import Tensor, current_tape
from ooctrain.errors import ConfigError
from ooctrain.step.arguments import checked
from ooctrain.step.op import Op, Spec
from ooctrain.step.user_values import as_numbers

#: What an optimizer holds apart from its settings.
_KEPT = ("state", "steps", "steps_done", "param_groups", "defaults")
#: What schedules keep in a parameter group. The last two say that its momentum is cycled: it is a
#: step scalar then, as the learning rate is.
_OF_SCHEDULES = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")
Params = Iterable[Parameter] | Iterable[dict[str, Any]]
R = TypeVar("R")


class Slots(Mapping[str, Tensor]):
    """The slots of one parameter by name. A slot is written to, never replaced: a trainer may hold
    its value."""

    __slots__ = ("_slots",)

    def __init__(self, slots: Mapping[str, Tensor]):
        self._slots = dict(slots)

    def __getitem__(self, name: str) -> Tensor:
        return self._slots[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __setitem__(self, name: str, value: object) -> None:
        raise ConfigError(
            f"slot {name!r} cannot be replaced", fix=f"optimizer.state[p][{name!r}].copy_(array)"
        )


class Optimizer:
    """Base of the optimizers: parameter groups, slots, `step`, `zero_grad`, state.

    Attributes:
        param_groups: dictionaries with "params" and the settings of each group, as in PyTorch.
        state: for each parameter its slots by name, such as "momentum"; made when first requested.
        steps: number of updates that each parameter has seen.
        steps_done: number of steps, whatever they updated; those of trainers included.
    """

    #: name of its calls in traces: "sgd.layer1.0.conv1.weight"
    name = "optimizer"

    def __init__(self, params: Params, defaults: dict[str, Any]):
        self.state: dict[Tensor, Slots] = {}
        self.steps: dict[Tensor, int] = {}
        self.steps_done = 0
        self.param_groups: list[dict[str, Any]] = []
        self.defaults = defaults
        try:
            entries: list[Any] = list(params)
        except TypeError:
            entries = [params]
        if any(not isinstance(entry, Tensor | dict) for entry in entries):
            raise ConfigError(
                f"{type(self).__name__} is given {type(params).__name__} for its parameters",
                code="OOC-106", fix="model.parameters()",
            )  # fmt: skip
        groups = entries if entries and isinstance(entries[0], dict) else [{"params": entries}]
        for group in groups:
            self.add_param_group(group)

    @checked
    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Adds parameters with settings of their own; what is not given is as for all.

        Args:
            param_group: {"params": parameters, setting: value, ...}.

        Raises:
            ConfigError: an unknown setting, one out of its range, no parameters, or one that is
                there already.
        """
        if "params" not in param_group:
            raise ConfigError(
                "a parameter group has no parameters", fix='{"params": model.parameters(), ...}'
            )
        unknown = set(param_group) - {"params", *self.defaults}
        if unknown:
            raise ConfigError(
                f"{type(self).__name__} has no setting {sorted(unknown)[0]!r}",
                fix=f"one of {', '.join(self.defaults)}",
            )
        params = param_group["params"]
        new = {
            **self.defaults,
            **param_group,
            "params": [params] if isinstance(params, Tensor) else list(params),
        }
        if not new["params"]:
            raise ConfigError("an optimizer needs parameters", fix="pass model.parameters()")
        known = {p for g in self.param_groups for p in g["params"]}
        if known & set(new["params"]) or len(set(new["params"])) < len(new["params"]):
            raise ConfigError(
                "a parameter is given to the optimizer twice", fix="each parameter in one group"
            )
        _check_settings(new)
        self.param_groups.append(new)

    def slot_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of the arrays kept for each parameter of a group."""
        raise TypeError(f"{type(self).__name__} lacks slot_names()")

    def update_op(self, group: Mapping[str, Any], lr: str) -> Op:
        """The operation that updates a parameter of a group; `lr` names its learning rate."""
        raise TypeError(f"{type(self).__name__} lacks update_op()")

    def slots(self, parameter: Tensor) -> dict[str, Tensor]:
        """The slots of a parameter, zero at first."""
        group = self.param_groups[self.group_of(parameter)]
        try:
            names = self.slot_names(group)
        except (TypeError, ValueError):  # a user's code has written to the group
            _check_settings(group)
            raise
        state = self.state[parameter] = self._slots_of(parameter, names)
        return {name: state[name] for name in names}

    def _slots_of(self, parameter: Tensor, names: Iterable[str]) -> Slots:
        """The slots that a parameter has, with missing ones of these names added."""
        state = self.state.get(parameter)
        missing = {n: _zeros(parameter) for n in names if state is None or n not in state}
        return state if state is not None and not missing else Slots({**(state or {}), **missing})

    def updates(self, parameter: Tensor) -> bool:
        """Whether a parameter is among those that it updates."""
        return any(_is_among(parameter, group["params"]) for group in self.param_groups)

    def group_of(self, parameter: Tensor) -> int:
        """Index of the group that a parameter is in.

        Raises:
            ConfigError: it is in none.
        """
        for index, group in enumerate(self.param_groups):
            if _is_among(parameter, group["params"]):
                return index
        raise ConfigError(
            f"{parameter.name or 'a parameter'!r} is not in the optimizer",
            fix="optimizer.add_param_group({'params': [parameter]})",
        )

    def settings(self) -> Hashable:
        """What a trace reads of it, by value, besides which parameters are in which group."""
        own = {k: v for k, v in vars(self).items() if k not in _KEPT}
        groups = [self._traced_settings(index) for index in range(len(self.param_groups))]
        return type(self), repr(groups), tuple(own) and described(own)

    def _traced_settings(self, index: int) -> dict[str, Any]:
        """A group's settings without those that are step scalars."""
        group, name = self.param_groups[index], momentum_name(index)
        kept = {k: v for k, v in group.items() if k not in ("params", "lr", *_OF_SCHEDULES)}
        if is_cycled(group) and name in self.update_op(group, lr_name(index)).scalar_names:
            kept["momentum"], kept["betas"] = name, kept.get("betas", ())[1:]
        return kept

    def scalars(self) -> dict[str, float]:
        """What changes without a new trace: {"lr": 0.1, "lr.1": 0.01}, and cycled momenta.

        Raises:
            ConfigError: one of them is not a finite number; a step with it would leave none behind.
        """
        found: dict[str, float] = {}
        for index in range(len(self.param_groups)):
            found |= self._scalars_of(index)
        return found

    def _scalars_of(self, index: int) -> dict[str, float]:
        group = self.param_groups[index]
        if not isinstance(group["lr"], Real):
            raise _no_rate({lr_name(index): group["lr"]})
        found = {lr_name(index): float(group["lr"])}
        if is_cycled(group):
            found[momentum_name(index)] = plain_momentum(group)
        if not all(map(math.isfinite, found.values())):
            raise _no_rate(found)
        return found

    def check_settings(self) -> None:
        """Raises ConfigError where a group has been given an invalid setting; whether
        a learning rate may have become negative is the user's business, as in PyTorch."""
        self.scalars()
        for group in self.param_groups:
            _check_settings({**group, "lr": 0.0})

    def record(self, parameter: Tensor, gradient: Tensor, step: int = 0) -> None:
        """Records the update of one parameter by its gradient on the tape in force.

        Args:
            step: 0 for the first update; matters in eager mode only.
        """
        self._update(parameter, gradient, step, current_tape().update)

    def _update(self, parameter: Tensor, gradient: Tensor, step: int, how: Callable[..., R]) -> R:
        """The update of one parameter, by a method of the tape in force."""
        index = self.group_of(parameter)
        group = self.param_groups[index]
        slots = list(self.slots(parameter).values())
        op = self.update_op(group, lr_name(index))
        scalars = {**self._scalars_of(index), "step": step}
        path = f"{self.name}.{parameter.name}"
        with current_tape().at(path=path, leaf=True, phase="update", forward_of=None):
            return how(op, (parameter, gradient, *slots), (parameter, *slots), scalars)

    def step(self) -> None:
        """Updates every parameter that has a gradient.

        All updates are computed first, then put in place together. An error, or an interrupt before
        that, leaves everything as it was.

        Raises:
            ConfigError: a setting is out of its range.
        """
        self.check_settings()
        parameters = [p for group in self.param_groups for p in group["params"]]
        updated = [p for p in parameters if p.grad is not None and p.requires_grad]
        found: list[tuple[Tensor, Tensor]] = []
        for parameter in updated:
            done = self.steps.get(parameter, 0)
            found += self._update(parameter, parameter.grad, done, current_tape().updated)
        values = [(target.value(), new.value().read) for target, new in found]
        write_all(values, partial(self._stepped, updated))

    def _stepped(self, updated: Sequence[Tensor]) -> None:
        for parameter in updated:
            if parameter.grad is not None:
                parameter.grad.stepped = True
        self.count(updated)

    def count(self, updated: Iterable[Tensor]) -> None:
        """Counts a step that has updated these parameters."""
        self.steps_done += 1
        for parameter in updated:
            self.steps[parameter] = self.steps.get(parameter, 0) + 1

    @checked
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets all gradients (with `set_to_none=False`: sets them to zero)."""
        for group in self.param_groups:
            for parameter in group["params"]:
                clear_grad(parameter, set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Slots, step numbers and settings; parameters by their number, as in PyTorch."""
        numbers = {p: i for i, p in enumerate(p for g in self.param_groups for p in g["params"])}
        state = {
            number: {
                "step": self.steps.get(parameter, 0),
                **{
                    name: np.array(slot.storage.read())
                    for name, slot in self.slots(parameter).items()
                },
            }
            for parameter, number in numbers.items()
            if parameter in self.state
        }
        groups = [{**g, "params": [numbers[p] for p in g["params"]]} for g in self.param_groups]
        return {"state": state, "param_groups": groups, "steps_done": self.steps_done}

    @checked
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The reverse of `state_dict`: what had no state when it was saved has none afterwards.

        Raises:
            ConfigError: other groups, settings or slots than this optimizer's.
            InUse: a trainer that has the slots is at work in another thread.
            Whatever is raised, an interrupt too, nothing is changed; or, at its end, all is loaded.
        """
        expect_state_of(self, state_dict, "param_groups", "state")
        groups = state_dict["param_groups"]
        states = {int(number): state for number, state in state_dict["state"].items()}
        self._check_state(groups, states)
        counts = {number: int(state["step"]) for number, state in states.items()}
        done = int(state_dict.get("steps_done", max(counts.values(), default=0)))
        settings = [{k: v for k, v in saved.items() if k != "params"} for saved in groups]
        group_of = [group for mine, new in zip(self.param_groups, settings, strict=True)
                    for group in [{**mine, **new}] * len(mine["params"])]  # fmt: skip
        parameters = [p for g in self.param_groups for p in g["params"]]
        steps, slots = {}, {}
        values: list[Written] = []
        for number, parameter in enumerate(parameters):
            state = states.get(number)
            steps[parameter] = counts.get(number, 0)
            if state is None and parameter not in self.state:
                continue
            names = self.slot_names(group_of[number])
            slots[parameter] = self._slots_of(parameter, names)
            for name in names:
                slot = slots[parameter][name]
                value = np.zeros(slot.shape) if state is None else state[name]
                values.append((slot.storage, partial(np.asarray, value, np.float32)))

        def take_up() -> None:
            self.steps_done = done
            self.steps.update(steps)
            self.state.update(slots)
            for mine, new in zip(self.param_groups, settings, strict=True):
                mine.update(new)

        write_all(values, take_up)

    def _check_state(
        self, groups: Sequence[Mapping[str, Any]], states: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """Raises ConfigError unless saved groups, and states by parameter number, fit."""
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            raise ConfigError(
                "the saved optimizer has other parameter groups",
                code="OOC-112",
                fix="build it with the groups that it was saved with",
            )
        if any(not set(self.defaults) <= set(saved) for saved in groups):
            raise ConfigError(
                "the saved optimizer has other settings",
                code="OOC-112",
                fix="the class of optimizer that was saved",
            )
        shapes = [p.shape for g in self.param_groups for p in g["params"]]
        group_of = [saved for saved in groups for _ in saved["params"]]
        for number, state in states.items():
            slots = self.slot_names(group_of[number])
            fits = "step" in state and set(slots) <= set(state)
            if not fits or any(
                as_numbers(state[name], name).shape != shapes[number] for name in slots
            ):
                raise ConfigError(
                    f"the saved state of parameter {number} is not that of this optimizer",
                    code="OOC-112",
                    numbers=f"{', '.join(slots) or 'no slots'} of shape {shapes[number]} wanted",
                    fix="the class and settings of optimizer that were saved",
                )


def _is_among(parameter: Tensor, others: Iterable[Tensor]) -> bool:
    """Whether it is one of them; `in` would compare their numbers."""
    return id(parameter) in map(id, others)


def lr_name(group: int) -> str:
    """Name of a group's learning rate among the step scalars."""
    return "lr" if group == 0 else f"lr.{group}"


def momentum_name(group: int) -> str:
    """Name of a group's momentum among the step scalars, while a schedule cycles it."""
    return "momentum" if group == 0 else f"momentum.{group}"


def is_cycled(group: Mapping[str, Any]) -> bool:
    """Whether a schedule changes the momentum of a group with each step."""
    return "base_momentum" in group


def plain_momentum(group: Mapping[str, Any]) -> float:
    """The momentum of a group in this step, or beta1."""
    return float(group["betas"][0] if "betas" in group else group["momentum"])


def momentum_in(group: Mapping[str, Any], lr: str) -> float | str:
    """The momentum of a group, or beta1; the step scalar that holds it while it is cycled.

    Args:
        lr: name of the group's learning rate.
    """
    return f"momentum{lr.removeprefix('lr')}" if is_cycled(group) else plain_momentum(group)


def _no_rate(scalars: Mapping[str, object]) -> ConfigError:
    return ConfigError(
        f"{', '.join(f'{name} {value!r}' for name, value in scalars.items())} is not finite",
        fix="look at what has set it: a schedule, or param_groups; nothing has been changed",
    )


def expect_state_of(owner: object, state: Mapping[str, Any], *names: str) -> None:
    """Raises ConfigError: a state lacks what that of an optimizer, or of a schedule, has; people
    give the whole file that it lies in."""
    missing = [name for name in names if name not in state]
    inside = [key for key, part in state.items()
              if isinstance(part, Mapping) and all(name in part for name in names)]  # fmt: skip
    if missing:
        raise ConfigError(
            f"this is not the state of {type(owner).__name__}: it has no {missing[0]!r}",
            code="OOC-112", numbers=f"it has {', '.join(map(repr, state)) or 'nothing'}"[:200],
            fix=f"its part {inside[0]!r}" if inside else "what state_dict() gave",
        )  # fmt: skip


def _zeros(parameter: Tensor) -> Tensor:
    slot = Tensor(Spec(parameter.shape), kind="state")
    shape = parameter.shape
    slot.storage = Storage(shape=shape, initial=partial(np.zeros, shape, np.float32))
    return slot


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Raises ConfigError for the first setting that is not a number, or out of its range."""
    for name in ("lr", "momentum", "weight_decay", "eps"):
        value = settings.get(name, 0)
        if not (_is_finite(value) and value >= 0):
            raise ConfigError(
                f"{name} {value!r} is not a number of 0 or more", fix=f"{name}=0.01, for example"
            )
    if not _is_finite(settings.get("dampening", 0)):
        raise ConfigError(
            f"dampening {settings['dampening']!r} is not a finite number", fix="dampening=0"
        )
    betas = settings.get("betas", (0, 0))
    pair = isinstance(betas, Sequence) and len(betas) == 2
    if not (pair and all(_is_finite(beta) and 0 <= beta < 1 for beta in betas)):
        raise ConfigError(
            f"betas {betas!r} are not two numbers from 0 to below 1", fix="betas=(0.9, 0.999)"
        )
    alpha = settings.get("alpha", 0)
    if not (_is_finite(alpha) and 0 <= alpha <= 1):
        raise ConfigError(f"alpha {alpha!r} is not a number from 0 to 1", fix="alpha=0.99")


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and math.isfinite(value)
