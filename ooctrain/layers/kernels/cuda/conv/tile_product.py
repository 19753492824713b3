"""The inner loop of a matrix product on a GPU: eight steps of a thread's tile, unrolled.

Two tiles in shared memory have eight rows of TILE_DEPTH each: `a[step * A_STRIDE + row]` and
`b[step * b_stride + column]`. The loop does `sums[i, j] += a[step, row_i] b[step, column_j]`, step
by step. The 64 sums of a thread are in registers; a step reads 16 numbers, in four 128-bit loads,
and does 64 multiply-adds with them. The compiler would leave the loop over steps rolled, so the
intrinsic writes all 512 multiply-adds itself. A thread's rows come in fours, 64 apart, so that
neighbouring threads read neighbouring words. Source: CUTLASS, "Efficient GEMM in CUDA", thread
level. Read next: `conv_gemm.py`.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types

from ooctrain.layers.kernels.cuda.runtime.intrinsics import (
    F32,
    F32X4,
    I32,
    VECTOR_BYTES,
    element_pointer,
)
from ooctrain.layers.kernels.cuda.runtime.shim import device, intrinsic

TILE_DEPTH = 8
#: For 64 columns twice as many, so that all threads have as much to fetch as for 128.
LONG_DEPTH = 16
TILE_ROWS = 128
#: from a thread's first four rows (or columns) to its next four
QUAD_DISTANCE = 64
#: Four words beyond the tile's width let the transposed stores of a warp meet 32 different banks.
PADDING = 4
A_STRIDE = TILE_ROWS + PADDING
#: Words of `a`: two tiles that take turns.
A_HALF = TILE_DEPTH * A_STRIDE
A_WORDS = 2 * A_HALF
WIDE, NARROW = 128, 64
THREADS = 256
#: Registers of a thread with which two blocks share a processor.
TWO_BLOCKS = 128
ZERO = np.float32(0)


def _product_intrinsic(columns: int, depth: int = TILE_DEPTH):
    """The intrinsic for tiles of 128 x `columns`, of which a thread has 8 x `columns` / 16."""
    b_stride, wide = columns + PADDING, columns // 16

    @intrinsic
    def tile_product(typing_context, sums, a, a_offset, b, b_offset):
        def codegen(context, builder, signature, args):
            kinds = signature.args
            total = context.make_array(kinds[0])(context, builder, args[0]).data
            places = [builder.gep(total, [I32(i)], inbounds=True) for i in range(8 * wide)]
            values = [builder.load(place) for place in places]
            rows = element_pointer(context, builder, kinds[1], args[1], args[2])
            cells = element_pointer(context, builder, kinds[3], args[3], args[4])
            for step in range(depth):
                left = _fragment(builder, rows, step * A_STRIDE, 8)
                right = _fragment(builder, cells, step * b_stride, wide)
                values = _outer_product(builder, values, left, right)
            for place, value in zip(places, values, strict=True):
                builder.store(value, place)
            return context.get_dummy_value()

        return types.void(sums, a, a_offset, b, b_offset), codegen

    return tile_product


def _fragment(builder, pointer, offset: int, count: int):
    """`count` words in quads, QUAD_DISTANCE apart."""
    words = []
    for quad in range(count // 4):
        place = builder.gep(pointer, [I32(offset + quad * QUAD_DISTANCE)], inbounds=True)
        vector = builder.load(builder.bitcast(place, F32X4.as_pointer()), align=VECTOR_BYTES)
        words += [builder.extract_element(vector, I32(lane)) for lane in range(4)]
    return words


def _outer_product(builder, values, left, right):
    """values + left right^T, in fused multiply-adds."""
    kind = ir.FunctionType(F32, [F32] * 3)
    fma = cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.f32")
    pairs = [(i, j) for i in left for j in right]
    return [builder.call(fma, [i, j, v]) for (i, j), v in zip(pairs, values, strict=True)]


product_128 = _product_intrinsic(WIDE)
product_64 = _product_intrinsic(NARROW)
long_product_64 = _product_intrinsic(NARROW, LONG_DEPTH)


@device
def clear(sums, count):
    """sums[0 : count] = 0."""
    for i in range(count):
        sums[i] = ZERO


@njit(boundscheck=True)
def _multiply(sums, a, a_offset, b, b_offset, columns, depth):
    wide, stride = columns // 16, columns + PADDING
    left = np.empty(8, np.float32)
    for step in range(depth):
        for i in range(8):
            left[i] = a[a_offset + step * A_STRIDE + i // 4 * QUAD_DISTANCE + i % 4]
        for j in range(wide):
            right = b[b_offset + step * stride + j // 4 * QUAD_DISTANCE + j % 4]
            for i in range(8):
                sums[i * wide + j] += left[i] * right


@njit
def product_128_twin(sums, a, a_offset, b, b_offset):
    """What `product_128` means."""
    _multiply(sums, a, a_offset, b, b_offset, WIDE, TILE_DEPTH)


@njit
def product_64_twin(sums, a, a_offset, b, b_offset):
    """What `product_64` means."""
    _multiply(sums, a, a_offset, b, b_offset, NARROW, TILE_DEPTH)


@njit
def long_product_64_twin(sums, a, a_offset, b, b_offset):
    """What `long_product_64` means."""
    _multiply(sums, a, a_offset, b, b_offset, NARROW, LONG_DEPTH)
