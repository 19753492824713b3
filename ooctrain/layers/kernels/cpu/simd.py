"""Explicit SIMD: one machine vector of floats as a Numba value.

In: float32 arrays and element offsets. Out: values of type `f32v` with + - * /, `vfma`, `vmax`,
sums and loads and stores of whole or partial vectors. The one idea: LLVM's auto-vectoriser
guesses (alias checks, half-width vectors, wrap-around tests of indices); an `@intrinsic` that
emits `<VL x float>` does not, so a kernel written with these is as fast as it looks and compiles
quickly. All offsets count elements of a 1-d array and must be non-negative: nothing is checked.
The width VL is chosen once, at import: 16 with AVX-512, 8 with AVX2, else 4 (SSE, NEON);
`OOCTRAIN_SIMD=avx512|avx2|generic` overrides it, and `jit.source_hash` knows. Source: notes on
prefer-256-bit in LLVM's X86 back end ("explicit vectors of 512 bits stay 512 bits wide"). Read
next: `brgemm.py`, which keeps its accumulators in such vectors.

    for i in range(0, n - n % VL, VL):
        vstore(y, i, vmax(vsplat(F0), vload(x, i)))
    vstore_part(y, i, vload_part(x, i, n - i), n - i)      # the last, partial vector
"""

from __future__ import annotations

import operator
import os

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

_WIDTHS = {"avx512": 16, "avx2": 8, "generic": 4}


def choose_isa(requested: str = "") -> str:
    """The instruction set kernels are written for: `requested`, else the best that this CPU has."""
    if requested:
        if requested not in _WIDTHS:
            raise ValueError(f"OOCTRAIN_SIMD is {requested!r}; known: {', '.join(_WIDTHS)}")
        return requested
    chosen = numba.config.CPU_FEATURES  # type: ignore[attr-defined]
    target = chosen or llvmlite.binding.get_host_cpu_features().flatten()
    features = set(target.split(","))
    if "+avx512f" in features:
        return "avx512"
    return "avx2" if {"+avx2", "+fma"} <= features else "generic"


ISA = choose_isa(os.environ.get("OOCTRAIN_SIMD", ""))
VL = _WIDTHS[ISA]

I1, I32, I64, F32 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType()
F0 = np.float32(0.0)
VECTOR = ir.VectorType(F32, VL)
_LANES = ir.VectorType(I32, VL)
_MASK = ir.VectorType(I1, VL)


class VectorType(types.Type):
    """Numba's view of `<VL x float>`."""

    def __init__(self):
        super().__init__(name=f"f32x{VL}")


f32v = VectorType()


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):
    """Its representation: an LLVM vector in a register."""

    def __init__(self, data_model_manager, fe_type):
        super().__init__(data_model_manager, fe_type, VECTOR)


# --- emitting LLVM IR; also used by brgemm.py ---


def array_data(context, builder, array_type, array):
    """Pointer to the first element of a Numba array value."""
    return context.make_array(array_type)(context, builder, array).data


def element_pointer(context, builder, array_type, array, offset):
    """Pointer to array[offset]."""
    return builder.gep(array_data(context, builder, array_type, array), [offset])


def vector_pointer(builder, pointer):
    """The same address, as that of a vector."""
    return builder.bitcast(pointer, VECTOR.as_pointer())


def splat(builder, scalar):
    """All lanes equal to `scalar`."""
    undefined = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_LANES, [0] * VL))


def call_llvm(builder, name, result, *arguments):
    """Calls an LLVM intrinsic function by its full name."""
    signature = ir.FunctionType(result, [a.type for a in arguments])
    function = cgutils.get_or_insert_function(builder.module, signature, name)
    return builder.call(function, arguments)


def fused(builder, x, y, z):
    """x * y + z; one instruction where the CPU has it (fmuladd never becomes a library call)."""
    return call_llvm(builder, f"llvm.fmuladd.v{VL}f32", VECTOR, x, y, z)


