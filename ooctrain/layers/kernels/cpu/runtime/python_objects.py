"""Python's objects as compiled code sees them: numbers, tuples and NumPy arrays.

The caller gives the address of an object and keeps the object alive. Numbers and tuples are read by
Python's own C functions. Of an array this reads directly the few words in which NumPy keeps
address, extents, element type and flags. Their offsets are compiled into every extension module
that was built with NumPy's headers, so they are NumPy's binary interface and do not change. Source:
Python/C API reference; numpy/ndarraytypes.h, PyArrayObject_fields. Read next: `call.py`.
"""

from __future__ import annotations

from numba import types

from ooctrain.layers.kernels.cpu.runtime.jit import inner
from ooctrain.layers.kernels.cpu.runtime.raw_memory import word_at

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
