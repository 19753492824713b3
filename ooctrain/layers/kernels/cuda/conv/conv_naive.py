"""Convolution, first step of the ladder: one thread for each number that is written.

From NHWC activations and KRSC weights it computes y, dx or dW. On a GPU a loop over results is not
written but launched, with one thread for each result. Neighbouring threads take neighbouring
channels, so that their writes are contiguous. Every thread reads all its factors itself, 2 R S C
numbers for a result, most of which other threads read as well. This suits filters of one channel
(depthwise), which have nothing to share. The gradient of a weight sums over all pixels, in the
splits of `conv_blocking.splits`, whose results are added in order. Read next: `conv_tiled.py`,
which shares the loads.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cuda.conv import conv_blocking
from ooctrain.layers.kernels.cuda.conv.conv_address import (
    filter_offset,
    source_offset,
    source_place,
    tap_of,
    target_offset,
    terms_of,
)
from ooctrain.layers.kernels.cuda.conv.conv_blocking import (
    COLUMNS,
    INNER,
    OUTER,
    ROWS,
    TAP_COUNT,
    TARGET_C,
)
from ooctrain.layers.kernels.cuda.conv.conv_pieces import add_partials
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, int32, int64, kernel, uint32
from ooctrain.layers.kernels.signature import I4, I8, F4s, I4x5, I4x9, I4x11

THREADS = 256
ZERO = np.float32(0)


@kernel(threads=THREADS)
def _correlate(
    x: F4s, w: F4s, bias: F4s, has_bias: I4, y: F4s, source: I4x9, taps: I4x9, target: I4x11,
    count: I8,
):  # fmt: skip
    """Thread: one channel of one pixel. `count` results may be more than 2^32."""
    result = int64(cuda.blockIdx.x) * int64(THREADS) + cuda.threadIdx.x
    if result < count:
        channels = int64(target[TARGET_C])
        pixel = uint32(result // channels)
        channel = int32(result - int64(pixel) * channels)
        first_channel = int32(channel // target[OUTER] * taps[INNER])
        place = source_place(pixel, target[ROWS], target[COLUMNS], source)
        total = bias[channel] if has_bias else ZERO
        for position in range(taps[TAP_COUNT] * taps[INNER]):
            tap_row, tap_column, inner = tap_of(uint32(position), taps)
            offset = source_offset(place, tap_row, tap_column, int32(first_channel + inner), source)
            if offset >= 0:
                total += x[offset] * w[filter_offset(channel, tap_row, tap_column, inner, taps)]
        y[target_offset(pixel, target) + channel] = total


@kernel(threads=THREADS)
def _grad_weight(
    x: F4s, dy: F4s, partials: F4s, source: I4x9, taps: I4x9, pixels: I4x5, filters_per_group: I4,
):  # fmt: skip
    """Thread: one weight over one split of the pixels; filters run fastest over the threads."""
    total_pixels, rows, columns, filters, per_split = pixels
    weight = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
    terms = uint32(terms_of(taps))
    position = uint32(weight // uint32(filters))
    if position < terms:
        k = int32(weight - position * uint32(filters))
        tap_row, tap_column, channel = tap_of(position, taps)
        channel = int32(channel + k // filters_per_group * taps[INNER])
        first = int64(cuda.blockIdx.y) * per_split
        end = int64(first + per_split)
        end = end if end < total_pixels else int64(total_pixels)
        total = ZERO
        for p in range(first, end):
            place = source_place(uint32(p), rows, columns, source)
            offset = source_offset(place, tap_row, tap_column, channel, source)
            if offset >= 0:
                total += x[offset] * dy[p * filters + k]
        split = int64(cuda.blockIdx.y) * filters * terms
        partials[split + int64(k) * terms + position] = total


def correlate(launcher: Launcher, correlation: conv_blocking.Correlation, x, w, bias, y) -> None:
    """y[pixel, o] = sum over terms of x times w [+ bias]."""
    source, taps, target = correlation
    count = target.pixels * target.c
    has_bias = bias is not None
    launcher.launch(
        _correlate, blocks_for(count, THREADS), x, w, bias if has_bias else w, has_bias, y,
        source, taps, target, count,
    )  # fmt: skip


def grad_weight(launcher: Launcher, shape: ConvShape, x, dy, dw, workspace) -> None:
    """dw = sum over pixels of dy times what the tap reads."""
    source, taps, pixels = conv_blocking.grad_weight(shape)
    splits = conv_blocking.splits(shape)
    partials = launcher.part(workspace, 0, splits * dw.size, "float32") if splits > 1 else dw
    blocks = blocks_for(dw.size, THREADS), splits
    launcher.launch(_grad_weight, blocks, x, dy, partials, source, taps, pixels, shape.kg)
    add_partials(launcher, partials, splits, dw)
