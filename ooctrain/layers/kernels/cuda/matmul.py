"""The three products of a linear layer on a GPU: tiles in shared memory, results in registers.

In: x (N, I), w (O, I), bias (O,) or None; a workspace of exactly `matmul_plan.workspace_bytes`.
Out: y (N, O), dx (N, I) or dw (O, I), every element written. The one idea: all three are c[i, j] =
sum of a[i, k] b[k, j], and differ only in how far apart the elements of a and b lie; so one kernel
takes these distances. A block copies 64 x 16 of a and 16 x 64 of b to shared memory, neighbours in
memory by neighbouring threads; then each thread multiplies 4 x 4 of them, 16 products for 8 values
read. Read next: `conv/conv_tiled.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda import matmul_plan
from ooctrain.layers.kernels.cuda.channel_bias import add_in_place
from ooctrain.layers.kernels.cuda.conv.conv_pieces import add_partials
from ooctrain.layers.kernels.cuda.matmul_plan import STEP, TILE
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, shared_array
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import (
    cuda,
    device,
    float32,
    kernel,
    smaller,
    uint32,
    uint64,
)

Array = Any
THREADS = 256
ZERO, ONE = np.float32(0), np.uint32(1)
#: Results of a thread in each direction, and all of them.
PATCH = 4
RESULTS = PATCH * PATCH
PATCHES = TILE // PATCH
#: Words from one step of a tile in shared memory to the next: rows stay aligned for 128-bit reads.
PITCH = TILE + PATCH
TILE_WORDS = STEP * PITCH
#: Elements of a tile that a thread copies.
COPIES = TILE * STEP // THREADS


@device
def place_in_tile(number, along):
    """(outer, k) of element `number` of a tile, counted in the order of memory.

    `along` is the distance from k to k + 1: 1 where neighbours in memory differ in k.
    """
    if along == ONE:
        return uint32(number // uint32(STEP)), uint32(number % uint32(STEP))
    return uint32(number % uint32(TILE)), uint32(number // uint32(TILE))


@device
def element(matrix, base, outer, k, outer_end, k_end, apart, along):
    """Element (outer, k) of a tile that begins at `base`; 0 outside of the matrix.

    Within a tile 32 bits hold the distance: see `matmul_plan.MOST_EXTENT`.
    """
    if outer < outer_end and k < k_end:
        return matrix[base + uint32(uint32(outer * apart) + uint32(k * along))]
    return ZERO


@kernel(
    "void(f4[::1], f4[::1], f4[::1], UniTuple(u4, 3), UniTuple(u4, 2), UniTuple(u4, 2), u4)",
    threads=THREADS,
)
def _product(a, b, c, extents, a_steps, b_steps, terms):
    """c[z, i, j] = sum over the terms k of split z of a[i, k] b[k, j].

    `a_steps` are the distances from i to i + 1 and from k to k + 1, `b_steps` those of j and k.
    """
    a_tile = shared_array(TILE_WORDS, float32)
    b_tile = shared_array(TILE_WORDS, float32)
    sums = cuda.local.array(RESULTS, float32)
    rows, columns, depth = extents
    thread = uint32(cuda.threadIdx.x)
    first_row = uint32(uint32(cuda.blockIdx.y) * uint32(TILE))
    first_column = uint32(uint32(cuda.blockIdx.x) * uint32(TILE))
    k0 = uint32(uint32(cuda.blockIdx.z) * terms)
    k_end = smaller(depth, uint32(k0 + terms))
    my_row = uint32(uint32(thread // uint32(PATCHES)) * uint32(PATCH))
    my_column = uint32(uint32(thread % uint32(PATCHES)) * uint32(PATCH))
    for n in range(RESULTS):
        sums[n] = ZERO
    while k0 < k_end:
        a_base = uint64(first_row) * uint64(a_steps[0]) + uint64(k0) * uint64(a_steps[1])
        b_base = uint64(first_column) * uint64(b_steps[0]) + uint64(k0) * uint64(b_steps[1])
        for n in range(COPIES):
            number = uint32(thread + uint32(n * THREADS))
            i, k = place_in_tile(number, a_steps[1])
            a_tile[k * uint32(PITCH) + i] = element(
                a, a_base, i, k, uint32(rows - first_row), uint32(k_end - k0),
                a_steps[0], a_steps[1],
            )  # fmt: skip
            j, k = place_in_tile(number, b_steps[1])
            b_tile[k * uint32(PITCH) + j] = element(
                b, b_base, j, k, uint32(columns - first_column), uint32(k_end - k0),
                b_steps[0], b_steps[1],
            )  # fmt: skip
        cuda.syncthreads()
        for k in range(STEP):
            left = ld4(a_tile, uint32(my_row + uint32(k * PITCH)))
            right = ld4(b_tile, uint32(my_column + uint32(k * PITCH)))
            for i in range(PATCH):
                for j in range(PATCH):
                    sums[i * PATCH + j] += left[i] * right[j]
        cuda.syncthreads()
        k0 = uint32(k0 + uint32(STEP))
    for i in range(PATCH):
        row = uint32(first_row + my_row + uint32(i))
        line = uint64(cuda.blockIdx.z) * uint64(rows) + uint64(row)
        for j in range(PATCH):
            column = uint32(first_column + my_column + uint32(j))
            if row < rows and column < columns:
                c[line * uint64(columns) + uint64(column)] = sums[i * PATCH + j]


def forward(
    launcher: Launcher, x: Array, w: Array, bias: Array | None, y: Array, workspace: Array
) -> None:
    """y = x w^T + bias."""
    (rows, inputs), outputs = x.shape, w.shape[0]
    extents = rows, outputs, inputs
    _multiply(launcher, x, w, y, extents, (inputs, 1), (inputs, 1), workspace)
    if bias is not None:
        add_in_place(launcher, y, bias)


def grad_input(launcher: Launcher, dy: Array, w: Array, dx: Array, workspace: Array) -> None:
    """dx = dy w."""
    (rows, outputs), inputs = dy.shape, w.shape[1]
    extents = rows, inputs, outputs
    _multiply(launcher, dy, w, dx, extents, (outputs, 1), (1, inputs), workspace)


def grad_weight(launcher: Launcher, x: Array, dy: Array, dw: Array, workspace: Array) -> None:
    """dw = dy^T x."""
    (rows, inputs), outputs = x.shape, dy.shape[1]
    extents = outputs, inputs, rows
    _multiply(launcher, dy, x, dw, extents, (1, outputs), (1, inputs), workspace)


def _multiply(launcher, a, b, c, extents, a_steps, b_steps, workspace) -> None:
    """c = a b in splits that are added in their order."""
    rows, columns, _ = extents
    parts = matmul_plan.splits(*extents)
    partials = c if parts == 1 else launcher.part(workspace, 0, parts * rows * columns, "float32")
    blocks = *matmul_plan.tiles(rows, columns), parts
    terms = matmul_plan.terms_of_split(*extents)
    launcher.launch(_product, blocks, a, b, partials, extents, a_steps, b_steps, terms)
    add_partials(launcher, partials, parts, c)
