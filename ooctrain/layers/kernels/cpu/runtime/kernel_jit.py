"""How every CPU kernel is compiled: serial, nogil, for one signature, when needed, cached on disk.

The source is a Python range kernel `f(args..., lo, hi, thread)`. Importing it compiles nothing: a
training step needs a third of all kernels, and each of them costs up to some seconds. Numba's own
disk cache does not notice that a callee in another file has changed. The cache folder is therefore
named by the hash of *all* sources of the kernels, the Numba version and the CPU: a binary of older
sources is never used, nor one that the disk has corrupted. Kernels run under `pool.ThreadPool`,
which hands out the ranges. Read next: `pipelines.py`, `pool.py`, `layers/kernels/cpu/simd/simd.py`.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
import shutil
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache, partial, update_wrapper
from pathlib import Path
from types import FrameType
from typing import Any, cast

import llvmlite.binding
import numba
from llvmlite.binding import parse_bitcode
from numba.core import caching, sigutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.serialize import dumps

from ooctrain.errors import ConfigError, warn
from ooctrain.layers.kernels.cpu.runtime.pipelines import InnerCompiler, KernelCompiler
from ooctrain.step.allowance import memory_limits
from ooctrain.step.presets import cache_base
from ooctrain.units import MIB, format_bytes

# Compiled kernels on disk, each in one file that begins with a checksum of its content. Numba
# itself unpickles whatever it finds and runs the machine code in it, so a truncated file raises an
# error in the middle of an import, and a corrupted one does worse. Here a file that is not whole
# counts as absent: a warning says so once, and Numba compiles again and replaces it. What is loaded
# is machine code alone (`MachineCode`). Both classes replace Numba's own (`numba.core.caching`).

#: Of address space, what LLVM may take for all kernels of a step.
COMPILER_BYTES = 320 * MIB
DIGEST_BYTES = hashlib.sha256().digest_size


@lru_cache(maxsize=2)  # before the first: what the compiler takes itself is not to count
def require_compiler_memory(needed_bytes: int = COMPILER_BYTES) -> None:
    """Raises ConfigError where `ulimit` leaves too little for LLVM, which would end the process."""
    limits = [room for room in memory_limits() if room.source.startswith("ulimit")]
    tightest = next(iter(limits), None)
    if tightest is not None and tightest.free_bytes < needed_bytes:
        raise ConfigError(
            f"{tightest.source} leaves too little for the compiler", code="OOC-108",
            numbers=f"{format_bytes(tightest.free_bytes)} of {format_bytes(tightest.limit_bytes)} "
            f"are left, compiling takes up to {format_bytes(needed_bytes)}",
            fix=f"{tightest.source} unlimited, or compile once without the limit",
        )  # fmt: skip


class KeptCode:
    """One function's compiled code; Numba makes it, loads from it and saves to it.

    Args:
        cache_path, filename_base: Numba's, where the file is.
        source_stamp: Numba's; `sources` says more.
        sources: names all that the code depends on; a file of other ones is as good as none.
    """

    def __init__(self, cache_path: str, filename_base: str, source_stamp: object, sources: str):
        self._path = Path(cache_path) / f"{filename_base}.nbc"
        self._sources = sources.encode()

    def load(self, key: object) -> Any:
        """What was saved under this key; None: nothing, or it is damaged, and will be compiled.

        Raises:
            ConfigError: a resource limit leaves too little room for that.
        """
        found = self._all().get(key)
        if found is None:
            require_compiler_memory()
        return found

    def save(self, key: object, data: object) -> None:
        """Keeps the code, whole or not at all; where nothing can be written, the next start
        compiles again."""
        body = dumps({**self._all(), key: data})
        part = self._path.with_name(f"{self._path.name}.tmp.{secrets.token_hex(8)}")
        try:
            part.write_bytes(self._digest(body) + body)
            if self._path.is_dir():
                shutil.rmtree(self._path)
            os.replace(part, self._path)
        except OSError as error:
            _warn_of_disk(self._path.parent.parent, error.strerror)
            with suppress(OSError):
                part.unlink()

    def flush(self) -> None:
        """Forgets what was saved."""
        self._path.unlink(missing_ok=True)

    def _all(self) -> dict[object, Any]:
        """{key: what was saved}, by types of arguments."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError:
            content = b""
        digest, body = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if digest != self._digest(body):
            _warn_of_damage(self._path.parent.parent)
            return {}
        return pickle.loads(body)

    def _digest(self, body: bytes) -> bytes:
        return hashlib.sha256(self._sources + body).digest()


class MachineCode(caching.CompileResultCacheImpl):
    """What a file holds as a compiled function, whose LLVM module is parsed when it is needed.

    Numba parses the module of each function that it loads, so that callers which are compiled later
    can have the function inlined. Mostly nothing is compiled later, and the modules of ResNet-18's
    kernels and of the planners' search held 35 MiB, four times what else they hold.
    """

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """The function, ready to be called, or to be compiled into others."""
        result = super().rebuild(target_context, payload)
        (_, kind, code), *_ = payload
        if kind == "object":
            _machine_code, module = code
            result.library._shared_module = None
            result.library._get_module_for_linking = partial(parse_bitcode, module)
        return result


