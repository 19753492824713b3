"""Traces: a model's training step as calls over variables, without computing anything.

In: a model, shapes, a loss, an optimizer. Out: `trace.Trace`. The one idea: the model is called as
ever, on a tape whose runner writes down shapes and sizes instead of computing; a 20480 x 20480
VGG-16 traces in a fraction of a second and needs no memory. Each parameter's update is recorded as
soon as its gradient is complete. `run_trace` is the other direction: it computes a trace call by
call, in memory, and is what out-of-core runs are compared with. Read next: `trace.py`, `rewrite/`,
`sched/schedule.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from ooctrain import functional as F
from ooctrain.autograd import Site, Tape, Tensor, no_grad, use_tape
from ooctrain.eager import Mode, Storage, aligned_bytes, make_pool, run_reference
from ooctrain.errors import ConfigError
from ooctrain.layers.base import Op, Scalars, Spec, physical_shape, to_logical, to_physical
from ooctrain.module import Module, Parameter
from ooctrain.nn import CrossEntropyLoss
from ooctrain.optim import SGD, Adam, Optimizer
from ooctrain.trace import Call, Trace, TraceBuilder, Variable
from ooctrain.utils import Clip, ClipNorm, gradient_of

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: Mapping[str, Loss] = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss, "l1": F.l1_loss}
DEFAULT_LR = 0.1


@dataclass
class TraceRunner:
    """Writes each call into a `TraceBuilder`; computes nothing.

    Args:
        threads: of the device, which some workspaces depend on.
        names: of parameters, buffers and optimizer slots.
    """

    threads: int
    names: Mapping[Tensor, str]
    builder: TraceBuilder = field(default_factory=TraceBuilder)
    #: the variable that a parameter or state stands for at this point of the step
    bound: dict[Tensor, int] = field(default_factory=dict)

    def variable(self, tensor: Tensor) -> int:
        """The variable that a tensor is now; parameters and states become one when first read."""
        if tensor.variable is not None:
            return tensor.variable
        if tensor not in self.bound:
            if tensor not in self.names:
                raise ConfigError(
                    f"a tensor of shape {tensor.shape} made outside the model is used inside it",
                    fix="register it with register_buffer, or compute it from the input",
                )
            name, kind = self.names[tensor], tensor.kind
            self.bound[tensor] = self.builder.variable(name, tensor.shape, tensor.dtype, kind)
        return self.bound[tensor]

    def input(self, name: str, spec: Spec) -> Tensor:
        """A value that comes from the host in each step."""
        tensor = Tensor(spec, name=name, kind="input")
        tensor.variable = self.builder.variable(name, spec.shape, spec.dtype, "input")
        return tensor

    def run(
        self, op: Op, ins: Sequence[Tensor], outs: Sequence[Tensor], site: Site, scalars: Scalars
    ) -> int:
        """Notes a call and its outputs; returns its id."""
        in_ids = tuple(self.variable(tensor) for tensor in ins)
        for tensor in outs:
            tensor.variable = self.builder.variable(
                tensor.name, tensor.shape, tensor.dtype, tensor.kind
            )
            tensor.name = self.builder.variables[tensor.variable].name
        out_ids = tuple(tensor.variable for tensor in outs)
        workspace = op.workspace_bytes([t.spec for t in ins], [t.spec for t in outs], self.threads)
        # What changes state does so in place: the new value takes the old one's storage.
        reuse = None if op.pure else {out_ids[o]: in_ids[i] for o, i in op.reusable().items()}
        name = site.path if site.phase == "update" and not op.pure else site.call_name(op)
        return self.builder.call(
            name, op, in_ids, out_ids, workspace_bytes=workspace, reuse=reuse, pure=op.pure,
            phase=site.phase, forward_of=site.forward_of,
        )  # fmt: skip

    def assign(self, target: Tensor, new: Tensor) -> None:
        """From now on `target` is `new`, and in the next step `new` is the old one."""
        before, self.bound[target] = self.bound[target], new.variable
        self.builder.carries[new.variable] = self.builder.carries.pop(before, before)


def trace(
    model: Module, input_shape: Sequence[int], loss: str | Loss | None = "cross_entropy",
    optimizer: str | Optimizer | None = "sgd", device: str = "cpu", threads: int | None = None,
    keep_gradients: bool = False, *, accumulate: int = 1, training: bool = True,
    conv_algorithm: str = "auto", target_shape: Sequence[int] | None = None,
    clip: Clip | float | None = None,
) -> Trace:  # fmt: skip
    """The training step of a model as a trace.

    Args:
        input_shape: of the whole batch, (N, C, H, W).
        loss: "cross_entropy", "mse", "l1", or a function of (output, target); None with
            `training=False`.
        optimizer: "sgd" (momentum 0.9), "adam", an optimizer of `optim`, or None for gradients
            alone.
        device: "cpu"; what workspaces are computed for.
        threads: of the device; None: all cores.
        keep_gradients: hand out the gradients as backward leaves them; else clipped ones are handed
            out, and the clipping may overwrite what it reads.
        accumulate: k: the batch goes through in k parts one after the other, whose gradients are
            added; batch-norm statistics are those of each part.
        training: False: the forward pass of an evaluation, with outputs "output" and "loss" (if
            any).
        conv_algorithm: "auto", "direct", "im2col", "winograd2" or "winograd4".
        target_shape: of the target, where the loss is a function of your own and takes no class
            numbers.
        clip: `ClipNorm`, `ClipEach`, or a number for the norm.

    Returns:
        A checked trace with outputs "loss" and "grad:<parameter>".

    Raises:
        ConfigError: unknown names, or a batch that cannot be parted.
        ShapeError: the model does not fit the input.

    Cost: time and memory O(calls); no array is made.
    """
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"device {device!r} is neither 'cpu' nor 'cuda'", code="OOC-106")
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    names |= {buffer: name for name, buffer in model.named_buffers()}
    update = _optimizer(optimizer, model) if training else None
    if update is not None:
        names |= {
            slot: f"{names[p]}.{key}" for p in model.parameters() if _in(update, p)
            for key, slot in update.slots(p).items()
        }  # fmt: skip
    runner = TraceRunner(threads or os.cpu_count() or 1, names)
    tape = Tape(runner, conv_algorithm)
    step = _Step(
        runner,
        tape,
        update,
        ClipNorm(clip) if isinstance(clip, int | float) else clip,
        keep_gradients,
    )
    with use_tape(tape), _named(names), _mode(model, training):
        if training:
            step.train(model, tuple(input_shape), _loss(loss), target_shape, accumulate)
        else:
            step.evaluate(model, tuple(input_shape), _loss(loss) if loss else None, target_shape)
    return runner.builder.build()


@dataclass
class _Step:
    """Records one step: forward, loss, backward, updates."""

    runner: TraceRunner
    tape: Tape
    optimizer: Optimizer | None
    clip: Clip | None
    keep_gradients: bool

    def evaluate(
        self,
        model: Module,
        shape: tuple[int, ...],
        loss: Loss | None,
        target_shape: Sequence[int] | None,
    ) -> None:
        with no_grad():
            output = model(self.runner.input("input", Spec(shape)))
            self._hand_out("output", output)
            if loss is not None:
                target = self.runner.input("target", target_spec(loss, output, target_shape))
                with self.tape.at(phase="loss"):
                    self._hand_out("loss", loss(output, target))

    def train(
        self,
        model: Module,
        shape: tuple[int, ...],
        loss: Loss,
        target_shape: Sequence[int] | None,
        parts: int,
    ) -> None:
        if not 1 <= parts <= shape[0] or shape[0] % parts:
            raise ConfigError(
                f"a batch of {shape[0]} cannot be accumulated from {parts} equal parts",
                fix="choose a batch that is a multiple of accumulate",
            )
        batch = self.runner.input("input", Spec(shape))
        targets: Tensor | None = None
        total: Tensor | None = None
        for part in range(parts):
            output = model(_part(batch, part, parts))
            if targets is None:
                spec = target_spec(loss, output, target_shape, parts)
                targets = self.runner.input("target", spec)
            with self.tape.at(phase="loss"):
                value = loss(output, _part(targets, part, parts))
                value = value * (1 / parts) if parts > 1 else value
            last = part == parts - 1
            self.tape.backward(value, on_gradient=self._on_gradient if last else None)
            with self.tape.at(phase="loss"):
                total = value.detach() if total is None else total + value.detach()
        assert total is not None, "there is at least one part"
        self._hand_out("loss", total)
        self._end()

    def _on_gradient(self, parameter: Tensor) -> None:
        """The gradient of one parameter is complete: its update follows at once, unless all are
        needed.
        """
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
            if self.optimizer is not None and _in(self.optimizer, parameter):
                self.optimizer.record(parameter, grad)

    def _hand_out(self, name: str, tensor: Tensor) -> None:
        self.runner.builder.outputs[name] = tensor.variable


def target_spec(
    loss: Loss, output: Tensor, target_shape: Sequence[int] | None = None, parts: int = 1
) -> Spec:
    """Shape and type of the target that fits a loss: class numbers, or another output.

    Args:
        output: of one part of the batch; the target is for all `parts`.
        target_shape: as given by the user; with the output's own shape the target is float32.
    """
    whole = (output.shape[0] * parts, *output.shape[1:])
    if target_shape is not None:
        return Spec(tuple(target_shape), "float32" if tuple(target_shape) == whole else "int64")
    if loss in (F.mse_loss, F.l1_loss):
        return Spec(whole)
    from_class = loss is F.cross_entropy or isinstance(loss, CrossEntropyLoss)
    if not from_class and isinstance(loss, Module):
        return Spec(whole)
    return Spec((whole[0], *whole[2:]), "int64")


def storages(trace: Trace, model: Module, optimizer: Optimizer | None = None) -> dict[int, Storage]:
    """Where the values of a trace's persistent variables lie: {variable: storage}.

    Slots of an optimizer that is not given are left out (they begin with zeros).
    """
    by_name: dict[str, Storage] = {name: p.storage for name, p in model.named_parameters()}
    by_name |= {name: buffer.storage for name, buffer in model.named_buffers()}
    if optimizer is not None:
        for name, parameter in model.named_parameters():
            if _in(optimizer, parameter):
                slots = optimizer.slots(parameter).items()
                by_name |= {f"{name}.{slot}": tensor.storage for slot, tensor in slots}
    persistent = [trace.variables[v] for v in trace.initial if trace.variables[v].persistent]
    return {v.id: by_name[v.name] for v in persistent if v.name in by_name}


def initial_values(
    trace: Trace, model: Module, optimizer: Optimizer | None = None
) -> dict[str, np.ndarray]:
    """Copies of the persistent variables' values before the step, by name; slots of no optimizer
    are 0.
    """
    found = storages(trace, model, optimizer)
    return {
        variable.name: np.array(found[variable.id].read())
        if variable.id in found
        else np.zeros(variable.shape, variable.dtype)
        for variable in (trace.variables[v] for v in trace.initial)
        if variable.persistent
    }


def run_trace(
    trace: Trace, values: Mapping[str, np.ndarray], scalars: Scalars, mode: Mode = "cpu",
    *, wanted: Sequence[str] = (), threads: int = 1,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Computes a trace in memory, one call after the other: what out-of-core runs are compared
    with.

    Args:
        values: {name: logical array} of all initial variables; they are not changed.
        scalars: the step scalars, {"lr": 0.1, "step": 0, "seed": 0}.
        mode: "cpu": the kernels, in place where the trace says so; "reference": the NumPy
            definitions in float64, never in place.
        wanted: names of variables to hand out besides.
        threads: of the kernels, no more than the trace was made for.

    Returns:
        Logical arrays: the trace's outputs by output name, the next values of carried variables by
            the name of the old ones, and `wanted` by variable name.
    """
    held = {v: _initial(trace.variables[v], values, mode) for v in trace.initial}
    handed_out = {**trace.outputs}
    handed_out |= {trace.variables[old].name: new for new, old in trace.carries.items()}
    asked = {name: trace.variable_by_name[name].id for name in wanted}
    # As the executor does: results are taken when their last call is done, the others when written.
    due: dict[int | None, list[tuple[str, int]]] = {}
    for name, v in handed_out.items():
        due.setdefault(trace.uses[v][-1] if trace.uses[v] else None, []).append((name, v))
    for name, v in asked.items():
        due.setdefault(trace.producer[v], []).append((name, v))
    found = {name: to_logical(held[v]).copy() for name, v in due.get(None, [])}
    pool = make_pool(threads) if mode == "cpu" else None
    for call in trace.calls:
        ins = [held[v] for v in call.ins]
        if pool is None:
            outs = run_reference(call.op, ins, scalars)
        else:
            outs = _run_cpu(trace, call, held, pool, scalars)
        held |= zip(call.outs, outs, strict=True)
        found |= {name: to_logical(held[v]).copy() for name, v in due.get(call.id, [])}
        for v in call.touched():
            if trace.uses[v][-1] == call.id:
                del held[v]
    if pool is not None:
        pool.close()
    return found


