"""Scratch of the CPU kernels in bytes, known from shapes before anything is compiled or allocated.

In: extents. Out: bytes, the same for any number of threads. The one idea: a reduction keeps one partial
result per chunk, and chunks depend on shapes alone (`chunks.py`), so its scratch is known at trace time
and is part of the plan. No Numba here. Read next: `batch_norm.py`, which uses most of it.
"""

from __future__ import annotations

from ooctrain.layers.kernels.cpu.chunks import chunk_count, element_chunk, row_chunk

#: Channels are padded to this many in scratch, so that whole vectors can be stored.
LANES = 16
DOUBLE_BYTES = 8
FLOAT_BYTES = 4


def padded_channels(channels: int) -> int:
    """Channels rounded up to whole vectors."""
    return -(-channels // LANES) * LANES


def channel_partials_bytes(rows: int, channels: int) -> int:
    """Two float64 sums per chunk and channel, and two float32 sums for the block at work."""
    chunks = chunk_count(rows, row_chunk(rows, channels))
    return chunks * 2 * padded_channels(channels) * (DOUBLE_BYTES + FLOAT_BYTES)


def batch_norm_workspace_bytes(rows: int, channels: int) -> int:
    """Scratch of `batch_norm.stats` and `batch_norm.grad_reduce` on (rows, channels)."""
    return channel_partials_bytes(rows, channels)


def channel_sum_workspace_bytes(rows: int, channels: int) -> int:
    """Scratch of `elementwise.channel_sum` on (rows, channels)."""
    return channel_partials_bytes(rows, channels)


def reduction_workspace_bytes(elements: int) -> int:
    """Scratch of `losses.mse`, `losses.l1`, `losses.total` and `optimizers.sum_of_squares`."""
    return chunk_count(elements, element_chunk(elements)) * DOUBLE_BYTES
