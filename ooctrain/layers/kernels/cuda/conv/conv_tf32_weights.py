"""The gradient of the weight by tensor cores: the sum runs over pixels, eight in a step.

In: activations x and gradients dy, both NHWC. Out: dW, or one partial result for each split of the
pixels, of factors rounded to TF32, in float32. The one idea: as in `conv_gemm_weights.py` both
factors lie in memory with channels side by side, so a tile's rows are pixels; the product sums over
them, while `ldmatrix` hands out only words that lie side by side along the sum. So each lane reads
its elements of the matrices one by one, from rows 136 words apart: then the 32 lanes of a warp meet
32 different banks. Where a pixel reads is worked out once for 256 of them, by a thread each. Needs
capability 8.0 and channels and filters in fours; what is not so goes to `conv_gemm_weights.py`.
Source: PTX ISA, "mma.m16n8k8". Read next: `conv_tf32.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.conv_shape import ConvShape
from ooctrain.layers.kernels.cuda.conv import conv_gemm_weights
from ooctrain.layers.kernels.cuda.conv.conv_address import NOWHERE, shifted_offset, terms_of
from ooctrain.layers.kernels.cuda.conv.conv_kept import (
    keep_place,
    keep_term,
    kept_place,
    kept_shift,
)
from ooctrain.layers.kernels.cuda.conv.conv_plan import INNER
from ooctrain.layers.kernels.cuda.conv.tensor_core import mma_tf32, round_tf32
from ooctrain.layers.kernels.cuda.conv.tile_product import TWO_BLOCKS, clear
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, shared_array, st4
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import (
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

ZERO = np.float32(0)
THREADS = 256
AMPERE = (8, 0)
#: Terms and filters of a block, pixels of a step, and words from one pixel's row to the next.
TILE, DEPTH, PITCH = 128, 8, 136
TILE_WORDS = DEPTH * PITCH
#: Both tiles of a step; two steps take turns.
STAGE_WORDS = 2 * TILE_WORDS
SHARED_WORDS = 2 * STAGE_WORDS
#: A warp makes 64 x 32 results: 4 x 4 products of 16 x 8.
HIGH, WIDE = 4, 4
SUMS = HIGH * WIDE * 4


@device
def fetch_quads(x, dy, pixel, place, shifts, term, filters, source):
    """Four terms, from `term` of the block, and four filters of one output pixel, in one load each.

    `place` is NOWHERE where the sums have ended, `filters` is (filters of dy, the first one, how
    many there are from there on).
    """
    a, b = (ZERO, ZERO, ZERO, ZERO), (ZERO, ZERO, ZERO, ZERO)
    all_filters, first_filter, filters_left = filters
    offset = shifted_offset(place, kept_shift(shifts, term), source)
    if offset >= 0:
        a = ld4(x, offset)
    if place[0] < NOWHERE and filters_left > 0:
        b = ld4(dy, int64(pixel) * all_filters + first_filter)
    return a, b


@device
def rounded(tiles, at):
    """A word in TF32; `at` is a uint64, so that constants added to it cost nothing."""
    return round_tf32(tiles[at])


@device
def store_sums(partials, sums, first, k, outer, term, terms):
    """A lane's sums: terms from `term` of filters from k, `outer` of which follow on line `first`.

    Of each 16 x 8 results a lane has two neighbouring filters of a term, and of the eighth further.
    """
    for m in range(HIGH):
        for n in range(WIDE):
            for i in range(4):
                at_term = int32(term + m * 16 + i // 2 * 8)
                at_filter = int32(k + n * 8 + i % 2)
                if at_term < terms and at_filter < outer:
                    place = (first + at_filter) * terms + at_term
                    partials[uint64(place)] = sums[(m * WIDE + n) * 4 + i]


@kernel(
    "void(f4[::1], f4[::1], f4[::1], UniTuple(i4, 9), UniTuple(i4, 9), UniTuple(i4, 5), i4, i4)",
    threads=THREADS,
    capability=AMPERE,
    max_registers=TWO_BLOCKS,
)
def _multiply_pixels(x, dy, partials, source, taps, pixels, outer, groups):
    tiles = shared_array(SHARED_WORDS, float32)
    shift_rows = shared_array(TILE, int32)
    shift_columns = shared_array(TILE, int32)
    shift_distances = shared_array(TILE, int64)
    place_rows = shared_array(THREADS, int32)
    place_columns = shared_array(THREADS, int32)
    place_offsets = shared_array(THREADS, int64)
    sums = cuda.local.array(SUMS, float32)
    clear(sums, SUMS)
    total, image_rows, image_columns, filters, per_split = pixels
    thread, terms = uint32(cuda.threadIdx.x), int32(terms_of(taps))
    group = int32(uint32(cuda.blockIdx.z) % uint32(groups))
    split = int32(uint32(cuda.blockIdx.z) // uint32(groups))
    first_term, first_filter = int32(cuda.blockIdx.x * TILE), int32(cuda.blockIdx.y * TILE)
    shifts = shift_rows, shift_columns, shift_distances
    places = place_rows, place_columns, place_offsets
    if thread < uint32(TILE):
        term = uint32(uint32(first_term) + thread)
        keep_term(shifts, thread, term, int32(group * taps[INNER]), source, taps)
    cuda.syncthreads()

    # This thread fetches, for one of a step's eight pixels, four terms and four filters.
    number = uint32(thread // uint32(32))
    within = uint32(thread % uint32(32) * uint32(4))
    k = int32(first_filter + int32(within))
    those = filters, int32(group * outer + k), int32(outer - k)
    put = uint32(uint32(number * uint32(PITCH)) + within)

    # Its warp multiplies 64 terms by 32 filters.
    lane, warp = uint32(thread % uint32(32)), uint32(thread // uint32(32))
    high, low = uint32(lane // uint32(4)), uint32(lane % uint32(4))
    row = uint32(uint32(uint32(warp % uint32(2)) * uint32(64)) + high)
    column = uint32(uint32(warp // uint32(2)) * uint32(32))
    a_get = uint32(uint32(low * uint32(PITCH)) + row)
    b_get = uint32(uint32(TILE_WORDS) + uint32(low * uint32(PITCH)) + column + high)

    first, end = uint32(split * per_split), uint32((split + 1) * per_split)
    end = end if end < uint32(total) else uint32(total)
    stage = uint32(0)
    while first < end:
        image = end, image_rows, image_columns
        keep_place(places, thread, uint32(first + thread), image, source)
        cuda.syncthreads()
        known = smaller(uint32(THREADS), uint32(end - first))
        i, pixel = number, uint32(first + number)
        a, b = fetch_quads(x, dy, pixel, kept_place(places, i), shifts, within, those, source)
        step = uint32(0)
        while step < known:
            st4(tiles, uint32(stage + put), a)
            st4(tiles, uint32(stage + put + uint32(TILE_WORDS)), b)
            cuda.syncthreads()
            step = uint32(step + uint32(DEPTH))
            if step < known:
                i = uint32(step + number)
                pixel, place = uint32(first + i), kept_place(places, i)
                a, b = fetch_quads(x, dy, pixel, place, shifts, within, those, source)
            left, right = uint64(uint32(stage + a_get)), uint64(uint32(stage + b_get))
            for m in range(HIGH):
                at = left + uint64(m * 16)
                further = at + uint64(4 * PITCH)
                factor = (
                    rounded(tiles, at), rounded(tiles, at + uint64(8)),
                    rounded(tiles, further), rounded(tiles, further + uint64(8)),
                )  # fmt: skip
                for n in range(WIDE):
                    at, s = right + uint64(n * 8), (m * WIDE + n) * 4
                    other = rounded(tiles, at), rounded(tiles, at + uint64(4 * PITCH))
                    c = (sums[s], sums[s + 1], sums[s + 2], sums[s + 3])
                    d = mma_tf32(factor, other, c)
                    sums[s], sums[s + 1], sums[s + 2], sums[s + 3] = d[0], d[1], d[2], d[3]
            stage = uint32(uint32(STAGE_WORDS) - stage)
        first = uint32(first + uint32(THREADS))

    line = int64(split) * filters + group * outer
    k = int32(first_filter + int32(column) + int32(low * uint32(2)))
    store_sums(partials, sums, line, k, outer, int32(first_term + int32(row)), terms)


def grad_weight(launcher: Launcher, shape: ConvShape, x, dy, dw, workspace) -> None:
    """dw[k, term] = sum over pixels of what the term reads times dy[pixel, k], in splits."""
    if shape.cg % 4 or shape.kg % 4:
        conv_gemm_weights.grad_weight(launcher, shape, x, dy, dw, workspace)
        return
    conv_gemm_weights.launch(launcher, _multiply_pixels, TILE, shape, (x, dy, dw), workspace)
