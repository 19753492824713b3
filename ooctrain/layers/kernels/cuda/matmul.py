"""The three products of a linear layer on a GPU: the product of the convolutions, split by shape.

From x (N, I), w (O, I), bias (O,) or None and a workspace of exactly
`matmul_blocking.workspace_bytes` it writes every element of y (N, O), dx (N, I) or dw (O, I). All
three are c[i, j] = sum of a[j, k] b[i, k], and differ only in what is contiguous in memory: the
terms k, which then become columns of a tile of shared memory, or i and j, which are stored as they
come. Both are loaded four at a time, sixteen terms in a step, and multiplied as in
`conv/conv_gemm.py`, so that 82 of 100 instructions of the loop are multiply-adds. Extents that are
no multiples of four are loaded one by one. Results are contiguous along j, so the larger extent,
the features, takes the 128 places of a tile, and the batch its 64. Read next:
`conv/tile_product.py`, `conv/conv_tiled.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda import matmul_blocking
from ooctrain.layers.kernels.cuda.channel_bias import add_in_place
from ooctrain.layers.kernels.cuda.conv.conv_fetch import store_upto
from ooctrain.layers.kernels.cuda.conv.conv_pieces import add_partials
from ooctrain.layers.kernels.cuda.conv.tile_product import (
    A_STRIDE,
    LONG_DEPTH,
    NARROW,
    PADDING,
    QUAD_DISTANCE,
    THREADS,
    TWO_BLOCKS,
    clear,
    long_product_64,
)
from ooctrain.layers.kernels.cuda.matmul_blocking import COLUMNS, ROWS
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, shared_array, st4, store_column
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import (
    Kernel,
    cuda,
    device,
    float32,
    int32,
    kernel,
    smaller,
    uint32,
    uint64,
)
from ooctrain.layers.kernels.signature import U4, F4s, U4x2, U4x3
from ooctrain.layers.linear import MatMul

Array = Any
ZERO = np.float32(0)
B_STRIDE = NARROW + PADDING
A_WORDS = LONG_DEPTH * A_STRIDE
#: Words of both tiles of a step; two steps take turns.
STAGE_WORDS = A_WORDS + LONG_DEPTH * B_STRIDE
TILE_WORDS = 2 * STAGE_WORDS
#: A thread fetches two quads of a, so many terms apart.
FURTHER = LONG_DEPTH // 2
#: Results of a thread: 8 rows of 4 columns.
RESULTS, HIGH, WIDE = 32, 8, 4


@device
def four(matrix, at, inside):
    """matrix[at : at + 4] in one load; zeros outside."""
    values = (ZERO, ZERO, ZERO, ZERO)
    if inside:
        values = ld4(matrix, at)
    return values


@device
def one_by_one(matrix, at, apart, count):
    """Four elements of a matrix, so far apart; zeros from `count` on."""
    return (
        matrix[at] if count > 0 else ZERO,
        matrix[at + apart] if count > 1 else ZERO,
        matrix[at + uint64(2) * apart] if count > 2 else ZERO,
        matrix[at + uint64(3) * apart] if count > 3 else ZERO,
    )


@device
def fetch_fours(a, b, places, aparts, lefts):
    """A thread's two quads of a and one of b; each lies side by side."""
    (a_at, b_at), (a_left, b_left) = places, lefts
    return (
        four(a, a_at, a_left > 0), four(a, a_at + uint64(FURTHER) * aparts[0], a_left > FURTHER),
        four(b, b_at, b_left > 0),
    )  # fmt: skip


@device
def fetch_each(a, b, places, aparts, lefts):
    """As `fetch_fours`, term by term, however far they are apart."""
    (a_at, b_at), (a_apart, b_apart), (a_left, b_left) = places, aparts, lefts
    return (
        one_by_one(a, a_at, a_apart, a_left),
        one_by_one(a, a_at + uint64(FURTHER) * a_apart, a_apart, a_left - FURTHER),
        one_by_one(b, b_at, b_apart, b_left),
    )


