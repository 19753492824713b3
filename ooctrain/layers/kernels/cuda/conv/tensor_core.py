"""Products on tensor cores: the instructions of Ampere, with the layout that they want.

A warp multiplies 16 x 8 by 8 x 8 matrices in one instruction, and each lane holds a few elements of
them, its fragment. `ldmatrix_x4` distributes four 8 x 4 matrices from shared memory in exactly that
arrangement. `copy_async` fills shared memory without passing through registers, while the warp
multiplies. Copies and products are emulated with the meaning that the PTX ISA gives them
(`testing/emulator_block.py`). Source: PTX ISA, sections "cp.async", "ldmatrix", "mma.m16n8k8". Read
next: `conv_tf32.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, float64, njit
from numba.core import cgutils, types

from ooctrain.layers.kernels.cuda.conv.conv_address import pixel_place, target_offset
from ooctrain.layers.kernels.cuda.conv.conv_blocking import OUTER, PIXELS
from ooctrain.layers.kernels.cuda.conv.conv_fetch import load_upto, store_upto
from ooctrain.layers.kernels.cuda.conv.tile_product import PADDING, THREADS
from ooctrain.layers.kernels.cuda.quads import sum_quad
from ooctrain.layers.kernels.cuda.runtime.intrinsics import (
    F32,
    FOUR_FLOATS,
    I32,
    element_pointer,
    ld4,
)
from ooctrain.layers.kernels.cuda.runtime.shim import device, int32, intrinsic, uint32, uint64

I8, I64, VOID = ir.IntType(8), ir.IntType(64), ir.VoidType()
I8P = I8.as_pointer()
#: address spaces
SHARED, CONSTANT = 3, 4
TWO_FLOATS = types.UniTuple(types.float32, 2)

COPY = "cp.async.cg.shared.global [$0], [$1], 16, $2;"
LDMATRIX = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3}, [$4];"
MMA = (
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
    " {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
)


def _assemble(builder, result, kinds, text, constraints, args, *, side_effect=True):
    function = ir.FunctionType(result, kinds)
    return builder.call(ir.InlineAsm(function, text, constraints, side_effect=side_effect), args)


def _shared_address(context, builder, array_type, array, offset):
    """The 32-bit address of `array[offset]` within shared memory."""
    pointer = element_pointer(context, builder, array_type, array, offset)
    return builder.ptrtoint(builder.addrspacecast(pointer, F32.as_pointer(SHARED)), I32)


def _bits(builder, values, count):
    return [builder.bitcast(builder.extract_value(values, i), I32) for i in range(count)]


@intrinsic
def copy_async(typing_context, tile, offset, source, source_offset, valid):
    """tile[offset : offset + 4] = source[source_offset : ...] if valid, else 0; done later.

    Both offsets are multiples of 4.
    """

    def codegen(context, builder, signature, args):
        kinds = signature.args
        to = _shared_address(context, builder, kinds[0], args[0], args[1])
        pointer = element_pointer(context, builder, kinds[2], args[2], args[3])
        size_bytes = builder.select(args[4], I32(16), I32(0))
        operands = [to, builder.ptrtoint(pointer, I64), size_bytes]
        _assemble(builder, VOID, [I32, I64, I32], COPY, "r,l,r,~{memory}", operands)
        return context.get_dummy_value()

    return types.void(tile, offset, source, source_offset, types.boolean), codegen


@intrinsic
def copy_commit(typing_context, tile):
    """Closes this thread's group of copies into `tile`."""

    def codegen(context, builder, signature, args):
        _assemble(builder, VOID, [], "cp.async.commit_group;", "~{memory}", [])
        return context.get_dummy_value()

    return types.void(tile), codegen


def _wait_intrinsic(pending: int):
    @intrinsic
    def copy_wait(typing_context, tile):
        def codegen(context, builder, signature, args):
            text = f"cp.async.wait_group {pending};"
            _assemble(builder, VOID, [], text, "~{memory}", [])
            return context.get_dummy_value()

        return types.void(tile), codegen

    return copy_wait


#: waits until all groups of this thread are there, or all but the newest
copy_wait_all = _wait_intrinsic(0)
copy_wait_but_one = _wait_intrinsic(1)


