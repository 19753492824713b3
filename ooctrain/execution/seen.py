"""What the steps of a trainer depend on, and whether it has changed.

A step is traced and planned once and run many times, so everything that its trace has read must be
the same before each run. This file compares all that a trainer's user may set, and makes a key of
its value. After a change the step is traced again; it is planned again only if the trace differs.
Read next: `step_cache.py`, which keeps the step that was prepared under that key;
`../engine/fingerprint.py`; `../train.py`, which asks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np

from ooctrain.engine.clip import Clip
from ooctrain.engine.draws import is_traced_every_step, line_of_the_clock, refuse
from ooctrain.engine.fingerprint import Place, Watch, described, line_of, may_be_equal
from ooctrain.engine.incore import named_tensors
from ooctrain.engine.module import Module
from ooctrain.engine.nested import TargetGiven
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError, raised_by_a_handler
from ooctrain.execution.fit import PreparedStep
from ooctrain.execution.promise import values_bytes
from ooctrain.execution.settings import Settings
from ooctrain.optim import Optimizer
from ooctrain.optim.optimizer import Slots
from ooctrain.step.op import Scalars
from ooctrain.step.trace import Trace

_NAMED_AT_MOST = 4
#: A count of calls that is a multiple of all small numbers, and of many round ones.
_FAR = 100_800


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
    """
    whole_numbers = dtype is None or np.dtype(dtype).kind in "iub"
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
        apart: places that do not count, see `expect_the_same`.

    Attributes:
        ready: steps that have been found to be right for it.
    """

    def __init__(
        self, training: Training, looked_at: Mapping[Any, Any], apart: Iterable[Place] = ()
    ):  # fmt: skip
        self.training = training
        self.ready: dict[StepShape, PreparedStep] = {}
        self._updates: dict[int, Mapping[int, Tensor]] = {}  # by id of a step that is ready
        found = (training.model, training.loss, *looked_at)
        roots = [root for root in found if isinstance(root, Module)]
        read = {tensor: v for tensor, v in looked_at.items() if isinstance(tensor, Tensor)}
        self._watch = Watch(roots, read, training.loss, apart)
        self._rest, self._held = _rest(training), _held_by(training.optimizer)
        #: whether each step is traced anew (`oc.traced_every_step`)
        self.changes_always = is_traced_every_step(training.model, training.loss)

    def unchanged(self, training: Training) -> bool:
        """Whether a training is this one, and as it was."""
        return (
            training == self.training and self._watch.unchanged() and _rest(training) == self._rest
        )

    def differences(self, later: Seen) -> str:
        """Names of what modules do not count themselves and another look has found changed."""
        pair = self._watch.reached.descriptions(), later._watch.reached.descriptions()
        return ", ".join(sorted({name for _, name in changed_places(*pair) if name}))

    def places(self) -> dict[Place, Hashable]:
        """What the steps depend on besides settings, parameters and buffers."""
        return self._watch.places()

    def key(self, step: StepShape) -> tuple[Hashable, ...]:
        """All that a step depends on, by value: the settings, the step, under a memory budget the
        bytes of all that persists, the rest. Learning rates are not in it: they are step scalars.
        """
        now, persisting = self.training, 0
        if now.settings.memory is not None:
            persisting = values_bytes(named_tensors(now.model, now.optimizer).values())
        both = now.loss, now.conv_algorithm, now.allow_tf32
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
    """What modules do not count, in a form that can be compared at once: tensors by identity, as
    long as they are held."""
    optimizer = training.optimizer
    return optimizer.settings(), [list(map(id, part)) for part in _held_by(optimizer)]


def _held_by(optimizer: Optimizer) -> list[list[Tensor] | list[Slots]]:
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


def expect_the_same(
    first: Trace, again: Trace, changed: Iterable[Place], record: Callable[[], Trace]
) -> None:
    """Compares two traces in a row of one step.

    Args:
        changed: places that the second one has changed. Where the traces are the same, such a
            place does not count: a counter of calls for example, unless a trace differs at which
            the counter stands higher.
        record: traces once more.

    Raises:
        NotRepeatable: the traces differ.
    """
    if first == again or may_be_equal(_parts_of(first), _parts_of(again)):
        for place in changed:
            if not _same_at_other_counts(first, place, record):
                _refuse_changing(place)
        return
    for place in changed:
        _refuse_changing(place)
    if line := line_of_the_clock(record):
        refuse(line, "what the forward pass or the loss computes depends on the clock")
    pairs = zip(first.calls, again.calls, strict=False)
    differing = (a.name for a, b in pairs if not may_be_equal(a, b))
    refuse(next(differing, "the last calls"), "each trace comes out differently")


def _refuse_changing(place: Place) -> None:
    """Raises NotRepeatable: each trace changes the place, and comes out differently."""
    owner, name = place
    called = "" if isinstance(owner.what, dict | type(lambda: 0)) else type(owner.what).__name__
    refuse(
        line_of(name, owner.what) or called,
        f"each trace changes {'.'.join(filter(None, (called, name)))}, and comes out differently",
    )


def _same_at_other_counts(first: Trace, place: Place, record: Callable[[], Trace]) -> bool:
    """Whether a place is not a number, or a trace is the same when it has been counted further: a
    warm-up that ends after some calls, or what happens at each third, shows in no two traces in a
    row."""
    owner, name = place[0].what, place[1]
    held = owner if isinstance(owner, dict) else getattr(owner, "__dict__", {})
    before: Any = held.get(name)
    if type(before) not in (int, float):
        return True
    for count in (before + 1, before + 2, _FAR - 1, _FAR):
        held[name] = count
        try:
            there = record()
        except Exception as error:  # such as an index out of range, which says nothing
            if raised_by_a_handler(error):
                raise
            continue
        finally:
            held[name] = before
        if first != there and not may_be_equal(_parts_of(first), _parts_of(there)):
            return False
    return True


def _parts_of(trace: Trace) -> tuple[Any, ...]:
    return trace.variables, trace.calls, dict(trace.carries), dict(trace.outputs)
