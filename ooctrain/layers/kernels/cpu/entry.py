"""The way from a number to a kernel: how compiled loops call kernels whose arguments differ.

In: a kernel of `jit.kernel` and its arguments as Python has them. Out: two addresses, the kernel's
machine code and an entry to it, and a block of memory with the arguments. The one idea: every
kernel takes arguments of its own, then `lo, hi, thread`; an *entry* is a few instructions, one for
each list of argument types, `entry(function, block, lo, hi, thread)`, that load the arguments from
the block, eight bytes for each, and jump into the kernel. So the loop in `fork_join.py` is compiled
once and serves all kernels. An array takes as many words as Numba passes for it (address, shape,
strides and so on); flat ones are written three at a time, since what costs is the way from Python
into compiled code. Read next: `pool.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha1
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

from ooctrain.layers.kernels.cpu.jit import kernel
from ooctrain.layers.kernels.cpu.vector import I32, I64

_RANGE = 3  # the arguments lo, hi, thread, which do not come from the block
# Of (function, block, lo, hi, thread); the result is not 0 if the kernel raised.
_ENTRY = ir.FunctionType(I32, [I64] * 5)
_FLAT = types.float32[::1]
_FORMATS = {
    types.int64: "q",
    types.uint64: "Q",
    types.float64: "d",
    types.float32: "f4x",
    types.boolean: "?7x",
}


class Block:
    """Memory for the arguments of one call, `words` of eight bytes each."""

    __slots__ = ("address", "view", "words")

    def __init__(self, words: int):
        space = np.zeros(words, np.int64)
        self.words, self.address, self.view = words, space.ctypes.data, space.data.cast("B")


@dataclass(frozen=True, slots=True)
class Entry:
    """How to call one kernel from compiled code.

    Args:
        code, function: addresses of the entry and of the kernel.
        words: length of the block, eight bytes each.
        threes: of three flat float32 arrays which arguments they are, and their first words.
        arrays: (which argument, first word in the block) of each other array.
        scalars: which arguments are numbers, or tuples of numbers, in order.
        layout: writes all numbers at their places in the block.
    """

    code: int
    function: int
    words: int
    threes: tuple[tuple[int, ...], ...]
    arrays: tuple[tuple[int, int], ...]
    scalars: tuple[int, ...]
    layout: struct.Struct

    def pack(self, block: Block, arguments: tuple) -> None:
        """Writes the arguments into `block`. Cost: 0.4 us for each three, 0.3 for other arrays."""
        numbers: list[Any] = []
        for which in self.scalars:
            value = arguments[which]
            if isinstance(value, tuple):
                numbers += value
            else:
                numbers.append(value)
        self.layout.pack_into(block.view, 0, *numbers)
        for a, b, c, *places in self.threes:
            _put_three(block.address, *places, arguments[a], arguments[b], arguments[c])
        for which, place in self.arrays:
            _put_array(block.address, place, arguments[which])


@intrinsic
def _store_argument(typingctx, block, place, value):
    """Writes `value` at word `place` of `block` (an address), in as many as Numba passes it in."""

    def codegen(context, builder, signature, args):
        first = builder.inttoptr(args[0], I64.as_pointer())
        packer = context.get_arg_packer((signature.args[2],))
        for offset, word in enumerate(packer.as_arguments(builder, (args[2],))):
            pointer = builder.gep(first, [builder.add(args[1], I64(offset))])
            builder.store(word, builder.bitcast(pointer, word.type.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value), codegen


_ARRAYS = ("f8[::1]", "i8[::1]", "u1[::1]", "f4[:,:,::1]", "f4[:,:,:,::1]")


@kernel([f"void(i8, i8, {array})" for array in _ARRAYS])
def _put_array(block, place, array):
    _store_argument(block, place, array)


@kernel("void(i8, i8, i8, i8, f4[::1], f4[::1], f4[::1])")
def _put_three(block, place_a, place_b, place_c, a, b, c):
    _store_argument(block, place_a, a)
    _store_argument(block, place_b, b)
    _store_argument(block, place_c, c)


@lru_cache(maxsize=1024)
def entry_of(function: Callable) -> Entry | None:
    """How to call `function`; None if it was not made by `jit.kernel`. Cost: milliseconds, once."""
    overloads = list(getattr(function, "overloads", {}).values())
    if len(overloads) != 1:
        return None
    compiled = overloads[0]
    context, signature = compiled.target_context, compiled.signature
    flat: list[tuple[int, int]] = []
    arrays: list[tuple[int, int]] = []
    scalars, layout, words = [], "<", 0
    for which, type_ in enumerate(signature.args[:-_RANGE]):
        size = len(context.get_arg_packer((type_,)).argument_types)
        if isinstance(type_, types.Array):
            (flat if type_ == _FLAT else arrays).append((which, words))
            layout += f"{8 * size}x"
        else:
            scalars.append(which)
            layout += _format(type_)
        words += size
    kernel_type = context.call_conv.get_function_type(signature.return_type, signature.args)
    address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return Entry(
        _entry_code(context, kernel_type), address, words, _in_threes(flat), tuple(arrays),
        tuple(scalars), struct.Struct(layout),
    )  # fmt: skip


def _in_threes(flat: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Of each three of (argument, place) the arguments, then the places; the last may repeat."""
    threes = []
    for first in range(0, len(flat), 3):
        some = [*flat[first : first + 3], flat[-1], flat[-1]][:3]
        threes.append((*(which for which, _ in some), *(place for _, place in some)))
    return tuple(threes)


def _format(type_: types.Type) -> str:
    """How `struct` writes a number, or a tuple of numbers, each in eight bytes."""
    if isinstance(type_, types.BaseTuple):
        return "".join(_format(member) for member in type_)  # type: ignore[attr-defined]
    if type_ not in _FORMATS:
        raise TypeError(f"kernels take arrays and {', '.join(map(str, _FORMATS))}, not {type_}")
    return _FORMATS[type_]


@lru_cache(maxsize=1024)
def _entry_code(context: Any, kernel_type: ir.FunctionType) -> int:
    """Compiles the entry to all kernels of one type; returns its address."""
    name = f"ooctrain_entry_{sha1(str(kernel_type).encode(), usedforsecurity=False).hexdigest()}"
    library = context.codegen().create_library(name)
    module = library.create_ir_module(name)
    entry = ir.Function(module, _ENTRY, name)
    builder = ir.IRBuilder(entry.append_basic_block())
    function, block, *range_ = entry.args
    words = builder.inttoptr(block, I64.as_pointer())
    # Numba passes first where to put the result and where the exception, then the arguments.
    result, error, *declared = kernel_type.args
    outs = [builder.alloca(pointer.pointee) for pointer in (result, error)]
    arguments = []
    for place, type_ in enumerate(declared[:-_RANGE]):
        pointer = builder.gep(words, [I64(place)])
        arguments.append(builder.load(builder.bitcast(pointer, type_.as_pointer())))
    code = builder.inttoptr(function, kernel_type.as_pointer())
    builder.ret(builder.call(code, [*outs, *arguments, *range_]))
    with global_compiler_lock:
        library.add_ir_module(module)
        library.finalize()
    return library.get_pointer_to_function(name)
