"""Convolution, third step of the ladder: an implicit matrix product, blocked in registers.

In: NHWC activations, KRSC weights. Out: y, dx or dW in float32. The one idea: pixels x channels is
a matrix product whose left factor, the receptive fields, is never written down; a block gathers
eight of its columns at a time into shared memory. 256 threads make 128 x 128 results, 64 in each
thread's registers (`tile_product.py`), so that 85 of 100 instructions are multiply-adds. While one
pair of tiles is multiplied, the next eight columns are already on their way from memory (registers,
then the other half of shared memory), so one barrier for each step is enough. Source: Chetlur et
al., "cuDNN" (2014), section 3; CUTLASS. Read next: `conv_gemm_weights.py`, then `conv_tf32.py`.
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Any

from ooctrain.layers.kernels.cuda.conv import conv_plan
from ooctrain.layers.kernels.cuda.conv.conv_address import terms_of
from ooctrain.layers.kernels.cuda.conv.conv_fetch import (
    fetch_quads,
    fetch_singles,
    load_upto,
    store_column,
    store_upto,
)
from ooctrain.layers.kernels.cuda.conv.conv_gemm_weights import grad_weight
from ooctrain.layers.kernels.cuda.conv.conv_kept import keep_pixel, kept_place
from ooctrain.layers.kernels.cuda.conv.conv_plan import INNER, OUTER
from ooctrain.layers.kernels.cuda.conv.tile_product import (
    A_HALF,
    A_STRIDE,
    A_WORDS,
    NARROW,
    PADDING,
    QUAD_DISTANCE,
    THREADS,
    TILE_DEPTH,
    TILE_ROWS,
    TWO_BLOCKS,
    WIDE,
    clear,
    product_64,
    product_128,
)
from ooctrain.layers.kernels.cuda.quads import sum_quad
from ooctrain.layers.kernels.cuda.runtime.intrinsics import shared_array
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import (
    Kernel,
    cuda,
    device,
    float32,
    int32,
    int64,
    kernel,
    uint32,
)

__all__ = ["correlate", "grad_weight"]

_PRODUCTS = MappingProxyType({WIDE: product_128, NARROW: product_64})


def _correlation(fetch: Any, product: Any, columns: int) -> Kernel:
    """The kernel for tiles of 128 pixels x `columns` channels."""
    b_stride, sums_words = columns + PADDING, columns // 2
    b_half, b_words = TILE_DEPTH * b_stride, 2 * TILE_DEPTH * b_stride
    store_results = _epilogue(columns)

    @kernel(
        "void(f4[::1], f4[::1], f4[::1], i4, f4[::1], UniTuple(i4, 9), UniTuple(i4, 9),"
        " UniTuple(i4, 11))",
        threads=THREADS,
        max_registers=TWO_BLOCKS,
    )
    def multiply_terms(x, w, bias, has_bias, y, source, taps, target):
        a_tile = shared_array(A_WORDS, float32)
        b_tile = shared_array(b_words, float32)
        place_rows = shared_array(TILE_ROWS, int32)
        place_columns = shared_array(TILE_ROWS, int32)
        place_offsets = shared_array(TILE_ROWS, int64)
        targets = shared_array(TILE_ROWS, int64)
        sums = cuda.local.array(sums_words, float32)
        clear(sums, sums_words)
        thread, group, outer = uint32(cuda.threadIdx.x), int32(cuda.blockIdx.z), target[OUTER]
        first_pixel = uint32(uint32(cuda.blockIdx.x) * uint32(TILE_ROWS))
        first_column = int32(cuda.blockIdx.y * columns)
        places = place_rows, place_columns, place_offsets
        if thread < uint32(TILE_ROWS):
            keep_pixel(places, targets, thread, uint32(first_pixel + thread), source, target)
        cuda.syncthreads()

        # This thread fetches four of a step's eight terms, for one pixel and for one channel.
        number = uint32(thread // uint32(2))
        within = uint32(thread % uint32(2) * uint32(4))
        column, channel = int32(first_column + number), int32(group * taps[INNER])
        has_output = number < uint32(columns) and column < outer
        output = int32(group * outer + column)
        a_put = uint32(within * uint32(A_STRIDE) + number)
        b_put = uint32(within * uint32(b_stride) + number)

        # It multiplies for eight of the block's pixels and 4 or 8 of its channels.
        row = uint32(thread // uint32(16) * uint32(4))
        cell = uint32(thread % uint32(16) * uint32(4))
        half, step, depth = uint32(0), uint32(0), uint32(terms_of(taps))
        line = kept_place(places, number), channel, output, has_output
        a, b = fetch(x, w, line, within, source, taps)
        while step < depth:
            store_column(a_tile, uint32(half * uint32(A_HALF) + a_put), uint32(A_STRIDE), a)
            if number < uint32(columns):
                store_column(b_tile, uint32(half * uint32(b_half) + b_put), uint32(b_stride), b)
            cuda.syncthreads()
            step = uint32(step + uint32(TILE_DEPTH))
            if step < depth:
                line = kept_place(places, number), channel, output, has_output
                a, b = fetch(x, w, line, uint32(step + within), source, taps)
            a_get = uint32(half * uint32(A_HALF) + row)
            b_get = uint32(half * uint32(b_half) + cell)
            product(sums, a_tile, a_get, b_tile, b_get)
            half = uint32(uint32(1) - half)

        column = int32(first_column + cell)
        store_results(y, sums, targets, row, (group, column, outer), bias, has_bias)

    return multiply_terms


def _epilogue(columns: int) -> Any:
    """The function that writes a thread's results, with the bias added."""
    wide, quads = columns // 16, columns // QUAD_DISTANCE

    @device
    def store_results(y, sums, targets, row, channels, bias, has_bias):
        """y at pixels row.. and channels column.. of (group, column, channels of a group)."""
        group, column, outer = channels
        in_fours = outer % 4 == 0
        for q in range(quads):
            first = int32(group * outer + column + q * QUAD_DISTANCE)
            remaining = int32(outer - column - q * QUAD_DISTANCE)
            base = load_upto(bias, first, remaining if has_bias else 0)
            for i in range(8):
                offset = targets[row + uint32(i // 4 * QUAD_DISTANCE + i % 4)]
                j = i * wide + q * 4
                values = (sums[j], sums[j + 1], sums[j + 2], sums[j + 3])
                if offset >= 0:
                    store_upto(y, offset + first, sum_quad(values, base), remaining, in_fours)

    return store_results


def correlate(launcher: Launcher, correlation: conv_plan.Correlation, x, w, bias, y) -> None:
    """y[pixel, o] = sum over terms of x times w [+ bias]."""
    source, taps, target = correlation
    columns = NARROW if target.outer <= NARROW else WIDE
    blocks = blocks_for(target.pixels, TILE_ROWS), blocks_for(target.outer, columns), target.groups
    launcher.launch(
        _correlation_kernel(taps.inner % 4 == 0, columns), blocks, x, w,
        w if bias is None else bias, bias is not None, y, source, taps, target,
    )  # fmt: skip


@cache
def _correlation_kernel(in_fours: bool, columns: int) -> Kernel:
    fetch = fetch_quads if in_fours else fetch_singles
    return _correlation(fetch, _PRODUCTS[columns], columns)
