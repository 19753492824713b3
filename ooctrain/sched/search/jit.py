"""How the search is compiled: on first use, cached on disk in a folder named by these sources.

The cache works as in `layers/kernels/cpu/runtime/jit.py`, which says why Numba's own cache is not
enough. Read next: `tables.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numba

from ooctrain.layers.kernels.cpu.runtime.jit import cache_folder, kept_in, source_hash


@lru_cache(maxsize=1)
def search_folder() -> Path:
    """The folder of these sources' machine code."""
    return cache_folder().parent / f"search-{source_hash(Path(__file__).parent)}"


def compiled(function: Callable) -> Callable:
    """Decorator: compiled for the arguments of its first call, without the GIL."""
    with kept_in(search_folder()):
        return numba.njit(nogil=True, cache=True)(function)


def compiled_anew(function: Callable) -> Callable:
    """The same, compiled in each process: what Numba keeps on disk of a function that calls itself
    crashes when it is taken up again (seen with 0.68.1).
    """
    return numba.njit(nogil=True)(function)
