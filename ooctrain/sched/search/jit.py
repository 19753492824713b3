"""How the search is compiled: on first use, cached on disk in a folder named by these sources.

The cache works as in `layers/kernels/cpu/runtime/jit.py`, which says why Numba's own cache is not
enough. Read next: `tables.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba

from ooctrain.layers.kernels.cpu.runtime.jit import (
    cache_folder,
    kept_in,
    source_hash,
    uninterrupted,
)


@lru_cache(maxsize=2)
def folder_of(sources: Path) -> Path:
    """The folder of the machine code of one folder's sources, which call none of another's."""
    return cache_folder().parent / f"search-{source_hash(sources)}"


def search_folder() -> Path:
    """The folder of these sources' machine code."""
    return folder_of(Path(__file__).parent)


def compiled(function: Callable) -> Callable:
    """Decorator: compiled for the arguments of its first call, without the GIL."""
    return _kept(function, no_cfunc_wrapper=True)


def inner(function: Callable) -> Callable:
    """The same for what only compiled functions call: it gets no entry point for Python, which
    would take tables of many arrays apart and put them together.
    """
    return _kept(function, no_cfunc_wrapper=True, no_cpython_wrapper=True)


def _kept(function: Callable, **options: Any) -> Callable:
    with kept_in(folder_of(Path(function.__code__.co_filename).parent)):
        return uninterrupted(numba.njit(nogil=True, cache=True, **options)(function))
