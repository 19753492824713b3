"""Convolution, third step of the ladder: an implicit matrix product, blocked in registers.

From NHWC activations and KRSC weights it computes y, dx or dW in float32. Pixels x channels is a
matrix product whose left factor, the receptive fields, is never stored; a block gathers eight of
its columns at a time into shared memory (sixteen for 64 channels). 256 threads compute 128 x 128
results, 64 in each thread's registers (`tile_product.py`). Divisions are needed to find where a
term of the sums lies, tap by tap. So a block writes the places into a table in shared memory, 1024
terms at a time, and looks them up. On Hopper 86 of 100 instructions of the loop are then
multiply-adds, 80 for 64 channels, 79 and 70 where each term is loaded by itself
(`tests/support/sass.py` counts). While one pair of tiles is multiplied, the next columns are
already on their way from memory (registers, then the other half of shared memory), so one barrier
for each step is enough. Source: Chetlur et al., "cuDNN" (2014), section 3; CUTLASS. Read next:
`conv_weights.py`, then `conv_tf32.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ooctrain.layers.kernels.cuda.conv import conv_blocking
from ooctrain.layers.kernels.cuda.conv.conv_address import filter_start, pixel_place, terms_of
from ooctrain.layers.kernels.cuda.conv.conv_blocking import INNER, OUTER
from ooctrain.layers.kernels.cuda.conv.conv_fetch import (
    filter_quad,
    filter_singles,
    keep_target,
    keep_weighed_term,
    load_upto,
    source_quad,
    source_singles,
    store_upto,
)
from ooctrain.layers.kernels.cuda.conv.conv_pieces import correlate_by_tiles
from ooctrain.layers.kernels.cuda.conv.conv_weights import grad_weight
from ooctrain.layers.kernels.cuda.conv.tile_product import (
    A_STRIDE,
    LONG_DEPTH,
    NARROW,
    PADDING,
    QUAD_DISTANCE,
    THREADS,
    TILE_ROWS,
    TWO_BLOCKS,
    WIDE,
    clear,
    long_product_64,
    product_128,
)
from ooctrain.layers.kernels.cuda.quads import sum_quad
from ooctrain.layers.kernels.cuda.runtime.intrinsics import shared_array, store_column
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import (
    Kernel,
    cuda,
    device,
    float32,
    int32,
    int64,
    kernel,
    smaller,
    uint32,
    uint64,
)
from ooctrain.layers.kernels.signature import I4, F4s, I4x9, I4x11

__all__ = ["correlate", "grad_weight"]

#: Three numbers for each entry of the table of terms.
TABLE_WORDS = 3 * THREADS


def _correlation(fetch: Any, entry_terms: int, columns: int) -> Kernel:
    """The kernel for tiles of 128 pixels x `columns` channels.

    Args:
        fetch: what loads four terms of a pixel, and of a filter.
        entry_terms: terms of an entry of the table.
        columns: WIDE or NARROW.
    """
    source_terms, filter_terms = fetch
    table_quads = THREADS * entry_terms // 4
    is_long, sums_words, b_stride = columns == NARROW, columns // 2, columns + PADDING
    product, step_quads = (long_product_64, LONG_DEPTH // 4) if is_long else (product_128, 2)
    a_words, b_words = step_quads * 4 * A_STRIDE, step_quads * 4 * b_stride
    stage_words = a_words + b_words
    tile_words = 2 * stage_words
    store_results = _epilogue(columns)

    @kernel(threads=THREADS, max_registers=TWO_BLOCKS)
    def multiply_terms(
        x: F4s, w: F4s, bias: F4s, has_bias: I4, y: F4s, source: I4x9, taps: I4x9, target: I4x11
    ):
        tiles = shared_array(tile_words, float32)
        places = shared_array(TABLE_WORDS, int32)
        distances = shared_array(THREADS, int64)
        targets = shared_array(TILE_ROWS, int64)
        sums = cuda.local.array(sums_words, float32)
        clear(sums, sums_words)
        thread, group, outer = uint32(cuda.threadIdx.x), int32(cuda.blockIdx.z), target[OUTER]
        first_pixel = uint32(uint32(cuda.blockIdx.x) * uint32(TILE_ROWS))
        first_column = int32(cuda.blockIdx.y * columns)
        terms = places, distances
        if thread < uint32(TILE_ROWS):
            keep_target(targets, thread, uint32(first_pixel + thread), target)
        cuda.syncthreads()  # for pixels that no term reaches, too

        # This thread fetches four or eight of a step's terms of one pixel, and four of a filter.
        pixel, a_quad = uint32(thread // uint32(2)), uint32(thread % uint32(2))
        number, b_quad = uint32(thread // uint32(step_quads)), uint32(thread % uint32(step_quads))
        place = pixel_place(uint32(first_pixel + pixel), source, target)
        start = filter_start(group, int32(first_column + number), outer, taps)
        a_put = uint32(uint32(a_quad * uint32(4 * A_STRIDE)) + pixel)
        b_put = uint32(uint32(b_quad * uint32(4 * b_stride)) + number)

        # It multiplies for eight of the block's pixels and 4 or 8 of its channels. The tile of the
        # filters lies a constant further, which is added as uint64 and then costs no register.
        row = uint32(thread // uint32(16) * uint32(4))
        cell = uint32(thread % uint32(16) * uint32(4))
        stage, known, depth = uint32(0), uint32(0), uint32(terms_of(taps))
        while known < depth:
            term = uint32(known + uint32(thread * uint32(entry_terms)))
            keep_weighed_term(terms, thread, term, int32(group * taps[INNER]), source, taps)
            cuda.syncthreads()
            quads = smaller(
                uint32(table_quads), uint32(uint32(depth - known + uint32(3)) // uint32(4))
            )
            quad = uint32(0)
            a = source_terms(x, place, terms, a_quad, source)
            more = (
                source_terms(x, place, terms, uint32(a_quad + uint32(2)), source) if is_long else a
            )
            b = filter_terms(w, start, terms, b_quad)
            while quad < quads:
                store_column(tiles, uint32(stage + a_put), A_STRIDE, a)
                if is_long:
                    store_column(
                        tiles, uint32(stage + a_put + uint32(8 * A_STRIDE)), A_STRIDE, more
                    )
                store_column(tiles, uint64(uint32(stage + b_put)) + uint64(a_words), b_stride, b)
                cuda.syncthreads()
                quad = uint32(quad + uint32(step_quads))
                if quad < quads:
                    first = uint32(quad + a_quad)
                    a = source_terms(x, place, terms, first, source)
                    if is_long:
                        more = source_terms(x, place, terms, uint32(first + uint32(2)), source)
                    b = filter_terms(w, start, terms, uint32(quad + b_quad))
                a_get, b_get = uint32(stage + row), uint64(uint32(stage + cell)) + uint64(a_words)
                product(sums, tiles, a_get, tiles, b_get)
                stage = uint32(uint32(stage_words) - stage)
            known = uint32(known + uint32(4 * table_quads))

        column = int32(first_column + int32(cell))
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


def correlate(launcher: Launcher, correlation: conv_blocking.Correlation, x, w, bias, y) -> None:
    """y[pixel, o] = sum over terms of x times w [+ bias]."""
    _, taps, target = correlation
    columns = NARROW if target.outer <= NARROW else WIDE
    chosen = _correlation_kernel(taps.inner % 4 == 0, columns)
    correlate_by_tiles(launcher, chosen, (TILE_ROWS, columns), correlation, x, w, bias, y)


@cache
def _correlation_kernel(in_fours: bool, columns: int) -> Kernel:
    if in_fours:
        return _correlation((source_quad, filter_quad), 4, columns)
    return _correlation((source_singles, filter_singles), 1, columns)
