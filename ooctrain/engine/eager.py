"""Eager mode: each call is computed at once, on the cores of this machine.

Eager and traced training use the same operations and the same tape; only this runner, which
computes arrays from the tape's calls, differs from `trace_runner.TraceRunner`. Arrays are kept in
physical layout (`step/op.py`), which stays hidden: `Storage.read()` is a logical (N, C, H, W) view.
Read next: `tensor.py`, then `tracing.py`.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from ooctrain.engine.finished import Finisher
from ooctrain.errors import OoctrainError, ShapeError, caller
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.step.op import (
    LINE_BYTES,
    Op,
    Scalars,
    Site,
    Spec,
    TensorLike,
    physical_shape,
    to_logical,
)
from ooctrain.step.presets import usable_cores
from ooctrain.step.user_values import as_numbers

#: Smaller values are malloc's. To larger ones it gives pages of their own whatever was freed before
#: (DEFAULT_MMAP_THRESHOLD_MAX in glibc's malloc.c).
_SMALL_BYTES, _LARGE_BYTES = 64 << 10, 32 << 20
_HAS_FORK = hasattr(mmap, "MAP_PRIVATE")


class Holder(Protocol):
    """Keeps a value in place of its storage for a while: a trainer, on its device."""

    @property
    def changes(self) -> int:
        """How often the value has changed there, `write` apart."""

    def read(self) -> np.ndarray | None:
        """A copy of the value, physical layout; None: it has left meanwhile."""

    def write(self, array: np.ndarray) -> bool:
        """Replaces the value; False: it does not keep it any more."""

    def leave(self) -> None:
        """Brings all that it keeps to the host, one value at a time."""


class Stored(TensorLike, Protocol):
    """A tensor as this runner sees it: something with a value."""

    storage: Any

    def value(self) -> Storage:
        """Where its value lies. Raises AutogradError where it has none."""

    def twin(self) -> Self:
        """Another tensor that stands for the same value."""


S = TypeVar("S", bound=Stored)


class Storage:
    """Where a tensor's value lies: in host memory, in physical layout, or with one holder.

    `version` grows with every change, `written_at` says where the last write came from; so the tape
    can distinguish a value that backward needs from one that was changed meanwhile.

    Args:
        physical: the value, or
        shape, initial: logical shape, and a function that makes the first value when it is first
            read; so a model of any size is built, traced and planned without drawing its weights.

    Attributes:
        holder: keeps the value now; None: it is here. Never two at a time.
    """

    __slots__ = ("_moving", "_physical", "_writes", "_written", "holder", "initial", "shape")

    def __init__(
        self, physical: np.ndarray | None = None, *, shape: tuple[int, ...] = (),
        initial: Callable[[], np.ndarray] | None = None,
    ):  # fmt: skip
        self._physical, self.initial = physical, initial
        self.shape = shape if physical is None else to_logical(physical).shape
        self._writes, self._written = 0, (0, "")
        self.holder: Holder | None = None
        self._moving = threading.Lock()

    @property
    def version(self) -> int:
        """Grows with every change of the value; moving the value does not count."""
        holder = self.holder
        return self._writes if holder is None else self._writes + holder.changes

    @property
    def written_at(self) -> str:
        """Where the value was changed last."""
        version, line = self._written
        return line if version == self.version else "a trainer's step"

    @property
    def physical(self) -> np.ndarray:
        """The value as it lies in memory; a copy where a holder has it."""
        while True:
            holder, physical = self.holder, self._physical
            if holder is not None:
                if (value := holder.read()) is not None:
                    return value
            elif physical is not None:
                return physical
            elif (initial := self.initial) is not None:
                self._begin(_kept(initial()))

    @property
    def leaving_bytes(self) -> int:
        """Memory that the system gets back when the value leaves; 0 where it is not here, has not
        been drawn, or is small."""
        physical = self._physical
        held = 0 if physical is None else physical.nbytes
        return held if held >= _SMALL_BYTES else 0

    def read(self) -> np.ndarray:
        """The value in logical layout; not to be written to. No copy where it is here."""
        return to_logical(self.physical)

    def assign(self, array: Any, dtype: str) -> None:
        """`write` of whatever is given. Raises ShapeError: no real numbers; TypeError: floats
        for whole numbers."""
        given = as_numbers(array, "the value")
        self.write(given.astype(dtype, casting="same_kind", copy=False))

    def write(self, array: np.ndarray, line: str = "") -> None:
        """Replaces the value by a copy of `array` (logical, same shape), and remembers which line
        of code did so: this one, or the caller's."""
        if np.shape(array) != self.shape:
            raise ShapeError(f"value of shape {np.shape(array)} does not fit {self.shape}")
        while not self._write_here(array):
            holder = self.holder
            if holder is not None and (holder.write(array) or self.take_back(_kept(array), holder)):
                self._writes += 1
                break
        self._written = self.version, line or _line_outside_library()

    @property
    def may_fail(self) -> int:
        """What a write may meet: 2: the device that keeps the value, 1: no memory for it, 0: only
        what is here is overwritten."""
        if self.holder is not None:
            return 2
        return 1 if self._physical is None else 0

    def undoing(self) -> Callable[[], object]:
        """What takes back the write that comes next, as far as one can fail after it."""
        if self.holder is not None:
            with suppress(OoctrainError):  # what was lost cannot be brought back either
                return partial(self.write, np.array(self.read()))
        elif self._physical is None:
            return self._forget
        return _nothing

    def _forget(self) -> None:
        """The first value is to be made, as before."""
        with self._moving:
            if self.holder is None:
                self._physical = None

    def _write_here(self, array: np.ndarray) -> bool:
        """`write` of a value that is not kept; False: something keeps it."""
        with self._moving:
            if self.holder is not None:
                return False
            if self._physical is None:
                self._physical = _kept(np.asarray(array))
            else:
                np.copyto(to_logical(self._physical), array, casting="same_kind")
            self._writes += 1
            return True

    def _begin(self, physical: np.ndarray) -> None:
        """Keeps the first value, unless another thread has begun with it meanwhile: its own may
        have been trained and come home since."""
        with self._moving:
            if self.holder is None and self._physical is None and self.initial is not None:
                self._physical = physical

    def lend(self, holder: Holder, before: Holder | None, version: int) -> bool:
        """Has `holder` keep the value from now on; the memory here is given back.

        Args:
            before, version: holder and version of the value that `holder` has got.

        Returns:
            False: meanwhile another one keeps or has changed the value; then it stays there.
        """
        with self._moving:
            if self.holder is not before or self.version != version:
                return False
            self._writes = self.version
            self.holder, self._physical, self.initial = holder, None, None
            return True

    def take_back(self, physical: np.ndarray, holder: Holder) -> bool:
        """Keeps the value here again. False: `holder` has it no more.

        Args:
            physical: becomes its own (`own_pages`).
        """
        with self._moving:
            if self.holder is not holder:
                return False
            self._writes = self.version
            self._physical, self.holder = physical, None
            return True

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a model is one of its values, wherever they are."""
        drawn = self.holder is not None or self._physical is not None
        physical = self.physical if drawn else None
        return _again, (physical, self.shape, self.initial, self.version, self._written)


def _nothing() -> None:
    """There is nothing to do."""


def _again(
    physical: np.ndarray | None, shape: tuple[int, ...], initial: Any, version: int,
    written: tuple[int, str],
) -> Storage:  # fmt: skip
    """A storage from what a copy of it is made of."""
    copy = Storage(physical, shape=shape, initial=initial)
    copy._writes, copy._written = version, written
    return copy


#: Where a value belongs, and what gives it: a logical array of its shape and element type.
Written = tuple[Storage, Callable[[], np.ndarray]]


def write_all(values: Iterable[Written], then: Callable[[], object] = _nothing) -> None:
    """Writes several values: all of them or, where something is raised, none. An interrupt comes
    before it or after it.

    Holders bring their values to the host first, where a write cannot fail: a copy of each value to
    be taken back, beside a whole device, is memory that no budget has counted. What may fail still,
    since a holder has fetched it again, comes first and is taken back.

    Args:
        values: each is requested when its turn comes, so that one of a file takes its memory alone.
        then: is done with it; cannot fail.
    """
    finisher = Finisher()
    try:
        finisher.do(partial(_write_all, list(values), then, _line_outside_library()))
    finally:
        finisher.close()


def _write_all(values: list[Written], then: Callable[[], object], line: str) -> None:
    undoing: list[Callable[[], object]] = []
    for storage, _ in values:
        if (holder := storage.holder) is not None:
            holder.leave()
    try:
        for storage, value in sorted(values, key=lambda pair: -pair[0].may_fail):
            array = value()
            undoing.append(storage.undoing())
            storage.write(array, line)
    except BaseException:
        for undo in reversed(undoing):
            with suppress(OoctrainError):  # of what has just failed, and has kept its value
                undo()
        raise
    then()


def own_pages(size_bytes: int) -> np.ndarray:
    """Bytes, not written yet, that the system gets back as soon as no reference is left.

    What malloc gets back may stay with the process; a trainer's values, which come home when its
    session closes and leave when the next one opens, would be there twice.
    """
    if not _SMALL_BYTES <= size_bytes < _LARGE_BYTES:
        return np.empty(size_bytes, np.uint8)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if _HAS_FORK else {}
    return np.frombuffer(mmap.mmap(-1, size_bytes, **private), np.uint8)


def _kept(array: np.ndarray) -> np.ndarray:
    """A copy of a logical array, in physical layout and in pages of its own."""
    pages = own_pages(array.nbytes).view(array.dtype)
    physical = pages.reshape(physical_shape(array.shape))
    np.copyto(to_logical(physical), array)
    return physical


class EagerRunner:
    """Computes every call with its kernel.

    Args:
        threads: threads of the kernels; None: one for each core that this process may use.
    """

    def __init__(self, threads: int | None = None):
        self.threads = threads or usable_cores()
        self._pool: Any = None

    def run(
        self, op: Op, ins: Sequence[Stored], outs: Sequence[Stored], site: Site, scalars: Scalars
    ) -> None:
        """Computes `outs` and gives each its storage."""
        arrays = [tensor.value().physical for tensor in ins]
        self._pool = self._pool or make_pool(self.threads)
        results = run_cpu(op, self._pool, arrays, [t.spec for t in outs], scalars)
        for tensor, result in zip(outs, results, strict=True):
            tensor.storage = Storage(result)

    def assign(self, target: Stored, new: Stored) -> None:
        """A parameter or state takes a new value in place."""
        target.value().write(new.value().read())

    def constant(self, tensor: S) -> S:
        """The same value; the tape notices if it is written before backward reads it."""
        return tensor.twin()


def make_pool(threads: int) -> Any:
    """A pool of kernel threads."""
    # Not at the top: it loads Numba, which planning alone never needs.
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
    frame, _ = caller()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
