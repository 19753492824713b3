"""The trainer: many steps of one plan, evaluation under the same budget, checkpoints, the true
state.

In: a model, a loss, an optimizer, a budget. Out: a trained model. The one idea: each shape of input
is traced, fused and planned once, then its list is executed step after step; between steps the true
values live on the device, and the model's parameters read and write them there. Only a change that
a trace depends on (a frozen parameter, another weight decay) is traced and planned anew. Read next:
`execution/prepare.py`, `execution/executor.py`; `execution/checkpoint.py` for the files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooctrain.devices.base import Debug
from ooctrain.engine.clip import Clip
from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError, TrainingStopped
from ooctrain.execution import checkpoint as files
from ooctrain.execution.prepare import PreparedStep, Settings, prepare
from ooctrain.execution.residence import Residence, one_at_a_time
from ooctrain.execution.result import StepResult
from ooctrain.execution.sessions import input_values
from ooctrain.nn.named_losses import Loss
from ooctrain.optim import LRScheduler, Optimizer
from ooctrain.sched.planning.planner import TIME_LIMIT_S, Planner
from ooctrain.sched.schedule import Plan
from ooctrain.sched.timeline import Timeline
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.tracing import named_optimizer
from ooctrain.tracing import trace as trace_step

Batch = tuple[np.ndarray, np.ndarray]
#: The label that cross-entropy ignores unless it is told another one, as in PyTorch.
IGNORED_LABEL = -100


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Averages over a data set. `accuracy` is None where no target is a class that counts."""

    loss: float
    accuracy: float | None
    samples: int


