"""Dropout whose mask is the same in a re-run, in a fused call and in a tile.

In: x (N, H, W, C), or (N, C), a rate and a key. Out: x / (1 - p) where kept, else 0. The one idea:
no generator state. Whether an element is kept is a hash of (seed, step, call, global element
index), the index counted in the logical NCHW order of the whole, untiled variable; so a tile at an
offset draws the bits that the untiled call draws there, and backward is the same kernel on dy.
Source: counter-based generators, Salmon et al. 2011; the mixing function is splitmix64 (Steele,
Lea, Flood 2014). Read next: `copy.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import row_chunk
from ooctrain.layers.kernels.cpu.runtime.jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool

Array = np.ndarray
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
S27, S30, S31, S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
ZERO = np.float32(0)
MASK_64 = (1 << 64) - 1


@kernel("void(f4[:,:,:,::1], f4[:,:,:,::1], u8, u8, f4, i8, i8, i8, i8, i8, i8, i8, i8, i8, i8)")
def _dropout(x, y, key, threshold, scale, n0, c0, h0, w0, full_c, full_h, full_w, lo, hi, thread):
    """Items are rows (n, h); element (n, c, h, w) has the counter ((n * C + c) * H + h) * W + w."""
    height, width, channels = x.shape[1], x.shape[2], x.shape[3]
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


def key_of(seed: int, step: int, call: int) -> int:
    """64-bit key of one call in one step: the three numbers mixed one after the other."""
    key = 0
    for part in (seed, step, call):
        key = _mix((key ^ part) & MASK_64)
    return key


def dropout(
    pool: ThreadPool,
    x: Array,
    y: Array,
    p: float,
    seed: int,
    step: int,
    call: int,
    offset: tuple[int, int, int, int] = (0, 0, 0, 0),
    full: tuple[int, int, int, int] | None = None,
) -> None:
    """y = x / (1 - p) where kept, else 0; on dy it is the gradient. `y` may be `x`.

    Args:
        x: (N, H, W, C), or (N, C).
        p: probability of an element to be zeroed, in [0, 1].
        seed, step, call: the key; re-runs and tiles pass the number of the original call.
        offset: logical (n0, c0, h0, w0) of this block in the whole variable.
        full: logical (N, C, H, W) of the whole variable; None: this is the whole.
    """
    x4, y4 = (a if a.ndim == 4 else a.reshape((a.shape[0], 1, 1, -1), copy=False) for a in (x, y))
    if full is None:
        n, h, w, c = x4.shape
        full = (n, c, h, w)
    items = x4.shape[0] * x4.shape[1]
    chunk, threshold = row_chunk(items, x4.size // items), round(p * 2**32)
    draw = key_of(seed, step, call), threshold, 0.0 if p >= 1 else 1.0 / (1.0 - p)
    pool.run(_dropout, items, chunk, x4, y4, *draw, *offset, *full[1:])


def _mix(value: int) -> int:
    """splitmix64 on a Python integer."""
    z = (value + int(GOLDEN)) & MASK_64
    z = ((z ^ (z >> 30)) * int(MIX_1)) & MASK_64
    z = ((z ^ (z >> 27)) * int(MIX_2)) & MASK_64
    return z ^ (z >> 31)
