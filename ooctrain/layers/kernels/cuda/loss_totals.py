"""The sum or mean of the losses of all rows, some rows at a time, on a GPU.

In: losses, from some row on, and labels. Out: in the end the loss, and what it is divided by. The
one idea: a block of the untiled kernel adds tiles that begin anywhere in an image, so its sums
cannot stop between two rows; the losses and labels themselves, 12 bytes a pixel, are carried, and
summed when all are there. Source: ours, docs/tiling.md. Read next: `../cpu/loss_totals.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooctrain.layers.class_loss import TotalLoss
from ooctrain.layers.kernels.cuda.elementwise import fill
from ooctrain.layers.kernels.cuda.loss_space import label_bytes, loss_bytes, loss_space
from ooctrain.layers.kernels.cuda.losses import total, weigh_labels
from ooctrain.layers.kernels.cuda.regions import insert_into
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher

Array = Any
Arrays = Sequence[Array]


def total_loss(
    launcher: Launcher, op: TotalLoss, ins: Arrays, outs: Arrays, workspace: Array
) -> None:
    """The loss, and what it is divided by where the labels say that."""
    held = loss_bytes(ins[0].size) + label_bytes(ins[0].size)
    state = launcher.part(workspace, 0, held, "uint8")
    scratch = launcher.part(workspace, held, workspace.size - held, "uint8")
    add(launcher, op, ins[0].size, 0, ins, state)
    finish(launcher, op, ins[0].size, ins[2:] if op.counts else ins[1:], outs, (state, scratch))


def add(
    launcher: Launcher, op: TotalLoss, rows: int, start: int, ins: Arrays, state: Array
) -> None:
    """Puts the losses and labels of some rows beside those that are there; arguments as in
    `../cpu/loss_totals.py`.
    """
    losses, labels = _parts(launcher, state, rows)
    insert_into(launcher, ins[0].ravel(), losses, (start,))
    if op.counts:
        insert_into(launcher, ins[1].ravel(), labels, (start,))


def finish(
    launcher: Launcher, op: TotalLoss, rows: int, others: Arrays, outs: Arrays,
    spaces: tuple[Array, Array],
) -> None:  # fmt: skip
    """What the operation gives.

    Args:
        spaces: the state; scratch of `loss_space_bytes`.
    """
    state, scratch = spaces
    losses, labels = _parts(launcher, state, rows)
    space = loss_space(launcher, scratch, rows, each=False)
    divisor = others[0] if others and not op.counts else None
    if op.counts:
        divisor = outs[1]
        fill(launcher, divisor, 0.0)
        weights = others[0] if others else None
        weigh_labels(launcher, op.ignore_index, labels, weights, divisor, space.partials)
    total(launcher, losses, outs[0], space.partials, divisor)


def _parts(launcher: Launcher, state: Array, rows: int) -> tuple[Array, Array]:
    """The losses, the labels."""
    return (
        launcher.part(state, 0, rows, "float32"),
        launcher.part(state, loss_bytes(rows), rows, "int64"),
    )
