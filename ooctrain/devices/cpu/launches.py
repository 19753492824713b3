"""Operations that are bound to their shapes: in a warm step only addresses are filled in.

A training step repeats the same calls, but not always at the same addresses. What follows from the
operation and its shapes (which kernels, how they are cut, their arguments) is worked out at the
first call, by running the function that starts the operation's kernels with a recorder in place of
the pool. From then on each kernel costs one call of compiled code. An operation is worked out anew
if it reads a step scalar that has changed; if it looks at values, or brings its own kernels, its
function is called every time. `../cuda/launches.py` is the same idea on a GPU. Read next:
`layers/kernels/cpu/runtime/kept.py`, `device.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ooctrain.devices.raw_bytes import array_at
from ooctrain.layers.kernels.cpu.runtime.kept import EveryTimeError, KernelCall, KernelRecorder
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.kernels.kernel_table import WatchedScalars
from ooctrain.step.op import Op, Scalars, Spec, physical_shape


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
        self._read: Mapping[str, float | int] = {}
        self._calls: Sequence[KernelCall] | None = None
        self._every_time = CPU.is_own(op)

    def __call__(self, addresses: tuple[int, ...], scalars: Scalars) -> None:
        """Runs it.

        Args:
            addresses: of inputs, outputs and workspace, multiples of a cache line; which of them
                are equal is the same in every call.
        """
        if not self._every_time and not self._serves(scalars):
            self._work_out(addresses, scalars)
        if self._every_time or self._calls is None:
            CPU.run(self._op, self._pool, *self._arrays(addresses), scalars)
            return
        for call in self._calls:
            self._pool.repeat(call, addresses)

    def _serves(self, scalars: Scalars) -> bool:
        """Whether it has been worked out for these scalars."""
        if not self._read:
            return self._calls is not None
        return all(scalars[name] == value for name, value in self._read.items())

    def _work_out(self, addresses: Sequence[int], scalars: Scalars) -> None:
        ins, outs, workspace = self._arrays(addresses)
        recorder = KernelRecorder(self._pool, [*ins, *outs, workspace])
        watched = WatchedScalars(scalars)
        try:
            CPU.run(self._op, recorder, ins, outs, workspace, watched)
        except EveryTimeError:
            self._every_time = True
        self._calls, self._read = recorder.calls, watched.read

    def _arrays(
        self, addresses: Sequence[int]
    ) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray], np.ndarray]:
        """Inputs, outputs and workspace."""
        places = zip(addresses, self._shapes, strict=True)
        arrays = [array_at(address, *described) for address, described in places]
        return arrays[: self._split], arrays[self._split : -1], arrays[-1]
