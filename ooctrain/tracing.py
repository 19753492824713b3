"""Traces: a model's training step as calls over variables, without computing anything.

From a model, shapes, a loss and an optimizer comes a `trace.Trace`. The model is called as usual,
but on a tape whose runner records shapes and sizes instead of computing. A 20480 x 20480 VGG-16 is
therefore traced in a fraction of a second and needs no memory. Each parameter's update is recorded
as soon as its gradient is complete. Read next: `engine/trace_runner.py`, that runner;
`step/trace.py`, `nn/named_losses.py`, `engine/incore.py`, `rewrite/`, `sched/schedule.py`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ooctrain.distributed.ranks import Ranks
from ooctrain.distributed.recording import Sharing
from ooctrain.engine.autograd import no_grad
from ooctrain.engine.backward import record_backward
from ooctrain.engine.clip import Clip, ClipNorm, as_clip, gradient_of
from ooctrain.engine.draws import Generators, is_traced_every_step, refuse
from ooctrain.engine.incore import named_tensors
from ooctrain.engine.module import Module
from ooctrain.engine.nested import TargetGiven, taken_apart
from ooctrain.engine.parameter import Parameter
from ooctrain.engine.parts import Parts
from ooctrain.engine.tensor import Tape, Tensor, use_tape
from ooctrain.engine.trace_runner import TraceRunner
from ooctrain.errors import ConfigError, ShapeError, warn
from ooctrain.layers.conv2d import algorithm_for
from ooctrain.nn.containers import tilings_wanted
from ooctrain.nn.named_losses import Loss, named_loss, target_of
from ooctrain.nn.plain import FromBytes
from ooctrain.optim import Optimizer
from ooctrain.optim.algorithms import get_optimizer
from ooctrain.rewrite.tile import remark_by_name, tile_by_name
from ooctrain.step.arguments import checked_but
from ooctrain.step.op import Spec
from ooctrain.step.presets import usable_cores
from ooctrain.step.trace import Trace


@checked_but("input_shape")
def trace(
    model: Module, input_shape: Sequence[int], loss: str | Loss | None = "cross_entropy",
    optimizer: str | Optimizer | None = "sgd", device: str = "cpu", threads: int | None = None,
    keep_gradients: bool = False, *, accumulate: int = 1, training: bool = True,
    conv_algorithm: str = "auto", target_shape: Sequence[int] | None = None,
    clip: Clip | float | None = None, allow_tf32: bool = False,
    looked_at: dict[Any, Any] | None = None, ranks: Ranks | None = None,
    target_dtype: str | None = None,
) -> Trace:  # fmt: skip
    """The training step of a model as a trace, each of its parts in the mode that it is in.

    Args: input_shape: of the whole batch, (N, C, H, W), float32; uint8 for a model with
    `nn.FromBytes`. loss: "cross_entropy" (of a model with an `OwnLoss`: that), "mse", "l1", or a
    function of (output, target); None with `training=False`. optimizer: by name
    (`optim/algorithms.py`; "sgd" has momentum 0.9), itself, or None for gradients alone. device:
    "cpu" or "cuda": what algorithms and workspaces are chosen for. threads: of the cpu device;
    None: one for each core that this process may use. keep_gradients: hand out the gradients as
    backward leaves them; else clipped ones are handed out, and the clipping may overwrite what it
    reads. accumulate: k: the batch goes through in k parts one after the other, which are equal or
    one sample apart; a batch of fewer samples in as many as it has. Loss and gradients are those of
    the batch: means over labels are divided by the weight of all that count, sums are added, and
    what other operations make is taken for a mean over samples. Batch-norm statistics are those of
    each part. training: False: the forward pass of an evaluation, with outputs "output" and "loss"
    (if any); of a model with several outputs "output.0", "output.aux" and so on. conv_algorithm:
    "auto", "direct", "im2col", "winograd2" or "winograd4"; on a GPU "auto" or one of
    `layers.conv2d.CUDA_ALGORITHMS`. target_shape: of the target, where the loss is a function of
    your own and takes no class numbers, or takes class probabilities. target_dtype: of the target,
    "float32" or "int64"; None: float32 if it has the shape of an output. clip: `ClipNorm`,
    `ClipEach`, or a number for the norm. allow_tf32: on a GPU, "auto" convolutions round their
    inputs to TF32 (10 bits of mantissa) for the tensor cores. looked_at: is filled with what the
    trace depends on, apart from arguments and shapes, {tensor: its value} and {module that was
    called: None}. ranks: that take a part of the batch each; `input_shape` is that of this rank's
    part.

    Returns:
        A checked trace with outputs "loss" and "grad:<parameter>".

    Raises:
        ConfigError: unknown names, or a batch that cannot be parted.
        ShapeError: the model does not fit the input.
        NotRepeatable: it draws random numbers with `random`, `numpy.random` or a generator that it
            holds, and is not marked (`oc.traced_every_step`).

    Cost: time and memory O(calls); no array is made.
    """
    algorithm = algorithm_for(device, conv_algorithm, allow_tf32)
    if threads is not None and threads < 1:
        raise ConfigError(f"{threads} threads are too few", code="OOC-106", fix="threads=1 or more")
    if accumulate < 1:
        raise ConfigError(
            f"accumulate {accumulate} parts are too few", code="OOC-106", fix="accumulate=1 or more"
        )
    shape = _batch_shape(input_shape)
    with ONE_TRACE.get():
        update = named_optimizer(optimizer, model) if training and optimizer is not None else None
        names = {tensor: name for name, tensor in named_tensors(model, update).items()}
        judged = named_loss(loss, model) if training or loss else None
        target = None if target_shape is None else TargetGiven(tuple(target_shape), target_dtype)

        def record() -> TraceRunner:
            runner = TraceRunner(threads or usable_cores(), names, device)
            tape = Tape(runner, algorithm, looked_at=looked_at)
            step = _Step(runner, tape, update, as_clip(clip), keep_gradients)
            if training and min(accumulate, shape[0]) > 1:
                runner.parts = tape.parts = Parts(min(accumulate, shape[0]), shape[0])
            if training and ranks is not None and ranks.count > 1:
                step.share(ranks, device, accumulate)
            with use_tape(tape), _named(names):
                if training:
                    assert judged is not None
                    step.train(model, shape, judged, target)
                else:
                    with _evaluating(model):
                        step.evaluate(model, shape, judged, target)
            return runner

        return _tiled(_recorded(record, model, loss).builder.build(), model, accumulate)


def _recorded(record: Callable[[], TraceRunner], model: Module, loss: object) -> TraceRunner:
    """What is recorded once. Raises NotRepeatable: random numbers were drawn meanwhile."""
    if is_traced_every_step(model, loss):
        return record()
    generators = Generators(model, loss)
    runner = record()
    if line := generators.drawn(record):
        refuse(line)
    return runner


def _tiled(step: Trace, model: Module, accumulate: int) -> Trace:
    """The step with those parts of the model in tiles that want to be (`nn.Sequential.tiled`).

    Raises:
        ConfigError: one of their operations has no row rule, or parts of a batch are accumulated.
    """
    tilings = tilings_wanted(step, model)
    if tilings and accumulate > 1:
        raise ConfigError(
            f"{tilings[0]} is tiled, and a step accumulates {accumulate} parts",
            code="OOC-113", fix="accumulate=1: bands take images one after the other anyway",
        )  # fmt: skip
    for tiling in tilings:
        if remark := remark_by_name(step, tiling):
            warn(remark)
        step = tile_by_name(step, tiling)
    return step


@dataclass
class _Step:
    """Records one step: forward, loss, backward, updates."""

    runner: TraceRunner
    tape: Tape
    optimizer: Optimizer | None
    clip: Clip | None
    keep_gradients: bool
    sharing: Sharing | None = None

    def share(self, ranks: Ranks, device: str, accumulate: int) -> None:
        """The step takes one rank's part of a batch. Raises ConfigError: it cannot."""
        if device != "cpu" or accumulate > 1:
            raise ConfigError(
                f"{ranks.count} ranks on device {device!r} with accumulate {accumulate}",
                fix="device cpu, and accumulate 1: each rank takes one part of the batch, and a "
                "smaller budget does the rest",
            )
        self.sharing = Sharing(ranks, self.tape, self._complete)
        self.runner.parts = self.tape.parts = self.sharing.part

    def evaluate(
        self,
        model: Module,
        shape: tuple[int, ...],
        loss: Loss | None,
        given: TargetGiven | None,
    ) -> None:
        with no_grad():
            output = model(self.runner.input("input", image_spec(model, shape)))
            found, form = taken_apart(output, "output")
            for name, tensor in found.items():
                made = self.runner.makes(tensor)
                self._hand_out(name, tensor if made else tensor * 1.0)  # a copy of what is there
            self.runner.builder.form = None if isinstance(output, Tensor) else form
            if loss is not None:
                target = self.runner.input("target", target_of(model, loss, output, given))
                with self.tape.at(phase="loss"):
                    self._hand_out("loss", _tensor(loss(output, target)))

    def train(
        self,
        model: Module,
        shape: tuple[int, ...],
        loss: Loss,
        given: TargetGiven | None,
    ) -> None:
        sharing, divided = self.sharing, self.tape.parts
        parts = divided.count if divided is not None and sharing is None else 1
        batch = self.runner.input("input", image_spec(model, shape))
        targets: Tensor | None = None
        total: Tensor | None = None
        for part in range(parts):
            if divided is not None:
                self.tape.begin_part(part)
            cut = divided if sharing is None else None  # else each rank has its own part already
            output = model(_part(batch, cut))
            if targets is None:
                spec = target_of(model, loss, output, given, cut)
                targets = self.runner.input("target", spec)
            with self.tape.at(phase="loss"):
                target = _part(targets, cut)
                if divided is not None:
                    whole = targets if sharing is None else sharing.whole_target(targets)
                    divided.cut(target, whole)
                value = _tensor(loss(output, target))
                value = value if divided is None else value * divided.share
                if sharing is not None:
                    sharing.send_loss(value.detach())
                # Before the backward pass: the loss is known when the first update comes.
                total = value.detach() if total is None else total + value.detach()
            last = part == parts - 1
            record_backward(self.tape, value, on_gradient=self._on_gradient if last else None)
        assert total is not None, "there is at least one part"
        self._hand_out("loss", total if sharing is None else sharing.end())
        self._end()

    def _on_gradient(self, parameter: Tensor) -> None:
        """This process's gradient is complete."""
        if self.sharing is None:
            self._complete(parameter)
        else:
            self.sharing.gradient(parameter)

    def _complete(self, parameter: Tensor) -> None:
        """One gradient is complete: the parameter's update follows, unless all are needed first."""
        if self.keep_gradients or self.clip is None:
            self._hand_out(f"grad:{parameter.name}", gradient_of(parameter))
        if not isinstance(self.clip, ClipNorm):
            self._update([parameter])

    def _end(self) -> None:
        if isinstance(self.clip, ClipNorm):
            self._update(
                [p for p in self.runner.names if isinstance(p, Parameter) and p.grad is not None]
            )

    def _update(self, parameters: list[Tensor]) -> None:
        grads = self.clip.record(parameters) if self.clip else [gradient_of(p) for p in parameters]
        for parameter, grad in zip(parameters, grads, strict=True):
            self.runner.builder.outputs.setdefault(f"grad:{parameter.name}", grad.variable)
            if self.optimizer is not None and self.optimizer.updates(parameter):
                self.optimizer.record(parameter, grad)

    def _hand_out(self, name: str, tensor: Tensor) -> None:
        self.runner.builder.outputs[name] = tensor.variable


