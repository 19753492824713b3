"""The one file that imports Numba's CUDA target: to replace the target, replace this file.

A Python function written in Numba's CUDA dialect becomes a `Kernel`, which is plain data. Its
compiled form is made when it is first launched on a GPU (`compiled`) and its PTX without any driver
(`compile_ptx`); the emulator in `ooctrain.testing` reads its source. Signature and block size are
part of the kernel, because a kernel's index arithmetic is right for one block size only. Kernel
files import `cuda`, `intrinsic` and the number types from here. Source: Numba CUDA manual. Read
next: `intrinsics.py`, `launcher.py`.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numba import float32, int32, int64, uint8, uint32, uint64
from numba.core import config, sigutils

from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.signature import types_of

# The module `numba.cuda`, whichever works here: numba-cuda's, or the one inside Numba. numba-cuda
# replaces Numba's own target when `numba.cuda` is imported, but loads the modules that every
# compilation needs only later. So all of them are loaded at once; if that fails, numba-cuda is
# removed and Numba's own target is imported. Kernels use only what both have. numba-cuda 0.30.4
# needs `row_stack` of NumPy, which NumPy 2.5 no longer has and no later numba-cuda will fix
# (NVIDIA/numba-cuda#907): it gets one while it loads.

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


# Kernels.

__all__ = [
    "Capability", "Kernel", "argument_types", "compile_ptx", "compiled", "cuda", "device",
    "float32", "int32", "int64", "intrinsic", "kernel", "larger", "smaller", "uint8", "uint32",
    "uint64",
]  # fmt: skip

cuda: Any = load_target()
intrinsic = importlib.import_module("numba.cuda.extending").intrinsic

Capability = tuple[int, int]
LOWEST_CAPABILITY: Capability = (7, 5)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A CUDA kernel as data.

    Args:
        function: the Python function.
        signature: Numba's, "void(f4[::1], f4[::1], u4)": one-dimensional arrays and numbers.
        threads: threads of one block, in one dimension.
        capability: lowest compute capability that it runs on.
        max_registers: most registers of a thread, where several blocks must share a processor;
            None: as many as the compiler likes.
        changing: positions of the arguments that may differ from step to step. They follow from the
            operation and the step scalars alone, and are numbers, or tuples of them; no other
            argument of the kernel depends on a step scalar.
        specific: uses instructions that only its own capability has, and no later one ("sm_90a");
            launches of our own can start it, Numba's cannot.
        moved: takes the addresses of its changing arguments in their place (`packing.py`).
    """

    function: Callable
    signature: str
    threads: int
    capability: Capability = LOWEST_CAPABILITY
    max_registers: int | None = None
    changing: tuple[int, ...] = ()
    specific: bool = False
    moved: bool = False

    @property
    def name(self) -> str:
        """Module and function, for messages: "elementwise._relu"."""
        return f"{self.function.__module__.rpartition('.')[2]}.{self.function.__name__}"


def kernel(
    signature: str = "", *, threads: int = 256, capability: Capability = LOWEST_CAPABILITY,
    max_registers: int | None = None, changing: tuple[int, ...] = (), specific: bool = False,
) -> Callable[[Callable], Kernel]:  # fmt: skip
    """Decorator that makes a function a `Kernel`; nothing is compiled yet.

    Args:
        signature: Numba's; "": annotations of the function are types (`../../signature.py`).
    """
    return lambda function: Kernel(
        function, signature or _signature_of(function), threads, capability, max_registers,
        changing, specific,
    )  # fmt: skip


def _signature_of(function: Callable) -> str:
    """Numba's signature of a kernel with annotations."""
    result, kinds = types_of(function)
    return f"{result}({', '.join(map(str, kinds))})"


def device(function: Callable) -> Callable:
    """Decorator for a function that only kernels call: compiled into them."""
    return cuda.jit(device=True)(function)


@device
def smaller(a, b):
    """The smaller of two numbers of one type; Numba's own `min` does not compile everywhere."""
    return a if a < b else b


@device
def larger(a, b):
    """The larger of two numbers of one type."""
    return a if a > b else b


@cache
def argument_types(signature: str) -> tuple:
    """Numba's types of a signature's arguments."""
    return tuple(sigutils.normalize_signature(signature)[0])


@cache
def compiled(kernel: Kernel) -> Any:
    """The kernel for the current GPU, as Numba's dispatcher; compiled by its first call here.

    Raises:
        ConfigError: Numba compiles for a capability and all later ones, and the kernel is for one.
    """
    if kernel.specific:
        raise ConfigError(
            f"{kernel.name} is code for one capability only, which Numba's launcher cannot start",
            fix="OOCTRAIN_LAUNCHER=driver",
        )
    return cuda.jit(kernel.signature, max_registers=kernel.max_registers)(kernel.function)


def compile_ptx(kernel: Kernel, capability: Capability) -> str:
    """PTX of a kernel for a compute capability. Needs Numba's NVVM library, no driver."""
    with _pretend_device(capability):
        types_of_arguments = sigutils.normalize_signature(kernel.signature)[0]
        target = (*capability, "a") if kernel.specific else capability
        ptx, _ = cuda.compile_ptx(kernel.function, types_of_arguments, cc=target)
    return ptx


def why_no_ptx() -> str:
    """Why PTX cannot be made here, in one sentence; empty where it can."""
    # Not at the top: Numba's simulator has other ones.
    from numba.cuda.cudadrv import error, nvvm

    try:
        nvvm.NVVM()
    except (error.NvvmError, ImportError, OSError, RuntimeError) as fault:
        return f"Numba finds no NVVM library ({fault}); pip install numba-cuda[cu13]"
    return ""


@contextmanager
def _pretend_device(capability: Capability) -> Iterator[None]:
    """Numba asks the current device for its capability when a kernel calls a device function."""
    from numba.cuda import dispatcher  # which Numba's simulator does not have

    asked = dispatcher.get_current_device
    pretended = types.SimpleNamespace(compute_capability=capability)
    dispatcher.get_current_device = lambda: pretended
    try:
        yield
    finally:
        dispatcher.get_current_device = asked
