"""Four neighbours at a time: where a thread works, guarded 128-bit access, values of channels.

A block, a thread and a flat array give the indices of the thread's two quads (four neighbouring
elements each), their values, and a store. Every variable begins at a multiple of 64 bytes and quads
at multiples of four elements, so a quad is one 128-bit access whatever the number of channels. Only
the last quad of an array may be cut; it is accessed element by element. A kernel loads both quads
before it uses either, so that two loads are in flight. Indices are int64: an array may have more
than 2^31 elements. Read next: `functions.py`, then `batch_norm.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cuda.chunks import QUAD, STRIDE, THREADS, TILE
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, st4
from ooctrain.layers.kernels.cuda.runtime.shim import (
    device,
    int64,
    uint32,
    uint64,
)

ZERO = np.float32(0)
#: An index that no array has; a multiple of 4, and far from the largest.
BEYOND = np.int64(1 << 60)


@device
def parted(n, by):
    """(n // extent, n % extent) of a number below 2^31, by what `chunks.divisor` gives."""
    extent, factor, shift = by
    outer = uint32(uint64(n) * uint64(factor) >> uint64(shift))
    return outer, uint32(n - uint32(outer * extent))


@device
def first_quads(block, thread):
    """Where the two quads of a thread begin, in a grid of `chunks.tiles` blocks."""
    first = int64(block) * int64(TILE) + int64(thread) * int64(QUAD)
    return first, first + int64(STRIDE)


@device
def quads_of_channels(block, stretch, thread, apart, channels):
    """(where the two quads of a thread begin, the channel of both) in a grid of
    `chunks.same_channels`; threads that have none get quads beyond any array.
    """
    place = uint32(uint32(stretch) * uint32(THREADS) + uint32(thread))
    first = int64(block) * int64(2) * int64(apart) + int64(place)
    i = first * int64(QUAD) if place < apart else BEYOND
    return i, i + int64(apart) * int64(QUAD), uint32(uint32(place * uint32(QUAD)) % channels)


@device
def element(x, i):
    """x[i], or 0 beyond the end."""
    return x[i] if i < x.size else ZERO


@device
def load_quad(x, i):
    """x[i : i + 4], with zeros beyond the end; i is a multiple of 4."""
    if i + QUAD <= x.size:
        return ld4(x, i)
    return element(x, i), element(x, i + 1), element(x, i + 2), ZERO


@device
def store_quad(y, i, values):
    """y[i : i + 4] = values, as much as y holds; i is a multiple of 4."""
    if i + QUAD <= y.size:
        st4(y, i, values)
    elif i < y.size:
        y[i] = values[0]
        if i + 1 < y.size:
            y[i + 1] = values[1]
        if i + 2 < y.size:
            y[i + 2] = values[2]


@device
def sum_quad(a, b):
    """a + b of four values."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@device
def next_channel(c, channels):
    """The channel of the following element."""
    return uint32(c + 1) if uint32(c + 1) < channels else uint32(0)


@device
def load_channels(values, first, channels):
    """Of a vector with one value per channel those of four elements; `first`: of the first one."""
    if channels % QUAD == 0:
        return ld4(values, first)
    second = next_channel(first, channels)
    third = next_channel(second, channels)
    return values[first], values[second], values[third], values[next_channel(third, channels)]
