"""Vectors from memory or into it: whole ones, partial ones, transposed blocks.

Loads and stores take a 1-d float32 array and an element offset and give or take values of type
`f32v`. The tail of a row is read and written by the same instructions as its body, with lanes
switched off, but whole vectors never pay for the mask. Nothing is checked. Read next:
`layers/kernels/cpu/elementwise.py`.
"""

from __future__ import annotations

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ooctrain.layers.kernels.cpu.simd.simd import (
    I8,
    I32,
    I64,
    LANES,
    VECTOR,
    VL,
    array_data,
    call_llvm,
    element_pointer,
    f32v,
    first_lanes,
    masked_load,
    masked_store,
    splat,
    vector_pointer,
)

#: How far ahead `vscan_upto` prefetches: 4 KiB. Distances of 2 to 8 KiB are as good.
AHEAD_ELEMENTS = 1024


@intrinsic
def vload(typingctx, array, offset):
    """VL elements from array[offset]."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        return builder.load(vector_pointer(builder, pointer), align=4)

    return f32v(array, types.int64), codegen


@intrinsic
def vstore(typingctx, array, offset, value):
    """array[offset : offset + VL] = value."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        builder.store(args[2], vector_pointer(builder, pointer), align=4)
        return context.get_dummy_value()

    return types.void(array, types.int64, f32v), codegen


@intrinsic
def vload_part(typingctx, array, offset, count):
    """The first `count` lanes from array[offset], zeros in the others (count >= VL reads all)."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        return masked_load(builder, pointer, first_lanes(builder, args[2]))

    return f32v(array, types.int64, types.int64), codegen


@intrinsic
def vstore_part(typingctx, array, offset, value, count):
    """array[offset : offset + min(count, VL)] = the first lanes of value."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        masked_store(builder, args[2], pointer, first_lanes(builder, args[3]))
        return context.get_dummy_value()

    return types.void(array, types.int64, f32v, types.int64), codegen


@intrinsic
def vload_if(typingctx, array, offset, condition):
    """VL elements from array[offset] if `condition`, else zeros, without reading."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        zeros = cgutils.global_constant(builder, "ooctrain_zeros", ir.Constant(VECTOR, [0.0] * VL))
        chosen = builder.select(args[2], vector_pointer(builder, pointer), zeros)
        return builder.load(chosen, align=4)

    return f32v(array, types.int64, types.boolean), codegen


def if_whole(builder, count, whole, part):
    """Emits `whole()` where count >= VL, else `part()`; their values (if any) meet in a phi."""
    many = builder.icmp_signed(">=", count, ir.Constant(I64, VL))
    with builder.if_else(many, likely=True) as (then, otherwise):
        with then:
            first, first_block = whole(), builder.block
        with otherwise:
            second, second_block = part(), builder.block
    if first is None:
        return None
    value = builder.phi(first.type)
    value.add_incoming(first, first_block)
    value.add_incoming(second, second_block)
    return value


@intrinsic
def vload_upto(typingctx, array, offset, count):
    """The first `count` lanes from array[offset], zeros in the others; count >= VL reads all.

    Unlike `vload_part` it uses a plain load where it can: masked loads and stores of whole vectors
    reach about half the memory bandwidth (measured on AVX-512).
    """

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        return if_whole(
            builder,
            args[2],
            lambda: builder.load(vector_pointer(builder, pointer), align=4),
            lambda: masked_load(builder, pointer, first_lanes(builder, args[2])),
        )

    return f32v(array, types.int64, types.int64), codegen


@intrinsic
def vload_upto_or(typingctx, array, offset, count, fill):
    """As `vload_upto`, with `fill` in the other lanes."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])

        def part():
            mask, others = first_lanes(builder, args[2]), splat(builder, args[3])
            return masked_load(builder, pointer, mask, others)

        def whole():
            return builder.load(vector_pointer(builder, pointer), align=4)

        return if_whole(builder, args[2], whole, part)

    return f32v(array, types.int64, types.int64, types.float32), codegen