class Trainer:
    """Trains a model within a budget of device memory.

    Trainers of one model may take turns, closed or not: each goes on from the model's values. Any
    thread may call a trainer, one at a time. One that nobody refers to any more closes itself. A
    fork of the process cannot use it, but may do something else, such as load data.

    Args:
        model: while the trainer is open its values are on the device; read them as ever.
        loss: "cross_entropy", "mse", "l1" or a function of (output, target); a target with the
            shape of the output is float32, others are class numbers.
        optimizer: one of `optim`, "adam", or "sgd": learning rate 0.1 and momentum 0.9.
        budget: of everything on the device: bytes, "512MiB", "25%"; None: train in-core.
        planner, allocator, device: by name, with parameters.
        accumulate: parts that a batch goes through in, gradients added.
        threads, machine, link_bandwidth, host_budget, seed, debug, time_limit_s: see
            `prepare.Settings`; link_bandwidth in bytes per microsecond.
        conv_algorithm: "auto", or see `oc.trace`.
        allow_tf32: see `oc.trace`.
        clip: `utils.ClipNorm`, `utils.ClipEach` or a number for the norm; of the gradients of all
            the model's parameters that require one.

    Attributes:
        timeline: of the last step, measured.
        prepared: the last training step's plan and what it needs; None before the first.

    Raises:
        ConfigError, Infeasible, DoesNotFit: before the first step of a shape; nothing is lost.
        InUse: another thread is at work with it, or this is a fork; nothing has happened.
    """

    def __init__(
        self, model: Module, loss: str | Loss = "cross_entropy",
        optimizer: str | Optimizer | None = None,
        budget: int | str | None = None, planner: str | Planner = "auto", allocator: str = "va",
        device: str = "cpu", accumulate: int = 1, *, threads: int | None = None,
        machine: str | Machine | None = None, link_bandwidth: float | None = None,
        host_budget: int | str | None = None, conv_algorithm: str = "auto", seed: int = 0,
        clip: Clip | float | None = None, debug: Debug | None = None, allow_tf32: bool = False,
        time_limit_s: float | None = TIME_LIMIT_S,
    ):  # fmt: skip
        self.model, self.loss = model, loss
        self.optimizer = named_optimizer(optimizer or "sgd", model)
        self._parameters, self._parts = list(model.parameters()), list(model.modules())
        self._updated = [p for p in self._parameters if self.optimizer.updates(p)]
        self.settings = Settings(
            budget=budget, planner=planner, allocator=allocator, device=device, threads=threads,
            machine=machine, link_bytes_per_us=link_bandwidth, host_budget=host_budget, seed=seed,
            debug=debug or Debug(), time_limit_s=time_limit_s,
        )  # fmt: skip
        self.accumulate, self.conv_algorithm, self.clip = accumulate, conv_algorithm, clip
        self.allow_tf32 = allow_tf32
        self._steps_done = 0
        self.timeline: Timeline | None = None
        self.prepared: PreparedStep | None = None
        self._prepared: dict[tuple[Any, ...], PreparedStep] = {}
        self._residence = Residence()
        self._residence.adopt(self._tensors())

    # Training.

    @one_at_a_time
    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        """One training step; returns the loss.

        Args:
            x: (N, C, H, W) float32.
            y: (N,) class numbers, or what the loss takes.

        Raises:
            TrainingStopped: the loss is not a number; the update of this step has been made.
        """
        prepared = self.prepare(np.shape(x), np.shape(y))
        trace = prepared.plan.trace
        result = self._run(prepared, (trace.outputs["loss"],), x, y)
        self.timeline = result.timeline
        self._count_steps(self.steps_done + 1)
        loss = float(result.outputs[trace.outputs["loss"]])
        if not math.isfinite(loss):
            raise TrainingStopped(
                f"the loss is {loss} after step {self.steps_done}", step=self.steps_done,
                where=f"learning rate {self.optimizer.param_groups[0]['lr']}",
                fix="a smaller --lr, or clip the gradients; checkpoints are kept",
            )  # fmt: skip
        return loss

    def fit(
        self, batches: Iterable[Batch], epochs: int = 1, *, schedule: LRScheduler | None = None,
        on_step: Callable[[int, float], None] | None = None,
    ) -> list[float]:  # fmt: skip
        """Trains for a number of epochs.

        Args:
            batches: gives (x, y) and can be iterated once for each epoch, such as a `DataLoader`.
            schedule: its `step()` is called after each epoch.
            on_step: called with (steps done, loss) after each step.

        Returns:
            The losses of all steps.

        Raises:
            ConfigError: an epoch without a batch, such as the second one of a generator.
        """
        losses: list[float] = []
        for epoch in range(epochs):
            steps_before = len(losses)
            for x, y in batches:
                losses.append(self.step(x, y))
                if on_step is not None:
                    on_step(self.steps_done, losses[-1])
            if len(losses) == steps_before:
                raise ConfigError(
                    f"epoch {epoch + 1} has no batch to train on", code="OOC-106",
                    fix="a list of batches, or a DataLoader with at least one; a generator ends "
                    "after one epoch",
                )  # fmt: skip
            if schedule is not None:
                schedule.step()
        return losses

    @one_at_a_time
    def prepare(
        self, input_shape: tuple[int, ...], target_shape: tuple[int, ...] | None = None
    ) -> PreparedStep:
        """The training step for one shape of input, traced and planned at the first call.

        Args:
            input_shape: of a batch, (N, C, H, W).
            target_shape: for a loss of your own; None: it takes class numbers. Others know it.
        """
        self.prepared = self._prepare_once(input_shape, target_shape, training=True)
        return self.prepared

    @property
    def steps_done(self) -> int:
        """Finished steps, those of other trainers with this optimizer included.

        Adam's bias correction and dropout's masks depend on the number. Where the optimizer updates
        nothing, and so counts nothing, they are this trainer's own.
        """
        return max(self.optimizer.steps.values(), default=self._steps_done)

    @property
    def plan(self) -> Plan | None:
        """The plan of the last training step's shape."""
        return None if self.prepared is None else self.prepared.plan

    # Evaluation, under the same budget.

    @one_at_a_time
    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """Average loss and accuracy in evaluation mode; the training state does not change.

        Labels that the loss ignores (`CrossEntropyLoss(ignore_index=...)`) are no part of the
        accuracy.

        Args:
            batches: (x, y) as `step` takes them.

        Raises:
            ConfigError: there is no batch.
        """
        ignored = getattr(self.loss, "ignore_index", IGNORED_LABEL)
        loss_sum, samples, correct, judged, classes = 0.0, 0, 0, 0, True
        for x, y in batches:
            outputs = self._forward(x, y)
            loss_sum += float(outputs["loss"]) * len(x)
            samples += len(x)
            classes = classes and outputs["output"].ndim == np.ndim(y) + 1
            if classes:
                counts = np.asarray(y) != ignored
                correct += int(((outputs["output"].argmax(axis=1) == y) & counts).sum())
                judged += int(counts.sum())
        if not samples:
            raise ConfigError("nothing to evaluate: the data set is empty", code="OOC-106")
        accuracy = correct / judged if classes and judged else None
        return Evaluation(loss_sum / samples, accuracy, samples)

    @one_at_a_time
    def predict(self, x: np.ndarray) -> np.ndarray:
        """The model's output for x (N, C, H, W) in evaluation mode, logical layout."""
        return self._forward(x, None)["output"]

    # State and files.

    @one_at_a_time
    def state_arrays(self) -> dict[str, np.ndarray]:
        """Copies of parameters, buffers and optimizer slots by name: all that persists."""
        return {
            name: np.array(tensor.storage.read(), order="C")
            for name, tensor in self._tensors().items()
        }

    @one_at_a_time
    def save(self, path: str, run: files.RunState | None = None, *, keep: int = files.KEEP) -> None:
        """Writes a checkpoint, whole or not at all.

        Args:
            path: of the file, ".safetensors" by custom.
            run: where the run stands; default: the steps done and the seed.
            keep: files kept in all.
        """
        state = run or files.RunState(step=self.steps_done, seed=self.settings.seed)
        files.save(path, self.state_arrays(), state, keep=keep)

    @one_at_a_time
    def resume(self, path: str, config: Mapping[str, Any] | None = None) -> files.RunState:
        """Takes up a checkpoint; training goes on with the same bits as if it had never stopped.

        Values and the number of steps come from the file; the seed (of dropout) is this trainer's
        own and must be the same. Learning rates are not in the file: an `LRScheduler` sets them
        when it loads `RunState.schedule`.

        Args:
            path: of the file; where it is broken, the newest whole one before it is taken.
            config: settings that must be those of the saved run.

        Raises:
            CheckpointError: missing, broken, or of another model or run.
        """
        found = files.load(path)
        shapes = {
            # Shapes without bytes: the values themselves may be lost.
            name: np.broadcast_to(np.zeros((), tensor.dtype), tensor.shape)
            for name, tensor in self._tensors().items()
        }
        files.check_arrays(found, shapes)
        if config is not None:
            files.check_config(found, config)
        for name, tensor in self._tensors().items():
            tensor.storage.write(found.arrays[name])
        self._count_steps(found.run.step)
        return found.run

    def close(self) -> None:
        """Gives the device back; values that no other trainer has taken over are on the host."""
        self._residence.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # How it is done.

    def _prepare_once(
        self, input_shape: tuple[int, ...], target_shape: tuple[int, ...] | None, *,
        training: bool, with_loss: bool = True,
    ) -> PreparedStep:  # fmt: skip
        if not callable(self.loss):
            target_shape = None
        settings = self._traced_settings() if training else ()
        key = (tuple(input_shape), target_shape, training, with_loss, settings)
        if key not in self._prepared:
            if len(input_shape) < 2:
                raise ConfigError(
                    f"input of shape {tuple(input_shape)} has no batch axis", code="OOC-110",
                    fix="images are (N, C, H, W)",
                )  # fmt: skip
            self._residence.adopt(self._tensors())  # settings may have brought new slots
            trace = self._trace(input_shape, target_shape, training, with_loss)
            self._prepared[key] = prepare(trace, self._fitted())
        return self._prepared[key]

    def _traced_settings(self) -> tuple[Any, ...]:
        """What a training trace depends on besides shapes: a change of it needs a new trace.

        These are the optimizer's settings except learning rates, which parameters are trained, and
        which parts of the model the user has set to evaluation mode.
        """
        groups = self.optimizer.param_groups
        constants = [{k: v for k, v in g.items() if k not in ("params", "lr")} for g in groups]
        trained = tuple(p.requires_grad for p in self._parameters)
        modes = tuple(part.training for part in self._parts) if self.model.training else ()
        return repr(constants), trained, () if all(modes) else modes

    def _trace(
        self, input_shape: tuple[int, ...], target_shape: tuple[int, ...] | None, training: bool,
        with_loss: bool,
    ) -> Trace:  # fmt: skip
        settings = self.settings
        return trace_step(
            self.model, input_shape, self.loss if with_loss else None,
            self.optimizer if training else None, settings.device, settings.thread_count,
            accumulate=self.accumulate if training else 1, training=training,
            conv_algorithm=self.conv_algorithm, target_shape=target_shape,
            clip=self.clip if training else None, allow_tf32=self.allow_tf32,
        )  # fmt: skip

    def _fitted(self) -> Settings:
        """The settings, a percentage being that of the first training step for all other shapes."""
        training = [p for (_, _, mode, *_), p in self._prepared.items() if mode]
        if self.settings.budget is None or not training:
            return self.settings
        return replace(self.settings, budget=training[0].budget_bytes)

    def _forward(self, x: np.ndarray, y: np.ndarray | None) -> dict[str, np.ndarray]:
        target_shape = None if y is None else np.shape(y)
        if self.prepared is None and self.settings.budget is not None:
            self.prepare(np.shape(x), target_shape)  # a percentage is that of the training step
        prepared = self._prepare_once(
            np.shape(x), target_shape, training=False, with_loss=y is not None
        )
        trace = prepared.plan.trace
        result = self._run(prepared, tuple(trace.outputs.values()), x, y)
        return {name: result.outputs[v] for name, v in trace.outputs.items()}

    def _run(
        self, prepared: PreparedStep, wanted: tuple[int, ...], x: np.ndarray, y: np.ndarray | None
    ) -> StepResult:
        inputs = input_values(prepared.plan.trace, x, y)
        session = self._residence.session(prepared, self.settings, wanted)
        try:
            result = session.run_step(inputs, self._scalars())
        except BaseException:
            self._residence.abandon()
            raise
        return result

    def _count_steps(self, steps_done: int) -> None:
        """Sets the number of finished steps, here and in the optimizer.

        The trainer never calls the optimizer's `step`, which would count; but its `state_dict` and
        other trainers need the number.
        """
        self._steps_done = steps_done
        self.optimizer.steps.update(dict.fromkeys(self._updated, steps_done))

    def _scalars(self) -> dict[str, float | int]:
        scalars = self.optimizer.scalars()
        return {**scalars, "step": self.steps_done, "seed": self.settings.seed}

    def _tensors(self) -> dict[str, Tensor]:
        """All that persists, by the names that traces give it."""
        found: dict[str, Tensor] = dict(self.model.named_parameters())
        found |= dict(self.model.named_buffers())
        for name, parameter in self.model.named_parameters():
            if self.optimizer.updates(parameter):
                slots = self.optimizer.slots(parameter)
                found |= {f"{name}.{slot}": tensor for slot, tensor in slots.items()}
        return found
