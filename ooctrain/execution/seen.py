"""What the steps of a trainer depend on, and whether it has changed.

A step is traced and planned once and run many times, so everything that its trace has read must be
the same before each run. This file compares all that a trainer's user may set, and makes a key of
its value. After a change the step is traced again; it is planned again only if the trace differs.
Read next: `step_cache.py`, which keeps the step that was prepared under that key;
`../engine/fingerprint.py`; `../train.py`, which asks.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

from ooctrain.engine.clip import Clip
from ooctrain.engine.fingerprint import Watch, described
from ooctrain.engine.incore import named_tensors
from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError
from ooctrain.execution.prepare import PreparedStep
from ooctrain.execution.promise import values_bytes
from ooctrain.execution.settings import Settings
from ooctrain.optim import Optimizer
from ooctrain.step.op import Scalars

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
        """All that a step depends on, by value: the settings, the step, under a memory budget the
        bytes of all that persists, the rest. Learning rates are not in it: they are step scalars.
        """
        now, persisting = self.training, 0
        if now.settings.memory is not None:
            persisting = values_bytes(named_tensors(now.model, now.optimizer).values())
        both = now.loss, _attributes(now.loss), now.conv_algorithm, now.allow_tf32
        watched = self._watch.fingerprint(training=step.training)
        key = described(now.settings), step, persisting, described(both), watched
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
