"""From a number to a kernel: how compiled loops call kernels whose arguments differ.

From a kernel of `kernel_jit.kernel` this makes its *recipe*, a few numbers by which compiled code
can call it. Every kernel takes arguments of its own, then `lo, hi, thread`. An *entry* is a few
instructions, `entry(function, block, lo, hi, thread)`, which are compiled with the kernel
(`pipelines.py`). It loads the arguments from a block of memory, eight bytes each, and jumps into
the kernel. The loop in `fork_join.py` is thus compiled once and serves all kernels. So is the code
that fills the block, because the recipe lists the expected arguments. Read next: `fork_join.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from ooctrain.layers.kernels.cpu.simd.simd import I32, I64

# Recipes and entries.

_RANGE = 3  # the arguments lo, hi, thread, which do not come from the block
#: Type of an entry, of (function, block, lo, hi, thread); it returns 0 unless the kernel raised.
ENTRY_TYPE = ir.FunctionType(I32, [I64] * 5)
#: Words of an array among the arguments before its extents and strides; the last is its address.
ARRAY_HEAD = 5
#: Room for the arguments of one call, words of eight bytes each.
BLOCK_WORDS = 256

#: What a call reports: all chunks done; done, and the caller has moved to another processor;
#: nothing done, an argument is not as the recipe wants it. Below 0: -1 - (the chunk that raised).
DONE, MOVED, REFUSED = range(3)

# A recipe: addresses of the entry, of the kernel and of the type `ndarray`; how many arguments
# there are; for each its kind and two numbers more.
ENTRY, FUNCTION, ARRAY_TYPE, COUNT, FIRST = range(5)
ARGUMENT_WORDS = 3
# An array's kind is its number of dimensions; then come the address of its dtype and the bytes of
# an element. A tuple of whole numbers: its length, and of how many tuples it is made, 0 where it
# is of numbers. Nothing more is said of numbers.
TUPLE, WHOLE, UNSIGNED, DOUBLE, SINGLE, TRUTH = range(-6, 0)
_NUMBERS = {
    types.int64: WHOLE,
    types.uint64: UNSIGNED,
    types.float64: DOUBLE,
    types.float32: SINGLE,
    types.boolean: TRUTH,
}

# A call that is kept (`kept.py`): addresses of the entry and of the kernel, its items, those of a
# chunk; how many arrays there are; for each of them the word of its address among the arguments, in
# which array of the operation it lies and how far within; then the arguments.
KEPT_ENTRY, KEPT_FUNCTION, KEPT_ITEMS, KEPT_CHUNK, KEPT_COUNT, KEPT_ARRAYS = range(6)
KEPT_ARRAY_WORDS = 3


@cache
def recipe_of(function: Callable) -> np.ndarray | None:
    """How to call `function`; None if it was not made by `kernel_jit.kernel`. Cost: what the kernel
    takes to be compiled, or read from the disk, once."""
    compiled = _compiled(function)
    if compiled is None:
        return None
    context, signature = compiled.target_context, compiled.signature
    arguments = signature.args[:-_RANGE]
    words = sum(len(context.get_arg_packer((type_,)).argument_types) for type_ in arguments)
    if words > BLOCK_WORDS:
        raise ValueError(f"{function.__name__} takes {words} words of arguments, not {BLOCK_WORDS}")
    names = entry_name(compiled.fndesc), compiled.fndesc.llvm_func_name
    entry, kernel = (compiled.library.get_pointer_to_function(name) for name in names)
    recipe = [entry, kernel, id(np.ndarray), len(arguments)]
    for type_ in arguments:
        recipe += _described(type_)
    return np.array(recipe, np.int64)


@cache
def recipe_address(function: Callable) -> int:
    """Where the recipe of `function` lies, for good; 0 if it has none."""
    recipe = recipe_of(function)
    return 0 if recipe is None else recipe.ctypes.data


def array_places(function: Callable) -> list[tuple[int, int]]:
    """(which argument, where its words begin) of each array among the packed arguments."""
    recipe, places, place = recipe_of(function), list[tuple[int, int]](), 0
    words = [] if recipe is None else recipe.tolist()
    for which, at in enumerate(range(FIRST, len(words), ARGUMENT_WORDS)):
        kind, what = words[at : at + 2]
        if kind > 0:
            places.append((which, place))
        place += ARRAY_HEAD + 2 * kind if kind > 0 else what if kind == TUPLE else 1
    return places


def flat_arguments(function: Callable) -> tuple[int, ...]:
    """Which arguments of `function` are flat arrays."""
    arguments = getattr(function, "argument_types", ())
    return tuple(
        which
        for which, type_ in enumerate(arguments)
        if isinstance(type_, types.Array) and type_.ndim == 1
    )


def _compiled(function: Callable) -> Any:
    """The compiled form of a range kernel; None for other functions."""
    return function.compiled if getattr(function, "is_range", False) else None  # type: ignore[attr-defined]


def _described(type_: types.Type) -> tuple[int, int, int]:
    """An argument's part of a recipe."""
    if isinstance(type_, types.Array):
        dtype = np.dtype(type_.dtype.name)  # NumPy has one object for each, which lives for ever
        return type_.ndim, id(dtype), dtype.itemsize
    if isinstance(type_, types.BaseTuple):
        members = list(type_)  # type: ignore[call-overload]
        if set(members) == {types.int64}:
            return TUPLE, len(members), 0
        if all(set(member) == {types.int64} for member in members):
            return TUPLE, sum(map(len, members)), len(members)
    if type_ not in _NUMBERS:
        raise TypeError(f"kernels take arrays and {', '.join(map(str, _NUMBERS))}, not {type_}")
    return _NUMBERS[type_], 0, 0


def entry_name(described: Any) -> str:
    """The name of a kernel's entry, by Numba's description of the kernel."""
    return f"ooctrain_entry.{described.llvm_func_name}"


def write_entry(module: ir.Module, name: str, kernel_type: ir.FunctionType) -> None:
    """Adds the entry to kernels of one type to LLVM code."""
    entry = ir.Function(module, ENTRY_TYPE, name)
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


# Memory by its address. Scratch is bytes, a job's record is words, and the arguments of a call come
# as addresses, so compiled code must read an address, a whole number, as the type that it needs,
# without the generality (and the time to compile) of `ndarray.view` and `numba.carray`. Nothing is
# checked.


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
