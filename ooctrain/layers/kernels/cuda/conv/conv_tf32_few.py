"""Convolution over one to three channels by tensor cores: each tap is padded to four terms.

It computes the sums of `conv_tf32.py`, with factors rounded to TF32, over one to three channels of
each tap: the first layer of a network, or the gradient of its input where the last layer has that
few filters. Tensor cores want terms in fours, and an asynchronous copy moves 16 bytes that lie at a
multiple of 16; the three colours of a pixel are neither. So a tap becomes a chunk of four terms in
shared memory, the last of them zeros that are written there and not read from memory. A step is
four taps. Factors pass through registers, one word in a load, and are rounded on the way, once,
instead of in each warp that uses them. Such layers have few filters, so a block computes 128 x 64
results. 159 instructions surround 16 products on Hopper (`tests/support/sass.py` counts). Needs
compute capability 8.0. Read next: `conv_tf32_weights.py`.
"""

from __future__ import annotations

from ooctrain.layers.kernels.cuda.conv import conv_blocking
from ooctrain.layers.kernels.cuda.conv.conv_address import (
    filter_start,
    inside_source,
)
from ooctrain.layers.kernels.cuda.conv.conv_blocking import (
    INNER,
    OUTER,
    SOURCE_C,
    SOURCE_W,
    SPACING_H,
    SPACING_W,
    TAP_COUNT,
)
from ooctrain.layers.kernels.cuda.conv.conv_fetch import few_words
from ooctrain.layers.kernels.cuda.conv.conv_pieces import correlate_by_tiles
from ooctrain.layers.kernels.cuda.conv.tensor_core import (
    AMPERE,
    DEPTH,
    HALF,
    ROWS_AT_ONCE,
    chunk_place,
    epilogue,
    fragment_rows,
    round_tf32,
    step_product,
    two_places,
)
from ooctrain.layers.kernels.cuda.conv.tile_product import (
    NARROW,
    THREADS,
    TILE_ROWS,
    TWO_BLOCKS,
    clear,
)
from ooctrain.layers.kernels.cuda.runtime.intrinsics import shared_array, st4
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import (
    cuda,
    device,
    float32,
    int32,
    int64,
    kernel,
    uint32,
    uint64,
)
from ooctrain.layers.kernels.signature import I4, F4s, I4x9, I4x11

#: Taps of a step, and words of each.
TAPS, TAP_WORDS = 4, 4
A_WORDS, FURTHER = TILE_ROWS * DEPTH, ROWS_AT_ONCE * DEPTH
STAGE_WORDS = A_WORDS + NARROW * DEPTH
SHARED_WORDS = 2 * STAGE_WORDS
#: A warp makes 32 x 32 results: 2 x 4 products of 16 x 8.
HIGH, WIDE = 2, 4
SUMS, LEFT, RIGHT = HIGH * WIDE * 4, HIGH * 4, WIDE * 2
_multiply = step_product(HIGH, WIDE, rounds=False)
_spread_sums, _store_rows = epilogue(HIGH, WIDE, NARROW)