def _run_cpu(
    trace: Trace, call: Call, held: Mapping[int, np.ndarray], pool, scalars: Scalars
) -> list[np.ndarray]:
    outs = [trace.variables[v] for v in call.outs]
    arrays = [
        held[call.reuse[v.id]].reshape(physical_shape(v.shape))
        if v.id in call.reuse
        else np.empty(physical_shape(v.shape), v.dtype)
        for v in outs
    ]
    specs = [
        [Spec(v.shape, v.dtype) for v in side]
        for side in (map(trace.variables.__getitem__, call.ins), outs)
    ]
    if call.op.workspace_bytes(*specs, pool.threads) > call.workspace_bytes:
        raise ConfigError(
            f"this trace was made for fewer than {pool.threads} threads", where=call.name
        )
    workspace = aligned_bytes(call.workspace_bytes)
    call.op.cpu(pool, [held[v] for v in call.ins], arrays, workspace, scalars)
    return arrays


def _initial(variable: Variable, values: Mapping[str, np.ndarray], mode: Mode) -> np.ndarray:
    value = np.asarray(values[variable.name])
    if value.shape != variable.shape:
        raise ConfigError(
            f"{variable.name!r} has shape {variable.shape}, got {value.shape}", code="OOC-110"
        )
    exact = mode == "reference" and variable.dtype == "float32"
    return np.array(to_physical(value.astype("float64" if exact else variable.dtype)), order="C")


