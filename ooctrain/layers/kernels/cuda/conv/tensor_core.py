"""Instructions of Ampere and later: asynchronous copies, ldmatrix, matrix products in TF32.

A warp multiplies 16 x 8 by 8 x 8 matrices in one instruction, and each lane holds a few elements of
them, its fragment. `ldmatrix_x4` distributes four 8 x 4 matrices from shared memory in exactly that
arrangement. `copy_async` fills shared memory without passing through registers, while the warp
multiplies. Copies and products are emulated with the meaning that the PTX ISA gives them
(`testing/emulator_block.py`, `testing/emulator_block.py`). Source: PTX ISA,
sections "cp.async", "ldmatrix", "mma.m16n8k8". Read next: `conv_tf32.py`.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import float32, float64, njit
from numba.core import cgutils, types

from ooctrain.layers.kernels.cuda.runtime.intrinsics import F32, FOUR_FLOATS, I32, element_pointer
from ooctrain.layers.kernels.cuda.runtime.shim import intrinsic

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
