"""Dropout whose mask is the same in a re-run and in a tile: the cpu's mask, bit for bit.

For x (N, H, W, C) or (N, C), a rate and a key, the output is x / (1 - p) where an element is kept,
else 0. There is no generator state: a hash of (key of the call, global element index) decides
whether an element is kept. So a step that begins on one device and is checked on the other drops
the same elements. Source: `layers/dropout.py`. Read next: `columns.py`, `../cpu/dropout.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooctrain.layers.dropout import (
    GOLDEN,
    MASK_64,
    MIX_1,
    MIX_2,
    S27,
    S30,
    S32,
    Dropout,
    Index,
)
from ooctrain.layers.kernels.cuda.chunks import QUAD, divisor
from ooctrain.layers.kernels.cuda.quads import parted
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, st4
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, device, kernel, uint32, uint64
from ooctrain.layers.kernels.signature import F4, U4, U8, F4s, U4x3, U8x4

Array = Any
THREADS = 128
F0, H31 = np.float32(0), np.uint32(31)
U1, U2, U3 = np.uint64(1), np.uint64(2), np.uint64(3)


@device
def kept_by(x, z, threshold, scale):
    """x * scale if the element is kept whose counter and key give z, else 0."""
    z = (z ^ (z >> S30)) * MIX_1
    z = (z ^ (z >> S27)) * MIX_2
    # Of z ^ (z >> 31) the upper 32 bits decide.
    high = uint32(z >> S32)
    high = uint32(high ^ uint32(high >> H31))
    return x * scale if uint64(high) >= threshold else F0


@device
def following(z, c, channels, down, across):
    """(z, channel) of the next element of a row: the next channel, or the next pixel's first."""
    c = uint32(c + uint32(1))
    if c < channels:
        return z + down, c
    return z + across, uint32(0)


@kernel(threads=THREADS, changing=(2,))
def _dropout(
    x: F4s, y: F4s, key: U8, threshold: U8, scale: F4, row_length: U4, by_height: U4x3,
    by_channels: U4x3, first: U8, across: U8, steps: U8x4,
):  # fmt: skip
    """A thread: four neighbours of a row of an image, which has less than 2^31 elements.

    The hash of an element begins with z = counter * GOLDEN + key. So a step along an axis adds a
    number to z that is the same everywhere: one of `steps` (n, c, h, w), or `across`, from the last
    channel of a pixel to the first of the next. `first` is that of the first element.
    """
    place = uint32(uint32(cuda.blockIdx.y) * uint32(THREADS) + uint32(cuda.threadIdx.x))
    place = uint32(place * uint32(QUAD))
    if place < row_length:
        n, h = parted(uint32(cuda.blockIdx.x), by_height)
        w, c = parted(place, by_channels)
        of_n, down, of_h, of_w = steps
        z = first + key + uint64(n) * of_n + uint64(h) * of_h
        z += uint64(w) * of_w + uint64(c) * down
        z1, c1 = following(z, c, by_channels[0], down, across)
        z2, c2 = following(z1, c1, by_channels[0], down, across)
        z3, _ = following(z2, c2, by_channels[0], down, across)
        i = uint64(cuda.blockIdx.x) * uint64(row_length) + uint64(place)
        if uint32(row_length % uint32(QUAD)) == uint32(0):
            v = ld4(x, i)
            st4(y, i, (
                kept_by(v[0], z, threshold, scale), kept_by(v[1], z1, threshold, scale),
                kept_by(v[2], z2, threshold, scale), kept_by(v[3], z3, threshold, scale),
            ))  # fmt: skip
        else:
            y[i] = kept_by(x[i], z, threshold, scale)
            if uint32(place + uint32(1)) < row_length:
                y[i + U1] = kept_by(x[i + U1], z1, threshold, scale)
            if uint32(place + uint32(2)) < row_length:
                y[i + U2] = kept_by(x[i + U2], z2, threshold, scale)
            if uint32(place + uint32(3)) < row_length:
                y[i + U3] = kept_by(x[i + U3], z3, threshold, scale)


def dropout(launcher: Launcher, x: Array, y: Array, op: Dropout, key: int) -> None:
    """y = x / (1 - p) where kept, else 0; on dy it is the gradient. `y` may be `x`.

    Args:
        x: (N, H, W, C), or (N, C).
        key: key of the call in this step; re-runs and tiles have that of the original call.
    """
    n, h, w, c = x.shape if len(x.shape) == 4 else (x.shape[0], 1, 1, x.shape[1])
    blocks, sizes = (n * h, blocks_for(w * c, THREADS * QUAD)), (w * c, divisor(h), divisor(c))
    walk = walk_of(op.offset, op.full or (n, c, h, w), c)
    launcher.launch(_dropout, blocks, x, y, key, op.threshold, op.scale, *sizes, *walk)


def walk_of(offset: Index, full: Index, channels: int) -> tuple[int, int, tuple[int, ...]]:
    """What is added to a hash's start: by the first element of a block, from pixel to pixel, and
    along each axis of the whole variable; mod 2^64.

    Args:
        channels: channels of the block.
    """
    _, c, h, w = full
    counters = c * h * w, h * w, w, 1
    golden = int(GOLDEN)
    steps = tuple(counter * golden & MASK_64 for counter in counters)
    first = sum(a * step for a, step in zip(offset, steps, strict=True))
    return first & MASK_64, (golden - (channels - 1) * steps[1]) & MASK_64, steps
