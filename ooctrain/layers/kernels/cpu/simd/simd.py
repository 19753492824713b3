"""Arithmetic on vectors: + - * /, fused products, comparisons, sums of lanes.

The functions work on values of type `f32v` (`vector.py`). Each is one or a few machine
instructions, and its result is the same for every lane, thread and position, NaN included, so that
kernels may cut their work anywhere. Offsets of `simd_memory.py` count elements of a 1-d array and
must not be negative: nothing is checked. Read next: `simd_memory.py`.

    for i in range(0, n, VL):
        x = vload_upto(a, i, n - i)                        # the last vector may be partial
        vstore_upto(y, i, vmax(vsplat(ZERO), x), n - i)
"""

from __future__ import annotations

import operator

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from ooctrain.layers.kernels.cpu.simd.vector import (
    I32,
    LANES,
    VECTOR,
    VL,
    call_llvm,
    f32v,
    fused,
    splat,
)


@intrinsic
def vsplat(typingctx, scalar):
    """All lanes equal to a float32."""

    def codegen(context, builder, signature, args):
        return splat(builder, args[0])

    return f32v(types.float32), codegen


@intrinsic
def vfma(typingctx, x, y, z):
    """x * y + z, rounded once where the CPU can."""

    def codegen(context, builder, signature, args):
        return fused(builder, *args)

    return f32v(f32v, f32v, f32v), codegen


@intrinsic
def vsqrt(typingctx, x):
    """Correctly rounded square roots."""

    def codegen(context, builder, signature, args):
        return call_llvm(builder, f"llvm.sqrt.v{VL}f32", VECTOR, args[0])

    return f32v(f32v), codegen


@intrinsic
def vabs(typingctx, x):
    """Absolute values."""

    def codegen(context, builder, signature, args):
        return call_llvm(builder, f"llvm.fabs.v{VL}f32", VECTOR, args[0])

    return f32v(f32v), codegen


@intrinsic
def vround(typingctx, x):
    """The nearest whole numbers, halves to even."""

    def codegen(context, builder, signature, args):
        return call_llvm(builder, f"llvm.rint.v{VL}f32", VECTOR, args[0])

    return f32v(f32v), codegen


def _make_select(comparison: str, doc: str):
    @intrinsic
    def select(typingctx, a, b, x, y):
        def codegen(context, builder, signature, args):
            mask = builder.fcmp_ordered(comparison, args[0], args[1])
            return builder.select(mask, args[2], args[3])

        return f32v(f32v, f32v, f32v, f32v), codegen

    select.__doc__ = doc
    return select


vselect_gt = _make_select(">", "In each lane x where a > b, else y (also where a or b is NaN).")
vselect_eq = _make_select("==", "In each lane x where a == b, else y (also where a or b is NaN).")


@intrinsic
def vselect_wins(typingctx, value, best, x, y):
    """In each lane x where value > best or value is NaN, else y: the rule of max pooling."""

    def codegen(context, builder, signature, args):
        larger = builder.fcmp_ordered(">", args[0], args[1])
        mask = builder.or_(larger, builder.fcmp_unordered("uno", args[0], args[0]))
        return builder.select(mask, args[2], args[3])

    return f32v(f32v, f32v, f32v, f32v), codegen


@intrinsic
def vmax(typingctx, x, y):
    """In each lane x where x > y, else y: a NaN in y stays, a NaN in x gives y."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return f32v(f32v, f32v), codegen


@intrinsic
def vmin(typingctx, x, y):
    """In each lane x where x < y, else y: a NaN in y stays, a NaN in x gives y."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("<", *args), *args)

    return f32v(f32v, f32v), codegen


def _fold(builder, vector, combine):
    """Combines the lanes pairwise in a fixed tree: lane i with lane i + VL/2, and so on."""
    width = VL // 2
    while width:
        order = [lane + width if lane < width else lane for lane in range(VL)]
        moved = builder.shuffle_vector(vector, vector, ir.Constant(LANES, order))
        vector, width = combine(vector, moved), width // 2
    return builder.extract_element(vector, ir.Constant(I32, 0))


@intrinsic
def vsum(typingctx, x):
    """Sum of the lanes, always in the same order."""

    def codegen(context, builder, signature, args):
        return _fold(builder, args[0], builder.fadd)

    return types.float32(f32v), codegen


@intrinsic
def vmax_lanes(typingctx, x):
    """The largest lane (no NaN guarantee)."""

    def codegen(context, builder, signature, args):
        return _fold(
            builder, args[0], lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b)
        )

    return types.float32(f32v), codegen


def _define_operator(python_operator, llvm_name: str) -> None:
    """Teaches Numba `python_operator` for two vectors, or a vector and a scalar."""

    @intrinsic
    def combine(typingctx, x, y):
        def codegen(context, builder, signature, args):
            operands = [
                value if type_ is f32v else splat(builder, value)
                for value, type_ in zip(args, signature.args, strict=True)
            ]
            # "contract" allows a product and a sum to fuse, as a C compiler would.
            return getattr(builder, llvm_name)(*operands, flags=["contract"])

        return f32v(*(t if t is f32v else types.float32 for t in (x, y))), codegen

    @overload(python_operator)
    def implementation(x, y):
        if f32v in (x, y):
            return lambda x, y: combine(x, y)
        return None


_define_operator(operator.add, "fadd")
_define_operator(operator.sub, "fsub")
_define_operator(operator.mul, "fmul")
_define_operator(operator.truediv, "fdiv")


@intrinsic
def _negate(typingctx, x):
    def codegen(context, builder, signature, args):
        return builder.fneg(args[0])

    return f32v(f32v), codegen


@overload(operator.neg)
def _negative(x):
    if x is f32v:
        return lambda x: _negate(x)
    return None