# Hundreds of files may be damaged at once; one line is enough.


@lru_cache(maxsize=1)
def _warn_of_damage(folder: Path) -> None:
    warn(
        f"compiled kernels in {folder} are damaged; they are thrown away and compiled again, which "
        "takes a minute or two, once"
    )


@lru_cache(maxsize=1)
def _warn_of_disk(folder: Path, why: str | None) -> None:
    warn(
        f"compiled kernels cannot be kept in {folder} ({why}), so every start compiles them; "
        "OOCTRAIN_CACHE names another folder"
    )


# Decorators.

_ROOM = Path(__file__).parents[1]
# Each of these changes the machine code that the same source gives.
_TARGET_VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT", "OOCTRAIN_SIMD")
_INNER = {"pipeline_class": InnerCompiler, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_OUTER = {"nogil": True, "cache": True, "boundscheck": False, "no_cfunc_wrapper": True}
_RANGE = ("lo", "hi", "thread")
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
    """Whether NUMBA_DISABLE_JIT is set: Numba compiles nothing."""
    return bool(vars(numba.config).get("DISABLE_JIT"))


def require_compiler() -> None:
    """Raises ConfigError where Numba is set to compile nothing: kernels are written in what only
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

    It gets no entry point for Python or C callers; those would double the time of compilation. It
    is compiled for types alone: while Numba finds out the types of a loop, a counter that begins as
    0 is the constant 0 at first, for which it would compile the function, too.
    """
    require_compiler()
    dispatcher = numba.njit(**_INNER)(function)  # type: ignore[call-overload]
    compile_for = dispatcher.compile
    dispatcher.compile = lambda given: compile_for(tuple(map(types.unliteral, given)))
    return dispatcher


def raising(function: Callable) -> Callable:
    """As `inner`, for a function that raises exceptions with values of its own: to make Python's
    objects of them takes an environment, which Numba gives to what becomes machine code."""
    require_compiler()
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(**options)(function)  # type: ignore[call-overload]


class Lazy(ABC):
    """A function that is compiled, or read from the disk, when it is needed.

    Args:
        function: at the top of its module; Numba cannot keep closures.
        signature: the only types of arguments that it takes.

    Attributes:
        py_func: the function.
    """

    def __init__(self, function: Callable, signature: Any):
        update_wrapper(cast("Callable", self), function)
        self.py_func, self.signature = function, signature

    @property
    def full_name(self) -> str:
        """Its module and name, as "module:name"."""
        return f"{self.py_func.__module__}:{self.py_func.__qualname__}"

    @abstractmethod
    def load(self) -> None:
        """Compiles it for those that call it as a rule."""


class CpuKernel(Lazy):
    """A function that runs without the GIL.

    A range kernel ends in the parameters `lo, hi, thread`, and is called by loops, which are
    compiled, too. Python can call it as well, which compiles it once more; others it calls alone.
    """

    @property
    def is_range(self) -> bool:
        """Whether it is a range kernel."""
        code = self.py_func.__code__
        return code.co_varnames[: code.co_argcount][-len(_RANGE) :] == _RANGE

    @cached_property
    def argument_types(self) -> tuple[Any, ...]:
        """Numba's types of its arguments."""
        return sigutils.normalize_signature(self.signature)[0]

    @cached_property
    def compiled(self) -> Any:
        """What Numba makes of a range kernel for loops; `entry.py` says how to call it."""
        dispatcher = self._made(cache_folder(), pipeline_class=KernelCompiler)
        return dispatcher.overloads[self.argument_types]

    @cached_property
    def from_python(self) -> Any:
        """The function as Python calls it."""
        return self._made(cache_folder().with_name(f"{cache_folder().name}-python"))

    def load(self) -> None:
        """As `compiled`, or for Python."""
        _ = self.compiled if self.is_range else self.from_python

    def __call__(self, *arguments: Any) -> Any:
        """Runs it."""
        return self.from_python(*arguments)

    def _made(self, folder: Path, **options: Any) -> Any:
        with global_compiler_lock, interrupts_held(), kept_in(folder):
            return numba.njit(self.signature, **_OUTER, **options)(self.py_func)  # type: ignore[call-overload]


def kernel(signature: object) -> Callable[[Callable], CpuKernel]:
    """Decorator for a range kernel, or for another function that Python calls: compiled for exactly
    `signature`, cached, without the GIL."""
    require_compiler()
    return partial(CpuKernel, signature=signature)


class Callback(Lazy):
    """A function that C calls by its address; it raises nothing, for it may run without the GIL."""

    @property
    def address(self) -> int:
        """Where its machine code is."""
        return self._compiled.address

    def load(self) -> None:
        """As `address`."""
        _ = self._compiled

    @cached_property
    def _compiled(self) -> Any:
        with global_compiler_lock, interrupts_held(), kept_in(cache_folder()):
            return numba.cfunc(self.signature, **_CALLBACK)(self.py_func)  # type: ignore[arg-type]


def callback(signature: str) -> Callable[[Callable], Callback]:
    """Decorator for a function that C calls by its `address`, cached."""
    require_compiler()
    return partial(Callback, signature=signature)


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
        yield  # no handler runs in another thread, and where there is none it stays so
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
