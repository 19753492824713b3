"""All that persists of a training run, by name: to a checkpoint and back.

The persistent state is the model's parameters and buffers, the optimizer's slots, and the number of
updates of each parameter. A parameter that was frozen for some steps has fewer updates than the run
has steps; Adam's bias correction depends on this number, so the file holds it wherever it differs.
Read next: `checkpoint.py` for the file itself, `train.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ooctrain.engine.eager import write_all
from ooctrain.engine.incore import named_tensors
from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tensor
from ooctrain.execution import checkpoint as files
from ooctrain.optim import Optimizer


def arrays_of(model: Module, optimizer: Optimizer) -> dict[str, np.ndarray]:
    """Copies of parameters, buffers and optimizer slots by name."""
    tensors = named_tensors(model, optimizer)
    return {name: np.array(each.storage.read(), order="C") for name, each in tensors.items()}


def save(
    path: str, model: Module, optimizer: Optimizer, run: files.RunState, keep: int = files.KEEP
) -> None:
    """Writes a checkpoint, whole or not at all.

    Args:
        path: path of the file, ".safetensors" by custom.
        run: where the run stands; its `updates` are filled in here.
        keep: files kept in all.

    Raises:
        CheckpointError: the file cannot be written.
    """
    counts = {name: optimizer.steps.get(p, 0) for name, p in _trained(model, optimizer).items()}
    others = {name: count for name, count in counts.items() if count != run.step}
    tensors = named_tensors(model, optimizer)
    values = {name: _Value(each) for name, each in tensors.items()}
    files.save(path, values, replace(run, updates=others), keep=keep)


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor's value as `files.save` takes it: fetched when its turn comes."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> np.ndarray:
        return self.tensor.storage.read()


def restore(
    found: files.Checkpoint,
    model: Module,
    optimizer: Optimizer,
    config: files.Expected | None = None,
) -> files.RunState:
    """Takes up a checkpoint: values, the number of steps, and of updates of each parameter.

    Args:
        config: settings that must be those of the saved run; or what makes them from its state.

    Raises:
        CheckpointError: of another model or run.
        Whatever is raised, nothing has changed, unless a disk fails that has just been read.
    """
    if config is not None:  # first: a setting explains best why arrays do not fit
        files.check_config(found, config(found.run) if callable(config) else config)
    tensors = named_tensors(model, optimizer)
    shapes = {
        # Shapes without bytes: the values themselves may be lost.
        name: np.broadcast_to(np.zeros((), tensor.dtype), tensor.shape)
        for name, tensor in tensors.items()
    }
    files.check_arrays(found, shapes)
    steps = {
        parameter: found.run.updates.get(name, found.run.step)
        for name, parameter in _trained(model, optimizer).items()
    }

    def take_up() -> None:
        optimizer.steps_done = found.run.step
        optimizer.steps.update(steps)

    arrays = found.arrays
    write_all(((t.storage, partial(arrays.__getitem__, n)) for n, t in tensors.items()), take_up)
    return found.run


def _trained(model: Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The model's parameters that the optimizer knows, by name."""
    return {name: p for name, p in model.named_parameters() if optimizer.updates(p)}
