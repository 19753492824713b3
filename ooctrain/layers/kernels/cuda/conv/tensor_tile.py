"""How factors for tensor cores lie in shared memory, and how a block's results leave it.

When data enter and leave shared memory, 32 lanes access it at once, and no two of them should use
the same bank. `ldmatrix` reads eight rows of 16 bytes, so the order of the 16-byte chunks in a row
depends on the row's number. The sums that `mma` leaves in a warp's registers go through shared
memory, in rows with four words of padding between them, and from there to memory in whole rows.
Source: CUTLASS, "Efficient GEMM in CUDA". Read next: `conv_tf32.py`, `conv_tf32_few.py`.
"""

from __future__ import annotations

from typing import Any

from ooctrain.layers.kernels.cuda.conv.conv_address import pixel_place, target_offset
from ooctrain.layers.kernels.cuda.conv.conv_fetch import load_upto, store_upto
from ooctrain.layers.kernels.cuda.conv.conv_plan import OUTER, PIXELS
from ooctrain.layers.kernels.cuda.conv.tensor_core import ldmatrix_x4, mma_tf32, round_tf32
from ooctrain.layers.kernels.cuda.conv.tile_product import PADDING, THREADS
from ooctrain.layers.kernels.cuda.quads import sum_quad
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4
from ooctrain.layers.kernels.cuda.runtime.shim import device, int32, uint32, uint64

AMPERE = (8, 0)
#: Words of a row of a tile: terms of one step.
DEPTH = 16
#: A thread fetches chunk t % 4 of rows t // 4 and t // 4 + 64.
ROWS_AT_ONCE = 64
#: Rows of results that leave at once.
HALF = 64


@device
def chunk_place(row, chunk):
    """Where a chunk of four words of a row lies in its tile: chunk ^ (row / 2 % 4) of that row."""
    moved = uint32(chunk ^ uint32(uint32(row >> uint32(1)) & uint32(3)))
    return uint32(uint32(row * uint32(DEPTH)) + uint32(moved * uint32(4)))


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
def two_places(pixel, first_channel, source, target):
    """`pixel_place` of two pixels ROWS_AT_ONCE apart, at a channel of them."""
    (low_row, low_column, low_at) = pixel_place(pixel, source, target)
    further = uint32(pixel + uint32(ROWS_AT_ONCE))
    (high_row, high_column, high_at) = pixel_place(further, source, target)
    return (
        (low_row, low_column, low_at + first_channel),
        (high_row, high_column, high_at + first_channel),
    )


@device
def _rounded(word):
    return round_tf32(word)


@device
def _as_it_is(word):
    return word


def step_product(high: int, across: int, *, rounds: bool) -> Any:
    """What multiplies the tiles of a step: a warp's rows of one by its rows of the other.

    Args:
        high, across: products of 16 x 8 of a warp.
        rounds: whether words of the tiles are still to be rounded to TF32.
    """
    put = _rounded if rounds else _as_it_is

    @device
    def multiply(sums, left, right, tiles, a_get, b_get):
        """sums + the products; `a_get` and `b_get` say where a lane's first rows lie."""
        for half in range(2):
            # The order of the chunks is the same every eight rows; half a row is two chunks.
            a_at = uint64(uint32(a_get ^ uint32(half * 8)))
            b_at = uint64(uint32(b_get ^ uint32(half * 8)))
            for m in range(high):
                words, k = ldmatrix_x4(tiles, a_at + uint64(m * 16 * DEPTH)), m * 4
                left[k], left[k + 1] = put(words[0]), put(words[1])
                left[k + 2], left[k + 3] = put(words[2]), put(words[3])
            for n in range(across // 2):
                words, k = ldmatrix_x4(tiles, b_at + uint64(n * 16 * DEPTH)), n * 4
                right[k], right[k + 1] = put(words[0]), put(words[1])
                right[k + 2], right[k + 3] = put(words[2]), put(words[3])
            for m in range(high):
                for n in range(across):
                    i, j, k = m * 4, n * 2, (m * across + n) * 4
                    a = (left[i], left[i + 1], left[i + 2], left[i + 3])
                    c = (sums[k], sums[k + 1], sums[k + 2], sums[k + 3])
                    d = mma_tf32(a, (right[j], right[j + 1]), c)
                    sums[k], sums[k + 1], sums[k + 2], sums[k + 3] = d[0], d[1], d[2], d[3]

    return multiply


def epilogue(high: int, across: int, columns: int) -> tuple[Any, Any]:
    """(what puts a warp's sums into shared memory, what writes HALF rows of results from there).

    Args:
        high, across: products of 16 x 8 of a warp.
        columns: of the block's results.
    """
    stride, quads = columns + PADDING, columns // 4

    @device
    def spread_sums(tiles, sums, lane, warp_row, warp_column):
        """A warp's sums, from where mma leaves them into rows of `stride` words."""
        row = uint32(uint32(warp_row % uint32(HALF)) + uint32(lane // uint32(4)))
        at = uint32(uint32(row * uint32(stride)) + warp_column)
        at = uint32(at + uint32(uint32(lane % uint32(4)) * uint32(2)))
        for m in range(high):
            for n in range(across):
                k = (m * across + n) * 4
                place = uint32(at + uint32(m * 16 * stride + n * 8))
                tiles[place] = sums[k]
                tiles[uint32(place + uint32(1))] = sums[k + 1]
                tiles[uint32(place + uint32(8 * stride))] = sums[k + 2]
                tiles[uint32(place + uint32(8 * stride + 1))] = sums[k + 3]

    @device
    def store_rows(y, tiles, first_pixel, thread, channels, target, bias, has_bias):
        """A thread's share of HALF rows, four channels of each, to where the row's pixel lies.

        `channels` is (group, first channel of the block in it).
        """
        group, outer = channels[0], target[OUTER]
        quad, first_row = uint32(thread % uint32(quads)), uint32(thread // uint32(quads))
        column, in_fours = int32(channels[1] + int32(quad * uint32(4))), outer % 4 == 0
        remaining, first = int32(outer - column), int32(group * outer + column)
        base = load_upto(bias, first, remaining if has_bias else 0)
        for i in range(HALF * quads // THREADS):
            row = uint32(first_row + uint32(i * (THREADS // quads)))
            pixel = uint32(first_pixel + row)
            if pixel < uint32(target[PIXELS]):
                values = ld4(tiles, uint32(uint32(row * uint32(stride)) + quad * uint32(4)))
                offset = target_offset(pixel, target) + first
                store_upto(y, offset, sum_quad(values, base), remaining, in_fours)

    return spread_sums, store_rows
