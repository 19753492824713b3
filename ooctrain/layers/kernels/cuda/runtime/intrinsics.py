"""GPU instructions that Numba does not offer, each with a twin that runs on the CPU.

They are 128-bit loads and stores, shared arrays that are aligned for them, and fused products, over
arrays and offsets, never addresses. An intrinsic writes LLVM for the GPU. Its twin, a few lines of
plain Python, says what the instruction means, and the emulator runs the twin instead. So a kernel
that uses intrinsics can be tested without a GPU. Offsets of 128-bit accesses are multiples of 4
elements. Source: PTX ISA, "ld" and "st". Read next: `layers/kernels/cuda/elementwise.py`,
`layers/kernels/cuda/conv/conv_gemm.py`.
"""

from __future__ import annotations

from llvmlite import ir
from numba import float32, float64, njit, uint32
from numba.core import cgutils, types

from ooctrain.layers.kernels.cuda.runtime.shim import intrinsic

I32, F32 = ir.IntType(32), ir.FloatType()
F32X4 = ir.VectorType(F32, 4)
FOUR_FLOATS = types.UniTuple(types.float32, 4)
FOUR_WORDS = types.UniTuple(types.uint32, 4)
VECTOR_BYTES = 16
SHARED_SPACE = 3


def element_pointer(context, builder, array_type, array, offset):
    """LLVM pointer to `array[offset]`."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [offset], inbounds=True)


@intrinsic
def shared_array(typing_context, words, dtype):
    """`cuda.shared.array` that begins at a multiple of 16 bytes, as 128-bit accesses need.

    Numba's begins at a multiple of one element: whether that is enough would hang on the sizes of
    the arrays before it.
    """
    if not isinstance(words, types.IntegerLiteral):
        return None  # Numba asks again with the number itself
    count, result = words.literal_value, types.Array(dtype.dtype, 1, "C")
    item_bytes = dtype.dtype.bitwidth // 8

    def codegen(context, builder, signature, args):
        kind = context.get_data_type(result.dtype)
        name = builder.module.get_unique_name("shared_array")
        place = cgutils.add_global_variable(
            builder.module, ir.ArrayType(kind, count), name, SHARED_SPACE
        )
        place.initializer = ir.Constant(place.type.pointee, ir.Undefined)
        place.linkage, place.align = "internal", VECTOR_BYTES
        array = context.make_array(result)(context, builder)
        array.data = builder.addrspacecast(place, kind.as_pointer())
        length, size = (context.get_constant(types.intp, n) for n in (count, item_bytes))
        array.shape, array.strides = (cgutils.pack_array(builder, [n]) for n in (length, size))
        array.nitems, array.itemsize = length, size
        return array._getvalue()

    return result(words, dtype), codegen


@intrinsic
def ld4(typing_context, array, offset):
    """array[offset : offset + 4] as four float32, in one 128-bit load."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        vector = builder.load(builder.bitcast(pointer, F32X4.as_pointer()), align=VECTOR_BYTES)
        lanes = [builder.extract_element(vector, I32(lane)) for lane in range(4)]
        return context.make_tuple(builder, FOUR_FLOATS, lanes)

    return FOUR_FLOATS(array, offset), codegen


@intrinsic
def st4(typing_context, array, offset, values):
    """array[offset : offset + 4] = four float32, in one 128-bit store."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        vector = ir.Constant(F32X4, ir.Undefined)
        for lane in range(4):
            value = builder.extract_value(args[2], lane)
            vector = builder.insert_element(vector, value, I32(lane))
        builder.store(vector, builder.bitcast(pointer, F32X4.as_pointer()), align=VECTOR_BYTES)
        return context.get_dummy_value()

    return types.void(array, offset, FOUR_FLOATS), codegen


@intrinsic
def ld4_bytes(typing_context, array, offset):
    """array[offset : offset + 4] of uint8 as four uint32, in one 32-bit load."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        word = builder.load(builder.bitcast(pointer, I32.as_pointer()), align=4)
        parts = [builder.lshr(word, I32(8 * lane)) for lane in range(4)]
        return context.make_tuple(builder, FOUR_WORDS, [builder.and_(p, I32(255)) for p in parts])

    return FOUR_WORDS(array, offset), codegen


@intrinsic
def st4_bytes(typing_context, array, offset, values):
    """array[offset : offset + 4] of uint8 = four uint32 below 256, in one 32-bit store."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        word = I32(0)
        for lane in range(4):
            value = builder.extract_value(args[2], lane)
            word = builder.or_(word, builder.shl(value, I32(8 * lane)))
        builder.store(word, builder.bitcast(pointer, I32.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, offset, FOUR_WORDS), codegen


@intrinsic
def store_column(typing_context, array, offset, stride, values):
    """array[offset + lane * stride] = values[lane], of four float32; `stride` is a constant.

    One address serves all: Numba's own sums of 32 bits might wrap around, and cost one for each.
    """
    if not isinstance(stride, types.IntegerLiteral):
        return None  # Numba asks again with the number itself
    apart = stride.literal_value

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1])
        for lane in range(4):
            place = builder.gep(pointer, [I32(lane * apart)], inbounds=True)
            builder.store(builder.extract_value(args[3], lane), place)
        return context.get_dummy_value()

    return types.void(array, offset, stride, FOUR_FLOATS), codegen


@intrinsic
def fma(typing_context, x, y, z):
    """x * y + z in float32 with one rounding, whatever NVVM would make of a product and a sum."""
    f4 = types.float32

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return f4(f4, f4, f4), codegen


@njit(boundscheck=True)
def ld4_twin(array, offset):
    """What `ld4` means."""
    if offset % 4 != 0:
        raise ValueError("128-bit access at an offset that is not a multiple of 4", offset)
    return array[offset], array[offset + 1], array[offset + 2], array[offset + 3]


@njit(boundscheck=True)
def st4_twin(array, offset, values):
    """What `st4` means."""
    if offset % 4 != 0:
        raise ValueError("128-bit access at an offset that is not a multiple of 4", offset)
    for lane in range(4):
        array[offset + lane] = values[lane]


@njit(boundscheck=True)
def ld4_bytes_twin(array, offset):
    """What `ld4_bytes` means."""
    if offset % 4 != 0:
        raise ValueError("32-bit access at an offset that is not a multiple of 4", offset)
    return (
        uint32(array[offset]), uint32(array[offset + 1]), uint32(array[offset + 2]),
        uint32(array[offset + 3]),
    )  # fmt: skip


@njit(boundscheck=True)
def st4_bytes_twin(array, offset, values):
    """What `st4_bytes` means."""
    if offset % 4 != 0:
        raise ValueError("32-bit access at an offset that is not a multiple of 4", offset)
    for lane in range(4):
        if values[lane] > 255:
            raise ValueError("a number that a byte does not hold", values[lane])
        array[offset + lane] = values[lane]


@njit(boundscheck=True)
def store_column_twin(array, offset, stride, values):
    """What `store_column` means."""
    for lane in range(4):
        array[offset + lane * stride] = values[lane]


@njit
def fma_twin(x, y, z):
    """What `fma` means: the product is exact in float64."""
    return float32(float64(x) * float64(y) + float64(z))
