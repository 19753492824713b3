"""Sums over all rows of an image, some rows at a time, on a GPU.

An operation that sums over all pixels gets some whole chunks of rows (`chunks.image_columns`), the
shape of the whole and the state so far. It gives the next state and, at the end, its result. As on
the cpu (`../cpu/carried_sums.py`) the state is the untiled kernels' workspace. Here each chunk has
a partial result of its own, so the order in which bands come does not matter. A loss carries the
losses and labels themselves, 12 bytes a pixel, and sums them at the end. Source: ours,
docs/tiling.md. Read next: `ooctrain/rewrite/tile/carried_sums.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ooctrain.layers.batch_norm import BatchNormGradReduce, BatchNormStats
from ooctrain.layers.instance_norm import InstanceNormGradReduce, InstanceNormStats
from ooctrain.layers.kernels.cuda import batch_norm, columns
from ooctrain.layers.kernels.cuda.chunks import FLOAT_BYTES, Columns, image_columns
from ooctrain.layers.kernels.cuda.elementwise import fill
from ooctrain.layers.kernels.cuda.layout import copy_unless_same, insert_into
from ooctrain.layers.kernels.cuda.loss_space import label_bytes, loss_bytes, loss_space
from ooctrain.layers.kernels.cuda.losses import total, weigh_labels
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.losses import TotalLoss
from ooctrain.layers.reduction import ChannelSum
from ooctrain.step.op import Op

Array = Any
Arrays = Sequence[Array]
Shape = tuple[int, ...]


def add(
    launcher: Launcher, op: Op, shape: Shape, place: tuple[int, int], ins: Arrays,
    old: Array | None, state: Array,
) -> None:  # fmt: skip
    """The state after some more rows; arguments as in `../cpu/carried_sums.py`."""
    words = state.size // FLOAT_BYTES
    numbers = launcher.part(state, 0, words, "float32")
    if old is None:
        fill(launcher, numbers, 0.0)
    else:
        copy_unless_same(launcher, launcher.part(old, 0, words, "float32"), numbers)
    if isinstance(op, TotalLoss):
        start = (place[0] * shape[1] + place[1]) * shape[2]
        add_losses(launcher, op, math.prod(shape), start, ins, state)
        return
    cut, (image, row) = _cut(op, shape), place
    if cut.images == 1:
        image, row = 0, row + image * shape[1]
    first = row * shape[2]
    match op:
        case BatchNormStats() | InstanceNormStats():
            batch_norm.add_stats(launcher, ins[0], cut, image, first, state)
        case BatchNormGradReduce() | InstanceNormGradReduce():
            mask = ins[4] if op.mask else None
            batch_norm.add_grad_sums(launcher, *ins[:4], mask, cut, image, first, state)
        case ChannelSum():
            partials = launcher.part(state, 0, cut.partials, "float32")
            columns.sum_chunks(launcher, cut, ins[0], partials, first)


def finish(
    launcher: Launcher, op: Op, shape: Shape, ins: Arrays, outs: Arrays, workspace: Array
) -> None:
    """What the operation gives, from the state of all rows.

    Args:
        workspace: uint8, room for the variances of instance norm, or for sums of losses.
    """
    if isinstance(op, TotalLoss):
        spaces = ins[0], workspace
        finish_losses(launcher, op, math.prod(shape), ins[1:], outs, spaces)
        return
    (state, *_), cut = ins, _cut(op, shape)
    match op:
        case BatchNormStats():
            batch_norm.finish_stats(launcher, cut, *outs, op.eps, state)
        case InstanceNormStats():
            var = launcher.part(workspace, 0, outs[0].size, "float32")
            batch_norm.finish_stats(launcher, cut, *outs, var, op.eps, state)
        case BatchNormGradReduce() | InstanceNormGradReduce():
            batch_norm.finish_grad_sums(launcher, cut, *outs, state)
        case ChannelSum():
            partials = launcher.part(state, 0, cut.partials, "float32")
            columns.finish_sums(launcher, cut, partials, outs[0])


def _cut(op: Op, shape: Shape) -> Columns:
    of_images = isinstance(op, InstanceNormStats | InstanceNormGradReduce)
    return image_columns(shape, shape[0] if of_images else 1)


# Losses of class numbers


def total_loss(
    launcher: Launcher, op: TotalLoss, ins: Arrays, outs: Arrays, workspace: Array
) -> None:
    """The loss, and what it is divided by where the labels say that."""
    held = loss_bytes(ins[0].size) + label_bytes(ins[0].size)
    state = launcher.part(workspace, 0, held, "uint8")
    scratch = launcher.part(workspace, held, workspace.size - held, "uint8")
    add_losses(launcher, op, ins[0].size, 0, ins, state)
    finish_losses(
        launcher, op, ins[0].size, ins[2:] if op.counts else ins[1:], outs, (state, scratch)
    )


def add_losses(
    launcher: Launcher, op: TotalLoss, rows: int, start: int, ins: Arrays, state: Array
) -> None:
    """Adds the losses and labels of some rows to those that are there: the
    untiled kernel's tiles begin anywhere in an image and cannot stop between two rows.
    """
    losses, labels = _loss_parts(launcher, state, rows)
    insert_into(launcher, ins[0].ravel(), losses, (start,))
    if op.counts:
        insert_into(launcher, ins[1].ravel(), labels, (start,))


def finish_losses(
    launcher: Launcher, op: TotalLoss, rows: int, others: Arrays, outs: Arrays,
    spaces: tuple[Array, Array],
) -> None:  # fmt: skip
    """What the operation gives.

    Args:
        spaces: the state; scratch of `loss_space_bytes`.
    """
    state, scratch = spaces
    losses, labels = _loss_parts(launcher, state, rows)
    space = loss_space(launcher, scratch, rows, each=False)
    divisor = others[0] if others and not op.counts else None
    if op.counts:
        divisor = outs[1]
        fill(launcher, divisor, 0.0)
        weights = others[0] if others else None
        weigh_labels(launcher, op.ignore_index, labels, weights, divisor, space.partials)
    total(launcher, losses, outs[0], space.partials, divisor)


def _loss_parts(launcher: Launcher, state: Array, rows: int) -> tuple[Array, Array]:
    """The losses, the labels."""
    return (
        launcher.part(state, 0, rows, "float32"),
        launcher.part(state, loss_bytes(rows), rows, "int64"),
    )
