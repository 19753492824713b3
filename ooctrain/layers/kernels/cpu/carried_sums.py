"""Sums over all rows of an image, some rows at a time: statistics, their gradients, bias gradients.

In: an operation that sums over all pixels, some whole blocks of rows (`workspace.py`), the shape of
all, the state so far. Out: the state, and in the end what the operation gives. The one idea: the
state is the workspace that the untiled kernel keeps its partial sums in; here it lives on from call
to call. Source: ours, docs/tiling.md. Read next: `ooctrain/rewrite/tile/carried_sums.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooctrain.layers.batch_norm import BatchNormGradReduce, BatchNormStats
from ooctrain.layers.channel_sum import ChannelSum
from ooctrain.layers.class_loss import TotalLoss
from ooctrain.layers.instance_norm import InstanceNormGradReduce, InstanceNormStats
from ooctrain.layers.kernels.cpu import batch_norm, elementwise, loss_totals
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.step.op import Op

Array = np.ndarray
Arrays = Sequence[Any]
Shape = tuple[int, ...]


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
    if old is None:
        state[:] = 0
    elif old.ctypes.data != state.ctypes.data:
        state[:] = old
    if isinstance(op, TotalLoss):
        start = (place[0] * shape[1] + place[1]) * shape[2]
        loss_totals.add(op, math.prod(shape), start, ins, state)
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
            loss_totals.finish(op, math.prod(shape), vectors, outs, state)
        case ChannelSum():
            elementwise.finish_channel_sums(pool, shape, outs[0], state)


def _of_image(state: Array, images: int, image: int) -> Array:
    """The state of one image: each has the same share."""
    size_bytes = state.size // images
    return state[image * size_bytes : (image + 1) * size_bytes]
