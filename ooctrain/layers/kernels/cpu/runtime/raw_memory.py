"""Memory by its address: words, and arrays of any type.

Scratch is bytes, a job's record is words, and the arguments of a call come as addresses, so
compiled code must read an address, a whole number, as the type that it needs. These few intrinsics
do that, without the generality (and the time to compile) of `ndarray.view` and `numba.carray`.
Nothing is checked. Read next: `python_objects.py`.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from ooctrain.layers.kernels.cpu.simd.vector import I64


@intrinsic
def word_at(typingctx, address, index):
    """The int64 at address[index]."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        return builder.load(builder.gep(pointer, [args[1]]))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def put_at(typingctx, address, index, value):
    """address[index] = value, a number of at most eight bytes."""

    def codegen(context, builder, signature, args):
        pointer = builder.gep(builder.inttoptr(args[0], I64.as_pointer()), [args[1]])
        builder.store(args[2], builder.bitcast(pointer, args[2].type.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value), codegen


@intrinsic
def array_at(typingctx, address, count, dtype):
    """The flat array of `count` elements of `dtype` (np.float64 and so on) at an address."""
    element = dtype.instance_type

    def codegen(context, builder, signature, args):
        data = context.get_data_type(element)
        item_bytes = I64(context.get_abi_sizeof(data))
        array = make_array(signature.return_type)(context, builder)
        populate_array(
            array, data=builder.inttoptr(args[0], data.as_pointer()), shape=[args[1]],
            strides=[item_bytes], itemsize=item_bytes, meminfo=None,
        )  # fmt: skip
        return array._getvalue()

    return types.Array(element, 1, "C")(types.int64, types.int64, dtype), codegen
