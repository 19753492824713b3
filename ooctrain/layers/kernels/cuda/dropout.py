"""Dropout whose mask is the same in a re-run and in a tile: the cpu's mask, bit for bit.

For x (N, H, W, C) or (N, C), a rate and a key, the output is x / (1 - p) where an element is kept,
else 0. There is no generator state: a hash of (key of the call, global element index) decides
whether an element is kept. So a step that begins on one device and is checked on the other drops
the same elements. Source: `layers/dropout.py`. Read next: `conv/columns.py`, `../cpu/dropout.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.dropout import GOLDEN, MIX_1, MIX_2, S27, S30, S31, S32, Dropout
from ooctrain.layers.kernels.cuda.conv.image_rows import (
    THREADS,
    Array,
    lanes_of,
    load,
    pixel_of,
    place_of,
    row_start,
    store,
)
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, device, kernel, uint32, uint64

F0 = np.float32(0)


@device
def kept_by(x, counter, key, threshold, scale):
    """x * scale if the element of this counter is kept, else 0."""
    z = counter * GOLDEN + key
    z = (z ^ (z >> S30)) * MIX_1
    z = (z ^ (z >> S27)) * MIX_2
    z = z ^ (z >> S31)
    return x * scale if (z >> S32) >= threshold else F0


@kernel(
    "void(f4[::1], f4[::1], u8, u8, f4, UniTuple(u4, 3), UniTuple(u8, 4), UniTuple(u8, 3), u4)",
    threads=THREADS, changing=(2,),
)  # fmt: skip
def _dropout(x, y, key, threshold, scale, sizes, offset, full, lanes):
    """A thread: some channels of a pixel; the counter of an element (n, c, h, w) is
    ((n * C + c) * H + h) * W + w.
    """
    height, width, channels = sizes
    n0, c0, h0, w0 = offset
    full_c, full_h, full_w = full
    row = uint32(cuda.blockIdx.x)
    place = place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    n, h, w, c = pixel_of(row, place, height, channels, lanes)
    if w < width:
        plane = (n0 + uint64(n)) * full_c + c0 + uint64(c)
        first = (plane * full_h + h0 + uint64(h)) * full_w + w0 + uint64(w)
        step = full_h * full_w
        second = first + step
        third = second + step
        at = row_start(row, width, channels) + uint32(w * channels + c)
        v = load(x, at, lanes)
        store(y, at, (
            kept_by(v[0], first, key, threshold, scale),
            kept_by(v[1], second, key, threshold, scale),
            kept_by(v[2], third, key, threshold, scale),
            kept_by(v[3], third + step, key, threshold, scale),
        ), lanes)  # fmt: skip


def dropout(launcher: Launcher, x: Array, y: Array, op: Dropout, key: int) -> None:
    """y = x / (1 - p) where kept, else 0; on dy it is the gradient. `y` may be `x`.

    Args:
        x: (N, H, W, C), or (N, C).
        key: of the call in this step; re-runs and tiles have that of the original call.
    """
    n, h, w, c = x.shape if len(x.shape) == 4 else (x.shape[0], 1, 1, x.shape[1])
    full = op.full or (n, c, h, w)
    lanes, draw = lanes_of(c), (key, op.threshold, op.scale)
    blocks = n * h, blocks_for(w * c // lanes, THREADS)
    launcher.launch(_dropout, blocks, x, y, *draw, (h, w, c), op.offset, full[1:], lanes)