def first_lanes(builder, count):
    """Mask with the first `count` (int64) lanes set."""
    narrow = builder.trunc(count, I32)
    undefined = ir.Constant(_LANES, ir.Undefined)
    first = builder.insert_element(undefined, narrow, ir.Constant(I32, 0))
    counts = builder.shuffle_vector(first, undefined, ir.Constant(_LANES, [0] * VL))
    return builder.icmp_signed("<", ir.Constant(_LANES, list(range(VL))), counts)


def masked_store(builder, value, pointer, mask):
    """Writes the lanes that the mask selects."""
    name = f"llvm.masked.store.v{VL}f32.p0"
    call_llvm(
        builder,
        name,
        ir.VoidType(),
        value,
        vector_pointer(builder, pointer),
        ir.Constant(I32, 4),
        mask,
    )


def masked_load(builder, pointer, mask):
    """Reads the lanes that the mask selects, zeros in the others."""
    name, zero = f"llvm.masked.load.v{VL}f32.p0", ir.Constant(VECTOR, [0.0] * VL)
    return call_llvm(
        builder, name, VECTOR, vector_pointer(builder, pointer), ir.Constant(I32, 4), mask, zero
    )


# --- loads and stores ---


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


@intrinsic
def prefetch(typingctx, array, offset):
    """Asks for the cache line of array[offset], which may lie outside; nothing waits for it."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        byte = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        hints = [
            ir.Constant(I32, hint) for hint in (0, 3, 1)
        ]  # for reading, keep in all levels, data
        call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), byte, *hints)
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@intrinsic
def vsplat(typingctx, scalar):
    """All lanes equal to a float32."""

    def codegen(context, builder, signature, args):
        return splat(builder, args[0])

    return f32v(types.float32), codegen


@intrinsic
def vbroadcast(typingctx, array, offset):
    """All lanes equal to array[offset]."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        return splat(builder, builder.load(pointer))

    return f32v(array, types.int64), codegen


# --- arithmetic ---


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


@intrinsic
def vscale2(typingctx, x, exponent):
    """x * 2**exponent for whole-numbered exponents that keep the result normal (for exp)."""

    def codegen(context, builder, signature, args):
        bits = builder.bitcast(args[0], _LANES)
        shift = ir.Constant(_LANES, [23] * VL)
        step = builder.shl(builder.fptosi(args[1], _LANES), shift)
        return builder.bitcast(builder.add(bits, step), VECTOR)

    return f32v(f32v, f32v), codegen


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
        moved = builder.shuffle_vector(vector, vector, ir.Constant(_LANES, order))
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


@intrinsic
def vtranspose(typingctx, source, offset, stride, target, target_offset, target_stride):
    """target[j, i] = source[i, j] for a block of VL x VL elements, rows `stride` elements apart.

    log2(VL) rounds; round s exchanges blocks of s x s between the rows i and i + s.
    """

    def codegen(context, builder, signature, args):
        base = element_pointer(context, builder, signature.args[0], args[0], args[1])
        goal = element_pointer(context, builder, signature.args[3], args[3], args[4])
        row = lambda start, i, step: vector_pointer(  # noqa: E731
            builder, builder.gep(start, [builder.mul(ir.Constant(I64, i), step)])
        )
        rows = [builder.load(row(base, i, args[2]), align=4) for i in range(VL)]
        width = VL // 2
        while width:
            for i in (i for i in range(VL) if not i & width):
                a, b = rows[i], rows[i + width]
                low = [lane if not lane & width else VL + lane - width for lane in range(VL)]
                high = [lane + width if not lane & width else VL + lane for lane in range(VL)]
                rows[i] = builder.shuffle_vector(a, b, ir.Constant(_LANES, low))
                rows[i + width] = builder.shuffle_vector(a, b, ir.Constant(_LANES, high))
            width //= 2
        for i, value in enumerate(rows):
            builder.store(value, row(goal, i, args[5]), align=4)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(source, whole, whole, target, whole, whole), codegen


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
