"""Scratch of the CUDA kernels in bytes, known from shapes before anything is compiled or allocated.

A reduction keeps the partial results of its chunks in the call's workspace. Chunks depend on shapes
alone (`layers/kernels/cuda/chunks.py`), and so does the number of bytes. No Numba here. Read next:
`layers/kernels/cuda/batch_norm.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooctrain.layers.kernels.cuda.chunks import (
    FLOAT_BYTES,
    columns,
    element_chunk,
    image_columns,
)

#: Scratch of `clipping.clip_factor`: the total so far, and what its roundings lost.
CLIP_BYTES = 2 * FLOAT_BYTES
#: Up to so many rows are summed by one thread, without scratch.
FEW_ROWS = 32


def norm_sums_bytes(shape: Sequence[int], images: int = 1) -> int:
    """Scratch of `batch_norm_stats.stats` and `batch_norm.grad_reduce` on an array (..., C).

    Args:
        images: if more than one, each has statistics of its own (instance norm).
    """
    return 2 * image_columns(shape, images).partials * FLOAT_BYTES


def channel_sum_bytes(shape: Sequence[int]) -> int:
    """Scratch of `elementwise.channel_sum` on an array (..., C)."""
    return image_columns(shape).partials * FLOAT_BYTES


def reduction_workspace_bytes(elements: int) -> int:
    """Scratch of a sum over all elements: one float32 for each block."""
    return -(-elements // element_chunk(elements)) * FLOAT_BYTES


def axis_sum_bytes(outer: int, rows: int, width: int) -> int:
    """Scratch of `reduction.sum_axes`: the sums of each chunk of rows, if they are many."""
    return columns(rows, width, outer).partials * FLOAT_BYTES if rows > FEW_ROWS else 0
