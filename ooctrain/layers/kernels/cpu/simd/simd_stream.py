"""Stores that bypass the caches, for data that will not be read again soon.

An ordinary store first reads its line into the cache, which costs half as much again, and evicts
another line. If the result is larger than the caches (`chunks.past_caches`), neither is of use.
Non-temporal stores avoid both; they need addresses that are multiples of their size, and a fence
after them. Read next: `layers/kernels/cpu/runtime/copy.py`.
"""

from __future__ import annotations

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ooctrain.layers.kernels.cpu.simd.simd_memory import vstore_upto
from ooctrain.layers.kernels.cpu.simd.vector import (
    I32,
    I64,
    VL,
    array_data,
    element_pointer,
    f32v,
    vector_pointer,
)


def _mark_past_caches(builder, store):
    """Makes an emitted store a non-temporal one."""
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


@intrinsic
def address_of(typingctx, array):
    """Address of the first element, for alignment."""

    def codegen(context, builder, signature, args):
        first = array_data(context, builder, signature.args[0], args[0])
        return builder.ptrtoint(first, I64)

    return types.int64(array), codegen


def _make_copy(past: bool, doc: str):
    line = ir.VectorType(I64, 8)

    @intrinsic
    def copy(typingctx, dst, dst_at, src, src_at):
        def codegen(context, builder, signature, args):
            source = element_pointer(context, builder, signature.args[2], args[2], args[3])
            target = element_pointer(context, builder, signature.args[0], args[0], args[1])
            value = builder.load(builder.bitcast(source, line.as_pointer()), align=1)
            store = builder.store(value, builder.bitcast(target, line.as_pointer()), align=64)
            if past:
                _mark_past_caches(builder, store)
            return context.get_dummy_value()

        return types.void(dst, types.int64, src, types.int64), codegen

    copy.__doc__ = doc
    return copy


copy_line = _make_copy(False, "Copies 64 bytes; `dst` must be 64-byte aligned at `dst_at`.")
stream_line = _make_copy(True, "As `copy_line`, past the caches.")


@intrinsic
def vstream(typingctx, array, offset, value):
    """array[offset : offset + VL] = value, past the caches; the address is a multiple of 64."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        store = builder.store(args[2], vector_pointer(builder, pointer), align=4 * VL)
        _mark_past_caches(builder, store)
        return context.get_dummy_value()

    return types.void(array, types.int64, f32v), codegen


@numba.njit(inline="always")
def vput_upto(array, offset, value, count, past):
    """As `vstore_upto`; where `past` is true, whole vectors are written past the caches."""
    if past and count >= VL:
        vstream(array, offset, value)
    else:
        vstore_upto(array, offset, value, count)


@intrinsic
def store_fence(typingctx):
    """Orders non-temporal stores before everything that follows, for other threads too."""

    def codegen(context, builder, signature, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen
