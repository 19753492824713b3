"""The cuda device with the cpu's kernels: each operation's cpu kernel on the fake driver's bytes.

It is fast, costs no compilation, and tests the device alone. `fast_gpu` puts it in the place of a
GPU for all that opens one. Read next: `ooctrain/testing/fake_gpu.py`, which runs the real device
code in the emulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from ooctrain.devices.cuda.device_array import DeviceArray
from ooctrain.engine.eager import aligned_bytes
from ooctrain.layers.conv2d import CUDA_ALGORITHMS
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.rewrite.tile.on_rows import OnRows
from ooctrain.step.op import Scalars, Spec
from ooctrain.testing.fake_driver import FakeDriver
from ooctrain.testing.fake_gpu import FakeKernels, fake_gpu, queue


class CpuKernels(FakeKernels):
    """Runs each operation's cpu kernel on the fake's bytes (`devices.cuda.Kernels`).

    Convolutions use an algorithm that the cpu device has, and where a call's workspace is too small
    for the cpu kernel, that gets another one.
    """

    def __init__(self, driver: FakeDriver, stream: int):
        super().__init__(driver, stream)
        self._pool = ThreadPool(1)

    def launch(
        self, op: Any, ins: Sequence[DeviceArray], outs: Sequence[DeviceArray],
        workspace: DeviceArray, scalars: Scalars,
    ) -> None:  # fmt: skip
        """Queues one operation."""
        first, last = len(ins), len(ins) + len(outs)
        op = _on_cpu(op)
        needed = CPU.workspace_bytes(op, list(map(_spec, ins)), list(map(_spec, outs)), 1)

        def run(arrays: Sequence[np.ndarray]) -> None:
            scratch = arrays[last] if needed <= workspace.nbytes else aligned_bytes(needed)
            CPU.run(op, self._pool, arrays[:first], arrays[first:last], scratch, scalars)

        queue(self.driver, self.stream, [*ins, *outs, workspace], run, op.name)


def fast_gpu() -> AbstractContextManager[None]:
    """`fake_gpu` with the cpu's kernels."""
    return fake_gpu(make_kernels=CpuKernels)


def _on_cpu(op: Any) -> Any:
    """The operation by an algorithm that the cpu device has."""
    if isinstance(op, OnRows):
        return replace(op, op=_on_cpu(op.op))
    if getattr(op, "algorithm", "") in CUDA_ALGORITHMS:
        return replace(op, algorithm="im2col")
    return op


def _spec(array: DeviceArray) -> Spec:
    """Shape and type of a device array, logical layout."""
    if array.ndim == 4:
        n, h, w, c = array.shape
        return Spec((n, c, h, w), array.dtype.name)
    return Spec(array.shape, array.dtype.name)
