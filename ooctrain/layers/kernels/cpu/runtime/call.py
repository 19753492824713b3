"""How Python starts any kernel: one compiled function unpacks its arguments, then runs its chunks.

`start(recipe, team, items, chunk, order, arguments)` runs all chunks or returns a number that says
why not. Numba's own dispatcher determines the types of all arguments anew at every call and wraps
every array, which takes longer than a small kernel. Here, one compiled function serves all kernels
and unpacks the arguments as the kernel's recipe (`entry.py`) describes them. If an argument has any
other type, the function does nothing and returns REFUSED; the caller (`pool.py`) then uses Numba's
dispatcher, which converts the argument or raises. An array that the recipe calls flat may have any
number of dimensions. What is called in every step is unpacked once (`pack`), and from then on only
the addresses of its arrays are filled in (`repeat`). Source: Python/C API reference,
METH_FASTCALL. Read next: `entry.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ooctrain.layers.kernels.cpu.runtime.entry import (
    ARGUMENT_WORDS,
    ARRAY_HEAD,
    ARRAY_TYPE,
    BLOCK_WORDS,
    COUNT,
    DOUBLE,
    ENTRY,
    FIRST,
    FUNCTION,
    KEPT_ARRAY_WORDS,
    KEPT_ARRAYS,
    KEPT_CHUNK,
    KEPT_COUNT,
    KEPT_ENTRY,
    KEPT_FUNCTION,
    KEPT_ITEMS,
    REFUSED,
    SINGLE,
    TRUTH,
    TUPLE,
    WHOLE,
    put_at,
    word_at,
)
from ooctrain.layers.kernels.cpu.runtime.fork_join import run_job
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import callback, inner
from ooctrain.layers.kernels.cpu.simd.simd import I64

# Python's objects as compiled code sees them. The caller gives the address of an object and keeps
# the object alive. Numbers and tuples are read by Python's own C functions. Of an array the few
# words are read in which NumPy keeps address, extents, element type and flags. Their offsets are
# compiled into every extension module that was built with NumPy's headers, so they are NumPy's
# binary interface. Source: Python/C API reference; numpy/ndarraytypes.h, PyArrayObject_fields.

_address, _whole = types.int64, types.int64

double_of = types.ExternalFunction("PyFloat_AsDouble", types.float64(_address))
whole_of = types.ExternalFunction("PyLong_AsLongLong", _whole(_address))
unsigned_of = types.ExternalFunction("PyLong_AsUnsignedLongLongMask", types.uint64(_address))
truth_of = types.ExternalFunction("PyObject_IsTrue", types.int32(_address))
tuple_length = types.ExternalFunction("PyTuple_Size", _whole(_address))
tuple_item = types.ExternalFunction("PyTuple_GetItem", _address(_address, _whole))
new_whole = types.ExternalFunction("PyLong_FromLongLong", _address(_whole))
an_error_is_set = types.ExternalFunction("PyErr_Occurred", _address())
forget_errors = types.ExternalFunction("PyErr_Clear", types.void())
release_gil = types.ExternalFunction("PyEval_SaveThread", _address())
take_gil = types.ExternalFunction("PyEval_RestoreThread", types.void(_address))

# Words of an array, behind PyObject_HEAD, whose last word is the object's type.
_HEAD = object.__basicsize__ // 8
_DATA, _DIMENSIONS, _EXTENTS, _, _, _DTYPE, _FLAGS = range(_HEAD, _HEAD + 7)
_INT = 0xFFFFFFFF  # of a word that holds a C int and padding
# What kernels want of `ndarray.flags`: C_CONTIGUOUS, ALIGNED, WRITEABLE.
_WANTED_FLAGS = 0x0001 | 0x0100 | 0x0400


@inner
def is_array(candidate, array_type, dtype):
    """Whether an object is a contiguous, writeable array of an element type; all by address."""
    return (
        word_at(candidate, _HEAD - 1) == array_type
        and word_at(candidate, _DTYPE) == dtype
        and word_at(candidate, _FLAGS) & _WANTED_FLAGS == _WANTED_FLAGS
    )


@inner
def array_address(array):
    """Address of the first element."""
    return word_at(array, _DATA)


@inner
def array_dimensions(array):
    """Number of dimensions."""
    return word_at(array, _DIMENSIONS) & _INT


@inner
def array_extent(array, dimension):
    """Number of elements along a dimension."""
    return word_at(word_at(array, _EXTENTS), dimension)


# Unpacking and starting.

_FASTCALL = 0x80


@intrinsic
def _block_on_stack(typingctx):
    """Address of room for a kernel's arguments, until the function returns."""

    def codegen(context, builder, signature, args):
        return builder.ptrtoint(cgutils.alloca_once(builder, ir.ArrayType(I64, BLOCK_WORDS)), I64)

    return types.int64(), codegen


