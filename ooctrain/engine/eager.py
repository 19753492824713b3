"""Eager mode: each call is computed at once, on the cores of this machine.

In: calls from the tape. Out: arrays. The one idea: eager and traced training use the same
operations and the same tape; only this runner differs from `tracing.TraceRunner`. Arrays lie in
physical layout (`step/op.py`), which nobody sees from outside: `Storage.read()` is a logical (N, C,
H, W) view. Read next: `tensor.py`, then `tracing.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from ooctrain.engine.site import Site
from ooctrain.errors import AutogradError, ShapeError
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.step.op import (
    LINE_BYTES,
    Op,
    Scalars,
    Spec,
    TensorLike,
    physical_shape,
    to_logical,
    to_physical,
)
from ooctrain.step.presets import usable_cores


class Storage(Protocol):
    """Where a tensor's value lies: in host memory here, or on a trainer's device between steps.

    `version` grows with every write, `written_at` says where the last one came from; so the tape
    can tell a value that backward needs from one that was changed meanwhile.
    """

    version: int
    written_at: str

    def read(self) -> np.ndarray:
        """The value in logical layout; a view, not to be written to."""

    def write(self, array: np.ndarray) -> None:
        """Replaces the value by `array` (logical, same shape)."""


class Stored(TensorLike, Protocol):
    """A tensor as this runner sees it: something with a value."""

    storage: Any

    def value(self) -> Storage:
        """Where its value lies. Raises AutogradError where it has none."""

    def detach(self) -> Self:
        """The same value, without its history."""


S = TypeVar("S", bound=Stored)


class HostStorage:
    """A value in host memory, in physical layout.

    Args:
        physical: the value, or
        shape, initial: logical shape, and a function that makes the first value when it is first
            read; so a model of any size is built, traced and planned without drawing its weights.
    """

    __slots__ = ("_physical", "initial", "shape", "version", "written_at")

    def __init__(
        self, physical: np.ndarray | None = None, *, shape: tuple[int, ...] = (),
        initial: Callable[[], np.ndarray] | None = None,
    ):  # fmt: skip
        self._physical, self.initial = physical, initial
        self.shape = shape if physical is None else to_logical(physical).shape
        self.version, self.written_at = 0, ""

    @property
    def physical(self) -> np.ndarray:
        """The value as it lies in memory."""
        if self._physical is None:
            if self.initial is None:
                raise AutogradError(
                    "this value has moved to a trainer's device",
                    fix="read it through the model's own parameter, or close the trainer first",
                )
            self._physical = to_physical(self.initial())
        return self._physical

    def read(self) -> np.ndarray:
        """The value as a logical view (no copy)."""
        return to_logical(self.physical)

    def write(self, array: np.ndarray) -> None:
        """Copies `array` over the value, and remembers which line of code did so."""
        if np.shape(array) != self.shape:
            raise ShapeError(f"value of shape {np.shape(array)} does not fit {self.shape}")
        if self._physical is None:
            self._physical = np.array(to_physical(np.asarray(array)))
        else:
            np.copyto(self.read(), array, casting="same_kind")
        self.version += 1
        self.written_at = _line_outside_library()

    def release(self) -> None:
        """Forgets the value, which lives elsewhere from now on; `write` brings one back."""
        self._physical = self.initial = None


class EagerRunner:
    """Computes every call with its kernel.

    Args:
        threads: of the kernels; None: one for each core that this process may use.
    """

    def __init__(self, threads: int | None = None):
        self.threads = threads or usable_cores()
        self._pool: Any = None

    def run(
        self, op: Op, ins: Sequence[Stored], outs: Sequence[Stored], site: Site, scalars: Scalars
    ) -> None:
        """Computes `outs` and gives each its storage."""
        arrays = [physical_value(tensor) for tensor in ins]
        self._pool = self._pool or make_pool(self.threads)
        results = run_cpu(op, self._pool, arrays, [tensor.spec for tensor in outs], scalars)
        for tensor, result in zip(outs, results, strict=True):
            tensor.storage = HostStorage(result)

    def assign(self, target: Stored, new: Stored) -> None:
        """A parameter or state takes a new value in place."""
        target.value().write(new.value().read())

    def constant(self, tensor: S) -> S:
        """The same value; the tape notices if it is written before backward reads it."""
        return tensor.detach()


def physical_value(tensor: Stored) -> np.ndarray:
    """A tensor's value as a contiguous physical array (no copy where it lies so already)."""
    storage = tensor.value()
    return storage.physical if isinstance(storage, HostStorage) else to_physical(storage.read())


def make_pool(threads: int) -> Any:
    """A pool of kernel threads."""
    # Not at the top: it loads Numba, which whoever only plans never waits for.
    from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool

    return ThreadPool(threads)


def run_cpu(
    op: Op, pool: Any, ins: Sequence[np.ndarray], outs: Sequence[Spec], scalars: Scalars
) -> list[np.ndarray]:
    """Outputs of the kernel in new arrays, with a workspace of exactly the stated size."""
    in_specs = [Spec(to_logical(array).shape, str(array.dtype)) for array in ins]
    results = [np.empty(physical_shape(spec.shape), spec.dtype) for spec in outs]
    workspace = aligned_bytes(CPU.workspace_bytes(op, in_specs, outs, pool.threads))
    CPU.run(op, pool, ins, results, workspace, scalars)
    return results


def aligned_bytes(size_bytes: int) -> np.ndarray:
    """Scratch that starts at a cache line, as on the device."""
    raw = np.empty(size_bytes + LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + size_bytes]


def _line_outside_library() -> str:
    """File and line of the nearest caller that is not part of this package."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("ooctrain."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
