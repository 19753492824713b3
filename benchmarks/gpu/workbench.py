"""Single operations on the GPU: as a function of NumPy arrays, and many times against the clock.

All arrays of one run lie in one piece of device memory with guard bytes between them, which is
copied to the GPU and back as a whole, so a kernel that writes outside its arrays is seen here too.
What is timed, in microseconds, is a graph of many calls, behind another that keeps the GPU at work
while the host queues: the GPU's own time, whatever a launch costs the host. Read next:
`kernels.py`, `kernel_speed.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np

from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.step.op import Op, Scalars, Spec, physical_shape
from ooctrain.testing.check_op import SCALARS

ALIGN_BYTES, GAP_BYTES, GUARD = 256, 256, 0xA5
#: Timed together so long, and so often; the median counts.
ROUND_US, ROUNDS, MOST_REPEATS = 20_000.0, 5, 100


class Workbench:
    """A GPU with one stream and one piece of memory; `close` gives all back.

    Attributes:
        waited: whether the GPU waited for the host in a round of the last timing, so that the time
            is the host's too.
    """

    def __init__(self, size_bytes: int, host_bytes: int):
        self._held = ExitStack()
        self.driver = cuda_open.open_cuda_driver()
        self._held.callback(self.driver.close)
        self.size_bytes, self.waited = size_bytes, False
        try:
            self.stream = self.driver.create_stream()
            self._held.callback(self.driver.destroy_stream, self.stream)
            self.address = self.driver.allocate(size_bytes)
            self._held.callback(self.driver.free, self.address)
            self._host = self.driver.host_alloc(host_bytes)
            self._held.callback(self.driver.host_free, self._host)
            self._events = [self.driver.create_event(timing=True) for _ in range(2)]
            for event in self._events:
                self._held.callback(self.driver.destroy_event, event)
            rng = np.random.default_rng(0)
            self._random = rng.standard_normal(host_bytes // 4, np.float32).view(np.uint8)
            self.kernels = cuda_open.make_kernels(self.driver, self.stream)
        except BaseException:
            self._held.close()
            raise

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, *error: object) -> None:
        self.driver.synchronize_stream(self.stream)
        self._held.close()

    def run(
        self, op: Op, ins: Sequence[np.ndarray], outs: Sequence[np.ndarray], workspace: np.ndarray,
        scalars: Scalars,
    ) -> None:  # fmt: skip
        """Runs an operation on physical arrays; writes `outs` and `workspace` as on the cpu.

        Raises:
            AssertionError: a byte beside the arrays was changed.
        """
        arrays = [*ins, *outs, workspace]
        offsets = _places(arrays)
        total = max((at + a.nbytes for at, a in zip(offsets, arrays, strict=True)), default=0)
        image = np.full(total + GAP_BYTES, GUARD, np.uint8)
        inside = np.zeros(image.size, bool)
        for at, array in zip(offsets, arrays, strict=True):
            image[at : at + array.nbytes] = _bytes_of(array)
            inside[at : at + array.nbytes] = True
        self._write(image)
        views = [self._view(at, a) for at, a in zip(offsets, arrays, strict=True)]
        first, last = len(ins), len(ins) + len(outs)
        self.kernels.launch(op, views[:first], views[first:last], views[last], scalars)
        found = self._read(image.size)
        assert (found[~inside] == GUARD).all(), f"{op.name}: wrote beside its arrays"
        for at, array in zip(offsets, arrays, strict=True):
            _bytes_of(array)[...] = found[at : at + array.nbytes]

    def time_op(self, op: Op, specs: Sequence[Spec]) -> float:
        """Microseconds of one call of an operation on random values of the given shapes."""
        outs = op.infer(*specs)
        space = Spec((CUDA.workspace_bytes(op, specs, outs, 1),), "uint8")
        views, at = [], 0
        for place, spec in enumerate((*specs, *outs)):
            if place < len(specs):
                self._fill(at, spec)
            shape = physical_shape(spec.shape)
            views.append(self.kernels.array(self.address + at, shape, spec.dtype))
            at += _rounded(spec.nbytes)
        space_view = self.kernels.array(self.address + at, space.shape, "uint8")
        assert at + space.shape[0] <= self.size_bytes, "the workbench is too small"
        first = len(specs)
        return self.time_us(
            lambda: self.kernels.launch(op, views[:first], views[first:], space_view, SCALARS)
        )

    def time_us(self, queue: Callable[[], object]) -> float:
        """Microseconds of what a function queues on the stream, by the GPU's own clock."""
        queue()  # once before, since it may compile and load
        self.driver.synchronize_stream(self.stream)
        once_us = self._rounds_us(queue, 2, 1)
        repeats = int(min(MOST_REPEATS, max(1.0, ROUND_US / max(once_us, 1.0))))
        return self._rounds_us(queue, repeats, ROUNDS)

    def _rounds_us(self, queue: Callable[[], object], repeats: int, rounds: int) -> float:
        """The median of one call's time."""
        self.waited = False
        with ExitStack() as held:
            run = self._repeated(queue, repeats, held)
            return median(self._round_us(run) for _ in range(rounds)) / repeats

    def _repeated(
        self, queue: Callable[[], object], repeats: int, held: ExitStack
    ) -> Callable[[], object]:
        """Queues all calls: as one graph where the driver has graphs."""
        driver: Any = self.driver
        if not hasattr(driver, "begin_capture"):  # a double of one

            def one_by_one() -> None:
                for _ in range(repeats):
                    queue()

            return one_by_one
        driver.begin_capture(self.stream)
        try:
            for _ in range(repeats):
                queue()
        finally:
            graph = driver.end_capture(self.stream)
        held.callback(driver.destroy_graph, graph)
        return lambda: driver.launch_graph(graph, self.stream)

    def _round_us(self, run: Callable[[], object]) -> float:
        begin, end = self._events
        run()  # the GPU is at work until all is queued
        self.driver.record_event(begin, self.stream)
        run()
        self.driver.record_event(end, self.stream)
        self.waited |= self.driver.event_done(begin)
        self.driver.synchronize_stream(self.stream)
        return max(self.driver.elapsed_us(begin, end), 1e-3)

    def _fill(self, at: int, spec: Spec) -> None:
        """Random values, the same ones over and over; whole numbers are zero."""
        data = self._random if spec.dtype == "float32" else np.zeros(self._random.size, np.uint8)
        for offset in range(0, spec.nbytes, data.size):
            self._write(data[: spec.nbytes - offset], at + offset)

    def _view(self, at: int, array: np.ndarray) -> Any:
        return self.kernels.array(self.address + at, array.shape, array.dtype.name)

    def _write(self, data: np.ndarray, at: int = 0) -> None:
        bytes_at(self._host, data.size)[...] = data
        self.driver.copy_in(self.address + at, self._host, data.size, self.stream)
        self.driver.synchronize_stream(self.stream)

    def _read(self, size_bytes: int) -> np.ndarray:
        self.driver.copy_out(self._host, self.address, size_bytes, self.stream)
        self.driver.synchronize_stream(self.stream)
        return bytes_at(self._host, size_bytes).copy()


def _places(arrays: Sequence[np.ndarray]) -> list[int]:
    """Offsets of arrays with gaps between them; an array that stands twice has one place."""
    known: dict[int, int] = {}
    offsets, at = [], GAP_BYTES
    for array in arrays:
        if id(array) not in known:
            known[id(array)] = at
            at += _rounded(array.nbytes) + GAP_BYTES
        offsets.append(known[id(array)])
    return offsets


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
