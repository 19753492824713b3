"""Work items and scratch of the im2col reference; pure Python. Read next: `conv_im2col.py`."""

from __future__ import annotations

from typing import NamedTuple

from ooctrain.layers.conv_shape import ConvShape
from ooctrain.layers.kernels.cpu.tiling import aligned, ceil_div


class Im2colPlan(NamedTuple):
    """Integers that the reference kernels read; see `ConvShape` for the letters."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    oh: int
    ow: int
    stride_h: int
    stride_w: int
    top: int
    left: int
    dilation_h: int
    dilation_w: int
    groups: int
    cg: int
    kg: int
    columns: int  # R * S * C / groups, the length of a row of the column matrix
    row_blocks: int  # blocks of rows in an image; a block's columns are computed at once
    block_rows: int
    items: int
    filters: int  # filters of one item, for the gradient of the weights
    column_floats: int  # of one thread
    size_floats: int


def plan(shape: ConvShape, part: str, threads: int) -> Im2colPlan:
    """Items: blocks of about 256 output pixels (forward), images (grad_input), eighths of a group's
    filters (grad_weight).
    """
    columns = shape.r * shape.s * shape.cg
    filters = ceil_div(shape.kg, 8)
    block_rows = min(shape.oh, max(1, 256 // shape.ow))
    row_blocks = ceil_div(shape.oh, block_rows)
    items = {
        "forward": shape.n * row_blocks,
        "grad_input": shape.n,
        "grad_weight": shape.groups * ceil_div(shape.kg, filters),
    }[part]
    column_floats = aligned(block_rows * shape.ow * columns)
    return Im2colPlan(
        shape.n, shape.c, shape.h, shape.w, shape.k, shape.r, shape.s, shape.oh, shape.ow,
        *shape.stride, shape.padding[0], shape.padding[2], *shape.dilation, shape.groups, shape.cg,
        shape.kg, columns, row_blocks, block_rows, items, filters, column_floats,
        column_floats * threads,
    )  # fmt: skip
