"""Every CUDA kernel of the package, each once.

The kernels are found by walking the modules of this folder, so that a new one cannot be forgotten.
Kernels that a module makes only when a shape first needs them are requested here. Code that
compiles all kernels in advance starts here. Read next: `runtime/cubins.py`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from ooctrain.layers.kernels.cuda import matmul
from ooctrain.layers.kernels.cuda.conv import conv_gemm, conv_weights
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel


def modules() -> list[ModuleType]:
    """All modules of CUDA kernels."""
    package = __name__.rpartition(".")[0]
    found = pkgutil.walk_packages([str(Path(__file__).parent)], f"{package}.")
    return [importlib.import_module(module.name) for module in found]


def every_kernel() -> list[Kernel]:
    """Each once, by name."""
    found = dict.fromkeys(_made_by_shape())  # in the same order in every process
    for module in modules():
        for value in vars(module).values():
            values = value.values() if isinstance(value, Mapping) else (value,)
            found |= {v: None for v in values if isinstance(v, Kernel)}
    return sorted(found, key=lambda kernel: (kernel.name, kernel.function.__code__.co_firstlineno))


def _made_by_shape() -> Iterator[Kernel]:
    """Kernels that a module makes when a shape first requests them."""
    for columns in (conv_gemm.WIDE, conv_gemm.NARROW):
        yield conv_gemm._correlation_kernel(True, columns)
        yield conv_gemm._correlation_kernel(False, columns)
        yield conv_weights._weight_kernel(True, columns)
    yield conv_weights._weight_kernel(False, conv_gemm.NARROW)
    yield from matmul.every_product()
