"""How kernels over images are cut: a block takes a stretch of one row, a thread a few channels.

For NHWC arrays the host gets the number of blocks, and a kernel gets the pixel and the channels of
a thread. An array may have more elements than 32 bits can count, but a row of an image does not. So
the start of a row is computed with 64 bits, once, and everything else with 32. Where the channels
are a multiple of four a thread takes four of them, so that loads and stores are 128 bits wide.
Otherwise it takes one, so that a warp still reads neighbours. Read next:
`layers/kernels/cuda/pooling.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, st4
from ooctrain.layers.kernels.cuda.runtime.launcher import blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import device, uint32, uint64

Array = Any
Sizes = tuple[int, int, int, int, int]
#: threads of a block, and lanes: the channels of a thread
THREADS = 128
LANES = 4
LANES_SHIFT = np.uint32(2)  # a shift, where a division would be twenty instructions
U0, U1 = np.uint32(0), np.uint32(1)
F0 = np.float32(0)
#: extents up to this have products that 32 bits can count
SMALL = np.uint32(1 << 15)


def lanes_of(channels: int) -> int:
    """Channels of one thread: 4, or 1 where rows would not be aligned."""
    return LANES if channels % LANES == 0 else 1


def row_blocks(array: Array) -> tuple[int, int]:
    """Blocks that cover (N, H, W, C): along x the rows n * H + h, along y the stretches of one."""
    images, height, width, channels = array.shape
    return images * height, blocks_for(width * channels // lanes_of(channels), THREADS)


def sizes_of(inner: Array, outer: Array) -> Sizes:
    """(H, W, OH, OW, C) of two arrays of images."""
    return *inner.shape[1:3], *outer.shape[1:3], inner.shape[3]


@device
def place_of(block, thread):
    """Number of a thread along a row: pixel * (channels / lanes) + group of channels."""
    return uint32(uint32(block) * uint32(THREADS) + uint32(thread))


@device
def pixel_of(row, place, rows, channels, lanes):
    """(image, row in it, column, first channel) of a thread; columns beyond the row are not pixels.

    Args:
        row: counted over all images, of `rows` each.
        place: as `place_of` gives it.
    """
    groups = channels if lanes == U1 else uint32(channels >> LANES_SHIFT)
    image = uint32(row // rows)
    column = uint32(place // groups)
    channel = uint32(uint32(place - uint32(column * groups)) * lanes)
    return image, uint32(row - uint32(image * rows)), column, channel


@device
def row_start(row, columns, channels):
    """Where a row begins in memory."""
    return uint64(row) * uint64(uint32(columns * channels))


@device
def load(array, at, lanes):
    """`lanes` elements from `at`; those that are none are 0."""
    if lanes == U1:
        return array[at], F0, F0, F0
    return ld4(array, at)


@device
def store(array, at, values, lanes):
    """array[at : at + lanes] = values."""
    if lanes == U1:
        array[at] = values[0]
    else:
        st4(array, at, (values[0], values[1], values[2], values[3]))


@device
def scaled(count, size, by, plus):
    """floor((count * size + plus) / by), with 64 bits where 32 do not hold it."""
    if count < SMALL and size < SMALL and plus < SMALL:
        return uint32(uint32(count * size + plus) // by)
    return uint32((uint64(count) * uint64(size) + uint64(plus)) // uint64(by))
