"""Convolution, last step of the ladder: tensor cores, fed by asynchronous copies.

It computes the sums of `conv_gemm.py` in float32, with factors rounded to TF32 (10 bits of
mantissa). A warp's `mma` does in one instruction the work of 32 multiply-adds in each lane, so
everything else must cost less too. Copies go straight into shared memory, into a ring of three
stages of sixteen terms each. One barrier for each step signals that a stage is filled and that
another may be overwritten. A thread walks from term to term: within a tap it only counts on, and
only at the next tap does it compute the place anew. So 196 instructions surround 32 products on
Hopper, where 235 did before (`tests/support/sass.py` counts); some fifty of them are reached
only at the next tap. Needs compute capability 8.0. Sums over one to three channels go to
`conv_tf32_few.py`, over others that are not a multiple of four to `conv_gemm.py`. Source: CUTLASS,
"Efficient GEMM in CUDA"; PTX ISA. Read next: `tensor_core.py`, then
`conv_tf32_few.py`.
"""

from __future__ import annotations

from ooctrain.layers.kernels.cuda.conv import conv_blocking, conv_gemm, conv_tf32_few
from ooctrain.layers.kernels.cuda.conv.conv_address import (
    filter_start,
    inside_source,
    terms_of,
)
from ooctrain.layers.kernels.cuda.conv.conv_blocking import (
    INNER,
    OUTER,
    SOURCE_C,
    SOURCE_W,
    SPACING_H,
    SPACING_W,
)
from ooctrain.layers.kernels.cuda.conv.conv_pieces import correlate_by_tiles
from ooctrain.layers.kernels.cuda.conv.conv_tf32_weights import grad_weight
from ooctrain.layers.kernels.cuda.conv.tensor_core import (
    AMPERE,
    DEPTH,
    HALF,
    ROWS_AT_ONCE,
    chunk_place,
    copy_async,
    copy_commit,
    copy_wait_all,
    copy_wait_but_one,
    epilogue,
    fragment_rows,
    step_product,
    two_places,
)
from ooctrain.layers.kernels.cuda.conv.tile_product import THREADS, TWO_BLOCKS, clear
from ooctrain.layers.kernels.cuda.runtime.intrinsics import shared_array
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

__all__ = ["correlate", "grad_weight"]

TILE = 128
TILE_WORDS = TILE * DEPTH
STAGE_WORDS = 2 * TILE_WORDS
STAGES = 3
SHARED_WORDS = STAGES * STAGE_WORDS
#: A warp makes 64 x 32 results: 4 x 4 products of 16 x 8.
HIGH, WIDE = 4, 4
SUMS = HIGH * WIDE * 4
LEFT, RIGHT = HIGH * 4, WIDE * 2
_multiply = step_product(HIGH, WIDE, rounds=True)
_spread_sums, _store_rows = epilogue(HIGH, WIDE, TILE)