@device
def store_results(c, sums, start, row, column, rows, columns):
    """c[start + row * columns + column] for a thread's 4 rows and twice four columns."""
    in_fours = columns % uint32(4) == 0
    for q in range(HIGH // 4):
        at_column = uint32(column + uint32(q * QUAD_DISTANCE))
        left = int32(columns) - int32(at_column)
        for i in range(WIDE):
            s, at_row = q * 4 * WIDE + i, uint32(row + uint32(i))
            values = (sums[s], sums[s + WIDE], sums[s + 2 * WIDE], sums[s + 3 * WIDE])
            if at_row < rows:
                at = start + uint64(at_row) * uint64(columns) + uint64(at_column)
                store_upto(c, at, values, left, in_fours)


def _product(fetch: Any, a_across: bool, b_across: bool) -> Kernel:
    """The kernel for tiles of 128 x 64.

    Args:
        fetch: what loads a thread's share of a step.
        a_across, b_across: whether neighbours in memory differ in j (in i), not in k.
    """

    @kernel(threads=THREADS, max_registers=TWO_BLOCKS)
    def multiply(a: F4s, b: F4s, c: F4s, extents: U4x3, a_steps: U4x2, b_steps: U4x2, terms: U4):
        """c[z, i, j] = sum over the terms k of split z of a[j, k] b[i, k].

        `a_steps` are the distances from j to j + 1 and from k to k + 1, `b_steps` those of i and k.
        """
        tiles = shared_array(TILE_WORDS, float32)
        sums = cuda.local.array(RESULTS, float32)
        clear(sums, RESULTS)
        rows, columns, depth = extents
        thread = uint32(cuda.threadIdx.x)
        first_column = uint32(uint32(cuda.blockIdx.x) * uint32(COLUMNS))
        first_row = uint32(uint32(cuda.blockIdx.y) * uint32(ROWS))
        k = uint32(uint32(cuda.blockIdx.z) * terms)
        k_end = smaller(depth, uint32(k + terms))

        # This thread fetches two quads of a and one of b; `term` is a quad's first in each step.
        if a_across:
            a_line, a_term = uint32(thread % uint32(32) * uint32(4)), uint32(thread // uint32(32))
        else:
            a_line, a_term = uint32(thread // uint32(2)), uint32(thread % uint32(2) * uint32(4))
        if b_across:
            b_line, b_term = uint32(thread % uint32(16) * uint32(4)), uint32(thread // uint32(16))
        else:
            b_line, b_term = uint32(thread // uint32(4)), uint32(thread % uint32(4) * uint32(4))
        a_put = uint32(uint32(a_term * uint32(A_STRIDE)) + a_line)
        b_put = uint32(uint32(A_WORDS) + uint32(b_term * uint32(B_STRIDE)) + b_line)
        a_line, a_term = uint32(first_column + a_line), uint32(k + a_term)
        b_line, b_term = uint32(first_row + b_line), uint32(k + b_term)
        a_apart, b_apart = uint64(a_steps[1]), uint64(b_steps[1])
        a_at = uint64(a_line) * uint64(a_steps[0]) + uint64(a_term) * a_apart
        b_at = uint64(b_line) * uint64(b_steps[0]) + uint64(b_term) * b_apart
        # Terms from there on; none of a row or column that does not exist.
        a_left = int32(k_end) - int32(a_term) if a_line < columns else int32(0)
        b_left = int32(k_end) - int32(b_term) if b_line < rows else int32(0)

        column = uint32(thread // uint32(16) * uint32(4))
        row = uint32(thread % uint32(16) * uint32(4))
        stage, steps, aparts = uint32(0), int32(k_end) - int32(k), (a_apart, b_apart)
        low, high, right = fetch(a, b, (a_at, b_at), aparts, (a_left, b_left))
        while steps > 0:
            if a_across:
                st4(tiles, uint32(stage + a_put), low)
                st4(tiles, uint32(stage + a_put + uint32(FURTHER * A_STRIDE)), high)
            else:
                store_column(tiles, uint32(stage + a_put), A_STRIDE, low)
                put = uint32(stage + a_put + uint32(FURTHER * A_STRIDE))
                store_column(tiles, put, A_STRIDE, high)
            if b_across:
                st4(tiles, uint32(stage + b_put), right)
            else:
                store_column(tiles, uint32(stage + b_put), B_STRIDE, right)
            cuda.syncthreads()
            steps = int32(steps - LONG_DEPTH)
            a_left, b_left = int32(a_left - LONG_DEPTH), int32(b_left - LONG_DEPTH)
            if steps > 0:
                a_at += uint64(LONG_DEPTH) * a_apart
                b_at += uint64(LONG_DEPTH) * b_apart
                low, high, right = fetch(a, b, (a_at, b_at), aparts, (a_left, b_left))
            a_get, b_get = uint32(stage + column), uint32(stage + uint32(A_WORDS) + row)
            long_product_64(sums, tiles, a_get, tiles, b_get)
            stage = uint32(uint32(STAGE_WORDS) - stage)

        start = uint64(cuda.blockIdx.z) * uint64(columns) * uint64(rows)
        row, column = uint32(first_row + row), uint32(first_column + column)
        store_results(c, sums, start, row, column, rows, columns)

    return multiply


def forward(
    launcher: Launcher, x: Array, w: Array, bias: Array | None, y: Array, workspace: Array
) -> None:
    """y = x w^T + bias."""
    (rows, inputs), outputs = x.shape, w.shape[0]
    extents, in_fours = (rows, outputs, inputs), inputs % 4 == 0
    product = product_kernel(in_fours, False, False)
    _multiply(launcher, product, w, x, y, extents, (inputs, 1), (inputs, 1), workspace)
    if bias is not None:
        add_in_place(launcher, y, bias)


def grad_input(launcher: Launcher, dy: Array, w: Array, dx: Array, workspace: Array) -> None:
    """dx = dy w."""
    (rows, outputs), inputs = dy.shape, w.shape[1]
    extents, in_fours = (rows, inputs, outputs), inputs % 4 == 0 and outputs % 4 == 0
    product = product_kernel(in_fours, in_fours, False)
    _multiply(launcher, product, w, dy, dx, extents, (1, inputs), (outputs, 1), workspace)


def grad_weight(launcher: Launcher, x: Array, dy: Array, dw: Array, workspace: Array) -> None:
    """dw = dy^T x."""
    (rows, inputs), outputs = x.shape, dy.shape[1]
    extents, in_fours = (outputs, inputs, rows), inputs % 4 == 0 and outputs % 4 == 0
    product = product_kernel(in_fours, in_fours, in_fours)
    _multiply(launcher, product, x, dy, dw, extents, (1, inputs), (1, outputs), workspace)


def matmul(
    launcher: Launcher, op: MatMul, ins: Sequence[Array], outs: Sequence[Array], workspace: Array
) -> None:
    """y = a b, a b^T or a^T b, one pair of matrices after the other."""
    (a, b), (y,) = ins, outs
    for n in range(a.size // (a.shape[-1] * a.shape[-2])):
        u, v, w = (_matrix(array, n) for array in (a, b, y))
        match op.form:
            case "nt":
                forward(launcher, u, v, None, w, workspace)
            case "nn":
                grad_input(launcher, u, v, w, workspace)
            case _:
                grad_weight(launcher, v, u, w, workspace)


def _matrix(array: Array, number: int) -> Array:
    """One matrix of some."""
    if len(array.shape) == 2:
        return array
    return array[number : number + 1].reshape(array.shape[1:])


@cache
def product_kernel(in_fours: bool, a_across: bool, b_across: bool) -> Kernel:
    """The kernel of a product: one for each of the three, and one that takes any distances."""
    return _product(fetch_fours if in_fours else fetch_each, a_across, b_across)


def every_product() -> list[Kernel]:
    """All that there are."""
    across = (False, False), (True, False), (True, True)
    return [product_kernel(False, False, False), *(product_kernel(True, *each) for each in across)]


def _multiply(launcher, product, a, b, c, extents, a_steps, b_steps, workspace) -> None:
    """c[i, j] = sum of a[j, k] b[i, k], in splits that are added in their order."""
    rows, columns, depth = extents
    parts = matmul_blocking.splits(rows, columns, depth)
    partials = c if parts == 1 else launcher.part(workspace, 0, parts * rows * columns, "float32")
    blocks = *matmul_blocking.tiles(rows, columns), parts
    terms = matmul_blocking.terms_of_split(rows, columns, depth)
    launcher.launch(product, blocks, a, b, partials, extents, a_steps, b_steps, terms)
    add_partials(launcher, partials, parts, c)
