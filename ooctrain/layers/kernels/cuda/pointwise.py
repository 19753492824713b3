"""Three templates: from a function of numbers to a kernel over arrays of any size.

A device function of one, two or three elements and a parameter becomes a `Kernel` that applies it
to each element and has its name. All pointwise kernels are bound by memory and differ in one line
of arithmetic, so the code that walks over memory at full speed is written once, here. Each thread
takes two quads (`quads.py`) and loads both before it stores. So two loads are in flight, and an
output may be the same array as an input. Read next: `elementwise.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ooctrain.layers.kernels.cuda.chunks import THREADS, tiles
from ooctrain.layers.kernels.cuda.quads import first_quads, load_quad, store_quad
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, cuda, device, kernel


def unary(function: Any) -> Kernel:
    """Kernel y = function(x, parameter)."""

    @device
    def of_quad(a, p):
        return function(a[0], p), function(a[1], p), function(a[2], p), function(a[3], p)

    def over_elements(x, y, p):
        i, j = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
        a, b = load_quad(x, i), load_quad(x, j)
        store_quad(y, i, of_quad(a, p))
        store_quad(y, j, of_quad(b, p))

    return _kernel("void(f4[::1], f4[::1], f4)", over_elements, function)


def binary(function: Any) -> Kernel:
    """Kernel y = function(u, v, parameter)."""

    @device
    def of_quads(a, b, p):
        return (
            function(a[0], b[0], p), function(a[1], b[1], p),
            function(a[2], b[2], p), function(a[3], b[3], p),
        )  # fmt: skip

    def over_pairs(u, v, y, p):
        i, j = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
        ui, uj, vi, vj = load_quad(u, i), load_quad(u, j), load_quad(v, i), load_quad(v, j)
        store_quad(y, i, of_quads(ui, vi, p))
        store_quad(y, j, of_quads(uj, vj, p))

    return _kernel("void(f4[::1], f4[::1], f4[::1], f4)", over_pairs, function)


def ternary(function: Any) -> Kernel:
    """Kernel y = function(u, v, w, parameter)."""

    @device
    def of_quads(a, b, c, p):
        return (
            function(a[0], b[0], c[0], p), function(a[1], b[1], c[1], p),
            function(a[2], b[2], c[2], p), function(a[3], b[3], c[3], p),
        )  # fmt: skip

    def over_triples(u, v, w, y, p):
        i, j = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
        ui, uj, vi, vj = load_quad(u, i), load_quad(u, j), load_quad(v, i), load_quad(v, j)
        wi, wj = load_quad(w, i), load_quad(w, j)
        store_quad(y, i, of_quads(ui, vi, wi, p))
        store_quad(y, j, of_quads(uj, vj, wj, p))

    return _kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4)", over_triples, function)


def apply(launcher: Launcher, kernel: Kernel, *arrays: Any, parameter: float = 0.0) -> None:
    """Starts a pointwise kernel on arrays of equal size, the output last."""
    launcher.launch(kernel, tiles(arrays[-1].size), *arrays, parameter)


def named_after(function: Any, template: Callable, suffix: str = "") -> Callable:
    """The filled template under its function's name, which profilers and messages show."""
    original = function.py_func
    template.__name__ = template.__qualname__ = original.__name__ + suffix
    template.__module__ = original.__module__
    return template


def _kernel(signature: str, template: Callable, function: Any) -> Kernel:
    return kernel(signature, threads=THREADS)(named_after(function, template))