def _part(batch: Tensor, part: int, parts: int) -> Tensor:
    rows = batch.shape[0] // parts
    return batch if parts == 1 else batch[part * rows : (part + 1) * rows]


def _loss(loss: str | Loss | None) -> Loss:
    if callable(loss):
        return loss
    if loss is None or loss not in LOSSES:
        raise ConfigError(
            f"no loss {loss!r}", code="OOC-106", fix=f"one of {', '.join(LOSSES)}, or a function"
        )
    return LOSSES[loss]


def _optimizer(optimizer: str | Optimizer | None, model: Module) -> Optimizer | None:
    if not isinstance(optimizer, str):
        return optimizer
    if optimizer == "sgd":
        return SGD(model.parameters(), lr=DEFAULT_LR, momentum=0.9)
    if optimizer == "adam":
        return Adam(model.parameters())
    raise ConfigError(
        f"no optimizer {optimizer!r}", code="OOC-106", fix="sgd, adam, or one of oc.optim"
    )


def _in(optimizer: Optimizer, parameter: Tensor) -> bool:
    return any(parameter is other for group in optimizer.param_groups for other in group["params"])


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
def _mode(model: Module, training: bool) -> Iterator[None]:
    """Training or evaluation mode for a while. Parts that the user has set apart stay so in
    training.
    """
    before = [(module, module.training) for module in model.modules()]
    if not training or not model.training:
        model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode
