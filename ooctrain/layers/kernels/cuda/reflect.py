"""Reflection padding on NHWC and its gradient.

The output is x (N, H, W, C) with borders in which the image is mirrored at its outermost pixels.
The gradient *gathers*: a pixel has copies in at most three rows and three columns of the padded
image, itself and its mirror images, and adds them up in ascending order. Read next: `dropout.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cuda.conv.image_rows import (
    F0,
    LANES,
    THREADS,
    Array,
    lanes_of,
    load,
    pixel_of,
    place_of,
    row_blocks,
    row_start,
    store,
)
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, device, float32, int32, kernel, uint32

Sides = tuple[int, int, int, int]
I0, I1, I2 = np.int32(0), np.int32(1), np.int32(2)
NOWHERE = np.int32(-1)
#: A pixel may have a copy before the image, in it and behind it.
VIEWS = 3


@device
def _mirror(i, extent):
    """The index in [0, extent) whose pixel reflection shows at `i`, at most extent - 1 outside."""
    if i < I0:
        return int32(-i)
    return int32(I2 * int32(extent - I1) - i) if i >= extent else i


@device
def _seen_at(i, view, before, extent, padded):
    """Where in the padded image pixel `i` is seen; NOWHERE if it is not, or is there as itself."""
    if view == I1:
        return int32(before + i)
    at = int32(before - i) if view == I0 else int32(before + int32(I2 * int32(extent - I1)) - i)
    inside = at >= I0 and at < padded and at != int32(before + i)
    return at if inside else NOWHERE


@kernel("void(f4[::1], f4[::1], UniTuple(i4, 3), UniTuple(i4, 4), u4)", threads=THREADS)
def _reflect(x, y, sizes, sides, lanes):
    """A thread: some channels of an output pixel."""
    height, width, channels = sizes
    top, bottom, left, right = sides
    tall, wide = uint32(top + height + bottom), uint32(left + width + right)
    row, place = uint32(cuda.blockIdx.x), place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    n, oh, ow, c = pixel_of(row, place, tall, uint32(channels), lanes)
    if ow < wide:
        h = _mirror(int32(int32(oh) - top), height)
        w = _mirror(int32(int32(ow) - left), width)
        start = row_start(uint32(n * uint32(height) + uint32(h)), width, channels)
        values = load(x, start + uint32(uint32(w) * uint32(channels) + c), lanes)
        target = row_start(row, wide, channels) + uint32(ow * uint32(channels) + c)
        store(y, target, values, lanes)


@kernel("void(f4[::1], f4[::1], UniTuple(i4, 3), UniTuple(i4, 4), u4)", threads=THREADS)
def _reflect_grad(dy, dx, sizes, sides, lanes):
    """A thread: some channels of an input pixel, over the places where it is seen."""
    height, width, channels = sizes
    top, bottom, left, right = sides
    tall, wide = int32(top + height + bottom), int32(left + width + right)
    total = cuda.local.array(LANES, float32)
    row, place = uint32(cuda.blockIdx.x), place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    n, line, w, c = pixel_of(row, place, uint32(height), uint32(channels), lanes)
    if w < uint32(width):
        h = int32(line)
        for lane in range(LANES):
            total[lane] = F0
        for row_view in range(VIEWS):
            oh = _seen_at(h, row_view, top, height, tall)
            start = row_start(uint32(n * uint32(tall) + uint32(oh)), wide, channels)
            for column_view in range(VIEWS):
                ow = _seen_at(int32(w), column_view, left, width, wide)
                if oh != NOWHERE and ow != NOWHERE:
                    at = start + uint32(uint32(ow) * uint32(channels) + c)
                    values = load(dy, at, lanes)
                    for lane in range(LANES):
                        total[lane] += values[lane]
        target = row_start(row, width, channels) + uint32(w * uint32(channels) + c)
        store(dx, target, total, lanes)


def reflect(launcher: Launcher, x: Array, y: Array, sides: Sides) -> None:
    """y = x with mirrored borders of (top, bottom, left, right) pixels, each less than the image's
    extent.
    """
    lanes = lanes_of(x.shape[3])
    launcher.launch(_reflect, row_blocks(y), x, y, x.shape[1:], sides, lanes)


def reflect_grad(launcher: Launcher, dy: Array, dx: Array, sides: Sides) -> None:
    """dx = for each pixel the sum of dy over all its copies."""
    lanes = lanes_of(dx.shape[3])
    launcher.launch(_reflect_grad, row_blocks(dx), dy, dx, dx.shape[1:], sides, lanes)
