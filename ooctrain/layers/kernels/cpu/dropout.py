"""Dropout whose mask is the same in a re-run, in a fused call and in a tile.

For x of shape (N, H, W, C) or (N, C) and a rate p, the result is x / (1 - p) where an element is
kept, else 0. There is no generator state. Whether an element is kept is a hash of (key of the call,
global element index), and the index counts in the logical NCHW order of the whole, untiled
variable. A tile at an offset therefore draws the bits that the untiled call draws there. Backward
is the same kernel on dy. Source: `layers/dropout.py`. Read next: `runtime/copy.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.dropout import GOLDEN, MIX_1, MIX_2, S27, S30, S31, S32, Dropout
from ooctrain.layers.kernels.cpu.chunks import row_chunk
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.signature import F4, U8, F4s4d, I8x4

Array = np.ndarray
ZERO = np.float32(0)


@kernel
def _dropout(
    x: F4s4d, y: F4s4d, key: U8, threshold: U8, scale: F4, begin: I8x4, full: I8x4, lo, hi, thread
):
    """Items are rows (n, h); element (n, c, h, w) has the counter ((n * C + c) * H + h) * W + w."""
    height, width, channels = x.shape[1], x.shape[2], x.shape[3]
    (n0, c0, h0, w0), (_, full_c, full_h, full_w) = begin, full
    plane = np.uint64(full_h * full_w) * GOLDEN
    for item in range(lo, hi):
        n, h = item // height, item % height
        first = ((n0 + n) * full_c + c0) * full_h * full_w + (h0 + h) * full_w + w0
        for w in range(width):
            start = np.uint64(first + w) * GOLDEN + key
            for c in range(channels):
                z = start + np.uint64(c) * plane
                z = (z ^ (z >> S30)) * MIX_1
                z = (z ^ (z >> S27)) * MIX_2
                z = z ^ (z >> S31)
                y[n, h, w, c] = x[n, h, w, c] * scale if (z >> S32) >= threshold else ZERO


def dropout(pool: ThreadPool, x: Array, y: Array, op: Dropout, key: int) -> None:
    """y = x / (1 - p) where kept, else 0; on dy it is the gradient. `y` may be `x`.

    Args:
        x: (N, H, W, C), or (N, C).
        key: key of the call in this step; re-runs and tiles have that of the original call.
    """
    x4, y4 = (a if a.ndim == 4 else a.reshape((a.shape[0], 1, 1, -1), copy=False) for a in (x, y))
    n, h, w, c = x4.shape
    full = op.full or (n, c, h, w)
    items = x4.shape[0] * x4.shape[1]
    draw = key, op.threshold, op.scale, op.offset, full
    pool.run(_dropout, items, row_chunk(items, x4.size // items), x4, y4, *draw)
