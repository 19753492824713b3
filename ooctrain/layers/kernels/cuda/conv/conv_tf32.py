"""Convolution, last step of the ladder: tensor cores, fed by asynchronous copies.

In: as in `conv_gemm.py`. Out: the same sums, of factors rounded to TF32 (10 bits of mantissa), in
float32. The one idea: a warp's `mma` does in one instruction what took 32 multiply-adds in each of
its lanes, so everything else must cost less too. Copies go straight into shared memory, into a ring
of three stages of sixteen terms each; one barrier for each step tells that a stage is filled and
that another may be overwritten. `ldmatrix` reads eight rows of 16 bytes at once: the order of the
16-byte chunks in a row depends on the row's number, so that the eight lie in different banks.
Results go through shared memory, to be written in whole rows. Needs compute capability 8.0. Sums
over channels that are no multiple of four, and the gradient of the weight, go to `conv_gemm.py`.
Source: CUTLASS, "Efficient GEMM in CUDA"; PTX ISA. Read next: `tensor_core.py`.
"""

from __future__ import annotations

from ooctrain.layers.conv_shape import ConvShape
from ooctrain.layers.kernels.cuda.conv import conv_gemm, conv_plan
from ooctrain.layers.kernels.cuda.conv.conv_address import (
    filter_offset,
    pixel_place,
    source_offset,
    tap_of,
    target_offset,
    terms_of,
)
from ooctrain.layers.kernels.cuda.conv.conv_fetch import load_upto, store_upto
from ooctrain.layers.kernels.cuda.conv.conv_plan import INNER, OUTER, PIXELS
from ooctrain.layers.kernels.cuda.conv.tensor_core import (
    copy_async,
    copy_commit,
    copy_wait_all,
    copy_wait_but_one,
    ldmatrix_x4,
    mma_tf32,
    round_tf32,
)
from ooctrain.layers.kernels.cuda.conv.tile_product import TWO_BLOCKS, clear
from ooctrain.layers.kernels.cuda.quads import sum_quad
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, shared_array
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

THREADS = 256
AMPERE = (8, 0)
TILE = 128
#: Words of a row of a tile: terms of one step.
DEPTH = 16
TILE_WORDS = TILE * DEPTH
STAGE_WORDS = 2 * TILE_WORDS
STAGES = 3
SHARED_WORDS = STAGES * STAGE_WORDS
#: A thread copies chunk t % 4 of rows t // 4 and t // 4 + 64, of both tiles.
ROWS_AT_ONCE = 64
#: A warp makes 64 x 32 results: 4 x 4 products of 16 x 8.
HIGH, WIDE = 4, 4
SUMS = HIGH * WIDE * 4
LEFT, RIGHT = HIGH * 4, WIDE * 2
#: Results of half a block on their way out, in rows of so many words.
OUT_STRIDE = TILE + 4


@device
def chunk_place(row, chunk):
    """Where a chunk of four words of a row lies in its tile: chunk ^ (row / 2 % 4) of that row."""
    moved = uint32(chunk ^ uint32(uint32(row >> uint32(1)) & uint32(3)))
    return uint32(uint32(row * uint32(DEPTH)) + uint32(moved * uint32(4)))


@device
def _copy_terms(tiles, stage, x, w, lines, term, source, taps):
    """Starts this thread's four copies of a step: four terms of two pixels and two channels.

    Args:
        tiles, stage: shared memory, and where in it the step's two tiles begin.
        lines: places of both pixels, first channel that is read, (lower output channel, how many
            there are from it on), where in a tile the thread's first copy goes.
        term: the first of the four; past the last one zeros are copied.
    """
    low, high, first_channel, (output, outputs_left), place = lines
    inside = term < uint32(terms_of(taps))
    tap_row, tap_column, channel = tap_of(term if inside else uint32(0), taps)
    from_channel = int32(first_channel + channel)
    a_low = source_offset(low, tap_row, tap_column, from_channel, source)
    a_high = source_offset(high, tap_row, tap_column, from_channel, source)
    at, further = uint32(stage + place), uint32(ROWS_AT_ONCE * DEPTH)
    ok_low = inside and a_low >= 0
    ok_high = inside and a_high >= 0
    copy_async(tiles, at, x, a_low if ok_low else int64(0), ok_low)
    copy_async(tiles, uint32(at + further), x, a_high if ok_high else int64(0), ok_high)
    at = uint32(at + uint32(TILE_WORDS))
    ok_low, ok_high = inside and outputs_left > 0, inside and outputs_left > ROWS_AT_ONCE
    b_low = filter_offset(output, tap_row, tap_column, channel, taps) if ok_low else int32(0)
    b_high = (
        filter_offset(int32(output + ROWS_AT_ONCE), tap_row, tap_column, channel, taps)
        if ok_high
        else int32(0)
    )
    copy_async(tiles, at, w, b_low, ok_low)
    copy_async(tiles, uint32(at + further), w, b_high, ok_high)
    copy_commit(tiles)


