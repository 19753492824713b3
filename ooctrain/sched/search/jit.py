"""How the search is compiled: on first use, cached on disk in a folder named by these sources.

The cache works as in `layers/kernels/cpu/runtime/kernel_jit.py`, which says why Numba's own cache
is not enough. What a search finds comes back to Python as named tuples. To put one together Numba
calls Python, and does not look whether that raised: a KeyboardInterrupt that had waited for the
search ended the process by a segmentation fault. So signals wait until all is put together. Read
next: `tables.py`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, lru_cache, update_wrapper, wraps
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import types

from ooctrain.activity import doing
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import (
    cache_folder,
    is_off,
    kept_in,
    source_hash,
    uninterrupted,
)
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner as inner_kernel

#: By how much fewer choices are tried where Numba compiles nothing (NUMBA_DISABLE_JIT): Python
#: takes that much longer for each.
SLOWER = 100 if is_off() else 1
#: Signals whose handlers may raise: what ends a process or measures its time.
MAY_RAISE = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGPROF")
    if hasattr(signal, name)
)  # fmt: skip


@lru_cache(maxsize=2)
def folder_of(sources: Path) -> Path:
    """The folder of the machine code of one folder's sources, which call none of another's."""
    return cache_folder().parent / f"search-{source_hash(sources)}"


def search_folder() -> Path:
    """The folder of these sources' machine code."""
    return folder_of(Path(__file__).parent)


def compiled(function: Callable) -> Callable:
    """Decorator: compiled for the arguments of its first call, without the GIL."""
    return _as_python(function) if is_off() else Compiled(function)


def inner(function: Callable) -> Callable:
    """The same for what only compiled functions call: compiled into them."""
    return _as_python(function) if is_off() else inner_kernel(function)


def _as_python(function: Callable) -> Callable:
    """The same, not compiled; NumPy's whole numbers wrap around as machine code's do."""

    @wraps(function)
    def interpreted(*arguments: Any) -> Any:
        with np.errstate(over="ignore"):
            return function(*arguments)

    return interpreted


class Compiled:
    """A compiled function, of which Python gets all or nothing. Functions that are compiled as well
    have it compiled into them: its own machine code is for Python, and made when Python calls it.

    Attributes:
        py_func: as it was written.
    """

    def __init__(self, function: Callable):
        update_wrapper(self, function)
        self.py_func = function

    def __call__(self, *args: Any) -> Any:
        """Calls it; signals are handled when its result is there."""
        dispatcher = self._from_python
        if not dispatcher.signatures:  # here a second Ctrl-C does not wait
            with doing("compiling the planners' search, once"):
                dispatcher.compile(tuple(map(numba.typeof, args)))
        with signals_held():
            return dispatcher(*args)

    @cached_property
    def _from_python(self) -> Any:
        options = {"nogil": True, "cache": True, "no_cfunc_wrapper": True}
        with kept_in(folder_of(Path(self.py_func.__code__.co_filename).parent)):
            return uninterrupted(numba.njit(**options)(self.py_func))  # type: ignore[call-overload]

    @cached_property
    def _inner(self) -> Any:
        return inner_kernel(self.py_func)

    @property
    def _numba_type_(self) -> types.Type:
        """What it is to Numba where it compiles a caller; the type does not keep it alive."""
        return types.Dispatcher(self._inner)


@contextmanager
def signals_held() -> Iterator[None]:
    """Signals that come within it are handled at its end."""
    came: list[int] = []
    try:
        with ExitStack() as handlers:
            if threading.current_thread() is threading.main_thread():  # others handle none
                for number in MAY_RAISE:
                    handler = signal.getsignal(number)
                    if callable(handler):
                        handlers.callback(signal.signal, number, handler)
                        signal.signal(number, lambda number, _: came.append(number))
            yield
    finally:
        for number in came:
            signal.raise_signal(number)
