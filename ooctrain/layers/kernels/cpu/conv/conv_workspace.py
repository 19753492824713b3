"""How much scratch memory each part of a convolution needs, by algorithm.

For a `ConvShape`, the name of an algorithm (`layers/conv2d.py`) and a number of threads, the
functions give exact numbers of bytes. These follow from the arguments alone, never from the
machine's load or its instruction set, so they are known when a step is traced and kernels allocate
nothing. Pure Python: no Numba is imported here. Read next: `direct_blocking.py`, `conv2d.py`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ooctrain.layers.conv2d import ConvShape, CpuAlgorithm
from ooctrain.layers.kernels.cpu.blocking import aligned, ceil_div
from ooctrain.layers.kernels.cpu.chunks import chunk_count, row_chunk
from ooctrain.layers.kernels.cpu.conv import (
    direct_blocking,
    direct_weights_blocking,
    winograd_blocking,
)

# All algorithms.

# Bounds of the rounding error in each part: root mean square over the standard deviation of the
# exact result, for data without a mean and up to some thousand terms in a sum. Single elements may
# be off by ten times as much. The tests hold every algorithm to its bound, "depthwise" to that of
# "direct".
RELATIVE_ERROR: dict[CpuAlgorithm, float] = {
    "direct": 1e-6,
    "im2col": 2e-6,
    "winograd2": 2e-6,
    "winograd4": 1e-5,
}


@lru_cache(maxsize=1024)
def workspace_bytes(shape: ConvShape, algorithm: str, part: str, threads: int) -> int:
    """Bytes of all scratch memory of one call: tables, packed weights, windows, partial sums.

    Args:
        shape: the convolution.
        algorithm: as `layers/conv2d.py` chose it.
        part: "forward", "grad_input" or "grad_weight".
        threads: size of the pool that will run it.
    """
    if algorithm.startswith("winograd"):
        m = int(algorithm.removeprefix("winograd"))
        if part == "grad_weight":
            return 4 * winograd_blocking.grad_weight_blocking(shape, m, threads).size_floats
        backward = part == "grad_input"
        return (
            4
            * winograd_blocking.correlation_blocking(
                shape, m, threads, backward=backward
            ).size_floats
        )
    if algorithm == "depthwise":
        return 4 * depthwise_floats(shape, part)
    if algorithm == "im2col":
        return 4 * im2col_blocking(shape, part, threads).size_floats
    if part == "grad_weight":
        return 4 * direct_weights_blocking.grad_weight_blocking(shape, threads).size_floats
    blocking = (
        direct_blocking.forward_blocking
        if part == "forward"
        else direct_blocking.grad_input_blocking
    )
    return 4 * blocking(shape, threads).size_floats


def linear_shape(rows: int, inputs: int, outputs: int) -> ConvShape:
    """A linear layer is a 1x1 convolution on 1x1 images: same layouts, same products."""
    return ConvShape(n=rows, c=inputs, h=1, w=1, k=outputs, r=1, s=1)


def linear_workspace_bytes(rows: int, inputs: int, outputs: int, part: str, threads: int) -> int:
    """`workspace_bytes` of a linear layer's products: x (rows, inputs), w (outputs, inputs)."""
    return workspace_bytes(linear_shape(rows, inputs, outputs), "direct", part, threads)


# Depthwise: the filter of a channel is a column of a (taps, channels) table, so that one vector
# holds the same tap of many channels. The scratch is this table with a vector of zeros that
# replaces a missing bias, and for the gradient of the weights one such table for each chunk of
# output rows.


def output_chunk(shape: ConvShape) -> int:
    """Output rows in a chunk."""
    return row_chunk(shape.n * shape.oh, shape.ow * shape.c)


def table_floats(shape: ConvShape) -> int:
    """Floats of one (taps, channels) table."""
    return aligned(shape.r * shape.s * shape.c)


def depthwise_floats(shape: ConvShape, part: str) -> int:
    """Scratch of one call, the same for any number of threads."""
    if part == "grad_weight":
        return table_floats(shape) * chunk_count(shape.n * shape.oh, output_chunk(shape))
    return table_floats(shape) + aligned(shape.c)


# The im2col reference: work items, and scratch.


class Im2colBlocking(NamedTuple):
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


def im2col_blocking(shape: ConvShape, part: str, threads: int) -> Im2colBlocking:
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
    return Im2colBlocking(
        shape.n, shape.c, shape.h, shape.w, shape.k, shape.r, shape.s, shape.oh, shape.ow,
        *shape.stride, shape.padding[0], shape.padding[2], *shape.dilation, shape.groups, shape.cg,
        shape.kg, columns, row_blocks, block_rows, items, filters, column_floats,
        column_floats * threads,
    )  # fmt: skip
