"""The gradient of the weight by tensor cores: forms of `conv_weights.py`.

Activations x and gradients dy, both NHWC, give dW in float32, with factors rounded to TF32. The
rows of a tile are pixels and the product sums over them, but `ldmatrix` hands out only words that
are contiguous along the sum. So each lane reads its elements of the matrices one by one, from rows
136 words apart; then the 32 lanes of a warp access 32 different banks. Needs capability 8.0.
Channels and filters come in fours. With one to three channels each tap has four terms in the tile,
the last of them zeros that are not stored in memory, and the number of filters is arbitrary. All
other shapes go to `conv_weights.py`. Source: PTX ISA, "mma.m16n8k8". Read next:
`conv_tf32.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cuda.conv import conv_weights
from ooctrain.layers.kernels.cuda.conv.conv_address import terms_of
from ooctrain.layers.kernels.cuda.conv.conv_blocking import INNER
from ooctrain.layers.kernels.cuda.conv.conv_fetch import (
    filters_quad,
    filters_singles,
    pixel_few,
    pixel_quad,
)
from ooctrain.layers.kernels.cuda.conv.conv_weights import WeightForm, launch, weight_kernel
from ooctrain.layers.kernels.cuda.conv.tensor_core import mma_tf32, round_tf32
from ooctrain.layers.kernels.cuda.conv.tile_product import TILE_DEPTH, WIDE
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import device, int32, uint32, uint64

AMPERE = (8, 0)
#: Words from one pixel's row of a tile to the next.
PITCH = 136
#: A warp makes 64 x 32 results: so many products of 16 x 8.
HIGH, ACROSS = 4, 4


@device
def _corner(thread):
    """The first of a warp's rows and columns in the block, and its lane's place in a fragment."""
    lane, warp = uint32(thread % uint32(32)), uint32(thread // uint32(32))
    row, column = uint32(warp % uint32(2)) * uint32(64), uint32(warp // uint32(2)) * uint32(32)
    return uint32(row), uint32(column), uint32(lane // uint32(4)), uint32(lane % uint32(4))


@device
def _cells(thread):
    """Where a lane's first elements lie in both tiles."""
    row, column, high, low = _corner(thread)
    line = uint32(low * uint32(PITCH))
    return uint32(line + row + high), uint32(line + column + high)


@device
def _results(thread):
    """The first of a lane's rows, and of its columns."""
    row, column, high, low = _corner(thread)
    return uint32(row + high), uint32(column + uint32(low * uint32(2)))


@device
def rounded(tiles, at):
    """A word in TF32; `at` is a uint64, so that constants added to it cost nothing."""
    return round_tf32(tiles[at])


@device
def _product(sums, tiles, left, others, right):
    """sums + the warp's 64 terms of eight pixels times its 32 filters of them."""
    left, right = uint64(left), uint64(right)
    for m in range(HIGH):
        at = left + uint64(m * 16)
        further = at + uint64(4 * PITCH)
        factor = (
            rounded(tiles, at), rounded(tiles, at + uint64(8)),
            rounded(tiles, further), rounded(tiles, further + uint64(8)),
        )  # fmt: skip
        for n in range(ACROSS):
            at, s = right + uint64(n * 8), (m * ACROSS + n) * 4
            other = rounded(others, at), rounded(others, at + uint64(4 * PITCH))
            c = (sums[s], sums[s + 1], sums[s + 2], sums[s + 3])
            d = mma_tf32(factor, other, c)
            sums[s], sums[s + 1], sums[s + 2], sums[s + 3] = d[0], d[1], d[2], d[3]


@device
def store_sums(partials, sums, first, k, outer, term, taps):
    """A lane's sums: terms from `term` of filters from k, `outer` of which follow on line `first`.

    Of each 16 x 8 results a lane has two neighbouring filters of a term, and of the eighth further.
    """
    terms = int32(terms_of(taps))
    for m in range(HIGH):
        for n in range(ACROSS):
            for i in range(4):
                at_term = int32(term + m * 16 + i // 2 * 8)
                at_filter = int32(k + n * 8 + i % 2)
                if at_term < terms and at_filter < outer:
                    place = (first + at_filter) * terms + at_term
                    partials[uint64(place)] = sums[(m * ACROSS + n) * 4 + i]


@device
def store_few(partials, sums, first, k, outer, term, taps):
    """As `store_sums`, where each tap has four terms, and memory has only its channels."""
    terms, inner, channel = int32(terms_of(taps)), taps[INNER], int32(term % 4)
    first_tap = int32(term // 4)
    for m in range(HIGH):
        for n in range(ACROSS):
            for i in range(4):
                at_term = int32(int32(first_tap + m * 4 + i // 2 * 2) * inner + channel)
                at_filter = int32(k + n * 8 + i % 2)
                if channel < inner and at_term < terms and at_filter < outer:
                    place = (first + at_filter) * terms + at_term
                    partials[uint64(place)] = sums[(m * ACROSS + n) * 4 + i]


FORM = WeightForm(
    WIDE, TILE_DEPTH, (PITCH, PITCH), (pixel_quad, filters_quad), _cells, _product, _results,
    store_sums, capability=AMPERE,
)  # fmt: skip
FEW = replace(FORM, fetch=(pixel_few, filters_singles), store=store_few, padded=True)
_multiply_pixels, _multiply_few = weight_kernel(FORM), weight_kernel(FEW)


def grad_weight(launcher: Launcher, shape: ConvShape, x, dy, dw, workspace) -> None:
    """dw[k, term] = sum over pixels of what the term reads times dy[pixel, k], in splits."""
    if shape.cg % 4 == 0 and shape.kg % 4 == 0:
        launch(launcher, _multiply_pixels, FORM, shape, (x, dy, dw), workspace)
    elif shape.cg < 4 and shape.groups == 1:
        launch(launcher, _multiply_few, FEW, shape, (x, dy, dw), workspace)
    else:
        conv_weights.grad_weight(launcher, shape, x, dy, dw, workspace)