@inner
def _put_array(block, place, array, dimensions, item_bytes):
    """Writes an array as Numba passes it: its reference counter and its Python object (none here),
    number of elements, bytes of one, address; then all extents, then all strides.

    With one dimension: the elements of the array, whatever its shape.
    """
    extents, size = place + ARRAY_HEAD, 1
    for d in range(array_dimensions(array) - 1, -1, -1):
        if dimensions > 1:
            put_at(block, extents + d, array_extent(array, d))
            put_at(block, extents + dimensions + d, size * item_bytes)
        size *= array_extent(array, d)
    if dimensions == 1:
        put_at(block, extents, size)
        put_at(block, extents + 1, item_bytes)
    put_at(block, place, 0)
    put_at(block, place + 1, 0)
    put_at(block, place + 2, size)
    put_at(block, place + 3, item_bytes)
    put_at(block, place + 4, array_address(array))


@inner
def _put_number(block, place, kind, number):
    """Writes a number of a kind. If `number` is not one, Python's error is set."""
    if kind == WHOLE:
        put_at(block, place, whole_of(number))
    elif kind == SINGLE:
        put_at(block, place, np.float32(double_of(number)))
    elif kind == TRUTH:
        put_at(block, place, numba.int64(truth_of(number)))
    elif kind == DOUBLE:
        put_at(block, place, double_of(number))
    else:
        put_at(block, place, unsigned_of(number))


@inner
def _put_tuple(block, place, end, numbers):
    """Writes a tuple of whole numbers; returns where it ends, beyond `end` where it is too long."""
    count = tuple_length(numbers)
    for member in range(min(count, end - place)):
        put_at(block, place + member, whole_of(tuple_item(numbers, member)))
    return place + count


@inner
def _unpack(recipe, arguments, block):
    """Writes all arguments where the kernel's entry reads them; returns how many words they take,
    -1 if one is not what the recipe says.
    """
    if tuple_length(arguments) != word_at(recipe, COUNT):
        return -1
    place, at = 0, FIRST
    for which in range(word_at(recipe, COUNT)):
        argument = tuple_item(arguments, which)
        kind, what = word_at(recipe, at), word_at(recipe, at + 1)
        if kind > 0:
            if not is_array(argument, word_at(recipe, ARRAY_TYPE), what):
                return -1
            if kind > 1 and array_dimensions(argument) != kind:
                return -1
            _put_array(block, place, argument, kind, word_at(recipe, at + 2))
            place += ARRAY_HEAD + 2 * kind
        elif kind == TUPLE:
            groups, end = word_at(recipe, at + 2), place + what
            if groups == 0:
                place = _put_tuple(block, place, end, argument)
            elif tuple_length(argument) != groups:
                return -1
            else:
                for member in range(groups):
                    place = _put_tuple(block, place, end, tuple_item(argument, member))
            if place != end:
                return -1
        else:
            _put_number(block, place, kind, argument)
            place += 1
        at += ARGUMENT_WORDS
    return place if an_error_is_set() == 0 else -1


