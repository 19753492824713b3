"""Machine vectors in Numba code: the type `f32v` with its arithmetic.

Each function is one or a few machine instructions on vectors of VL floats (+ - * /, fused products,
comparisons, sums of lanes), and its result is the same for every lane, thread and position, NaN
included, so that kernels may cut their work anywhere. Offsets of `simd_memory.py` count elements of
a 1-d array and must not be negative: nothing is checked. Read next: `simd_memory.py`.

    for i in range(0, n, VL):
        x = vload_upto(a, i, n - i)                        # the last vector may be partial
        vstore_upto(y, i, vmax(vsplat(ZERO), x), n - i)
"""

from __future__ import annotations

import operator
import os

import llvmlite.binding
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, models, register_model

# The type, and how code for it is emitted. LLVM's auto-vectoriser guesses (alias checks, half-width
# vectors, wrap-around tests of indices); an `@intrinsic` that emits `<VL x float>` does not, so a
# kernel written with these is as fast as it looks and compiles quickly. VL is 16 with AVX-512, 8
# with AVX2, else 4 (SSE, NEON); `OOCTRAIN_SIMD=avx512|avx2|generic` overrides it, and is part of
# `kernel_jit.source_hash`. Source: notes on prefer-256-bit in LLVM's X86 back end ("explicit
# vectors of 512 bits stay 512 bits wide").

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

I1, I8, I32, I64, F32 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
VECTOR = ir.VectorType(F32, VL)
LANES = ir.VectorType(I32, VL)


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


def array_data(context, builder, array_type, array):
    """Pointer to the first element of a Numba array value."""
    place = context.data_model_manager[array_type].get_field_position("data")
    return builder.extract_value(array, place)


def element_pointer(context, builder, array_type, array, offset):
    """Pointer to array[offset]."""
    return builder.gep(array_data(context, builder, array_type, array), [offset])


def vector_pointer(builder, pointer):
    """The same address, as that of a vector."""
    return builder.bitcast(pointer, VECTOR.as_pointer())


def splat(builder, scalar, vector=VECTOR):
    """All lanes of a vector type (floats, or LANES) equal to `scalar`."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(LANES, [0] * VL))


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
    counts = splat(builder, builder.trunc(count, I32), LANES)
    return builder.icmp_signed("<", ir.Constant(LANES, list(range(VL))), counts)


def masked_store(builder, value, pointer, mask):
    """Writes the lanes that the mask selects."""
    name, align = f"llvm.masked.store.v{VL}f32.p0", ir.Constant(I32, 4)
    call_llvm(builder, name, ir.VoidType(), value, vector_pointer(builder, pointer), align, mask)


def masked_load(builder, pointer, mask, others=None):
    """Reads the lanes that the mask selects, `others` (zeros) in the rest."""
    others = ir.Constant(VECTOR, [0.0] * VL) if others is None else others
    place, align = vector_pointer(builder, pointer), ir.Constant(I32, 4)
    return call_llvm(builder, f"llvm.masked.load.v{VL}f32.p0", VECTOR, place, align, mask, others)


# Arithmetic.


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


# Operators are told to Numba at its lower level (`infer_global`, `lower_builtin`): an `overload` is
# a function of its own for each use, and would take a tenth of the time of compiling all kernels.


def _define_operator(python_operator, llvm_name: str) -> None:
    """Teaches Numba `python_operator` for two vectors, or a vector and a scalar."""

    @infer_global(python_operator)
    class Combined(AbstractTemplate):
        """The types of its operands."""

        def generic(self, args, kws):
            """None: it has no vector."""
            if f32v not in args or len(args) != 2:
                return None
            return f32v(*(t if t is f32v else types.float32 for t in args))

    def combine(context, builder, signature, args):
        operands = [
            value if type_ is f32v else splat(builder, value)
            for value, type_ in zip(args, signature.args, strict=True)
        ]
        # "contract" allows a product and a sum to fuse, as a C compiler would.
        return getattr(builder, llvm_name)(*operands, flags=["contract"])

    for operands in ((f32v, f32v), (f32v, types.float32), (types.float32, f32v)):
        lower_builtin(python_operator, *operands)(combine)


_define_operator(operator.add, "fadd")
_define_operator(operator.sub, "fsub")
_define_operator(operator.mul, "fmul")
_define_operator(operator.truediv, "fdiv")


@infer_global(operator.neg)
class Negated(AbstractTemplate):
    """The type of -x."""

    def generic(self, args, kws):
        """None: x is no vector."""
        return f32v(f32v) if args == (f32v,) else None


@lower_builtin(operator.neg, f32v)
def _negate(context, builder, signature, args):
    return builder.fneg(args[0])
