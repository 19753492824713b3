"""Sums over an image, some rows at a time: statistics, their gradients, bias gradients, losses.

An operation that sums over all pixels receives some whole blocks of rows (`workspace.py`) and the
state so far; the last band gives its result. The state is the workspace in which the untiled kernel
keeps its partial sums; here it lives on from call to call. `losses.total` adds 2,048 losses at a
time in the lanes of a vector, wherever a band begins; for an incomplete block the state holds the
lanes. Source: ours, docs/tiling.md. Read next: `ooctrain/rewrite/tile/carried_sums.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooctrain.layers.batch_norm import BatchNormGradReduce, BatchNormStats
from ooctrain.layers.instance_norm import InstanceNormGradReduce, InstanceNormStats
from ooctrain.layers.kernels.cpu import batch_norm, elementwise
from ooctrain.layers.kernels.cpu.chunks import chunk_count, flat, reduction_chunk
from ooctrain.layers.kernels.cpu.losses import combine, valid_rows, weight_of_labels
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import VL, vsum
from ooctrain.layers.kernels.cpu.simd.simd_memory import vload
from ooctrain.layers.kernels.cpu.workspace import BLOCK_ELEMENTS, DOUBLE_BYTES, MOST_LANES
from ooctrain.layers.kernels.signature import I8, F4s, F8s
from ooctrain.layers.losses import TotalLoss, mean_factor, number_of
from ooctrain.layers.reduction import ChannelSum
from ooctrain.step.op import FLOAT_BYTES, Op, whole_lines

Array = np.ndarray
Arrays = Sequence[Any]
Shape = tuple[int, ...]
ZERO = np.float32(0)


def add(
    pool: ThreadPool, op: Op, shape: Shape, place: tuple[int, int], ins: Arrays,
    old: Array | None, state: Array,
) -> None:  # fmt: skip
    """The state after some more rows.

    Args:
        op: what is summed.
        shape: (N, H, W, C) of the whole of its first input.
        place: image and first row of what is read now.
        ins: what the operation reads, of these rows.
        old: the state before; None: nothing is summed yet. May lie where `state` does.
        state: written.
    """
    pool.every_time()
    if old is None:
        state[:] = 0
    elif old.ctypes.data != state.ctypes.data:
        state[:] = old
    if isinstance(op, TotalLoss):
        start = (place[0] * shape[1] + place[1]) * shape[2]
        add_losses(op, math.prod(shape), start, ins, state)
        return
    (_, height, width, _), (image, row) = shape, place
    pixel = row * width
    if isinstance(op, InstanceNormStats | InstanceNormGradReduce):
        shape, space = shape[1:], _of_image(state, shape[0], image)
        ins = [x[0] for x in ins]
    else:
        pixel, space = pixel + image * height * width, state
    match op:
        case BatchNormStats() | InstanceNormStats():
            batch_norm.add_stats(pool, ins[0], shape, pixel, space)
        case BatchNormGradReduce() | InstanceNormGradReduce():
            mask = ins[4] if op.mask else None
            batch_norm.add_grad_sums(pool, *ins[:4], mask, shape, pixel, space)
        case ChannelSum():
            elementwise.add_channel_sums(pool, ins[0], shape, pixel, space)


def finish(
    pool: ThreadPool, op: Op, shape: Shape, ins: Arrays, outs: Arrays, workspace: Array
) -> None:
    """What the operation gives, from the state of all rows.

    Args:
        ins: the state; what the operation reads that has no rows.
        workspace: uint8, room for a variance of each channel.
    """
    pool.every_time()
    state, *vectors = ins
    match op:
        case BatchNormStats():
            batch_norm.finish_stats(pool, shape, *outs, op.eps, state)
        case InstanceNormStats():
            var = workspace[: 4 * shape[3]].view(np.float32)
            for n, (mean, inv_std) in enumerate(zip(*outs, strict=True)):
                space = _of_image(state, shape[0], n)
                batch_norm.finish_stats(pool, shape[1:], mean, inv_std, var, op.eps, space)
        case BatchNormGradReduce():
            batch_norm.finish_grad_sums(pool, shape, vectors[1], *outs, state)
        case InstanceNormGradReduce():
            for n, (inv_std, dz_xhat, dz) in enumerate(zip(vectors[1], *outs, strict=True)):
                space = _of_image(state, shape[0], n)
                batch_norm.finish_grad_sums(pool, shape[1:], inv_std, dz_xhat, dz, space)
        case TotalLoss():
            finish_losses(pool, op, math.prod(shape), vectors, outs, state)
        case ChannelSum():
            elementwise.finish_channel_sums(pool, shape, outs[0], state)


def _of_image(state: Array, images: int, image: int) -> Array:
    """The state of one image: each has the same share."""
    size_bytes = state.size // images
    return state[image * size_bytes : (image + 1) * size_bytes]


# Losses of class numbers


@kernel
def _go_on(losses: F4s, start: I8, rows: I8, chunk: I8, partials: F8s, lanes: F4s):
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
    pool.every_time()
    workspace[:] = 0
    add_losses(op, ins[0].size, 0, ins, workspace)
    finish_losses(pool, op, ins[0].size, ins[2:] if op.counts else ins[1:], outs, workspace)


def add_losses(op: TotalLoss, rows: int, start: int, ins: Arrays, state: Array) -> None:
    """Goes on with the sums of `rows` rows.

    Args:
        start: first row of what is read.
        ins: what the operation reads, of some rows.
        state: uint8, `total_loss_bytes(rows)`; zeros at first.
    """
    losses, *others = ins
    partials, lanes, weight = _loss_parts(state, rows)
    _go_on(flat(losses), start, rows, reduction_chunk(rows), partials, lanes)
    if op.counts and len(others) > 1:
        labels, weights = others
        weight[0] = weight_of_labels(flat(labels), weights, op.ignore_index, weight[0])
    elif op.counts:
        weight[0] += valid_rows(others[0], op.ignore_index)


def finish_losses(
    pool: ThreadPool, op: TotalLoss, rows: int, others: Arrays, outs: Arrays, state: Array
) -> None:
    """What the operation gives.

    Args:
        others: what it reads that has no rows.
    """
    partials, _, weight = _loss_parts(state, rows)
    factor = 1.0
    if op.counts:
        factor = mean_factor(weight[0])
        rest = weight[0]
        for part in range(outs[1].size):
            outs[1][part] = rest
            rest -= outs[1][part]
    elif others:
        factor = mean_factor(number_of(others[0]))
    combine(pool, partials, chunk_count(rows, reduction_chunk(rows)), factor, outs[0])


def _loss_parts(state: Array, rows: int) -> tuple[Array, Array, Array]:
    """The partial sum of each chunk, the lanes of a block, the weight of the labels."""
    chunks = chunk_count(rows, reduction_chunk(rows))
    lanes = whole_lines(DOUBLE_BYTES * chunks)
    weight = lanes + FLOAT_BYTES * MOST_LANES
    return (
        state[: DOUBLE_BYTES * chunks].view(np.float64),
        state[lanes:weight].view(np.float32),
        state[weight : weight + DOUBLE_BYTES].view(np.float64),
    )