@callback("i8(i8, i8, i8)")
def _start(self, arguments, count):
    """See `Starter`. The parameters are those of a C function of Python's: `self` (unused), the
    address of the arguments, how many there are.
    """
    recipe, team = whole_of(word_at(arguments, 0)), whole_of(word_at(arguments, 1))
    items, chunk = whole_of(word_at(arguments, 2)), whole_of(word_at(arguments, 3))
    order, block = whole_of(word_at(arguments, 4)), _block_on_stack()
    if recipe == 0 or _unpack(recipe, word_at(arguments, 5), block) < 0:
        forget_errors()
        return new_whole(REFUSED)
    state = release_gil()
    entry, function = word_at(recipe, ENTRY), word_at(recipe, FUNCTION)
    outcome = run_job(team, entry, function, block, items, chunk, order)
    take_gil(state)
    return new_whole(outcome)


@callback("i8(i8, i8, i8)")
def _pack(self, arguments, count):
    """See `Starter`."""
    recipe, block = whole_of(word_at(arguments, 0)), whole_of(word_at(arguments, 1))
    words = _unpack(recipe, word_at(arguments, 2), block)
    if words < 0:
        forget_errors()
    return new_whole(words)


@callback("i8(i8, i8, i8)")
def _repeat(self, arguments, count):
    """See `Starter`."""
    kept, team = whole_of(word_at(arguments, 0)), whole_of(word_at(arguments, 1))
    order, addresses = whole_of(word_at(arguments, 2)), word_at(arguments, 3)
    behind = KEPT_ARRAYS + KEPT_ARRAY_WORDS * word_at(kept, KEPT_COUNT)
    block = kept + 8 * behind
    for at in range(KEPT_ARRAYS, behind, KEPT_ARRAY_WORDS):
        start = whole_of(tuple_item(addresses, word_at(kept, at + 1)))
        put_at(block, word_at(kept, at), start + word_at(kept, at + 2))
    entry, function = word_at(kept, KEPT_ENTRY), word_at(kept, KEPT_FUNCTION)
    items, chunk = word_at(kept, KEPT_ITEMS), word_at(kept, KEPT_CHUNK)
    state = release_gil()
    outcome = run_job(team, entry, function, block, items, chunk, order)
    take_gil(state)
    return new_whole(outcome)


class _MethodDef(ctypes.Structure):
    """PyMethodDef: the description by which Python makes a C function callable."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Starter(NamedTuple):
    """Compiled functions, callable from Python. All but `arguments` and `addresses` are numbers.

    Args:
        start: start(recipe, team, items, chunk, order, arguments) runs a kernel.
            recipe: address of the kernel's recipe, or 0.
            team: address of a team's words.
            items, chunk: chunk i is [i * chunk, (i + 1) * chunk), the last one shorter.
            order: address of the numbers of all chunks in the order to draw them, or 0.
            arguments: a tuple, of all arguments that come before `lo, hi, thread`.
            It returns what `fork_join.run_job` says, or REFUSED.
        pack: pack(recipe, block, arguments) writes the arguments where an entry reads them, from
            the address `block` on; returns how many words they take, -1 if one is not what the
            recipe says.
        repeat: repeat(kept, team, order, addresses) runs a kernel with arguments that are packed.
            kept: address of the words of a `kept.KernelCall`.
            addresses: a tuple, of the arrays that its arguments lie in.
            It returns what `fork_join.run_job` says.
    """

    start: Callable[..., int]
    pack: Callable[..., int]
    repeat: Callable[..., int]


@lru_cache(maxsize=1)
def _definitions() -> tuple[_MethodDef, ...]:
    """The descriptions of these functions; cached because Python keeps their addresses."""
    codes = {b"start": _start, b"pack": _pack, b"repeat": _repeat}
    return tuple(_MethodDef(name, code.address, _FASTCALL, None) for name, code in codes.items())


def starter() -> Starter:
    """The functions by which a pool starts kernels."""
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    new.restype = ctypes.py_object
    return Starter(*(new(ctypes.addressof(known), None, None) for known in _definitions()))
