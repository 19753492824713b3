"""Scratch of the CPU kernels in bytes, known from shapes before anything is compiled or allocated.

In: extents. Out: bytes, the same for any number of threads. The one idea: a reduction keeps one
partial result per chunk, and chunks depend on shapes alone (`chunks.py`), so its scratch is known
at trace time and is part of the plan. No Numba here. Read next: `batch_norm.py`, which uses most of
it.
"""

from __future__ import annotations

from ooctrain.layers.kernels.cpu.chunks import chunk_count, reduction_chunk, row_chunk
from ooctrain.step.op import FLOAT_BYTES, whole_lines

#: Channels are padded to this many in scratch, so that groups of four whole vectors can be stored.
CHANNEL_GROUP = 64
#: Rows summed in float32 registers before they are added to a float64 partial.
BLOCK_ROWS = 128
#: Elements summed in float32 registers before they are added to a float64 partial.
BLOCK_ELEMENTS = 2048
DOUBLE_BYTES = 8


def padded_channels(channels: int) -> int:
    """Channels rounded up to whole groups of vectors."""
    return -(-channels // CHANNEL_GROUP) * CHANNEL_GROUP


def channel_partials_bytes(rows: int, channels: int, sums: int) -> int:
    """For each chunk and padded channel `sums` float64 partials, and as many float32 block sums."""
    chunks = chunk_count(rows, row_chunk(rows, channels))
    return chunks * sums * padded_channels(channels) * (DOUBLE_BYTES + FLOAT_BYTES)


def batch_norm_workspace_bytes(rows: int, channels: int) -> int:
    """Scratch of `batch_norm.stats` and `batch_norm.grad_reduce` on (rows, channels)."""
    return channel_partials_bytes(rows, channels, sums=2)


def channel_sum_workspace_bytes(rows: int, channels: int) -> int:
    """Scratch of `elementwise.channel_sum` on (rows, channels)."""
    return channel_partials_bytes(rows, channels, sums=1)


def reduction_workspace_bytes(elements: int) -> int:
    """Scratch of `losses.mean_error`, `losses.total` and `optimizers.sum_of_squares`."""
    return chunk_count(elements, reduction_chunk(elements)) * DOUBLE_BYTES


def class_loss_bytes(rows: int) -> int:
    """Scratch of `losses.cross_entropy`: a float32 for each row, and that of their sum."""
    return whole_lines(FLOAT_BYTES * rows) + reduction_workspace_bytes(rows)


def vectors_bytes(count: int, channels: int) -> int:
    """`count` vectors of channels, in whole cache lines: what `instance_norm.py` puts in front."""
    return whole_lines(count * channels * FLOAT_BYTES)


def axis_sum_bytes(outer: int, rows: int, width: int) -> int:
    """Scratch of `reduction.sum_axes`: the sums of each chunk, where there are several."""
    chunks = chunk_count(rows, row_chunk(rows, width))
    return outer * chunks * width * FLOAT_BYTES if chunks > 1 else 0
