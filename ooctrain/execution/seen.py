"""What the steps of a trainer depend on, and whether it has changed.

A step is traced and planned once and run many times, so everything that its trace has read must be
the same before each run. That is compared once a step, in one place (`Seen.unchanged`): counters
where something counts (modules), identities (what the trainer and the optimizer hold), contents of
the rest (`../engine/fingerprint.py`). After a change all of it is a key by value; where no step is
known by that key, the step is traced again, and planned again only if the trace differs.
Read next: `step_cache.py`, which keeps the step that was prepared under that key; `../train.py`,
which asks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np

from ooctrain.engine.clip import Clip
from ooctrain.engine.draws import is_traced_every_step
from ooctrain.engine.fingerprint import Content, Place, described
from ooctrain.engine.incore import named_tensors
from ooctrain.engine.module import Module
from ooctrain.engine.nested import TargetGiven
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError, warn
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.promise import values_bytes
from ooctrain.execution.settings import Settings
from ooctrain.optim import Optimizer
from ooctrain.step.op import Scalars

_NAMED_AT_MOST = 4
_trained, _begins = attrgetter("requires_grad"), attrgetter("begin_step")


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
    target: TargetGiven | None
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
        target = None if y is None else target_given(loss, y.shape, y.dtype, x.shape[0])
        larger = None if whole == x.shape[0] else whole
        return cls(tuple(x.shape), target, False, y is not None, larger, bands)


def target_given(
    loss: Any, shape: tuple[int, ...] | None, dtype: Any = None, rows: int | None = None
) -> TargetGiven | None:
    """What a step has to know of its target; None where the output shows all of it.

    Args:
        rows: samples of the batch; class numbers for as many are usual.

    Raises:
        ConfigError: there is no such element type.
    """
    try:
        whole_numbers = dtype is None or np.dtype(dtype).kind in "iub"
    except (TypeError, ValueError) as error:
        what = f"{dtype!r} is not an element type"
        raise ConfigError(what, code="OOC-106", fix="float32 or int64") from error
    if shape is None:
        return None
    usual = whole_numbers and len(shape) in (1, 3) and rows in (None, shape[0])
    if loss == "cross_entropy" and usual:
        return None
    if dtype is None:
        return TargetGiven(tuple(shape))
    return TargetGiven(tuple(shape), "int64" if whole_numbers else "float32")


class Seen:
    """A training as it is now.

    Args:
        looked_at: by its traces so far (`oc.trace(looked_at=...)`).
        apart: places that do not count, see `draws.expect_the_same`.

    Attributes:
        ready: steps that have been found to be right for it.
        changes_always: whether each step is traced anew (`oc.traced_every_step`).
    """

    def __init__(
        self, training: Training, looked_at: Iterable[Any] = (), apart: Iterable[Place] = ()
    ):
        self.training = training
        self.ready: dict[StepShape, PreparedStep] = {}
        self._updates: dict[int, Mapping[int, Tensor]] = {}  # by id of a step that is ready
        self._content = Content((training.model, training.loss, *looked_at), apart)
        modules = self._content.modules
        held = (p for part in modules for p in part._parameters.values() if p is not None)
        self._parameters = list(dict.fromkeys(held))
        self._held = _held_by(training.optimizer)  # kept, so that no identity is given again
        self._then = self._now()
        self.changes_always = is_traced_every_step(training.model, training.loss)
        self._kinds = {type(part) for part in modules}
        self._begins = any("begin_step" in vars(part) for part in modules)

    @property
    def begins(self) -> bool:
        """Whether a part of the model wants to know when a training step begins."""
        return self._begins or set(map(_begins, self._kinds)) != {Module.begin_step}

    def _now(self) -> tuple[Hashable, list[bool], list[list[int]]]:
        """What no module counts, and can be compared at once."""
        optimizer = self.training.optimizer
        held = [list(map(id, part)) for part in _held_by(optimizer)]
        return optimizer.settings(), list(map(_trained, self._parameters)), held

    def unchanged(self, training: Training) -> bool:
        """Whether a training is this one, and as it was. ResNet-50: 25 us."""
        return training == self.training and self._now() == self._then and self._content.unchanged()

    @cached_property
    def places(self) -> Mapping[Place, Hashable]:
        """What the steps depend on besides settings, modes, and what modules have registered."""
        return self._content.places()

    def key(self, step: StepShape) -> tuple[Hashable, ...]:
        """All that a step depends on, by value: the settings, the step, under a memory budget the
        bytes of all that persists, the rest. Learning rates are not in it: they are step scalars.
        """
        now, persisting = self.training, 0
        if now.settings.memory is not None:
            persisting = values_bytes(named_tensors(now.model, now.optimizer).values())
        registered = [
            (part.training, part._parameters, part._buffers, part._modules)
            for part in self._content.modules
        ]
        groups = [group["params"] for group in now.optimizer.param_groups]
        return (
            described(now.settings), step, persisting,
            described((now.loss, now.conv_algorithm, now.allow_tf32)),
            described((now.accumulate, now.clip, now.shared)),
            now.optimizer.settings(),
            described((registered, groups, list(map(_trained, self._parameters)))),
            tuple(self.places.items()),
        )  # fmt: skip

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
        warn(
            f"{', '.join(new[:_NAMED_AT_MOST])}{more}: new in the model, but not in the optimizer, "
            "so no step changes them; optimizer.add_param_group({'params': ...}) adds them"
        )


def _held_by(optimizer: Optimizer) -> list[list[Any]]:
    """The parameters of each group, and the slots of all parameters."""
    groups = [list(group["params"]) for group in optimizer.param_groups]
    return [*groups, list(optimizer.state.values())]


def changed_places(
    before: Mapping[Place, Hashable], after: Mapping[Place, Hashable]
) -> frozenset[Place]:
    """Places whose description differs."""
    return frozenset(
        place for place in {**before, **after} if before.get(place) != after.get(place)
    )
