"""The scratch memory of a depthwise convolution: its sizes for a `ConvShape`.

The filter of a channel is a column of a (taps, channels) table, so that one vector holds the same
tap of many channels. The scratch is this table with a vector of zeros that replaces a missing bias,
and for the gradient of the weights one such table for each chunk of output rows. Pure Python.
Read next: `conv_depthwise.py`.
"""

from __future__ import annotations

from ooctrain.layers.conv_shape import ConvShape
from ooctrain.layers.kernels.cpu.chunks import chunk_count, row_chunk
from ooctrain.layers.kernels.cpu.tiling import aligned


def output_chunk(shape: ConvShape) -> int:
    """Output rows in a chunk."""
    return row_chunk(shape.n * shape.oh, shape.ow * shape.c)


def table_floats(shape: ConvShape) -> int:
    """Room of one (taps, channels) table."""
    return aligned(shape.r * shape.s * shape.c)


def size_floats(shape: ConvShape, part: str) -> int:
    """Scratch of one call, the same for any number of threads."""
    if part == "grad_weight":
        return table_floats(shape) * chunk_count(shape.n * shape.oh, output_chunk(shape))
    return table_floats(shape) + aligned(shape.c)
