"""Device functions of emulated kernels: what several kernels call is compiled once in a process.

The module of a kernel stands alone, so the same device function stands in many of them, and half
of the time in which kernels are compiled went into functions that another kernel had brought. Two
functions are the same here where their code is, and each global name in it means the same. Read
next: `emulator_source.py`, which writes the modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import numba
import numpy as np

#: how emulated code is compiled
AS_ON_GPU: Mapping[str, Any] = MappingProxyType(
    {"boundscheck": True, "error_model": "numpy", "no_cfunc_wrapper": True}
)


@dataclass(frozen=True)
class _Meaning:
    """What a function computes; the function itself is not compared."""

    code: tuple
    names: tuple
    function: Callable = field(compare=False)


def device_function(function: Callable) -> Any:
    """Decorator of a device function in the module of an emulated kernel: Numba's dispatcher, of
    this function or of an earlier one that is the same.
    """
    code, known = function.__code__, function.__globals__
    body = (code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_argcount)
    constants = tuple(_told_apart(constant) for constant in code.co_consts)
    names = tuple((name, _told_apart(known[name])) for name in code.co_names if name in known)
    return _compiled(_Meaning((body, constants), names, function))


@cache
def _compiled(meaning: _Meaning) -> Any:
    options = {**AS_ON_GPU, "no_cpython_wrapper": True}
    return numba.njit(**options)(meaning.function)


def _told_apart(value: Any) -> Any:
    """A key for a value: 1, 1.0, True and uint32(1) are equal numbers and compile differently."""
    if isinstance(value, bool | int | float | str | tuple | np.generic):
        return type(value), repr(value)
    return value
