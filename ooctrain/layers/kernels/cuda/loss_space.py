"""The workspace of a loss over rows: how many bytes it has, and how they are laid out.

The number of rows gives bytes for the trace and arrays for the kernels. The divisor of a mean
depends on the labels; it is kept in the workspace, on the GPU, so that the host need not wait for
it. It is followed by partial sums, which one sum after the other uses, and, where needed, by a loss
for each row. No Numba here. Read next: `losses.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ooctrain.layers.kernels.cuda.chunks import FLOAT_BYTES
from ooctrain.layers.kernels.cuda.runtime.workspace import reduction_workspace_bytes
from ooctrain.step.op import whole_lines

LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class LossSpace:
    """The parts of the workspace of a loss.

    Args:
        divisor: one float32.
        partials: uint8, of a sum over rows.
        each: a float32 for each row; None where `loss_space_bytes` did not count them.
    """

    divisor: Any
    partials: Any
    each: Any


def loss_space_bytes(rows: int, each: bool) -> int:
    """Bytes of a workspace with or without a loss for each row."""
    return LINE_BYTES + _partials_bytes(rows) + rows * FLOAT_BYTES * each


def total_loss_bytes(rows: int) -> int:
    """Scratch of `carried_sums.total_loss`, and what it carries from band to band."""
    return loss_bytes(rows) + label_bytes(rows) + loss_space_bytes(rows, each=False)


def loss_bytes(rows: int) -> int:
    """Whole lines of a float32 for each row."""
    return whole_lines(FLOAT_BYTES * rows)


def label_bytes(rows: int) -> int:
    """Whole lines of an int64 for each row."""
    return whole_lines(2 * FLOAT_BYTES * rows)


def loss_space(launcher: Any, workspace: Any, rows: int, each: bool) -> LossSpace:
    """The parts of a workspace of `loss_space_bytes`."""
    behind = LINE_BYTES + _partials_bytes(rows)
    return LossSpace(
        divisor=launcher.part(workspace, 0, 1, "float32"),
        partials=launcher.part(workspace, LINE_BYTES, _partials_bytes(rows), "uint8"),
        each=launcher.part(workspace, behind, rows, "float32") if each else None,
    )


def _partials_bytes(rows: int) -> int:
    """Of whole lines, so that what follows is aligned."""
    return -(-reduction_workspace_bytes(rows) // LINE_BYTES) * LINE_BYTES
