"""The sum or mean of the losses of all rows, some rows at a time, with the bits of `losses.total`.

In: losses, from some row on; labels; what is summed so far. Out: the sum so far, and in the end the
loss and what it is divided by. The one idea: `losses.total` adds 2,048 losses at a time in the
lanes of a vector, blocks in float64 within a chunk, chunks in order. Who stops in the middle of a
block and goes on later gets the same bits if he keeps the lanes. Source: ours, docs/tiling.md. Read
next: `carried_sums.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooctrain.layers.class_loss import TotalLoss, number_of
from ooctrain.layers.kernels.cpu.chunks import chunk_count, flat, reduction_chunk
from ooctrain.layers.kernels.cpu.losses import combine, valid_rows
from ooctrain.layers.kernels.cpu.runtime.jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import vsum
from ooctrain.layers.kernels.cpu.simd.simd_memory import vload
from ooctrain.layers.kernels.cpu.simd.vector import VL
from ooctrain.layers.kernels.cpu.weighted_losses import weight_of_labels
from ooctrain.layers.kernels.cpu.workspace import BLOCK_ELEMENTS, DOUBLE_BYTES, MOST_LANES
from ooctrain.layers.regression_loss import mean_factor
from ooctrain.step.op import FLOAT_BYTES, whole_lines

Array = np.ndarray
Arrays = Sequence[Array]
ZERO = np.float32(0)


@kernel("void(f4[::1], i8, i8, i8, f8[::1], f4[::1])")
def _go_on(losses, start, rows, chunk, partials, lanes):
    """Adds the losses of the rows from `start` on, of `rows` in all."""
    at, stop = start, start + losses.size
    while at < stop:
        first = at // chunk * chunk
        block = first + (at - first) // BLOCK_ELEMENTS * BLOCK_ELEMENTS
        last = min(first + chunk, block + BLOCK_ELEMENTS, rows)
        end = min(last, stop)
        for i in range(at, end):
            lanes[(i - block) % VL] += losses[i - start]
        if end == last:
            partials[first // chunk] += vsum(vload(lanes, 0))
            for lane in range(VL):
                lanes[lane] = ZERO
        at = end


def total_loss(
    pool: ThreadPool, op: TotalLoss, ins: Arrays, outs: Arrays, workspace: Array
) -> None:
    """The loss, and what it is divided by where the labels say that."""
    workspace[:] = 0
    add(op, ins[0].size, 0, ins, workspace)
    finish(op, ins[0].size, ins[2:] if op.counts else ins[1:], outs, workspace)


def add(op: TotalLoss, rows: int, start: int, ins: Arrays, state: Array) -> None:
    """Goes on with the sums of `rows` rows.

    Args:
        start: first row of what is read.
        ins: what the operation reads, of some rows.
        state: uint8, `total_loss_bytes(rows)`; zeros at first.
    """
    losses, *others = ins
    partials, lanes, weight = _parts(state, rows)
    _go_on(flat(losses), start, rows, reduction_chunk(rows), partials, lanes)
    if op.counts and len(others) > 1:
        labels, weights = others
        weight[0] = weight_of_labels(flat(labels), weights, op.ignore_index, weight[0])
    elif op.counts:
        weight[0] += valid_rows(others[0], op.ignore_index)


def finish(op: TotalLoss, rows: int, others: Arrays, outs: Arrays, state: Array) -> None:
    """What the operation gives.

    Args:
        others: what it reads that has no rows.
    """
    partials, _, weight = _parts(state, rows)
    factor = 1.0
    if op.counts:
        factor = mean_factor(weight[0])
        rest = weight[0]
        for part in range(outs[1].size):
            outs[1][part] = rest
            rest -= outs[1][part]
    elif others:
        factor = mean_factor(number_of(others[0]))
    combine(partials, chunk_count(rows, reduction_chunk(rows)), factor, flat(outs[0]))


def _parts(state: Array, rows: int) -> tuple[Array, Array, Array]:
    """The partial sum of each chunk, the lanes of a block, the weight of the labels."""
    chunks = chunk_count(rows, reduction_chunk(rows))
    lanes = whole_lines(DOUBLE_BYTES * chunks)
    weight = lanes + FLOAT_BYTES * MOST_LANES
    return (
        state[: DOUBLE_BYTES * chunks].view(np.float64),
        state[lanes:weight].view(np.float32),
        state[weight : weight + DOUBLE_BYTES].view(np.float64),
    )
