"""Compiles every kernel of the cpu, and the planners' search, in as many processes as cores.

Whatever the disk does not hold is compiled by the first test that needs it, in each worker anew. So
`../conftest.py` starts this file before the workers. Read next:
`ooctrain/execution/compile_apart.py`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import ooctrain.layers.kernels.cpu as room
from ooctrain.execution.compile_apart import compile_kernels
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import Lazy
from ooctrain.layers.kernels.cpu.runtime.reached import kernels_of_module, size_of


def every_kernel() -> Iterator[Lazy]:
    """Those of all modules of the room."""
    for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        yield from kernels_of_module(importlib.import_module(found.name))


if __name__ == "__main__":
    compile_kernels(sorted(every_kernel(), key=size_of, reverse=True), searches=True)