@device
def fragment_rows(lane, warp_row, warp_column):
    """((row, chunk) of A, (row, chunk) of B): what a lane hands to ldmatrix first.

    Of A four matrices are 16 rows x 2 chunks, of B two of eight rows x 2 chunks.
    """
    a_row = uint32(warp_row + uint32(lane % uint32(16)))
    b_row = uint32(
        warp_column + uint32(lane % uint32(8)) + uint32(uint32(lane // uint32(16)) * uint32(8))
    )
    b_chunk = uint32(uint32(lane // uint32(8)) % uint32(2))
    return (a_row, uint32(lane // uint32(16))), (b_row, b_chunk)


@device
def fragment_place(rows, group, half):
    """Where in its tile a lane's row of the `group`-th sixteen rows begins, for half a step."""
    row, chunk = rows
    return chunk_place(uint32(row + uint32(group * 16)), uint32(chunk + uint32(half * 2)))


@device
def put_rounded(fragments, first, words):
    """fragments[first : first + 4] = the words, in TF32."""
    fragments[first] = round_tf32(words[0])
    fragments[first + 1] = round_tf32(words[1])
    fragments[first + 2] = round_tf32(words[2])
    fragments[first + 3] = round_tf32(words[3])


@device
def next_stage(stage):
    """The stage that follows another in the ring; a stage is given by where it begins."""
    last = uint32(2 * STAGE_WORDS)
    return uint32(0) if stage == last else uint32(stage + uint32(STAGE_WORDS))


@device
def spread_sums(tiles, sums, lane, warp_column):
    """A warp's 64 x 32 sums, from where mma leaves them into rows of OUT_STRIDE words."""
    at = uint32(uint32(uint32(lane // uint32(4)) * uint32(OUT_STRIDE)) + warp_column)
    at = uint32(at + uint32(uint32(lane % uint32(4)) * uint32(2)))
    for m in range(HIGH):
        for n in range(WIDE):
            k = (m * WIDE + n) * 4
            place = uint32(at + uint32(m * 16 * OUT_STRIDE + n * 8))
            tiles[place] = sums[k]
            tiles[uint32(place + uint32(1))] = sums[k + 1]
            tiles[uint32(place + uint32(8 * OUT_STRIDE))] = sums[k + 2]
            tiles[uint32(place + uint32(8 * OUT_STRIDE + 1))] = sums[k + 3]


@device
def store_rows(y, tiles, first_pixel, warp, lane, channels, target, bias, has_bias):
    """Every eighth of 64 rows of results, four channels of each, to where the row's pixel lies.

    `channels` is (group, first channel of the block in it).
    """
    group, outer = channels[0], target[OUTER]
    column, in_fours = int32(channels[1] + int32(lane * uint32(4))), outer % 4 == 0
    remaining, first = int32(outer - column), int32(group * outer + column)
    base = load_upto(bias, first, remaining if has_bias else 0)
    for i in range(8):
        row = uint32(warp + uint32(i * 8))
        pixel = uint32(first_pixel + row)
        if pixel < uint32(target[PIXELS]):
            values = ld4(tiles, uint32(uint32(row * uint32(OUT_STRIDE)) + lane * uint32(4)))
            offset = target_offset(pixel, target) + first
            store_upto(y, offset, sum_quad(values, base), remaining, in_fours)


@kernel(
    "void(f4[::1], f4[::1], f4[::1], i4, f4[::1], UniTuple(i4, 9), UniTuple(i4, 9),"
    " UniTuple(i4, 11))",
    threads=THREADS,
    capability=AMPERE,
    max_registers=TWO_BLOCKS,
)
def _correlate(x, w, bias, has_bias, y, source, taps, target):
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
    low, high = uint32(first_pixel + row), uint32(first_pixel + row + uint32(ROWS_AT_ONCE))
    column = int32(first_column + row)
    lines = (
        pixel_place(low, source, target), pixel_place(high, source, target),
        int32(group * taps[INNER]),
        (int32(group * outer + column), int32(outer - column)), chunk_place(row, chunk),
    )  # fmt: skip

    # What its warp multiplies.
    lane, warp = uint32(thread % uint32(32)), uint32(thread // uint32(32))
    warp_row = uint32(uint32(warp % uint32(2)) * uint32(64))
    warp_column = uint32(uint32(warp // uint32(2)) * uint32(32))
    a_rows, b_rows = fragment_rows(lane, warp_row, warp_column)

    steps = uint32(uint32(uint32(terms_of(taps)) + uint32(DEPTH - 1)) // uint32(DEPTH))
    term = uint32(chunk * uint32(4))
    _copy_terms(tiles, uint32(0), x, w, lines, term, source, taps)
    _copy_terms(tiles, uint32(STAGE_WORDS), x, w, lines, uint32(term + uint32(DEPTH)), source, taps)
    term, put, get = uint32(term + uint32(2 * DEPTH)), uint32(2 * STAGE_WORDS), uint32(0)
    while steps > uint32(0):
        copy_wait_but_one(tiles)
        cuda.syncthreads()
        _copy_terms(tiles, put, x, w, lines, term, source, taps)
        for half in range(2):
            for m in range(HIGH):
                place = uint32(get + fragment_place(a_rows, m, half))
                put_rounded(left, m * 4, ldmatrix_x4(tiles, place))
            for n in range(WIDE // 2):
                place = uint32(get + uint32(TILE_WORDS) + fragment_place(b_rows, n, half))
                put_rounded(right, n * 4, ldmatrix_x4(tiles, place))
            for m in range(HIGH):
                for n in range(WIDE):
                    i, j, k = m * 4, n * 2, (m * WIDE + n) * 4
                    a = (left[i], left[i + 1], left[i + 2], left[i + 3])
                    c = (sums[k], sums[k + 1], sums[k + 2], sums[k + 3])
                    d = mma_tf32(a, (right[j], right[j + 1]), c)
                    sums[k], sums[k + 1], sums[k + 2], sums[k + 3] = d[0], d[1], d[2], d[3]
        steps, term = uint32(steps - uint32(1)), uint32(term + uint32(DEPTH))
        put, get = next_stage(put), next_stage(get)
    copy_wait_all(tiles)

    # The warps of the upper 64 rows put their results into the free tiles, then those of the lower.
    for half in range(2):
        cuda.syncthreads()
        if warp_row == uint32(half * 64):
            spread_sums(tiles, sums, lane, warp_column)
        cuda.syncthreads()
        first = uint32(first_pixel + uint32(half * 64))
        store_rows(y, tiles, first, warp, lane, (group, first_column), target, bias, has_bias)


def correlate(launcher: Launcher, correlation: conv_plan.Correlation, x, w, bias, y) -> None:
    """y[pixel, o] = sum over terms of x times w [+ bias]."""
    source, taps, target = correlation
    if taps.inner % 4:
        conv_gemm.correlate(launcher, correlation, x, w, bias, y)
        return
    blocks = blocks_for(target.pixels, TILE), blocks_for(target.outer, TILE), target.groups
    launcher.launch(
        _correlate, blocks, x, w, w if bias is None else bias, bias is not None, y,
        source, taps, target,
    )  # fmt: skip


def grad_weight(launcher: Launcher, shape: ConvShape, x, dy, dw, workspace) -> None:
    """dw, in float32: see `conv_gemm.grad_weight`."""
    conv_gemm.grad_weight(launcher, shape, x, dy, dw, workspace)
