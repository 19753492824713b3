"""What the steps of a trainer depend on, whether it has changed, and the plans made for it.

A step is traced and planned once and run many times, so everything that its trace has read must be
the same before each run. This file compares all that a trainer's user may set, makes a key of its
value, and keeps the step that was prepared under that key. After a change the step is traced again;
it is planned again only if the trace differs. Read next: `../engine/fingerprint.py`; `../train.py`,
which asks.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakSet

from ooctrain.devices.spill import Spill, look_at
from ooctrain.engine.clip import Clip
from ooctrain.engine.fingerprint import Watch, described
from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError, DoesNotFit, Infeasible
from ooctrain.execution.division import prepare_within
from ooctrain.execution.planners import as_planner, without_bands
from ooctrain.execution.planning_tables import forget_planning
from ooctrain.execution.prepare import PreparedStep
from ooctrain.execution.promise import (
    OWN_STEP_BYTES,
    OwnShare,
    held_here,
    in_steps,
    own_share,
    running_bytes,
)
from ooctrain.execution.settings import Settings
from ooctrain.optim import Optimizer
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.planning.effort import SearchingPlanner
from ooctrain.step.op import Scalars
from ooctrain.step.trace import Trace

#: Steps that a trainer remembers; each change of what they depend on makes another.
MOST_REMEMBERED = 32
_NAMED_AT_MOST = 4


class Training(NamedTuple):
    """What is trained, and how; see `Trainer`."""

    model: Module
    loss: Any
    optimizer: Optimizer
    settings: Settings
    accumulate: int
    clip: Clip | float | None
    conv_algorithm: str
    allow_tf32: bool
    #: of the ranks that take a part of the batch each, all that a trace depends on
    shared: Hashable = None


class StepShape(NamedTuple):
    """Which step of a training: shapes, and whether it trains or evaluates, with a loss or not; of
    an evaluation also how many samples the batch has that the input is, or is a part of, and
    whether `auto` may run it in bands."""

    input: tuple[int, ...]
    target: tuple[int, ...] | None
    training: bool
    with_loss: bool
    whole: int | None = None
    bands: bool = True

    @classmethod
    def evaluating(
        cls, x: Any, y: Any, loss: Any, whole: int | None = None, *, bands: bool = True
    ) -> StepShape:  # fmt: skip
        """The evaluation of (x, y), which may be a part of a batch of `whole` samples; without a
        loss where y is None."""
        target = y.shape if y is not None and callable(loss) else None
        beside = None if whole == x.shape[0] else whole
        return cls(tuple(x.shape), target, False, y is not None, beside, bands)


class Seen:
    """A training as it is now.

    Args:
        looked_at: by its traces so far (`oc.trace(looked_at=...)`).

    Attributes:
        ready: steps that have been found to be right for it.
    """

    def __init__(self, training: Training, looked_at: Mapping[Any, Any]):
        self.training = training
        self.ready: dict[StepShape, PreparedStep] = {}
        self._updates: dict[int, Mapping[int, Tensor]] = {}  # by id of a step that is ready
        found = (training.model, training.loss, *looked_at)
        roots = [root for root in found if isinstance(root, Module)]
        read = {tensor: v for tensor, v in looked_at.items() if isinstance(tensor, Tensor)}
        self._watch = Watch(roots, read)
        self._rest = _rest(training)

    def unchanged(self, training: Training) -> bool:
        """Whether a training is this one, and as it was."""
        return (
            training == self.training and self._watch.unchanged() and _rest(training) == self._rest
        )

    def key(self, step: StepShape) -> tuple[Hashable, ...]:
        """All that a step depends on, by value; the settings first. Learning rates are not in it:
        they are step scalars."""
        now = self.training
        both = now.loss, _attributes(now.loss), now.conv_algorithm, now.allow_tf32
        watched = self._watch.fingerprint(training=step.training)
        key = described(now.settings), step, described(both), watched
        if not step.training:
            return key
        groups = enumerate(now.optimizer.param_groups)
        place = {p: number for number, group in groups for p in group["params"]}
        places = tuple(place.get(parameter) for parameter in self._watch.parameters)
        how = described((now.accumulate, now.clip, now.shared))
        return *key, how, now.optimizer.settings(), places

    def updated_by(self, step: PreparedStep) -> Mapping[int, Tensor]:
        """{call that updates a parameter: the parameter} of a step that is ready."""
        if id(step) not in self._updates:
            trace, here = step.plan.trace, dict(self.training.model.named_parameters())
            self._updates[id(step)] = {
                trace.calls[trace.producer[new] or 0].id: here[trace.variables[old].name]
                for new, old in trace.carries.items()
                if trace.variables[old].kind == "param"
            }
        return self._updates[id(step)]

    def own_scalars(self, step: PreparedStep, scalars: Scalars) -> dict[int, Scalars]:
        """Step scalars of the updates whose parameters have seen fewer updates than there were
        steps."""
        counts = self.training.optimizer.steps
        return {
            call: {**scalars, "step": counts.get(parameter, 0)}
            for call, parameter in self.updated_by(step).items()
            if counts.get(parameter, 0) != scalars["step"]
        }


class StepCache:
    """Prepared steps by what they depend on; those used last are kept.

    Args:
        make_room: gives back what the device holds. It is called before a memory budget is divided,
            since planning takes memory, too, and no promise has any for it beside an arena.
    """

    def __init__(self, make_room: Callable[[], None]):
        self._make_room = make_room
        self._steps: dict[tuple[Any, ...], PreparedStep] = {}
        self._refused: dict[tuple[Any, ...], Infeasible | DoesNotFit] = {}
        self._budgets: dict[Hashable, int] = {}  # by settings, of the first training step
        self._disk: Spill | None = None  # as it was looked at
        self._own: OwnShare | None = None  # of the process, before the first arena was opened
        self._left_bytes = 0  # what planning has left of memory since then

    def find(self, key: tuple[Hashable, ...]) -> PreparedStep | None:
        """The step of this key, if it is still there."""
        if (refusal := self._refused.get(key)) is not None:
            raise copy.copy(refusal)
        found = self._steps.pop(key, None)
        if found is not None:
            self._steps[key] = found
        return found

    def add(
        self, key: tuple[Any, ...], trace: Trace, settings: Settings, values: Iterable[Tensor]
    ) -> PreparedStep:  # fmt: skip
        """Prepares a step, unless one is there whose trace came out the same.

        Args:
            key: of `Seen.key`.
            values: all that persists, those that the step does not use included.
        """
        try:
            return self._add(key, trace, settings, values)
        except (Infeasible, DoesNotFit) as refusal:
            if settings.time_limit_s is None:  # with more time there may be a plan
                # A copy knows nothing of the frames in which all that was tried still lies.
                self._refused[key] = copy.copy(refusal)
                if len(self._refused) > MOST_REMEMBERED:
                    del self._refused[next(iter(self._refused))]
            raise

    def _add(
        self, key: tuple[Any, ...], trace: Trace, settings: Settings, values: Iterable[Tensor]
    ) -> PreparedStep:  # fmt: skip
        whole = key[1].whole
        alike = (
            step
            for (known, shape, *_), step in self._steps.items()
            if known == key[0] and shape.whole == whole and step.original == trace
        )
        found = next(alike, None)
        if found is None:
            settings = self._with_disk(self._fitted(key[0], settings))
            if not key[1].bands:
                settings = replace(settings, planner=without_bands(settings.planner))
            if settings.memory is None:
                found = prepare_within(trace, settings)
            else:
                found = self._promised(trace, settings, values, whole)
        self._steps[key] = found
        if key[1].training:
            self._budgets.setdefault(key[0], found.budget_bytes)
        if len(self._steps) > MOST_REMEMBERED:
            del self._steps[next(iter(self._steps))]
        return found

    def _promised(
        self, trace: Trace, settings: Settings, values: Iterable[Tensor], whole: int | None
    ) -> PreparedStep:  # fmt: skip
        """A step whose promise has room for what planning has left, this time and before."""
        self._make_room()
        self._own = self._own or _own_share(trace, settings, values)
        room_bytes = self._left_bytes
        while True:
            own = replace(self._own, left_bytes=in_steps(room_bytes))
            found = self._measured(partial(prepare_within, trace, settings, own, whole))
            if self._is_kept(found):
                _compile_apart(found.plan.trace)
                return found
            # More each time, so that it ends: by a refusal if need be.
            room_bytes = max(self._running_bytes(found), room_bytes + OWN_STEP_BYTES)

    def _measured(self, planning: Callable[[], PreparedStep]) -> PreparedStep:
        """Plans, gives back what can be, and forgets the steps that cannot keep their promise
        beside the rest: they are planned anew when their turn comes."""
        before = held_here()
        try:
            return planning()
        finally:
            forget_planning()
            self._left_bytes = max(0, self._left_bytes + held_here() - before)
            self._steps = {key: step for key, step in self._steps.items() if self._is_kept(step)}

    def _is_kept(self, step: PreparedStep) -> bool:
        """Whether a step can keep its promise, if it has one, beside what planning has left."""
        promise = step.promise
        return promise is None or self._running_bytes(step) <= promise.list_bytes

    def _running_bytes(self, step: PreparedStep) -> int:
        return running_bytes(self._left_bytes, len(step.plan.schedule.instructions))

    def _with_disk(self, settings: Settings) -> Settings:
        """The settings, with what a disk could do when it was first looked at: later it may be
        full, and the trainer has its space.
        """
        if settings.spill is None:
            return settings
        if self._disk != settings.spill:
            self._disk = replace(settings.spill, place=look_at(settings.spill.folder))
        return replace(settings, spill=self._disk)

    def _fitted(self, key: Hashable, settings: Settings) -> Settings:
        """The settings, a percentage being that of the first training step for all other shapes."""
        first = self._budgets.get(key)
        return (
            settings
            if settings.budget is None or first is None
            else replace(settings, budget=first)
        )


def _own_share(trace: Trace, settings: Settings, values: Iterable[Tensor]) -> OwnShare:
    """What this process holds by itself, once it has loaded what it needs to prepare and run the
    step."""
    searches = isinstance(as_planner(settings.planner), SearchingPlanner)
    _compile_apart(apply_rewrites(trace, settings.rewrites), searches=searches)
    return own_share(trace, settings.rewrites, values, searches=searches)


def _compile_apart(trace: Trace, *, searches: bool = False) -> None:
    """Has the kernels of a step compiled by a process of its own, and the search if need be."""
    # Late: it loads Numba, which preparing a step otherwise does without.
    from ooctrain.execution.compile_apart import compile_apart

    compile_apart((call.op for call in trace.calls), searches=searches)


def warn_of_strangers(training: Training, known: WeakSet[Tensor]) -> None:
    """Warns of the model's parameters that have come since and that the optimizer does not know.

    Args:
        known: parameters that the model has had; those that it has now are added.

    Raises:
        ConfigError: it knows none of them; steps would train nothing, without a word.
    """
    here = dict(training.model.named_parameters())
    if here and not any(map(training.optimizer.updates, here.values())):
        raise ConfigError(
            "no parameter of the model is in the optimizer",
            fix="the optimizer of this very model: oc.optim.SGD(model.parameters(), lr=0.1)",
        )
    came = [name for name, parameter in here.items() if known and parameter not in known]
    new = [name for name in came if not training.optimizer.updates(here[name])]
    known.update(here.values())
    if new:
        more = " ..." if len(new) > _NAMED_AT_MOST else ""
        warnings.warn(
            f"{', '.join(new[:_NAMED_AT_MOST])}{more}: new in the model, but not in the optimizer, "
            "so no step changes them; optimizer.add_param_group({'params': ...}) adds them",
            stacklevel=8,
        )


def _rest(training: Training) -> tuple[Any, ...]:
    """What modules do not count, told so that it can be compared at once."""
    optimizer = training.optimizer
    groups = [list(group["params"]) for group in optimizer.param_groups]
    slots = list(optimizer.state.values())
    return optimizer.settings(), groups, slots, _attributes(training.loss)


def _attributes(loss: object) -> Hashable:
    """What a loss that is an object of one's own, and no module, holds."""
    return None if isinstance(loss, Module) else described(getattr(loss, "__dict__", None))
