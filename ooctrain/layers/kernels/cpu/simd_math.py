"""A little more on vectors: bytes, filled tails, non-temporal stores, exp and tanh.

In and out: values of type `f32v` (`simd.py`). The one idea: exp is 2^k * 2^f with k whole; the
power of two is an addition to the exponent bits, the rest a polynomial, so sixteen exponentials
cost about as much as one call of the library's. Tails of rows are computed by the same instructions
as their bodies (with lanes switched off), so a value does not depend on where in a row it stands.
Source: coefficients of expf, logf and tanhf in the Cephes library (Moshier 1992). Read next:
`losses.py`, `pooling.py`.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ooctrain.layers.kernels.cpu import simd
from ooctrain.layers.kernels.cpu.simd import (
    VL,
    f32v,
    vabs,
    vfma,
    vmax,
    vmin,
    vround,
    vscale2,
    vselect_eq,
    vselect_gt,
    vsplat,
)

_BYTE = ir.IntType(8)
_BYTES = ir.VectorType(_BYTE, VL)

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
EXP_LOW, EXP_HIGH = np.float32(-87.0), np.float32(88.0)
LOG2_E = np.float32(1.44269504088896341)
LN2_HIGH, LN2_LOW = np.float32(-0.693359375), np.float32(2.12194440e-4)
E5, E4, E3 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
E2, E1, E0 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
SQRT_HALF, MINUS_HALF = np.float32(0.707106781186547524), np.float32(-0.5)
L8, L7, L6 = np.float32(7.0376836292e-2), np.float32(-1.1514610310e-1), np.float32(1.1676998740e-1)
L5, L4, L3 = np.float32(-1.2420140846e-1), np.float32(1.4249322787e-1), np.float32(-1.6668057665e-1)
L2, L1, L0 = np.float32(2.0000714765e-1), np.float32(-2.4999993993e-1), np.float32(3.3333331174e-1)
TANH_SMALL, TANH_LARGE = np.float32(0.625), np.float32(44.0)
T4, T3 = np.float32(-5.70498872745e-3), np.float32(2.06390887954e-2)
T2, T1, T0 = (
    np.float32(-5.37397155531e-2),
    np.float32(1.33314422036e-1),
    np.float32(-3.33332819422e-1),
)


def _if_whole(builder, count, whole, part):
    """Emits `whole()` where count >= VL, else `part()`; their values (if any) meet in a phi."""
    many = builder.icmp_signed(">=", count, ir.Constant(simd.I64, VL))
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
        pointer = simd.element_pointer(context, builder, signature.args[0], args[0], args[1])
        return _if_whole(
            builder,
            args[2],
            lambda: builder.load(simd.vector_pointer(builder, pointer), align=4),
            lambda: simd.masked_load(builder, pointer, simd.first_lanes(builder, args[2])),
        )

    return f32v(array, types.int64, types.int64), codegen


@intrinsic
def vload_upto_or(typingctx, array, offset, count, fill):
    """As `vload_upto`, with `fill` in the other lanes."""

    def codegen(context, builder, signature, args):
        element = simd.element_pointer(context, builder, signature.args[0], args[0], args[1])
        pointer = simd.vector_pointer(builder, element)

        def part():
            name, align = f"llvm.masked.load.v{VL}f32.p0", ir.Constant(simd.I32, 4)
            mask, others = simd.first_lanes(builder, args[2]), simd.splat(builder, args[3])
            return simd.call_llvm(builder, name, simd.VECTOR, pointer, align, mask, others)

        return _if_whole(builder, args[2], lambda: builder.load(pointer, align=4), part)

    return f32v(array, types.int64, types.int64, types.float32), codegen


@intrinsic
def vstore_upto(typingctx, array, offset, value, count):
    """array[offset : offset + min(count, VL)] = the first lanes of value."""

    def codegen(context, builder, signature, args):
        pointer = simd.element_pointer(context, builder, signature.args[0], args[0], args[1])

        def whole():
            builder.store(args[2], simd.vector_pointer(builder, pointer), align=4)

        def part():
            simd.masked_store(builder, args[2], pointer, simd.first_lanes(builder, args[3]))

        _if_whole(builder, args[3], whole, part)
        return context.get_dummy_value()

    return types.void(array, types.int64, f32v, types.int64), codegen


@intrinsic
def vstore4(typingctx, array, offset, v0, v1, v2, v3):
    """Stores four vectors one after the other."""

    def codegen(context, builder, signature, args):
        for k in range(4):
            at = builder.add(args[1], ir.Constant(simd.I64, k * VL))
            pointer = simd.element_pointer(context, builder, signature.args[0], args[0], at)
            builder.store(args[2 + k], simd.vector_pointer(builder, pointer), align=4)
        return context.get_dummy_value()

    return types.void(array, types.int64, f32v, f32v, f32v, f32v), codegen


@intrinsic
def vstore4_bytes(typingctx, array, offset, v0, v1, v2, v3):
    """Stores four vectors of whole numbers in [0, 255] as bytes."""

    def codegen(context, builder, signature, args):
        for k in range(4):
            at = builder.add(args[1], ir.Constant(simd.I64, k * VL))
            pointer = simd.element_pointer(context, builder, signature.args[0], args[0], at)
            data = builder.fptoui(args[2 + k], _BYTES)
            builder.store(data, builder.bitcast(pointer, _BYTES.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, f32v, f32v, f32v, f32v), codegen


@intrinsic
def vload_bytes(typingctx, array, offset):
    """VL bytes from array[offset] as floats."""

    def codegen(context, builder, signature, args):
        pointer = simd.element_pointer(context, builder, signature.args[0], args[0], args[1])
        whole = builder.load(builder.bitcast(pointer, _BYTES.as_pointer()), align=1)
        return builder.uitofp(whole, simd.VECTOR)

    return f32v(array, types.int64), codegen


@intrinsic
def vload_bytes_upto(typingctx, array, offset, count):
    """The first `count` bytes from array[offset] as floats, zeros in the other lanes."""

    def codegen(context, builder, signature, args):
        element = simd.element_pointer(context, builder, signature.args[0], args[0], args[1])
        pointer, none = builder.bitcast(element, _BYTES.as_pointer()), ir.Constant(_BYTES, [0] * VL)

        def part():
            name, align = f"llvm.masked.load.v{VL}i8.p0", ir.Constant(simd.I32, 1)
            mask = simd.first_lanes(builder, args[2])
            return simd.call_llvm(builder, name, _BYTES, pointer, align, mask, none)

        whole = _if_whole(builder, args[2], lambda: builder.load(pointer, align=1), part)
        return builder.uitofp(whole, simd.VECTOR)

    return f32v(array, types.int64, types.int64), codegen


@intrinsic
def vstore_bytes_upto(typingctx, array, offset, value, count):
    """The first lanes of value, whole numbers in [0, 255], as bytes to array[offset]."""

    def codegen(context, builder, signature, args):
        element = simd.element_pointer(context, builder, signature.args[0], args[0], args[1])
        pointer, data = (
            builder.bitcast(element, _BYTES.as_pointer()),
            builder.fptoui(args[2], _BYTES),
        )

        def whole():
            builder.store(data, pointer, align=1)

        def part():
            name, align = f"llvm.masked.store.v{VL}i8.p0", ir.Constant(simd.I32, 1)
            mask = simd.first_lanes(builder, args[3])
            simd.call_llvm(builder, name, ir.VoidType(), data, pointer, align, mask)

        _if_whole(builder, args[3], whole, part)
        return context.get_dummy_value()

    return types.void(array, types.int64, f32v, types.int64), codegen


@intrinsic
def vselect_wins(typingctx, value, best, x, y):
    """In each lane x where value > best or value is NaN, else y: the rule of max pooling."""

    def codegen(context, builder, signature, args):
        larger = builder.fcmp_ordered(">", args[0], args[1])
        mask = builder.or_(larger, builder.fcmp_unordered("uno", args[0], args[0]))
        return builder.select(mask, args[2], args[3])

    return f32v(f32v, f32v, f32v, f32v), codegen


@intrinsic
def vinterleave3(typingctx, source, offset, stride, target, target_offset):
    """target[3 * j + i] = source[i * stride + j] for i < 3, j < VL: planes to pixels."""

    def codegen(context, builder, signature, args):
        base = simd.element_pointer(context, builder, signature.args[0], args[0], args[1])
        goal = simd.element_pointer(context, builder, signature.args[3], args[3], args[4])
        planes = []
        for i in range(3):
            row = builder.gep(base, [builder.mul(ir.Constant(simd.I64, i), args[2])])
            planes.append(builder.load(simd.vector_pointer(builder, row), align=4))
        lanes = ir.VectorType(simd.I32, VL)
        for k in range(3):
            wanted = [divmod(k * VL + lane, 3) for lane in range(VL)]
            # Lanes from the first two planes, then those of the third put in between.
            first = [j + VL * i if i < 2 else 0 for j, i in wanted]
            last = [lane if i < 2 else VL + j for lane, (j, i) in enumerate(wanted)]
            mixed = builder.shuffle_vector(planes[0], planes[1], ir.Constant(lanes, first))
            mixed = builder.shuffle_vector(mixed, planes[2], ir.Constant(lanes, last))
            place = builder.gep(goal, [ir.Constant(simd.I64, k * VL)])
            builder.store(mixed, simd.vector_pointer(builder, place), align=4)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(source, whole, whole, target, whole), codegen


@intrinsic
def prefetch(typingctx, array, offset):
    """Asks for the cache line of array[offset]; harmless past either end."""

    def codegen(context, builder, signature, args):
        element = simd.element_pointer(context, builder, signature.args[0], args[0], args[1])
        pointer = builder.bitcast(element, _BYTE.as_pointer())
        read_into_l1_as_data = [ir.Constant(simd.I32, v) for v in (0, 3, 1)]
        simd.call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, *read_into_l1_as_data)
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@intrinsic
def address_of(typingctx, array):
    """Address of the first element, for alignment."""

    def codegen(context, builder, signature, args):
        first = simd.array_data(context, builder, signature.args[0], args[0])
        return builder.ptrtoint(first, simd.I64)

    return types.int64(array), codegen


@intrinsic
def stream_line(typingctx, dst, dst_at, src, src_at):
    """Copies 64 bytes past the caches; `dst` must be 64-byte aligned at `dst_at`."""
    line = ir.VectorType(simd.I64, 8)

    def codegen(context, builder, signature, args):
        source = simd.element_pointer(context, builder, signature.args[2], args[2], args[3])
        target = simd.element_pointer(context, builder, signature.args[0], args[0], args[1])
        value = builder.load(builder.bitcast(source, line.as_pointer()), align=1)
        store = builder.store(value, builder.bitcast(target, line.as_pointer()), align=64)
        one = builder.module.add_metadata([ir.Constant(simd.I32, 1)])
        store.set_metadata("nontemporal", one)
        return context.get_dummy_value()

    return types.void(dst, types.int64, src, types.int64), codegen


@intrinsic
def store_fence(typingctx):
    """Orders non-temporal stores before everything that follows, for other threads too."""

    def codegen(context, builder, signature, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@numba.njit(inline="always")
def vexp(x):
    """exp(x) to about one unit in the last place for x <= 88; 0 below -87; NaN stays."""
    bounded = vmax(vsplat(EXP_LOW), x)
    k = vround(bounded * LOG2_E)
    # ln 2 in two parts: the first product is exact.
    r = vfma(k, vsplat(LN2_LOW), vfma(k, vsplat(LN2_HIGH), bounded))
    p = vfma(vsplat(E5), r, vsplat(E4))
    p = vfma(p, r, vsplat(E3))
    p = vfma(p, r, vsplat(E2))
    p = vfma(p, r, vsplat(E1))
    p = vfma(p, r, vsplat(E0))
    p = vfma(p, r * r, r) + ONE
    return vselect_gt(vsplat(EXP_LOW), x, vsplat(ZERO), vscale2(p, k))


@intrinsic
def vsplit(typingctx, x):
    """(mantissa in [0.5, 1), exponent) of positive normal numbers."""
    lanes = ir.VectorType(simd.I32, VL)

    def codegen(context, builder, signature, args):
        constant = lambda value: ir.Constant(lanes, [value] * VL)  # noqa: E731
        bits = builder.bitcast(args[0], lanes)
        exponent = builder.sub(builder.lshr(bits, constant(23)), constant(126))
        mantissa = builder.or_(builder.and_(bits, constant(0x007FFFFF)), constant(0x3F000000))
        parts = builder.bitcast(mantissa, simd.VECTOR), builder.sitofp(exponent, simd.VECTOR)
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(f32v, 2)(f32v), codegen


@numba.njit(inline="always")
def vlog(x):
    """log(x) to about one unit in the last place for positive normal x; NaN stays."""
    m, e = vsplit(x)
    e = vselect_gt(vsplat(SQRT_HALF), m, e - ONE, e)
    m = vselect_gt(vsplat(SQRT_HALF), m, m + m, m) - ONE
    p = vfma(vsplat(L8), m, vsplat(L7))
    p = vfma(p, m, vsplat(L6))
    p = vfma(p, m, vsplat(L5))
    p = vfma(p, m, vsplat(L4))
    p = vfma(p, m, vsplat(L3))
    p = vfma(p, m, vsplat(L2))
    p = vfma(p, m, vsplat(L1))
    p = vfma(p, m, vsplat(L0))
    z = m * m
    p = vfma(ZERO - vsplat(LN2_LOW), e, p * m * z)
    p = m + vfma(vsplat(MINUS_HALF), z, p)
    return vselect_eq(x, x, vfma(ZERO - vsplat(LN2_HIGH), e, p), x)


@numba.njit(inline="always")
def vsigmoid(x):
    """1 / (1 + exp(-x)); 0 below -88; NaN stays."""
    y = ONE / (vexp(vmin(vsplat(EXP_HIGH), ZERO - x)) + ONE)
    return vselect_gt(ZERO - vsplat(EXP_HIGH), x, vsplat(ZERO), y)


@numba.njit(inline="always")
def vtanh(x):
    """tanh(x): an odd polynomial near 0, else 1 - 2 / (exp(2 |x|) + 1) with the sign of x."""
    z = x * x
    p = vfma(vsplat(T4), z, vsplat(T3))
    p = vfma(p, z, vsplat(T2))
    p = vfma(p, z, vsplat(T1))
    p = vfma(p, z, vsplat(T0))
    near = vfma(p * z, x, x)
    size = vabs(x)
    far = ONE - TWO / (vexp(TWO * vmin(vsplat(TANH_LARGE), size)) + ONE)
    far = vselect_gt(vsplat(ZERO), x, ZERO - far, far)
    return vselect_gt(vsplat(TANH_SMALL), size, near, far)
