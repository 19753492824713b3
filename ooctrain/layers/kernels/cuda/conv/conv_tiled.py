"""Convolution, second step of the ladder: 16 x 16 results share what they read.

From NHWC activations and KRSC weights it computes y, dx or dW. A block of 256 threads computes 16
pixels x 16 channels. Sixteen terms at a time, each thread fetches one factor of either side into
shared memory, and then all threads read what all have fetched: 2 loads from memory for 16
multiply-adds instead of 32. A barrier stands between fetching and multiplying, and another before
the tiles are overwritten. Lines of a tile are 17 words apart, so that the threads of a warp, which
read a column, access different banks. Source: CUDA programming guide, "Shared Memory" (matrix
multiplication). Read next: `conv_gemm.py`, which keeps 64 results in each thread.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cuda.conv import conv_blocking
from ooctrain.layers.kernels.cuda.conv.conv_address import (
    filter_offset,
    pixel_place,
    source_offset,
    source_place,
    tap_of,
    target_offset,
    term_shift,
    terms_of,
)
from ooctrain.layers.kernels.cuda.conv.conv_blocking import INNER, OUTER, PIXELS
from ooctrain.layers.kernels.cuda.conv.conv_fetch import term_of_pixel
from ooctrain.layers.kernels.cuda.conv.conv_pieces import (
    add_partials,
    correlate_by_tiles,
)
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import (
    cuda,
    device,
    float32,
    int32,
    int64,
    kernel,
    uint32,
)
from ooctrain.layers.kernels.signature import I4, F4s, I4x5, I4x9, I4x11

TILE = 16
THREADS = TILE * TILE
LINE = TILE + 1
WORDS = TILE * LINE
ZERO = np.float32(0)


@device
def fetch_term(x, w, line, term, source, taps):
    """One term of a pixel and of an output channel; 0 beyond the last.

    `line` is (place of the pixel, first channel, output channel, whether there is one).
    """
    place, first_channel, output, has_output = line
    a, b = ZERO, ZERO
    if term < uint32(terms_of(taps)):
        tap_row, tap_column, channel = tap_of(term, taps)
        offset = source_offset(place, tap_row, tap_column, int32(first_channel + channel), source)
        if offset >= 0:
            a = x[offset]
        if has_output:
            b = w[filter_offset(output, tap_row, tap_column, channel, taps)]
    return a, b


@kernel(threads=THREADS)
def _correlate(
    x: F4s, w: F4s, bias: F4s, has_bias: I4, y: F4s, source: I4x9, taps: I4x9, target: I4x11,
):  # fmt: skip
    a_tile = cuda.shared.array(WORDS, float32)
    b_tile = cuda.shared.array(WORDS, float32)
    thread, group, outer = uint32(cuda.threadIdx.x), int32(cuda.blockIdx.z), target[OUTER]
    row, column = uint32(thread // uint32(TILE)), uint32(thread % uint32(TILE))
    first_channel = int32(cuda.blockIdx.y * TILE)

    # This thread fetches term `column` of each step, for pixel and for channel number `row`.
    pixel = uint32(uint32(uint32(cuda.blockIdx.x) * uint32(TILE)) + row)
    output = int32(first_channel + row)
    line = (
        pixel_place(pixel, source, target), int32(group * taps[INNER]),
        int32(group * outer + output), output < outer,
    )  # fmt: skip

    total, step = ZERO, uint32(0)
    while step < uint32(terms_of(taps)):
        a, b = fetch_term(x, w, line, uint32(step + column), source, taps)
        a_tile[uint32(row * uint32(LINE) + column)] = a
        b_tile[uint32(row * uint32(LINE) + column)] = b
        cuda.syncthreads()
        for k in range(TILE):
            total += (
                a_tile[uint32(row * uint32(LINE) + uint32(k))]
                * b_tile[uint32(column * uint32(LINE) + uint32(k))]
            )
        cuda.syncthreads()
        step = uint32(step + uint32(TILE))

    # It writes the result for pixel number `row` and channel number `column`.
    channel = int32(first_channel + column)
    if pixel < uint32(target[PIXELS]) and channel < outer:
        channel = int32(channel + group * outer)
        y[target_offset(pixel, target) + channel] = total + bias[channel] if has_bias else total


@kernel(threads=THREADS)
def _grad_weight(
    x: F4s, dy: F4s, partials: F4s, source: I4x9, taps: I4x9, pixels: I4x5, outer: I4, groups: I4,
):  # fmt: skip
    """The sum runs over pixels: in each step, sixteen filters and terms of sixteen pixels."""
    x_tile = cuda.shared.array(WORDS, float32)
    dy_tile = cuda.shared.array(WORDS, float32)
    total_pixels, rows, columns, filters, per_split = pixels
    thread, terms = uint32(cuda.threadIdx.x), int32(terms_of(taps))
    group = int32(int32(cuda.blockIdx.z) % groups)
    split = int32(int32(cuda.blockIdx.z) // groups)
    row, column = uint32(thread // uint32(TILE)), uint32(thread % uint32(TILE))
    term = int32(cuda.blockIdx.x * TILE + int32(column))
    first_filter = int32(cuda.blockIdx.y * TILE)
    shift = term_shift(uint32(term), int32(group * taps[INNER]), source, taps)
    fetched, made = int32(first_filter + column), int32(first_filter + row)

    end = uint32((split + 1) * per_split)
    end = end if end < uint32(total_pixels) else uint32(total_pixels)
    total, step = ZERO, uint32(split * per_split)
    while step < end:
        pixel, a, b = uint32(step + row), ZERO, ZERO
        if pixel < end:
            place = source_place(pixel, rows, columns, source)
            a = term_of_pixel(x, place, shift, source)
            if fetched < outer:
                b = dy[int64(pixel) * filters + group * outer + fetched]
        x_tile[uint32(row * uint32(LINE) + column)] = a
        dy_tile[uint32(row * uint32(LINE) + column)] = b
        cuda.syncthreads()
        for p in range(TILE):
            total += (
                x_tile[uint32(uint32(p * LINE) + column)] * dy_tile[uint32(uint32(p * LINE) + row)]
            )
        cuda.syncthreads()
        step = uint32(step + uint32(TILE))
    if term < terms and made < outer:
        line = int64(split) * filters + group * outer + made
        partials[line * terms + term] = total


def correlate(launcher: Launcher, correlation: conv_blocking.Correlation, x, w, bias, y) -> None:
    """y[pixel, o] = sum over terms of x times w [+ bias]."""
    correlate_by_tiles(launcher, _correlate, (TILE, TILE), correlation, x, w, bias, y)


def grad_weight(launcher: Launcher, shape: ConvShape, x, dy, dw, workspace) -> None:
    """dw[k, term] = sum over pixels of what the term reads times dy[pixel, k], in splits."""
    source, taps, pixels = conv_blocking.grad_weight(shape)
    splits = conv_blocking.splits(shape)
    partials = launcher.part(workspace, 0, splits * dw.size, "float32") if splits > 1 else dw
    terms = taps.count * taps.inner
    blocks = blocks_for(terms, TILE), blocks_for(shape.kg, TILE), shape.groups * splits
    launcher.launch(
        _grad_weight, blocks, x, dy, partials, source, taps, pixels, shape.kg, shape.groups
    )
    add_partials(launcher, partials, splits, dw)
