"""The trainer: many steps of one plan, evaluation under its budget, checkpoints, the true state.

A trainer takes a model, a loss, an optimizer and a budget. Each shape of input is traced, fused and
planned once; its list is then executed step after step. Between steps the true values live on the
device, and the model's parameters read and write them there. A step is traced and planned anew only
when something changes that its trace depends on (a frozen parameter, another weight decay).
Read next: `execution/seen.py`, `execution/fit.py`, `execution/executor.py`;
`execution/checkpoint.py` for the files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from inspect import Signature, signature
from typing import Annotated, Any, NoReturn, TypeVar
from weakref import WeakSet

import numpy as np

from ooctrain.distributed.agreement import agree_on_step
from ooctrain.distributed.ranks import Ranks
from ooctrain.engine.draws import expect_the_same
from ooctrain.engine.fingerprint import Place, described
from ooctrain.engine.incore import named_tensors
from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError, DriverError, OoctrainError, did_you_mean, warn
from ooctrain.execution import checkpoint as files
from ooctrain.execution import saved_state
from ooctrain.execution.ahead import Ahead, Manner, handed_out, is_last, no_batch, position_of
from ooctrain.execution.evaluation import Evaluation, InParts, expect_labels, ignored_by
from ooctrain.execution.guard import expect_finite
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.residence import Residence, one_at_a_time
from ooctrain.execution.result import StepResult
from ooctrain.execution.seen import (
    Seen,
    StepShape,
    Training,
    changed_places,
    target_given,
    warn_of_strangers,
)
from ooctrain.execution.sessions import Images, as_images, expect_batch, input_values
from ooctrain.execution.settings import Options
from ooctrain.execution.step_cache import StepCache
from ooctrain.nn.named_losses import Loss
from ooctrain.optim import LRScheduler, Optimizer, ReduceLROnPlateau
from ooctrain.optim.schedules.scheduler import expect_schedule_of
from ooctrain.sched.planning.planner import Planner
from ooctrain.sched.schedule import Plan
from ooctrain.sched.timeline import Timeline
from ooctrain.step.arguments import Taker, checked, checked_but
from ooctrain.step.blocks import put_together
from ooctrain.step.op import Scalars
from ooctrain.step.trace import Trace
from ooctrain.step.user_values import as_target
from ooctrain.tracing import named_optimizer, takes_bytes
from ooctrain.tracing import trace as trace_step

Batch = tuple[np.ndarray, np.ndarray]


def _not_begun(batches: Any) -> Any:
    """What can be gone through; looked at only, since a generator ends after one time."""
    plain = isinstance(batches, str | bytes | type) or not getattr(batches, "ndim", 1)
    if plain or not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
        raise TypeError
    return batches


Batches = Annotated[Iterable[Batch], Taker("several batches (x, y)", _not_begun)]
R = TypeVar("R")
#: So many steps in a row that are made anew are a pattern.
MANY = 4


@checked
class Trainer:
    """Trains a model within a budget of device memory.

    Between steps anything may be changed that they depend on: attributes and parts of the model and
    of the loss, objects that they hold, classes, closures and global names that the user's own
    functions read, what is frozen, settings of the optimizer, the attributes of the trainer. The
    next step has it; it is traced again, and planned again where the trace comes out differently.
    What a forward pass draws with `random` or `numpy.random`, or counts itself, is refused with its
    line, unless the model or the loss is marked by `oc.traced_every_step`. So a step is traced
    twice at first. What is not seen: writes to the `__dict__` of a module, a global name bound to
    another function of a library, what installed packages read of their own, and the clock or an
    iterator where two traces in a row come out the same.

    A step trains each part of the model in the mode that it is in, as in PyTorch: after
    `model.eval()` with running statistics and no dropout, which a warning says. Trainers of one
    model may take turns: each goes on from the model's values. Any thread may call a trainer, one
    at a time. An unreachable one closes itself. A fork of the process cannot use it.

    Args:
        model: while the trainer is open its values are on the device; read them as ever.
        loss: "cross_entropy", "mse", "l1" or a function of (output, target); a target with the
            shape of the output is float32, others are class numbers.
        optimizer: one of `optim`, or by name (`optim/algorithms.py`); "sgd" has momentum 0.9.
        budget: budget of everything on the device: bytes, "512MiB", "25%"; None: train in-core.
        planner, allocator, device: by name, with parameters.
        accumulate: parts that a batch goes through in.
        ranks: `oc.distributed.world()`: each process trains with a part of every batch, and `step`
            takes that part; None: this process is alone.
        options: how steps are traced, planned and run; `Options` has them all.
        others: more of them by name, such as `memory="4GiB"` or `threads=2`. What is given by its
            name counts before what `options` has; of those above None means that it is not given.

    Attributes:
        prepared: the last training step's plan and what it needs; None before the first.

    Raises:
        ConfigError, Infeasible, DoesNotFit: before the first step of a shape; nothing is lost.
        InUse: another thread is at work with it, or this is a fork; nothing has happened.
        NotRepeatable: the step comes out differently each time it is traced.
    """

    def __init__(
        self, model: Module, loss: str | Loss = "cross_entropy",
        optimizer: str | Optimizer | None = None, budget: int | str | None = None,
        planner: str | Planner | None = None, allocator: str | None = None,
        device: str | None = None, accumulate: int | None = None, *, ranks: Ranks | None = None,
        options: Options | None = None, **others: Any,
    ):  # fmt: skip
        self.model, self.loss = model, loss
        self.optimizer = named_optimizer(optimizer or "sgd", model)
        first: dict[str, Any] = {
            "budget": budget, "planner": planner, "allocator": allocator, "device": device,
            "accumulate": accumulate,
        }  # fmt: skip
        given = {name: value for name, value in first.items() if value is not None}
        known = [each.name for each in fields(Options)]
        for name in others.keys() - set(known):
            raise TypeError(
                f"Trainer() got an unexpected keyword argument {name!r}; "
                f"{did_you_mean(name, known) or 'help(oc.Options) has them all'}"
            )
        how = replace(options or Options(), **given, **others)
        self.settings, self.ranks = how.settings, ranks
        self.accumulate, self.conv_algorithm = how.accumulate, how.conv_algorithm
        self.allow_tf32, self.clip = how.allow_tf32, how.clip
        self._last: StepResult | None = None
        self._messages: Sequence[tuple[int, int, int]] = ()
        self.prepared: PreparedStep | None = None
        self._compiled: PreparedStep | None = None
        self._residence = Residence()
        self._adopted: dict[str, Tensor] = {}
        self._known: WeakSet[Tensor] = WeakSet()
        self._cache, self._ahead = StepCache(self._residence.leave), Ahead()
        self._looked_at: dict[Any, Any] = {}
        self._apart: frozenset[Place] = frozenset()
        self._repeated: set[Hashable] = set()
        self._changed = ""  # between the last two looks, by name
        self._made: tuple[StepShape | None, int, int] = None, 0, 0  # at which step, how many
        #: what the next step does at its end, such as its schedule's; no interrupt parts them
        self._then: Callable[[float], object] | None = None
        self._owed: Callable[[], object] | None = None  # at the end of an epoch, after `on_step`
        self._look()

    # Training.

    @one_at_a_time
    def step(self, x: Images, y: np.ndarray) -> float:
        """One training step; returns the loss.

        Args:
            x: (N, C, H, W) float32, or a `data.RowImage`; uint8 for a model with `nn.FromBytes`.
            y: (N,) class numbers, (N, K) class probabilities, as mixup and CutMix make them, or
                what the loss takes: one array.

        Raises:
            ShapeError: x or y is not an array of real numbers, or does not fit.
            TrainingStopped: the loss, or a number that the step was about to write, is not finite.
                Parameters, buffers, optimizer slots and the number of steps are as they were
                before, and training may go on. (Updates that came before a gradient that overflows
                stay; the error says how many.)
            What an operation of the user's own raised; everything is as it was before.
            An interrupt (Ctrl-C, a signal's handler that raises), once the step is done, which then
                counts; a second one at once, while the step goes on by itself, and the next call of
                this trainer comes after it.
        """
        x = as_images(x)
        y = as_target(y, rows=next(iter(x.shape), None))
        prepared = self.prepare(x.shape, y.shape, y.dtype)
        self._compile(prepared)
        then, self._then = self._then, None

        def both() -> float:
            loss = self._step(prepared, x, y)
            if then is not None:
                then(loss)
            return loss

        return self._finished(both)

    def _step(self, prepared: PreparedStep, x: Images, y: np.ndarray) -> float:
        if self.ranks is not None:
            agree_on_step(self.ranks, self._training(), prepared.original, self._tensors())
        variable = prepared.plan.trace.outputs["loss"]
        own = self._seen.own_scalars(prepared, self._scalars())
        inputs = self._ahead.inputs(prepared.plan.trace, x, y)
        result = self._run(prepared, inputs, (variable,), own, variable)
        self._last, self._messages = result, () if self.ranks is None else self.ranks.sent()
        loss, lr = float(result.outputs[variable]), self.optimizer.param_groups[0]["lr"]
        if not math.isfinite(loss):
            expect_labels(loss, y, ignored_by(self.loss), self.steps_done + 1)
        expect_finite(loss, result.not_finite, self.steps_done + 1, lr, x, y)
        self.optimizer.count(self._seen.updated_by(prepared).values())
        return loss

    def ahead(self, batches: Batches) -> Generator[Batch, None, None]:
        """The batches, each read and laid out for the device while the step before it runs.

        For `for x, y in trainer.ahead(loader): trainer.step(x, y)`; `fit` does so by itself. A
        thread reads, so what gives the batches must not use the trainer; arrays come read-only. The
        next batch takes no memory of the device.
        """
        return self._ahead.over(batches, self._manner())

    @checked_but("schedule")
    def fit(
        self, batches: Batches, epochs: int = 1, *, schedule: LRScheduler | None = None,
        on_step: Callable[[int, float], None] | None = None,
    ) -> list[float]:  # fmt: skip
        """Trains for a number of epochs.

        Args:
            batches: gives (x, y) and can be iterated once for each epoch, such as a `DataLoader`.
            schedule: its `step()` is called after each epoch; `ReduceLROnPlateau` is told the
                epoch's mean loss. `OneCycleLR`, and a row with one, is stepped after each step. An
                interrupt does not part the two, at the end of an epoch only if the batches are a
                `DataLoader`, a list or a tuple, whose end is known.
            on_step: called with (steps done, loss) after each step.

        Returns:
            The losses of all steps.

        Raises:
            ConfigError: an epoch without a batch, such as the second one of a generator; or a
                schedule that ends before the last step, or sets rates of another optimizer.
        """
        try:
            return self._fit(batches, epochs, schedule, on_step)
        except BaseException as error:
            self._then = None
            self._pay()
            self._leaves(error)
            raise

    def _fit(
        self, batches: Batches, epochs: int, schedule: LRScheduler | None,
        on_step: Callable[[int, float], None] | None,
    ) -> list[float]:  # fmt: skip
        if schedule is not None:
            expect_schedule_of(self.optimizer, schedule)
        each_step = schedule if schedule is not None and schedule.counts_steps else None
        if each_step is not None and isinstance(batches, Sized):
            each_step.expect_steps_left(epochs * len(batches) - position_of(batches))
        losses: list[float] = []
        for epoch in range(epochs):
            of_epoch: list[float] = []
            due = None if each_step is not None else schedule  # at the end of the epoch
            with closing(self.ahead(batches)) as following:
                for number, (x, y) in enumerate(following, 1):
                    if each_step is not None:
                        self._then = partial(_step_of, each_step, None)
                    elif due is not None and is_last(batches, number):
                        self._then, due = partial(self._owe, due, of_epoch), None
                    of_epoch.append(self.step(x, y))
                    if on_step is not None:
                        on_step(self.steps_done, of_epoch[-1])
            if not of_epoch:
                raise no_batch(epoch)
            if due is not None:
                self._owe(due, of_epoch[:-1], of_epoch[-1])
            self._pay()
            losses += of_epoch
        return losses

    def _owe(self, schedule: LRScheduler, before: Sequence[float], loss: float) -> None:
        """An epoch ends with a step of this loss: its schedule's step is owed from now on."""
        self._owed = partial(_step_of, schedule, [*before], loss)

    def _pay(self) -> None:
        """Does the schedule's step that is owed, if one is; an interrupt comes before or after."""

        def pay() -> None:
            owed, self._owed = self._owed, None
            if owed is not None:
                owed()

        if self._owed is not None:
            self._residence.finisher.do(pay)

    @checked
    @one_at_a_time
    def prepare(
        self, input_shape: tuple[int, ...], target_shape: tuple[int, ...] | None = None,
        target_dtype: Any = None,
    ) -> PreparedStep:  # fmt: skip
        """The training step for one shape of input, traced and planned at the first call.

        Args:
            input_shape: shape of a batch, (N, C, H, W).
            target_shape: for a loss of your own; None: it takes class numbers. Others know it.
            target_dtype: its element type; None: float32 if it has the shape of an output.
        """
        rows = next(iter(input_shape), None)
        target = target_given(self.loss, target_shape, target_dtype, rows)
        self.prepared = self._prepare_once(StepShape(tuple(input_shape), target, True, True))
        return self.prepared

    @property
    def steps_done(self) -> int:
        """Finished steps of the optimizer, those of other trainers included.

        Dropout's masks depend on the number. Adam's bias correction depends on how often each
        parameter was updated, which is fewer times where it was frozen (`Optimizer.steps`).
        """
        self._residence.finisher.wait()
        return self.optimizer.steps_done

    @property
    def timeline(self) -> Timeline | None:
        """Of the last step, measured; read from the device when it is requested."""
        if self._last is None or self.ranks is None:
            return None if self._last is None else self._last.timeline
        return self._last.timeline_with(self._messages)

    @property
    def plan(self) -> Plan | None:
        """The plan of the last training step's shape."""
        return None if self.prepared is None else self.prepared.plan

    # Evaluation, under the same budget.

    @checked
    @one_at_a_time
    def evaluate(self, batches: Batches) -> Evaluation:
        """Loss and accuracy in evaluation mode, as of one batch of all samples.

        Batches count by what their means are over: labels that count, with their weights, or
        elements; sums are added; a loss of other operations is averaged batch by batch. What
        `CrossEntropyLoss(ignore_index=...)` ignores is neither hit nor miss. A batch that does not
        fit goes through in parts, where samples are independent (`execution/evaluation.py`).

        Args:
            batches: (x, y) as `step` takes them.

        Raises:
            ConfigError: there is no batch, or the loss's terms have no common average.
        """
        given = handed_out(batches, self._manner())
        return self._in_parts().averages(given, ignored_by(self.loss))

    @one_at_a_time
    def predict(self, x: Images) -> Any:
        """The output for x (N, C, H, W) in evaluation mode, logical; in parts if need be.

        Returns:
            An array; of a model with several outputs the same tuple, list or dictionary of arrays.
        """
        return self._in_parts().output(as_images(x))

    # State and files.

    @one_at_a_time
    def state_arrays(self) -> dict[str, np.ndarray]:
        """Copies of parameters, buffers and optimizer slots by name: all that persists."""
        return saved_state.arrays_of(self.model, self.optimizer)

    @checked
    @one_at_a_time
    def save(self, path: str, run: files.RunState | None = None, *, keep: int = files.KEEP) -> None:
        """Writes a checkpoint, whole or not at all; of several ranks the first one does.

        Args:
            path: path of the file, ".safetensors" by custom.
            run: where the run stands; default: the steps done and the seed.
            keep: files kept in all.
        """
        run = run or files.RunState(step=self.steps_done, seed=self.settings.seed)
        if self.ranks is None or self.ranks.is_first:
            saved_state.save(path, self.model, self.optimizer, run, keep)

    @checked
    @one_at_a_time
    def resume(self, path: str, config: files.Expected | None = None) -> files.RunState:
        """Takes up a checkpoint; training goes on with the same bits as if it had never stopped.

        Values and the number of steps come from the file; the seed (of dropout) is this trainer's
        own and must be the same. Learning rates are not in the file: an `LRScheduler` sets them
        when it loads `RunState.schedule`.

        Args:
            path: path of the file; where it is broken, the newest whole one before it is taken.
            config: settings that must be those of the saved run; or what makes them from its state.

        Raises:
            CheckpointError: missing, broken, or of another model or run.
        """
        read = partial(files.load, path)
        found = read() if self.ranks is None else self.ranks.from_first(read)
        restore = partial(saved_state.restore, found, self.model, self.optimizer, config)
        return self._residence.finisher.do(restore)

    def close(self) -> None:
        """Gives the device back; values that no other trainer has taken over are on the host."""
        self._residence.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raises ConfigError: a device with its threads and memory cannot be copied or pickled."""
        raise ConfigError(
            "a Trainer cannot be pickled or copied: it has a device of this process",
            code="OOC-106", fix="pickle (trainer.model, trainer.optimizer) and make a Trainer of "
            "them there, or trainer.save(path) and resume(path)",
        )  # fmt: skip

    def __getattr__(self, name: str) -> NoReturn:
        # Not at the top: a table of words, read when a name is missing.
        from ooctrain.engine.torch_names import refusal

        raise refusal("a trainer", name, "trainer", dir(type(self)))

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _frames: object) -> None:
        if error is not None:
            self._leaves(error)
        self.close()

    def _leaves(self, error: BaseException) -> None:
        """Says to other ranks that this one comes to no further step. What the library raises it
        raises on all of them."""
        if self.ranks is not None and not isinstance(error, OoctrainError):
            self.ranks.leave(repr(error))

    # How it is done.

    def _prepare_once(self, step: StepShape, trained: StepShape | None = None) -> PreparedStep:
        """A step that is ready.

        Args:
            trained: for an evaluation, the training step whose percentage a budget is if none has
                been trained yet.
        """
        before = self._seen
        self._notice()
        if step.training and self._seen.begins:
            self.model.begin_step(self.steps_done)
            self._notice()
        if self._seen.changes_always:
            return self._make(step, trained, before)
        if step not in self._seen.ready:
            expect_batch(step.input)
            found = self._cache.find(self._seen.key(step)) or self._make(step, trained, before)
            self._seen.ready[step] = found
        return self._seen.ready[step]

    def _notice(self) -> None:
        """Looks again if anything has changed since the last look."""
        if not self._seen.unchanged(self._training()):
            self._look()

    def _make(self, step: StepShape, trained: StepShape | None, last: Seen) -> PreparedStep:
        """Traces a step, and plans it if need be; `last` is how all was before anything changed."""
        if step.training and not self.model.training:
            warn(
                "the model is in evaluation mode, so this step trains it with running statistics "
                "and without dropout, as in PyTorch; model.train() ends that"
            )
        looked_at: dict[Any, Any] = {}
        before, places = self._seen.key(step), self._seen.places
        if last is not self._seen:
            changed = changed_places(last.places, places)
            self._changed = ", ".join(sorted({name for _, name in changed if name}))
        trace = self._trace(step, looked_at)
        self._looked_at |= looked_at
        self._look()  # again: tracing sets modes, and may call modules that were not known
        if not self._seen.changes_always:
            self._repeat(step, trace, places)
        key, values = self._seen.key(step), self._tensors().values()
        like = None if trained is None else partial(self._trace, trained, {})
        if self._seen.changes_always:
            return self._cache.add((*key, trace), trace, self.settings, values, like)
        self._warn_of_many(step)
        found = self._cache.add(key, trace, self.settings, values, like)
        self._cache.know(before, found)  # a trace from where this one began would be the same
        return found

    def _warn_of_many(self, step: StepShape) -> None:
        """Warns where one step after the other is made anew."""
        follows = step.training and (step, self.steps_done - 1) == self._made[:2]
        self._made = step, self.steps_done, self._made[2] + 1 if follows else 1
        if self._made[2] == MANY:
            warn(
                f"each of the last {MANY} steps was traced and planned anew, since "
                f"{self._changed or 'an attribute'} changes from step to step; a value in a buffer "
                "of the model, used as a tensor, needs no new plan (`ooctrain docs torch`)"
            )

    def _repeat(self, step: StepShape, trace: Trace, before: Mapping[Place, Hashable]) -> None:
        """Traces a step again, at the first time and where its trace has changed something.

        Raises:
            NotRepeatable: the two traces differ.
        """
        kind = step.training, step.with_loss, described((self.model, self.loss))
        after = self._seen.places
        if kind in self._repeated and not changed_places(before, after):
            return
        again = self._trace(step, {})
        self._look()
        changed = changed_places(after, self._seen.places)
        expect_the_same(trace, again, changed, lambda: self._trace(step, {}))
        self._repeated.add(kind)
        if changed:
            self._apart |= changed
            self._look()

    def _look(self) -> None:
        """Takes in how everything is now."""
        tensors, training = self._tensors(), self._training()
        if not _are_the_same(tensors, self._adopted):
            self._residence.adopt(tensors)  # a module, or the optimizer's state, is another one
            self._adopted = tensors
            warn_of_strangers(training, self._known)
        self._seen = Seen(training, self._looked_at, self._apart)

    def _training(self) -> Training:
        return Training(
            self.model, self.loss, self.optimizer, self.settings, self.accumulate, self.clip,
            self.conv_algorithm, self.allow_tf32, self.ranks and self.ranks.settings,
        )  # fmt: skip

    def _trace(self, step: StepShape, looked_at: dict[Any, Any]) -> Trace:
        settings, training = self.settings, step.training
        return trace_step(
            self.model, step.input, self.loss if step.with_loss else None,
            self.optimizer if training else None, settings.device, settings.thread_count,
            accumulate=self.accumulate if training else 1, training=training,
            conv_algorithm=self.conv_algorithm,
            target_shape=step.target and step.target.shape,
            target_dtype=step.target and step.target.dtype,
            clip=self.clip if training else None, allow_tf32=self.allow_tf32, looked_at=looked_at,
            ranks=self.ranks if training else None,
        )  # fmt: skip

    def _in_parts(self) -> InParts:
        """What evaluates whole batches, or parts of them."""
        return InParts(
            self._forward, lambda x, y: self._trace(StepShape.evaluating(x, y, self.loss), {}),
            bands_last=self.settings.memory is not None,
        )  # fmt: skip

    def _forward(
        self, x: Images, y: np.ndarray | None, whole: int, bands: bool
    ) -> tuple[Trace, dict[str, np.ndarray]]:
        """A step of evaluation before it was rewritten, and what it gave; of a batch of `whole`."""
        beside = None if self.settings.memory is None else whole
        target = None if y is None else target_given(self.loss, (whole, *y.shape[1:]), y.dtype)
        prepared = self._prepare_once(
            StepShape.evaluating(x, y, self.loss, beside, bands=bands),
            StepShape((whole, *x.shape[1:]), target, True, True),
        )
        self._compile(prepared)
        trace = prepared.plan.trace
        inputs, wanted = input_values(trace, x, y), tuple(trace.outputs.values())
        outputs = self._finished(partial(self._run, prepared, inputs, wanted)).outputs
        return prepared.original, put_together({n: outputs[v] for n, v in trace.outputs.items()})

    def _compile(self, prepared: PreparedStep) -> None:
        """Has a step's kernels compiled, before the thread begins that interrupts wait for."""
        if self._compiled is not prepared and self.settings.device == "cpu":
            # Late: it loads Numba, which preparing a step does without.
            from ooctrain.execution.compile_apart import compile_ahead

            compile_ahead(call.op for call in prepared.plan.trace.calls)
        self._compiled = prepared

    def _run(
        self, prepared: PreparedStep, inputs: Mapping[int, Any], wanted: tuple[int, ...],
        own: Mapping[int, Scalars] | None = None, guarded: int | None = None,
    ) -> StepResult:  # fmt: skip
        session = self._residence.session(prepared, self.settings, wanted)
        try:
            inputs = self._ahead.begin(session.device, inputs, prepared.promise)
            return session.run_step(inputs, self._scalars(), own, guarded)
        except BaseException as error:
            if session.broken or isinstance(error, DriverError):
                self._residence.abandon()
            raise

    def _finished(self, work: Callable[[], R]) -> R:
        """Does work that an interrupt waits for; where it is stepped through, in this thread, which
        may ask a user."""
        stepped = self.settings.debug.before is not None
        return work() if stepped else self._residence.finisher.do(work, self._leaves)

    def _manner(self) -> Manner:
        """How batches are read for the model."""
        return Manner(alone=self.settings.memory is not None, as_bytes=takes_bytes(self.model))

    def _scalars(self) -> dict[str, float | int]:
        return {**self.optimizer.scalars(), "step": self.steps_done, "seed": self.settings.seed}

    def _tensors(self) -> dict[str, Tensor]:
        return named_tensors(self.model, self.optimizer)


def _with_options(own: Signature) -> Signature:
    """What a trainer takes, with all options by their names: `help` and notebooks show it."""
    given = {name: each for name, each in own.parameters.items() if each.kind != each.VAR_KEYWORD}
    options = signature(Options).parameters.items()
    more = [each.replace(kind=each.KEYWORD_ONLY) for name, each in options if name not in given]
    return own.replace(parameters=[*given.values(), *more])


Trainer.__signature__ = _with_options(signature(Trainer))  # type: ignore[attr-defined]


def _step_of(schedule: LRScheduler, before: Sequence[float] | None, loss: float) -> None:
    """A schedule's step, after a training step.

    Args:
        before: losses of the epoch that ends with this one; None: no epoch is counted.
    """
    if isinstance(schedule, ReduceLROnPlateau):
        schedule.step(float(np.mean([*(before or ()), loss])))
    else:
        schedule.step()


def _are_the_same(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """Whether the same names have the same tensors, whatever their values."""
    return some.keys() == others.keys() and all(some[name] is others[name] for name in some)
