"""Operations that are bound to their shapes: in a warm step only addresses are filled in.

A training step repeats the same calls, but not always at the same addresses. What follows from the
operation and its shapes (which kernels, how they are cut, their arguments) is worked out at the
first call, by running the function that starts the operation's kernels with a recorder in place of
the pool. From then on each kernel costs one call of compiled code. The function is called where a
step scalar that it reads has changed; and every time if it looks at values, or if the operation
brings its own kernels. `../cuda/launches.py` is the same idea on a GPU. Read next:
`layers/kernels/cpu/runtime/kept.py`, `device.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ooctrain.devices.raw_bytes import array_at
from ooctrain.layers.kernels.cpu.runtime.kept import EveryTimeError, KernelCall, KernelRecorder
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool, run_in_python
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.kernels.kernel_table import WatchedScalars
from ooctrain.step.op import Op, Scalars, Spec, physical_shape

#: Inputs, outputs, workspace.
Arrays = tuple[Sequence[np.ndarray], Sequence[np.ndarray], np.ndarray]


class BoundOperation:
    """An operation on arrays of certain shapes.

    Args:
        pool: computes it.
        ins, outs: logical shapes.
        workspace_bytes: size of its workspace.
    """

    def __init__(
        self, pool: ThreadPool, op: Op, ins: Sequence[Spec], outs: Sequence[Spec],
        workspace_bytes: int,
    ):  # fmt: skip
        self._pool, self._op, self._split = pool, op, len(ins)
        self._shapes = [(physical_shape(spec.shape), spec.dtype) for spec in (*ins, *outs)]
        self._shapes.append(((workspace_bytes,), "uint8"))
        self._every_time = CPU.is_own(op)
        self._read: Mapping[str, float | int] = {}  # in the last call
        self._calls: tuple[KernelCall, ...] | None = None
        self._last: tuple[tuple[int, ...], Arrays] | None = None

    def __call__(self, addresses: tuple[int, ...], scalars: Scalars) -> None:
        """Runs it.

        Args:
            addresses: of inputs, outputs and workspace, multiples of a cache line; which of them
                are equal is the same in every call.
        """
        if self._every_time:
            CPU.run(self._op, self._pool, *self._arrays_at(addresses), scalars)
        elif not self._reads_the_same(scalars):  # and may read others in the next call
            watched = WatchedScalars(scalars)
            CPU.run(self._op, self._pool, *self._arrays_at(addresses), watched)
            self._read, self._calls = watched.read, None
        elif self._calls is None:
            self._work_out(addresses, scalars)
            self(addresses, scalars)
        else:
            for number, call in enumerate(self._calls):
                failed = self._pool.repeat(call, addresses)
                if failed is not None:
                    self._run_again(number, failed, addresses, scalars)

    def _reads_the_same(self, scalars: Scalars) -> bool:
        """Whether the scalars that were read in the last call are what they were."""
        return not self._read or all(scalars[name] == value for name, value in self._read.items())

    def _work_out(self, addresses: tuple[int, ...], scalars: Scalars) -> None:
        """Keeps its kernels, or finds that it has to be called every time."""
        watched = WatchedScalars(scalars)
        try:
            self._calls = tuple(self._recorded(addresses, watched).kept)
            self._last = None
        except EveryTimeError:
            self._every_time = True
        self._read = watched.read

    def _run_again(
        self, number: int, chunk: int, addresses: tuple[int, ...], scalars: Scalars
    ) -> None:
        """Runs a chunk of a kernel from Python, which raises what the kernel raised."""
        given = self._recorded(addresses, scalars).given[number]
        run_in_python(given.function, given.items, given.chunk, np.array([chunk]), given.args)

    def _recorded(self, addresses: tuple[int, ...], scalars: Scalars) -> KernelRecorder:
        ins, outs, workspace = self._arrays_at(addresses)
        arrays = *ins, *outs, workspace
        recorder = KernelRecorder(self._pool.threads, self._pool.pack, arrays)
        CPU.run(self._op, recorder, ins, outs, workspace, scalars)
        return recorder

    def _arrays_at(self, addresses: tuple[int, ...]) -> Arrays:
        """The arrays; the last ones stay, since places often come again."""
        if self._last is None or self._last[0] != addresses:
            places = zip(addresses, self._shapes, strict=True)
            arrays = [array_at(address, *described) for address, described in places]
            last = arrays[: self._split], arrays[self._split : -1], arrays[-1]
            self._last = addresses, last
        return self._last[1]
