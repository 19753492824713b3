"""One machine vector of floats as a Numba value, and how code for it is emitted.

The instruction set is chosen once. It determines the type `f32v` and its width VL; functions emit
LLVM IR for `simd.py`, `simd_memory.py`, `layers/kernels/cpu/conv/brgemm.py`. LLVM's auto-vectoriser
guesses (alias checks, half-width vectors, wrap-around tests of indices); an `@intrinsic` that emits
`<VL x float>` does not, so a kernel written with these is as fast as it looks and compiles quickly.
VL is 16 with AVX-512, 8 with AVX2, else 4 (SSE, NEON); `OOCTRAIN_SIMD=avx512|avx2|generic`
overrides it, and is part of `jit.source_hash`. Source: notes on prefer-256-bit in LLVM's X86 back
end ("explicit vectors of 512 bits stay 512 bits wide"). Read next: `simd.py`.
"""

from __future__ import annotations

import os

import llvmlite.binding
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

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
    return context.make_array(array_type)(context, builder, array).data


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