@device
def first_walk(chunk, taps):
    """Where a thread's terms begin: with a chunk of the first tap, or of one of the next.

    A walk is (channel, tap column, tap rows left, rows down, columns right, elements from a pixel's
    place to the term, elements from a filter's first weight).
    """
    count, columns, first_h, first_w, _, _, filter_w, _, inner = taps
    channel = int32(chunk * uint32(4))
    weight = int32(int32(first_h * filter_w + first_w) * inner + channel)
    rows = uint32(uint32(count) // uint32(columns))
    return channel, int32(0), int32(rows), int32(0), int32(0), int64(channel), weight


@device
def next_tap(walk, source, taps):
    """The walk at the same channel, counted on, of the tap that holds it."""
    channel, tap_column, rows_left, down, right, distance, weight = walk
    _, columns, _, _, step_h, step_w, filter_w, _, inner = taps
    spacing_h, spacing_w, line = source[SPACING_H], source[SPACING_W], source[SOURCE_W]
    while channel >= inner:
        channel, tap_column = int32(channel - inner), int32(tap_column + 1)
        right = int32(right + spacing_w)
        distance += int64(int32(spacing_w * source[SOURCE_C])) - inner
        weight = int32(weight + int32(step_w - 1) * inner)
        if tap_column == columns:
            row_words = (int64(spacing_h) * line - int64(right)) * source[SOURCE_C]
            tap_column, right, rows_left = int32(0), int32(0), int32(rows_left - 1)
            down, distance = int32(down + spacing_h), distance + row_words
            weight = int32(weight + int32(step_h * filter_w - columns * step_w) * inner)
    return channel, tap_column, rows_left, down, right, distance, weight


@device
def walk_on(walk):
    """The walk a step further, which may be beyond the tap's channels."""
    channel, tap_column, rows_left, down, right, distance, weight = walk
    return (
        int32(channel + DEPTH), tap_column, rows_left, down, right, distance + int64(DEPTH),
        int32(weight + DEPTH),
    )  # fmt: skip


@device
def reached(walk, places, source):
    """Whether there is the term, and whether both pixels have what it reads."""
    (low_row, low_column, _), (high_row, high_column, _) = places
    _, _, rows_left, down, right, _, _ = walk
    exists = rows_left > 0
    low = exists and inside_source(low_row + down, low_column + right, source)
    high = exists and inside_source(high_row + down, high_column + right, source)
    return exists, low, high


@device
def _copy_terms(tiles, at, x, w, walk, there, places, starts):
    """Starts this thread's four copies of a step: four terms of two pixels and two channels.

    Args:
        tiles, at: shared memory, and where in it the thread's first copy goes.
        walk, there: where its terms lie, and which of them are there.
        places, starts: those of both pixels and both filters.
    """
    (exists, low, high), (_, _, _, _, _, distance, weight) = there, walk
    further = uint64(ROWS_AT_ONCE * DEPTH)
    copy_async(tiles, at, x, places[0][2] + distance, low)
    copy_async(tiles, at + further, x, places[1][2] + distance, high)
    at += uint64(TILE_WORDS)
    copy_async(tiles, at, w, uint32(starts[0] + weight), exists)
    copy_async(tiles, at + further, w, uint32(starts[1] + weight), exists)
    copy_commit(tiles)


@device
def next_stage(stage):
    """How far it is to the stage that follows another in the ring; that is the first to the last.

    A stage is given by where it begins.
    """
    last = uint32(2 * STAGE_WORDS)
    return uint32(-2 * STAGE_WORDS) if stage == last else uint32(STAGE_WORDS)


@device
def before(stage):
    """The stage that another follows."""
    return uint32(2 * STAGE_WORDS) if stage == uint32(0) else uint32(stage - uint32(STAGE_WORDS))


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
    first_pixel = uint32(uint32(cuda.blockIdx.x) * uint32(TILE))
    first_column = int32(cuda.blockIdx.y * TILE)

    # What this thread copies.
    row, chunk = uint32(thread // uint32(4)), uint32(thread % uint32(4))
    column, first_channel = int32(first_column + int32(row)), int64(int32(group * taps[INNER]))
    places = two_places(uint32(first_pixel + row), first_channel, source, target)
    starts = (
        filter_start(group, column, outer, taps),
        filter_start(group, int32(column + ROWS_AT_ONCE), outer, taps),
    )
    place = chunk_place(row, chunk)

    # What its warp multiplies.
    lane, warp = uint32(thread % uint32(32)), uint32(thread // uint32(32))
    warp_row = uint32(uint32(warp % uint32(2)) * uint32(64))
    warp_column = uint32(uint32(warp // uint32(2)) * uint32(32))
    a_rows, b_rows = fragment_rows(lane, warp_row, warp_column)
    a_first, b_first = chunk_place(a_rows[0], a_rows[1]), chunk_place(b_rows[0], b_rows[1])

    steps = uint32(uint32(uint32(terms_of(taps)) + uint32(DEPTH - 1)) // uint32(DEPTH))
    walk = next_tap(first_walk(chunk, taps), source, taps)
    there = reached(walk, places, source)
    _copy_terms(tiles, uint64(place), x, w, walk, there, places, starts)
    walk = next_tap(walk_on(walk), source, taps)
    there = reached(walk, places, source)
    at = uint64(STAGE_WORDS) + uint64(place)
    _copy_terms(tiles, at, x, w, walk, there, places, starts)
    # These move on with the stages: what stayed the same would be computed anew in every step.
    put, a_get = uint32(uint32(2 * STAGE_WORDS) + place), a_first
    b_get, stage = uint32(uint32(TILE_WORDS) + b_first), uint32(0)
    while steps > uint32(0):
        copy_wait_but_one(tiles)
        cuda.syncthreads()
        walk = walk_on(walk)
        if walk[0] >= taps[INNER]:
            walk = next_tap(walk, source, taps)
            there = reached(walk, places, source)
        _copy_terms(tiles, uint64(put), x, w, walk, there, places, starts)
        _multiply(sums, left, right, tiles, a_get, b_get)
        steps = uint32(steps - uint32(1))
        onward = next_stage(stage)
        a_get, b_get = uint32(a_get + onward), uint32(b_get + onward)
        put = uint32(put + next_stage(before(stage)))
        stage = uint32(stage + onward)
    copy_wait_all(tiles)

    # The warps of the upper 64 rows put their results into the free tiles, then those of the lower.
    for half in range(2):
        cuda.syncthreads()
        if warp_row == uint32(half * HALF):
            _spread_sums(tiles, sums, lane, warp_row, warp_column)
        cuda.syncthreads()
        first = uint32(first_pixel + uint32(half * HALF))
        _store_rows(y, tiles, first, thread, (group, first_column), target, bias, has_bias)


def correlate(launcher: Launcher, correlation: conv_blocking.Correlation, x, w, bias, y) -> None:
    """y[pixel, o] = sum over terms of x times w [+ bias]."""
    inner = correlation[1].inner
    if inner < 4:
        conv_tf32_few.correlate(launcher, correlation, x, w, bias, y)
        return
    if inner % 4:
        conv_gemm.correlate(launcher, correlation, x, w, bias, y)
        return
    correlate_by_tiles(launcher, _correlate, (TILE, TILE), correlation, x, w, bias, y)