@intrinsic
def vstore_upto(typingctx, array, offset, value, count):
    """array[offset : offset + min(count, VL)] = the first lanes of value."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])

        def whole():
            builder.store(args[2], vector_pointer(builder, pointer), align=4)

        def part():
            masked_store(builder, args[2], pointer, first_lanes(builder, args[3]))

        if_whole(builder, args[3], whole, part)
        return context.get_dummy_value()

    return types.void(array, types.int64, f32v, types.int64), codegen


@intrinsic
def vstore4(typingctx, array, offset, v0, v1, v2, v3):
    """Stores four vectors one after the other."""

    def codegen(context, builder, signature, args):
        for k in range(4):
            at = builder.add(args[1], ir.Constant(I64, k * VL))
            pointer = element_pointer(context, builder, signature.args[0], args[0], at)
            builder.store(args[2 + k], vector_pointer(builder, pointer), align=4)
        return context.get_dummy_value()

    return types.void(array, types.int64, f32v, f32v, f32v, f32v), codegen


@intrinsic
def prefetch(typingctx, array, offset):
    """Asks for the cache line of array[offset], which may lie outside; nothing waits for it."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        byte = builder.bitcast(pointer, I8.as_pointer())
        to_read_in_all_levels_as_data = [ir.Constant(I32, hint) for hint in (0, 3, 1)]
        arguments = byte, *to_read_in_all_levels_as_data
        call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), *arguments)
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@numba.njit(inline="always")
def vscan_upto(array, offset, count):
    """As `vload_upto`, in a loop that runs through several arrays at once.

    It prefetches the line AHEAD_ELEMENTS further on, since the hardware's prefetcher alone does not
    keep up with three streams (measured: the gradient of ReLU on 3 x 16 MiB takes 1.5 times as long
    without).
    """
    prefetch(array, offset + AHEAD_ELEMENTS)
    return vload_upto(array, offset, count)


@intrinsic
def vtranspose(typingctx, source, offset, stride, target, target_offset, target_stride):
    """target[j, i] = source[i, j] for a block of VL x VL elements, rows `stride` elements apart.

    log2(VL) rounds; round s exchanges blocks of s x s between the rows i and i + s.
    """

    def codegen(context, builder, signature, args):
        base = element_pointer(context, builder, signature.args[0], args[0], args[1])
        goal = element_pointer(context, builder, signature.args[3], args[3], args[4])

        def row(start, i, step):
            place = builder.gep(start, [builder.mul(ir.Constant(I64, i), step)])
            return vector_pointer(builder, place)

        rows = [builder.load(row(base, i, args[2]), align=4) for i in range(VL)]
        width = VL // 2
        while width:
            for i in (i for i in range(VL) if not i & width):
                a, b = rows[i], rows[i + width]
                low = [lane if not lane & width else VL + lane - width for lane in range(VL)]
                high = [lane + width if not lane & width else VL + lane for lane in range(VL)]
                rows[i] = builder.shuffle_vector(a, b, ir.Constant(LANES, low))
                rows[i + width] = builder.shuffle_vector(a, b, ir.Constant(LANES, high))
            width //= 2
        for i, value in enumerate(rows):
            builder.store(value, row(goal, i, args[5]), align=4)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(source, whole, whole, target, whole, whole), codegen


@intrinsic
def vinterleave3(typingctx, source, offset, stride, target, target_offset):
    """target[3 * j + i] = source[i * stride + j] for i < 3, j < VL: planes to pixels."""

    def codegen(context, builder, signature, args):
        base = element_pointer(context, builder, signature.args[0], args[0], args[1])
        goal = element_pointer(context, builder, signature.args[3], args[3], args[4])
        planes = []
        for i in range(3):
            row = builder.gep(base, [builder.mul(ir.Constant(I64, i), args[2])])
            planes.append(builder.load(vector_pointer(builder, row), align=4))
        for k in range(3):
            wanted = [divmod(k * VL + lane, 3) for lane in range(VL)]
            # Lanes from the first two planes, then those of the third put in between.
            first = [j + VL * i if i < 2 else 0 for j, i in wanted]
            last = [lane if i < 2 else VL + j for lane, (j, i) in enumerate(wanted)]
            mixed = builder.shuffle_vector(planes[0], planes[1], ir.Constant(LANES, first))
            mixed = builder.shuffle_vector(mixed, planes[2], ir.Constant(LANES, last))
            place = builder.gep(goal, [ir.Constant(I64, k * VL)])
            builder.store(mixed, vector_pointer(builder, place), align=4)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(source, whole, whole, target, whole), codegen


# Vectors from and to bytes, in which max pooling stores the position of a maximum in its window.
# Positions are compared as floats, like the values to which they belong, and are stored as bytes, a
# quarter of the size.

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


# Stores that bypass the caches, for data that will not be read again soon. An ordinary store first
# reads its line into the cache, which costs half as much again, and evicts another line. If the
# result is larger than the caches (`chunks.past_caches`), neither is of use. Non-temporal stores
# avoid both; they need addresses that are multiples of their size, and a fence after them.


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