@intrinsic
def ldmatrix_x4(typing_context, tile, offset):
    """Four matrices of 8 rows x 4 words: lane l gives the offset of row l % 8 of matrix l // 8.

    Lane l gets, of each matrix, word l % 4 of row l // 4. Offsets are multiples of 4.
    """
    result = ir.LiteralStructType([I32] * 4)

    def codegen(context, builder, signature, args):
        address = _shared_address(context, builder, signature.args[0], args[0], args[1])
        words = _assemble(builder, result, [I32], LDMATRIX, "=r,=r,=r,=r,r,~{memory}", [address])
        floats = [builder.bitcast(builder.extract_value(words, i), F32) for i in range(4)]
        return context.make_tuple(builder, FOUR_FLOATS, floats)

    return FOUR_FLOATS(tile, offset), codegen


def _architecture(builder):
    """The capability that a kernel is compiled for, 900 for 9.0: NVVM puts in the number."""
    text = cgutils.make_bytearray(b"__CUDA_ARCH\0")
    name = builder.module.get_unique_name("architecture")
    place = cgutils.add_global_variable(builder.module, text.type, name, CONSTANT)
    place.initializer, place.linkage, place.global_constant = text, "internal", True
    pointer = builder.addrspacecast(builder.bitcast(place, I8.as_pointer(CONSTANT)), I8P)
    kind = ir.FunctionType(I32, [I8P])
    asked = cgutils.get_or_insert_function(builder.module, kind, "__nvvm_reflect")
    return builder.call(asked, [pointer])


@intrinsic
def round_tf32(typing_context, value):
    """The nearest number with 10 bits of mantissa; NaN stays NaN.

    Ties go to the even one from capability 9.0 on, which has one instruction for it; before, away
    from zero, which takes two.
    """

    def codegen(context, builder, signature, args):
        bits = [builder.bitcast(args[0], I32)]
        even, away = (
            _assemble(builder, I32, [I32], text, "=r,r", bits, side_effect=False)
            for text in ("cvt.rn.tf32.f32 $0, $1;", "cvt.rna.tf32.f32 $0, $1;")
        )
        one_instruction = builder.icmp_unsigned(">=", _architecture(builder), I32(900))
        return builder.bitcast(builder.select(one_instruction, even, away), F32)

    return types.float32(types.float32), codegen


@njit
def round_tf32_twin(value):
    """What `round_tf32` means from capability 9.0 on: 11 binary places, one of them hidden."""
    if not math.isfinite(value) or value == 0:
        return value
    mantissa, exponent = math.frexp(value)
    return float32(math.ldexp(np.rint(float64(mantissa) * 2048), exponent - 11))


@intrinsic
def mma_tf32(typing_context, a, b, c):
    """c + a b for matrices of 16 x 8 and 8 x 8 that the lanes of a warp hold together.

    With g = lane // 4 and t = lane % 4: a = (a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4]),
    b = (b[t, g], b[t + 4, g]), c = (c[g, 2t], c[g, 2t + 1], c[g + 8, 2t], c[g + 8, 2t + 1]).
    """
    result = ir.LiteralStructType([F32] * 4)

    def codegen(context, builder, signature, args):
        sums = [builder.extract_value(args[2], i) for i in range(4)]
        operands = _bits(builder, args[0], 4) + _bits(builder, args[1], 2) + sums
        kinds = [I32] * 6 + [F32] * 4
        constraints = "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"
        d = _assemble(builder, result, kinds, MMA, constraints, operands, side_effect=False)
        return context.make_tuple(
            builder, FOUR_FLOATS, [builder.extract_value(d, i) for i in range(4)]
        )

    return FOUR_FLOATS(FOUR_FLOATS, TWO_FLOATS, FOUR_FLOATS), codegen


# How factors lie in shared memory, and how a block's results leave it. 32 lanes access shared
# memory at once, and no two of them should use the same bank. `ldmatrix` reads eight rows of 16
# bytes, so the order of the 16-byte chunks in a row depends on the row's number. The sums that
# `mma` leaves in a warp's registers go through shared memory, in rows with four words of padding
# between them, and from there to memory in whole rows. Source: CUTLASS, "Efficient GEMM in CUDA".

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
        columns: columns of the block's results.
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