def _batch_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    """Raises ShapeError unless it is a batch of at least one sample."""
    shape = tuple(input_shape) if isinstance(input_shape, Sequence) else ()
    if not shape or any(not isinstance(n, Integral) or n < 1 for n in shape):
        raise ShapeError(
            f"{input_shape!r} is not the shape of a batch",
            fix="images are (N, C, H, W), each 1 or more",
        )
    return tuple(int(n) for n in shape)


def image_spec(model: Module, shape: tuple[int, ...]) -> Spec:
    """Bytes, if the model makes numbers of them; else float32."""
    return Spec(shape, "uint8" if takes_bytes(model) else "float32")


def takes_bytes(model: Module) -> bool:
    """Whether it makes numbers of bytes by itself."""
    return any(isinstance(module, FromBytes) for module in model.modules())


def _tensor(value: object) -> Tensor:
    """What a loss returned. Raises ConfigError: no tensor."""
    if not isinstance(value, Tensor):
        raise ConfigError(
            f"the loss function returned {type(value).__name__}, not a tensor", code="OOC-106",
            fix="return what operations on (output, target) give",
        )  # fmt: skip
    return value


def _part(batch: Tensor, parts: Parts | None) -> Tensor:
    """The part of a batch, or of its targets, that goes through now."""
    if parts is None:
        return batch
    rows = parts.rows_of(batch.shape[0])
    if rows is None:
        raise ConfigError(
            f"with accumulate a target of shape {batch.shape} cannot be cut by samples",
            code="OOC-106", fix="a target whose first axis is the batch's, or accumulate=1",
        )  # fmt: skip
    return batch[rows[0] : rows[1]]


