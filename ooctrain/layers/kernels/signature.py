"""Types of a kernel's parameters: the signature that Numba compiles is made from annotations.

Each parameter says what it is, in Numba's short words with capitals: `I8` is an int64, `F4s` a flat
and contiguous array of float32, `I8x5` a tuple of five int64. A named tuple of int64 stands for
itself.
Read next: `cpu/runtime/kernel_jit.py`, `cuda/runtime/shim.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, get_type_hints

import numpy as np

B1 = Annotated[bool, "b1"]
F4 = Annotated[float, "f4"]
F8 = Annotated[float, "f8"]
I4 = Annotated[int, "i4"]
I8 = Annotated[int, "i8"]
U4 = Annotated[int, "u4"]
U8 = Annotated[int, "u8"]

F4s = Annotated[np.ndarray, "f4[::1]"]
F8s = Annotated[np.ndarray, "f8[::1]"]
I8s = Annotated[np.ndarray, "i8[::1]"]
F4s3d = Annotated[np.ndarray, "f4[:, :, ::1]"]
F4s4d = Annotated[np.ndarray, "f4[:, :, :, ::1]"]
U1s = Annotated[np.ndarray, "u1[::1]"]
U4s = Annotated[np.ndarray, "u4[::1]"]

F4x6 = Annotated[tuple[float, ...], "UniTuple(f4, 6)"]
F4x7 = Annotated[tuple[float, ...], "UniTuple(f4, 7)"]
F4x16 = Annotated[tuple[float, ...], "UniTuple(f4, 16)"]
I4x3 = Annotated[tuple[int, ...], "UniTuple(i4, 3)"]
I4x4 = Annotated[tuple[int, ...], "UniTuple(i4, 4)"]
I4x5 = Annotated[tuple[int, ...], "UniTuple(i4, 5)"]
I4x9 = Annotated[tuple[int, ...], "UniTuple(i4, 9)"]
I4x11 = Annotated[tuple[int, ...], "UniTuple(i4, 11)"]
I8x2 = Annotated[tuple[int, ...], "UniTuple(i8, 2)"]
I8x3 = Annotated[tuple[int, ...], "UniTuple(i8, 3)"]
I8x4 = Annotated[tuple[int, ...], "UniTuple(i8, 4)"]
I8x5 = Annotated[tuple[int, ...], "UniTuple(i8, 5)"]
I8x6 = Annotated[tuple[int, ...], "UniTuple(i8, 6)"]
I8x7 = Annotated[tuple[int, ...], "UniTuple(i8, 7)"]
I8x8 = Annotated[tuple[int, ...], "UniTuple(i8, 8)"]
U4x2 = Annotated[tuple[int, ...], "UniTuple(u4, 2)"]
U4x3 = Annotated[tuple[int, ...], "UniTuple(u4, 3)"]
U4x4 = Annotated[tuple[int, ...], "UniTuple(u4, 4)"]
U4x5 = Annotated[tuple[int, ...], "UniTuple(u4, 5)"]
U4x6 = Annotated[tuple[int, ...], "UniTuple(u4, 6)"]
U4x8 = Annotated[tuple[int, ...], "UniTuple(u4, 8)"]
U4x15 = Annotated[tuple[int, ...], "UniTuple(u4, 15)"]
U4x17 = Annotated[tuple[int, ...], "UniTuple(u4, 17)"]
U8x4 = Annotated[tuple[int, ...], "UniTuple(u8, 4)"]


def types_of(function: Callable, **usual: object) -> tuple[str, list[str | type[tuple]]]:
    """What a kernel returns, and what its parameters are: types as Numba spells them, or named
    tuples.

    Args:
        function: every parameter is annotated, but for those of `usual`.
        usual: {name: annotation} of parameters that kernels of a device end in.

    Raises:
        TypeError: a parameter without a type.
    """
    hints = {**usual, **get_type_hints(function, include_extras=True)}
    names = inspect.signature(function).parameters
    if missing := [name for name in names if name not in hints]:
        raise TypeError(f"kernel {function.__name__}: what types are {', '.join(missing)}?")
    spelled = {name: getattr(hint, "__metadata__", (hint,))[0] for name, hint in hints.items()}
    return spelled.get("return", "void"), [spelled[name] for name in names]
