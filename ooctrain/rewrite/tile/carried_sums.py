"""A sum over all rows that goes on from band to band, with the bits of the untiled kernel.

Partial sums that each band makes by itself and that are added in the end have other roundings than
one sum. The untiled kernel has an accumulator; carried from band to band, it sees the same numbers
in the same order. So an operation that sums over all pixels (the statistics of a norm, the sums of
its gradient, a bias's gradient, a loss of class numbers) becomes two: `CarriedSum` adds a band's
rows to a state, and `CarriedTotal` makes the operation's result from the state. Kernels add whole
blocks of rows, so a band's rows are rounded to such blocks (`rows_together`), except for a loss,
whose state holds the unfinished block. Source: ours; docs/tiling.md. Read next: `rules.py`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooctrain.layers.instance_norm import InstanceNormStats
from ooctrain.layers.kernels.cpu.workspace import BLOCK_ROWS
from ooctrain.layers.kernels.cuda.chunks import columns
from ooctrain.layers.kernels.cuda.loss_space import loss_space_bytes
from ooctrain.layers.kernels.device_tables import TABLES
from ooctrain.layers.kernels.row_blocks import rows_of_block
from ooctrain.layers.losses import TotalLoss
from ooctrain.step.op import Op, Spec, physical_shape, whole_lines

#: Numbers that the definitions carry for each channel of each image: two float64.
DEFINITION_BYTES = 16


@dataclass(frozen=True, slots=True)
class CarriedSum(Op):
    """The state of a sum after some more rows of one image.

    Reads what `op` reads, of these rows, then the state so far unless nothing is summed yet.

    Args:
        op: one that `carries`.
        shape: (N, C, H, W) of the whole of its first input.
        place: image and first row of what is read now.
        state_bytes: `state_bytes(...)` on the device.
        goes_on: whether it reads a state.
    """

    op: Op
    shape: tuple[int, ...]
    place: tuple[int, int]
    state_bytes: int
    goes_on: bool

    @property
    def name(self) -> str:  # type: ignore[override]
        """Of the operation, carried."""
        return f"{self.op.name}_carried"

    def infer(self, *ins: Spec) -> tuple[Spec, ...]:
        return (Spec((self.state_bytes,), "uint8"),)

    def reference(self, *arrays, scalars):
        state = np.zeros(self.state_bytes, np.uint8)
        arrays, old = (arrays[:-1], arrays[-1:]) if self.goes_on else (arrays, ())
        for before in old:
            state[:] = before
        image = self.place[0] if self.op.carries == "image" else 0
        sums = self.op.sums(*arrays, scalars=scalars)
        _numbers(state, self.op, self.shape)[: len(sums), image] += sums
        return (state,)

    def flops(self, ins, outs):
        return self.op.flops(ins, outs)

    def cpu(self, pool, ins, outs, workspace, scalars):
        """Writes the state."""
        self._add("cpu", pool, ins, outs)

    def cuda(self, launcher, ins, outs, workspace, scalars):
        """Queues what `cpu` does."""
        self._add("cuda", launcher, ins, outs)

    def _add(self, device: str, workers: Any, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        read, old = (ins[:-1], ins[-1]) if self.goes_on else (ins, None)
        shape = physical_shape(self.shape)
        _kernels(device).add(workers, self.op, shape, self.place, read, old, outs[0])


@dataclass(frozen=True, slots=True)
class CarriedTotal(Op):
    """What an operation gives, from the state of its sum over all rows.

    Reads the state, then what `op` reads that has no rows.

    Args:
        op: one that `carries`.
        shape: (N, C, H, W) of the whole of its first input.
        outs: shapes of what it gives.
    """

    op: Op
    shape: tuple[int, ...]
    outs: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:  # type: ignore[override]
        """Of the operation, as a total."""
        return f"{self.op.name}_total"

    def infer(self, *ins: Spec) -> tuple[Spec, ...]:
        return tuple(map(Spec, self.outs))

    def reference(self, *arrays, scalars):
        sums = _numbers(arrays[0], self.op, self.shape)
        if self.op.carries != "image":
            sums = sums[:, 0]
        n, *_, h, w = self.shape
        pixels = h * w if self.op.carries == "image" else n * h * w
        return self.op.from_sums(sums, pixels, arrays[1:])[: len(self.outs)]

    def workspace_bytes(self, ins: Sequence[Spec], outs: Sequence[Spec], threads: int) -> int:
        """Memory for variances that are not wanted."""
        return whole_lines(outs[0].nbytes) if isinstance(self.op, InstanceNormStats) else 0

    def cuda_workspace_bytes(self, ins: Sequence[Spec], outs: Sequence[Spec]) -> int:
        """As on the cpu; and to sum losses."""
        if isinstance(self.op, TotalLoss):
            return loss_space_bytes(math.prod(self.shape), each=False)
        return self.workspace_bytes(ins, outs, 1)

    def cpu(self, pool, ins, outs, workspace, scalars):
        """Writes `outs`."""
        shape = physical_shape(self.shape)
        _kernels("cpu").finish(pool, self.op, shape, ins, outs, workspace)

    def cuda(self, launcher, ins, outs, workspace, scalars):
        """Queues what `cpu` does."""
        shape = physical_shape(self.shape)
        _kernels("cuda").finish(launcher, self.op, shape, ins, outs, workspace)


def state_bytes(op: Op, ins: Sequence[Spec], outs: Sequence[Spec], device: str) -> int:
    """Size of the state: the workspace of the untiled call, of each image where they are summed by
    themselves.

    A trace for a GPU can be run by the cpu's kernels too, as tests do: there is room for both.

    Args:
        ins, outs: those of the untiled call.
    """
    n, c = ins[0].shape[:2]
    images = n if op.carries == "image" else 1
    devices = {"cpu", device}
    needed = max(TABLES[name].workspace_bytes(op, ins, outs, 1) for name in devices)
    needed = max(needed, DEFINITION_BYTES * c)
    return images * whole_lines(needed)


def rows_together(op: Op, shape: Sequence[int], device: str) -> int:
    """So many rows of an image the device's kernel adds at once: borders of bands are rounded to
    these.

    Args:
        shape: (N, C, H, W) of what is summed.
    """
    if isinstance(op, TotalLoss):
        return 1
    n, c, h, w = shape
    on_cpu = rows_of_block(h, w, BLOCK_ROWS)
    if device == "cpu":
        return on_cpu
    # Multiples of the cpu's too, whose kernels can run a trace for a GPU.
    images = n if op.carries == "image" else 1
    limit = columns(n * h * w // images, c, images).rows_per_chunk
    return min(h, math.lcm(on_cpu, rows_of_block(h, w, limit)))


def _numbers(state: np.ndarray, op: Op, shape: Sequence[int]) -> np.ndarray:
    """The definition's state, (2, images, C)."""
    images = shape[0] if op.carries == "image" else 1
    channels = 1 if isinstance(op, TotalLoss) else shape[1]
    count = 2 * images * channels
    return state[: 8 * count].view(np.float64).reshape(2, images, channels)


def _kernels(device: str) -> Any:
    """Kernels are imported when they are first run, so that planning compiles nothing."""
    return importlib.import_module(f"ooctrain.layers.kernels.{device}.carried_sums")
