"""Numba's CUDA target, whichever works here: numba-cuda, or the one inside Numba.

The result is the module `numba.cuda`, complete. numba-cuda replaces Numba's own target when
`numba.cuda` is imported, but loads the modules that every compilation needs only later. So all of
them are loaded here at once; if that fails, numba-cuda is removed and Numba's own target is
imported. Either will do: kernels use only what both have. numba-cuda 0.30.4 asks NumPy for
`row_stack`, which NumPy 2.5 no longer has and no later numba-cuda will fix (NVIDIA/numba-cuda#907):
it gets one while it loads. Read next: `shim.py`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
from numba.core import config

#: What the first compilation loads.
_NEEDED = (
    "numba.cuda", "numba.cuda.extending", "numba.cuda.np.arrayobj", "numba.cuda.np.arraymath",
)  # fmt: skip
_GONE = "row_stack"


def load_target() -> ModuleType:
    """`numba.cuda`. Raises ImportError and others: there is none that can be imported."""
    if getattr(config, "ENABLE_CUDASIM", False) or not _numba_cuda():
        return importlib.import_module("numba.cuda")
    try:
        with _row_stack():
            for name in _NEEDED:
                importlib.import_module(name)
    except Exception:  # whatever is wrong with numba-cuda, Numba's own target may do
        _take_out_of_the_way()
    return importlib.import_module("numba.cuda")


def _numba_cuda() -> list[Any]:
    """What lets numba-cuda answer for `numba.cuda`."""
    return [finder for finder in sys.meta_path if type(finder).__name__ == "NumbaCudaFinder"]


def _take_out_of_the_way() -> None:
    for finder in _numba_cuda():
        sys.meta_path.remove(finder)
    loaded = [name for name in sys.modules if f"{name}.".startswith("numba.cuda.")]
    for name in loaded:
        del sys.modules[name]


@contextmanager
def _row_stack() -> Iterator[None]:
    """NumPy has a `row_stack` meanwhile."""
    if hasattr(np, _GONE):
        yield
        return
    # A function of its own: numba-cuda is going to say how it compiles this one, beside vstack.
    setattr(np, _GONE, lambda arrays: np.vstack(arrays))
    try:
        yield
    finally:
        delattr(np, _GONE)