@device
def first_tap(taps):
    """Where the first tap lies.

    A walk is (tap column, tap rows left, rows down, columns right, elements from a pixel's place to
    the tap, elements from a filter's first weight).
    """
    count, columns, first_h, first_w, _, _, filter_w, _, inner = taps
    rows = uint32(uint32(count) // uint32(columns))
    weight = int32(int32(first_h * filter_w + first_w) * inner)
    return int32(0), int32(rows), int32(0), int32(0), int64(0), weight


@device
def taps_on(walk, moved, source, taps):
    """The walk so many taps further."""
    tap_column, rows_left, down, right, distance, weight = walk
    _, columns, _, _, step_h, step_w, filter_w, _, inner = taps
    spacing_h, spacing_w, channels = source[SPACING_H], source[SPACING_W], source[SOURCE_C]
    tap_column, right = int32(tap_column + moved), int32(right + int32(moved * spacing_w))
    distance += int64(int32(int32(moved * spacing_w) * channels))
    weight = int32(weight + int32(moved * step_w) * inner)
    while tap_column >= columns:
        tap_column, rows_left = int32(tap_column - columns), int32(rows_left - 1)
        right, down = int32(right - int32(columns * spacing_w)), int32(down + spacing_h)
        line = int64(spacing_h) * source[SOURCE_W] - int64(int32(columns * spacing_w))
        distance += line * channels
        weight = int32(weight + int32(step_h * filter_w - columns * step_w) * inner)
    return tap_column, rows_left, down, right, distance, weight


@device
def rounded_quad(words):
    """Four words in TF32."""
    return round_tf32(words[0]), round_tf32(words[1]), round_tf32(words[2]), round_tf32(words[3])


@device
def fetch_tap(x, w, walk, places, start, inner, source):
    """One tap of two pixels and of a filter; zeros in the padding, and after the last tap."""
    _, rows_left, down, right, distance, weight = walk
    (low_row, low_column, low_at), (high_row, high_column, high_at) = places
    exists = rows_left > 0
    low = exists and inside_source(low_row + down, low_column + right, source)
    high = exists and inside_source(high_row + down, high_column + right, source)
    return (
        few_words(x, uint64(low_at + distance), inner if low else int32(0)),
        few_words(x, uint64(high_at + distance), inner if high else int32(0)),
        few_words(w, uint64(uint32(start + weight)), inner if exists else int32(0)),
    )


@kernel(threads=THREADS, capability=AMPERE, max_registers=TWO_BLOCKS)
def _correlate(
    x: F4s, w: F4s, bias: F4s, has_bias: I4, y: F4s, source: I4x9, taps: I4x9, target: I4x11,
):  # fmt: skip
    tiles = shared_array(SHARED_WORDS, float32)
    sums = cuda.local.array(SUMS, float32)
    left = cuda.local.array(LEFT, float32)
    right = cuda.local.array(RIGHT, float32)
    clear(sums, SUMS)
    thread, group, outer = uint32(cuda.threadIdx.x), int32(cuda.blockIdx.z), target[OUTER]
    first_pixel = uint32(uint32(cuda.blockIdx.x) * uint32(TILE_ROWS))
    first_column, inner = int32(cuda.blockIdx.y * NARROW), taps[INNER]

    # What this thread fetches.
    row, tap = uint32(thread // uint32(TAPS)), uint32(thread % uint32(TAPS))
    first_channel = int64(int32(group * inner))
    places = two_places(uint32(first_pixel + row), first_channel, source, target)
    start = filter_start(group, int32(first_column + int32(row)), outer, taps)
    put = chunk_place(row, tap)

    # What its warp multiplies.
    lane, warp = uint32(thread % uint32(32)), uint32(thread // uint32(32))
    warp_row = uint32(uint32(warp % uint32(4)) * uint32(32))
    warp_column = uint32(uint32(warp // uint32(4)) * uint32(32))
    a_rows, b_rows = fragment_rows(lane, warp_row, warp_column)
    a_first = chunk_place(a_rows[0], a_rows[1])
    b_first = uint32(uint32(A_WORDS) + chunk_place(b_rows[0], b_rows[1]))

    steps = uint32(uint32(uint32(taps[TAP_COUNT]) + uint32(TAPS - 1)) // uint32(TAPS))
    walk = taps_on(first_tap(taps), int32(tap), source, taps)
    first, second, third = fetch_tap(x, w, walk, places, start, inner, source)
    stage = uint32(0)
    while steps > uint32(0):
        at = uint64(uint32(stage + put))
        st4(tiles, at, rounded_quad(first))
        st4(tiles, at + uint64(FURTHER), rounded_quad(second))
        st4(tiles, at + uint64(A_WORDS), rounded_quad(third))
        cuda.syncthreads()
        steps = uint32(steps - uint32(1))
        if steps > uint32(0):
            walk = taps_on(walk, int32(TAPS), source, taps)
            first, second, third = fetch_tap(x, w, walk, places, start, inner, source)
        b_get = uint32(stage + b_first)
        _multiply(sums, left, right, tiles, uint32(stage + a_first), b_get)
        stage = uint32(uint32(STAGE_WORDS) - stage)

    # The warps of the upper 64 rows put their results into the free tiles, then those of the lower.
    for half in range(2):
        cuda.syncthreads()
        if uint32(warp_row // uint32(HALF)) == uint32(half):
            _spread_sums(tiles, sums, lane, warp_row, warp_column)
        cuda.syncthreads()
        first_row = uint32(first_pixel + uint32(half * HALF))
        _store_rows(y, tiles, first_row, thread, (group, first_column), target, bias, has_bias)


def correlate(launcher: Launcher, correlation: conv_blocking.Correlation, x, w, bias, y) -> None:
    """y[pixel, o] = sum over terms of x times w [+ bias], of one to three channels a tap."""
    correlate_by_tiles(launcher, _correlate, (TILE_ROWS, NARROW), correlation, x, w, bias, y)
