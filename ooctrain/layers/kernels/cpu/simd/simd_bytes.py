"""Vectors from and to bytes, in which max pooling stores the position of a maximum in its window.

A load turns bytes of a 1-d uint8 array, from an offset on, into a vector of whole numbers as
floats; a store does the reverse. Positions are compared as floats, like the values to which they
belong, and are stored as bytes, a quarter of the size. Read next: `layers/kernels/cpu/pooling.py`,
the only user.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ooctrain.layers.kernels.cpu.simd.simd_memory import if_whole
from ooctrain.layers.kernels.cpu.simd.vector import (
    I8,
    I32,
    I64,
    VECTOR,
    VL,
    call_llvm,
    element_pointer,
    f32v,
    first_lanes,
)

_BYTES = ir.VectorType(I8, VL)


@intrinsic
def vstore4_bytes(typingctx, array, offset, v0, v1, v2, v3):
    """Stores four vectors of whole numbers in [0, 255] as bytes."""

    def codegen(context, builder, signature, args):
        for k in range(4):
            at = builder.add(args[1], ir.Constant(I64, k * VL))
            pointer = element_pointer(context, builder, signature.args[0], args[0], at)
            data = builder.fptoui(args[2 + k], _BYTES)
            builder.store(data, builder.bitcast(pointer, _BYTES.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, f32v, f32v, f32v, f32v), codegen


@intrinsic
def vload_bytes(typingctx, array, offset):
    """VL bytes from array[offset] as floats."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        whole = builder.load(builder.bitcast(pointer, _BYTES.as_pointer()), align=1)
        return builder.uitofp(whole, VECTOR)

    return f32v(array, types.int64), codegen


@intrinsic
def vload_bytes_upto(typingctx, array, offset, count):
    """The first `count` bytes from array[offset] as floats, zeros in the other lanes."""

    def codegen(context, builder, signature, args):
        element = element_pointer(context, builder, signature.args[0], args[0], args[1])
        pointer, none = builder.bitcast(element, _BYTES.as_pointer()), ir.Constant(_BYTES, [0] * VL)

        def part():
            name, align = f"llvm.masked.load.v{VL}i8.p0", ir.Constant(I32, 1)
            mask = first_lanes(builder, args[2])
            return call_llvm(builder, name, _BYTES, pointer, align, mask, none)

        whole = if_whole(builder, args[2], lambda: builder.load(pointer, align=1), part)
        return builder.uitofp(whole, VECTOR)

    return f32v(array, types.int64, types.int64), codegen


@intrinsic
def vstore_bytes_upto(typingctx, array, offset, value, count):
    """The first lanes of value, whole numbers in [0, 255], as bytes to array[offset]."""

    def codegen(context, builder, signature, args):
        element = element_pointer(context, builder, signature.args[0], args[0], args[1])
        pointer = builder.bitcast(element, _BYTES.as_pointer())
        data = builder.fptoui(args[2], _BYTES)

        def whole():
            builder.store(data, pointer, align=1)

        def part():
            name, align = f"llvm.masked.store.v{VL}i8.p0", ir.Constant(I32, 1)
            mask = first_lanes(builder, args[3])
            call_llvm(builder, name, ir.VoidType(), data, pointer, align, mask)

        if_whole(builder, args[3], whole, part)
        return context.get_dummy_value()

    return types.void(array, types.int64, f32v, types.int64), codegen
