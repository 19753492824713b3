"""How every CPU kernel is compiled: serial, nogil, eager signature, cached on disk.

The source is a Python range kernel `f(args..., lo, hi, thread)`. Numba's own disk cache does not
notice that a callee in another file has changed. The cache folder is therefore named by the hash of
*all* sources in this folder, the Numba version and the CPU: a binary of older sources is never
used, nor one that the disk has corrupted (`kept_code.py`). Kernels run under `pool.ThreadPool`,
which hands out the ranges. Read next: `pool.py`, `layers/kernels/cpu/simd/vector.py`.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import llvmlite.binding
import numba
from numba.core import caching

from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.cpu.runtime.kept_code import KeptCode, MachineCode
from ooctrain.step.presets import cache_base

_ROOM = Path(__file__).parents[1]
# Each of these changes the machine code that the same source gives.
_TARGET_VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT", "OOCTRAIN_SIMD")
_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_OUTER = {"nogil": True, "cache": True, "boundscheck": False, "no_cfunc_wrapper": True}
_CALLBACK = {"cache": True, "boundscheck": False, "error_model": "numpy"}


def source_hash(folder: Path = _ROOM) -> str:
    """Hash of every kernel source in `folder`, of the Numba version and of this CPU's name and
    features.
    """
    digest = hashlib.sha1(usedforsecurity=False)
    for path in sorted(folder.rglob("*.py")):
        digest.update(
            path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    features = llvmlite.binding.get_host_cpu_features().flatten()
    target = f"{numba.__version__} {llvmlite.binding.get_host_cpu_name()} {features}"
    overrides = [os.environ.get(name, "") for name in _TARGET_VARIABLES]
    digest.update(repr((target, overrides)).encode())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=1)
def cache_folder() -> Path:
    """The folder of these sources' machine code."""
    return cache_base() / f"kernels-{source_hash()}"


def is_off() -> bool:
    """Whether Numba is told to compile nothing (NUMBA_DISABLE_JIT)."""
    return bool(vars(numba.config).get("DISABLE_JIT"))


def require_compiler() -> None:
    """Raises ConfigError where Numba is told to compile nothing: kernels are written in what only
    a compiler knows (vectors, atomic operations, calls by address), so they are not Python.
    """
    if is_off():
        raise ConfigError(
            "NUMBA_DISABLE_JIT is set, and the cpu's kernels are no Python: nothing can be trained",
            code="OOC-108",
            fix="unset NUMBA_DISABLE_JIT; plans, simulations and `reference` of operations do "
            "without the compiler",
        )  # fmt: skip


def inner(function: Callable) -> Callable:
    """Decorator for a function that only kernels call: compiled into them.

    It gets no entry point for Python or C callers; those would double the time of compilation.
    """
    require_compiler()
    return numba.njit(**_INNER)(function)  # type: ignore[call-overload]


def kernel(signature: object) -> Callable[[Callable], Callable]:
    """Decorator for a range kernel: compiled at import for exactly `signature`, cached, without the
    GIL.

    Only module-level functions may be decorated: Numba cannot cache closures.
    """

    def compile_kernel(function: Callable) -> Callable:
        require_compiler()
        with interrupts_held(), kept_in(cache_folder()):
            return numba.njit(signature, **_OUTER)(function)  # type: ignore[call-overload]

    return compile_kernel


def callback(signature: str) -> Callable[[Callable], Any]:
    """Decorator for a function that C calls by its `address`: compiled at import, cached.

    It raises nothing, for it may run without the GIL.
    """

    def compile_callback(function: Callable) -> Any:
        require_compiler()
        with interrupts_held(), kept_in(cache_folder()):
            return numba.cfunc(signature, **_CALLBACK)(function)  # type: ignore[arg-type]

    return compile_callback


def uninterrupted(dispatcher: Any) -> Any:
    """What Numba's `njit` gives for a function that is compiled by its first call, so that it is
    compiled under `interrupts_held`."""
    compile_for = dispatcher.compile

    def compile_whole(signature: object) -> Any:
        with interrupts_held():
            return compile_for(signature)

    dispatcher.compile = compile_whole
    return dispatcher


@contextmanager
def interrupts_held() -> Iterator[None]:
    """A first Ctrl-C waits until Numba has compiled; a second one does not.

    LLVM calls back into Python, where a KeyboardInterrupt is lost and takes with it what it
    interrupts: the machine code of a function that is there all the same.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # no handler runs in another thread, and who has none is not to have one
        return
    held = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal held
        if held:
            before(number, frame)
        held = True

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Makes Numba's decorators keep code in a folder whose name stands for all sources, as
    `KeptCode`, and load it as `MachineCode`: they read these globals when they run.
    """
    ours: tuple[tuple[Any, str, Any], ...] = (
        (numba.config, "CACHE_DIR", str(folder)),
        (caching, "IndexDataCacheFile", partial(KeptCode, sources=folder.name)),
        (caching.FunctionCache, "_impl_class", MachineCode),
    )
    before = [(where, name, getattr(where, name)) for where, name, _ in ours]
    try:
        for each in ours:
            setattr(*each)
        yield
    finally:
        for each in before:
            setattr(*each)
