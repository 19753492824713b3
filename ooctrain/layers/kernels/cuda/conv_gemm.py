"""Convolution, third step of the ladder: an implicit matrix product, blocked in registers.

In: NHWC activations, KRSC weights. Out: y, dx or dW in float32. The one idea: pixels x channels is
a matrix product whose left factor, the receptive fields, is never written down; a block gathers
eight of its columns at a time into shared memory. 256 threads make 128 x 128 results, 64 in each
thread's registers (`tile_product.py`), so that 85 of 100 instructions are multiply-adds. While one
pair of tiles is multiplied, the next eight columns are already on their way from memory (registers,
then the other half of shared memory), so one barrier for each step is enough. Source: Chetlur et
al., "cuDNN" (2014), section 3; CUTLASS. Read next: `conv_tf32.py`.
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from ooctrain.layers.kernels.conv_shape import ConvShape
from ooctrain.layers.kernels.cuda import conv_plan
from ooctrain.layers.kernels.cuda.conv_address import OUTSIDE, source_place, target_offset
from ooctrain.layers.kernels.cuda.conv_fetch import (
    fetch_pixel_quads,
    fetch_pixel_singles,
    fetch_quads,
    fetch_singles,
    load_upto,
    plus,
    store_column,
    store_upto,
)
from ooctrain.layers.kernels.cuda.conv_pieces import add_partials, turn_weights
from ooctrain.layers.kernels.cuda.intrinsics import st4
from ooctrain.layers.kernels.cuda.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.shim import Kernel, cuda, float32, int32, int64, kernel, uint32
from ooctrain.layers.kernels.cuda.tile_product import (
    A_STRIDE,
    NARROW,
    PADDING,
    QUAD_DISTANCE,
    TILE_DEPTH,
    TILE_ROWS,
    WIDE,
    product_64,
    product_128,
)

THREADS = 256
ZERO = np.float32(0)
A_HALF = TILE_DEPTH * A_STRIDE
A_WORDS = 2 * A_HALF
#: Registers of a thread with which two blocks share a processor.
TWO_BLOCKS = 128
_PRODUCTS = MappingProxyType({WIDE: product_128, NARROW: product_64})


def _correlation(fetch: Any, product: Any, columns: int, max_registers: int | None) -> Kernel:
    """The kernel for tiles of 128 pixels x `columns` channels."""
    b_stride, wide = columns + PADDING, columns // 16
    b_half, quads = TILE_DEPTH * b_stride, columns // QUAD_DISTANCE
    b_words, sums_words = 2 * b_half, 8 * wide

    @kernel(
        "void(f4[::1], f4[::1], f4[::1], i4, f4[::1], UniTuple(i4, 9), UniTuple(i4, 9),"
        " UniTuple(i4, 11))",
        threads=THREADS,
        max_registers=max_registers,
    )
    def multiply_terms(x, w, bias, has_bias, y, source, taps, target):
        a_tile = cuda.shared.array(A_WORDS, float32)
        b_tile = cuda.shared.array(b_words, float32)
        sums = cuda.local.array(sums_words, float32)
        for i in range(sums_words):
            sums[i] = ZERO
        offsets = cuda.shared.array(TILE_ROWS, int64)
        thread, group, outer = uint32(cuda.threadIdx.x), int32(cuda.blockIdx.z), target[10]
        first_pixel = uint32(uint32(cuda.blockIdx.x) * uint32(TILE_ROWS))
        first_column = int32(cuda.blockIdx.y * columns)

        # This thread fetches four of a step's eight terms, for one pixel and for one channel.
        number = uint32(thread // uint32(2))
        within = uint32(thread % uint32(2) * uint32(4))
        pixel, column = uint32(first_pixel + number), int32(first_column + number)
        has_pixel = pixel < uint32(target[2])
        has_output = number < uint32(columns) and column < outer
        place = source_place(pixel if has_pixel else uint32(0), target[0], target[1], source)
        channel, output = int32(group * taps[8]), int32(group * outer + column)
        line = (place, has_pixel, channel, output, has_output)
        a_put = uint32(within * uint32(A_STRIDE) + number)
        b_put = uint32(within * uint32(b_stride) + number)

        # Where the results of a pixel go is worked out once and kept for the end.
        if thread < uint32(TILE_ROWS):
            pixel = uint32(first_pixel + thread)
            offsets[thread] = (
                target_offset(pixel, target) if pixel < uint32(target[2]) else int64(OUTSIDE)
            )
        cuda.syncthreads()
        in_fours = outer % 4 == 0

        # It multiplies for eight of the block's pixels and 4 or 8 of its channels.
        row = uint32(thread // uint32(16) * uint32(4))
        cell = uint32(thread % uint32(16) * uint32(4))
        a_half, b_other = uint32(0), uint32(0)
        step, depth = uint32(0), uint32(taps[0] * taps[8])
        a, b = fetch(x, w, line, within, source, taps)
        while step < depth:
            store_column(a_tile, uint32(a_half + a_put), uint32(A_STRIDE), a)
            if number < uint32(columns):
                store_column(b_tile, uint32(b_other + b_put), uint32(b_stride), b)
            cuda.syncthreads()
            step = uint32(step + uint32(TILE_DEPTH))
            if step < depth:
                a, b = fetch(x, w, line, uint32(step + within), source, taps)
            product(sums, a_tile, uint32(a_half + row), b_tile, uint32(b_other + cell))
            a_half = uint32(uint32(A_HALF) - a_half)
            b_other = uint32(uint32(b_half) - b_other)

        left = int32(outer - first_column - int32(cell))
        for q in range(quads):
            first = int32(group * outer + first_column + int32(cell) + q * QUAD_DISTANCE)
            remaining = int32(left - q * QUAD_DISTANCE)
            base = load_upto(bias, first, remaining if has_bias else 0)
            for i in range(8):
                offset = offsets[row + uint32(i // 4 * QUAD_DISTANCE + i % 4)]
                j = i * wide + q * 4
                values = (sums[j], sums[j + 1], sums[j + 2], sums[j + 3])
                if offset >= 0:
                    store_upto(y, offset + first, plus(values, base), remaining, in_fours)

    return multiply_terms


def _weight_product(fetch: Any, product: Any, columns: int, max_registers: int | None) -> Kernel:
    """The kernel of dW for tiles of 128 terms (taps x channels) x `columns` filters."""
    b_stride, wide = columns + PADDING, columns // 16
    b_half = TILE_DEPTH * b_stride
    b_words, sums_words = 2 * b_half, 8 * wide

    @kernel(
        "void(f4[::1], f4[::1], f4[::1], UniTuple(i4, 9), UniTuple(i4, 9), UniTuple(i4, 5), i4,"
        " i4)",
        threads=THREADS,
        max_registers=max_registers,
    )
    def multiply_pixels(x, dy, partials, source, taps, pixels, outer, groups):
        a_tile = cuda.shared.array(A_WORDS, float32)
        b_tile = cuda.shared.array(b_words, float32)
        sums = cuda.local.array(sums_words, float32)
        for i in range(sums_words):
            sums[i] = ZERO
        total, rows, image_columns, filters, per_split = pixels
        thread, terms = uint32(cuda.threadIdx.x), int32(taps[0] * taps[8])
        group = int32(int32(cuda.blockIdx.z) % groups)
        split = int32(int32(cuda.blockIdx.z) // groups)
        first_term = int32(cuda.blockIdx.x * TILE_ROWS)
        first_filter = int32(cuda.blockIdx.y * columns)

        # This thread fetches, for one of a step's eight pixels, four terms and four filters.
        number = uint32(thread // uint32(32))
        within = uint32(thread % uint32(32) * uint32(4))
        term, k = int32(first_term + within), int32(first_filter + within)
        k_left = int32(outer - k) if within < uint32(columns) else int32(0)
        channel = int32(group * taps[8])
        a_put = uint32(number * uint32(A_STRIDE) + within)
        b_put = uint32(number * uint32(b_stride) + within)

        row = uint32(thread // uint32(16) * uint32(4))
        cell = uint32(thread % uint32(16) * uint32(4))
        a_half, b_other = uint32(0), uint32(0)
        pixel = uint32(uint32(split * per_split) + number)
        end = uint32((split + 1) * per_split)
        end = end if end < uint32(total) else uint32(total)
        steps = uint32(uint32(uint32(per_split) + uint32(TILE_DEPTH - 1)) // uint32(TILE_DEPTH))
        a, b = fetch(x, dy, pixel, end, (rows, image_columns), channel, term,
                     (filters, group * outer + k, k_left), source, taps)  # fmt: skip
        while steps > uint32(0):
            st4(a_tile, uint32(a_half + a_put), a)
            if within < uint32(columns):
                st4(b_tile, uint32(b_other + b_put), b)
            cuda.syncthreads()
            steps, pixel = uint32(steps - uint32(1)), uint32(pixel + uint32(TILE_DEPTH))
            if steps > uint32(0):
                a, b = fetch(x, dy, pixel, end, (rows, image_columns), channel, term,
                             (filters, group * outer + k, k_left), source, taps)  # fmt: skip
            product(sums, a_tile, uint32(a_half + row), b_tile, uint32(b_other + cell))
            a_half = uint32(uint32(A_HALF) - a_half)
            b_other = uint32(uint32(b_half) - b_other)

        in_fours = terms % 4 == 0
        for q in range(2):
            term = int32(first_term + int32(row) + q * QUAD_DISTANCE)
            for j in range(wide):
                k = int32(first_filter + int32(cell) + j // 4 * QUAD_DISTANCE + j % 4)
                if k < outer:
                    line = int64(split) * filters + group * outer + k
                    i = q * 4 * wide + j
                    values = (sums[i], sums[i + wide], sums[i + 2 * wide], sums[i + 3 * wide])
                    store_upto(partials, line * terms + term, values, int32(terms - term), in_fours)

    return multiply_pixels


def forward(launcher: Launcher, shape: ConvShape, x, w, bias, y, workspace) -> None:
    """y = x correlated with w [+ bias]."""
    correlate(launcher, shape.groups, conv_plan.forward(shape), x, w, bias, y)


def grad_input(launcher: Launcher, shape: ConvShape, dy, w, dx, workspace) -> None:
    """dx = dy correlated with the turned weights, phase by phase."""
    turned = turn_weights(launcher, shape, w, workspace)
    for correlation in conv_plan.grad_input(shape):
        correlate(launcher, shape.groups, correlation, dy, turned, None, dx)


def grad_weight(launcher: Launcher, shape: ConvShape, x, dy, dw, workspace) -> None:
    """dw[k, term] = sum over pixels of what the term reads times dy[pixel, k], in splits."""
    source, taps, pixels = conv_plan.grad_weight(shape)
    splits = conv_plan.splits(shape)
    partials = launcher.part(workspace, 0, splits * dw.size, "float32") if splits > 1 else dw
    columns = NARROW if shape.kg <= NARROW else WIDE
    terms = taps.count * taps.inner
    blocks = (
        blocks_for(terms, TILE_ROWS), blocks_for(shape.kg, columns), shape.groups * splits,
    )  # fmt: skip
    kernel = _weight_kernel(shape.cg % 4 == 0 and shape.kg % 4 == 0, columns)
    launcher.launch(kernel, blocks, x, dy, partials, source, taps, pixels, shape.kg, shape.groups)
    add_partials(launcher, partials, splits, dw)


def correlate(
    launcher: Launcher, groups: int, correlation: conv_plan.Correlation, x, w, bias, y
) -> None:
    """Launches one correlation: y[pixel, o] = sum over terms of x times w [+ bias]."""
    source, taps, target = correlation
    columns = NARROW if target.outer <= NARROW else WIDE
    blocks = (
        blocks_for(target.pixels, TILE_ROWS), blocks_for(target.outer, columns), groups,
    )  # fmt: skip
    launcher.launch(
        _correlation_kernel(taps.inner % 4 == 0, columns), blocks, x, w,
        w if bias is None else bias, bias is not None, y, source, taps, target,
    )  # fmt: skip


@cache
def _correlation_kernel(in_fours: bool, columns: int) -> Kernel:
    fetch = fetch_quads if in_fours else fetch_singles
    return _correlation(fetch, _PRODUCTS[columns], columns, TWO_BLOCKS if in_fours else None)


@cache
def _weight_kernel(in_fours: bool, columns: int) -> Kernel:
    fetch = fetch_pixel_quads if in_fours else fetch_pixel_singles
    return _weight_product(fetch, _PRODUCTS[columns], columns, TWO_BLOCKS if in_fours else None)