def named_optimizer(optimizer: str | Optimizer, model: Module) -> Optimizer:
    """The optimizer that a name stands for; others as they are.

    Raises:
        ConfigError: an unknown optimizer, or a setting out of range.
    """
    if isinstance(optimizer, Optimizer):
        optimizer.check_settings()
        return optimizer
    return get_optimizer(optimizer, model.parameters())


class OneTrace:
    """One trace at a time in a process.

    While it lasts, a trace gives a model's parameters their names and takes their gradients, and an
    evaluation's takes its mode; two threads that trace one model would record each other's.
    """

    def __init__(self) -> None:
        self._process, self._turn = os.getpid(), threading.RLock()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self.__init__()  # type: ignore[misc]  # a fork: who had the turn is not here
        self._turn.acquire()

    def __exit__(self, *_: object) -> None:
        self._turn.release()


ONE_TRACE: ContextVar[OneTrace] = ContextVar(
    "ooctrain_one_trace", default=OneTrace()  # noqa: B039 - it is a lock
)  # fmt: skip


@contextmanager
def _named(names: Mapping[Tensor, str]) -> Iterator[None]:
    """Gives parameters and states their names; leaves eager mode's gradients as they were."""
    grads = {tensor: tensor.grad for tensor in names}
    for tensor, name in names.items():
        tensor.name, tensor.grad = name, None
    try:
        yield
    finally:
        for tensor, grad in grads.items():
            tensor.grad = grad


@contextmanager
def _evaluating(model: Module) -> Iterator[None]:
    """Evaluation mode for a while."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode
