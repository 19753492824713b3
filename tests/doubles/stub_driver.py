"""CUDA's driver without a GPU: a `libcuda.so.1` in C, built from the folder `stub`, seen by Python.

Memory, copies, mapping, streams and events are done on the host; launches are counted, kept with
their arguments, and may be handed to an interpreter. The library enforces the rules of the strict
fake, and reports a violation as an error number. It is built where there is a C compiler, once for
each state of the sources, and has the name by which all programs load CUDA's driver, in a folder of
its own. A process with that folder first in LD_LIBRARY_PATH (`environment`) runs Numba's real
compiler, linker and launches, and the whole cuda device, without a GPU. In the current process it
is loaded by its path, so only code that asks for it uses it (`Stub`). Addresses are plain ones of
this process: a launch's arguments point to memory that NumPy can read. Read next: `stub/stub.h`,
`stub/launches.c`; `ptx_machine.py`, which runs the kernels; docs/gpu.md.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ooctrain.devices.cuda.driver import CudaDriver, open_cuda_driver
from ooctrain.step.presets import cache_base

LIBRARY = "libcuda.so.1"
SOURCES = Path(__file__).parent / "stub"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden")
LIBRARIES = ("-ldl", "-lpthread")


def why_no_stub() -> str:
    """Why the stub cannot be built here, in one sentence; empty where it can."""
    if sys.platform != "linux":
        return "the stub driver needs Linux (memfd)"
    return "" if _compiler() else "no C compiler (gcc, cc or clang) to build the stub driver with"


@cache
def build_stub() -> Path:
    """The path of the library. Cost: two seconds, once for each state of the sources.

    Raises:
        RuntimeError: there is no C compiler, or it does not take the sources.
    """
    if why_no_stub():
        raise RuntimeError(why_no_stub())
    library = cache_base() / "stub" / _state_of_sources() / LIBRARY
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / LIBRARY
            compile_stub(made, SOURCES)
            made.replace(library)  # whole or not at all: two processes may build at once
    return library


def compile_stub(library: Path, sources: Path) -> None:
    """Makes a library of the C files of a folder. Raises RuntimeError: they do not compile."""
    files = sorted(map(str, sources.glob("*.c")))
    command = [_compiler(), *FLAGS, "-shared", "-o", str(library), *files, *LIBRARIES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise RuntimeError(f"the stub driver does not compile:\n{done.stderr}")


def environment(**options: int) -> dict[str, str]:
    """Variables for a process that is to find the stub where it looks for CUDA's driver.

    Args:
        options: the stub's (`struct stub_options`); a name of a call and the number of an error let
            that call fail once.
    """
    paths = [str(build_stub().parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    ordered = " ".join(f"{name}={value}" for name, value in options.items())
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(paths), "OOCTRAIN_STUB": ordered}


def read_report(path: Path) -> Mapping[str, int]:
    """What a process over the stub has counted: it writes it as it ends, to the file that
    OOCTRAIN_STUB_REPORT names."""
    lines = path.read_text(encoding="ascii").splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}


def _compiler() -> str:
    return shutil.which("gcc") or shutil.which("cc") or shutil.which("clang") or ""


def _state_of_sources() -> str:
    files = sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")])
    state = hashlib.sha256(f"{platform.machine()} {FLAGS}".encode())
    for file in files:
        state.update(file.read_bytes())
    return state.hexdigest()[:16]


# In this process: one state, as CUDA's driver has, which `reset` makes new.

Grid = tuple[int, int, int]

#: (name, address of the image, its bytes, grid, block, bytes of shared memory, address of the
#: packed arguments) -> 0, or the number of the error that the launch ends in. `grid` and `block`
#: are three unsigned ints; every address is one of this process.
OnLaunch = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_uint * 3), ctypes.POINTER(ctypes.c_uint * 3), ctypes.c_uint,
    ctypes.c_void_p,
)  # fmt: skip


class _Launch(ctypes.Structure):
    """`struct launch` of stub.h."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("image", ctypes.c_void_p), ("image_bytes", ctypes.c_size_t),
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("parameter_bytes", ctypes.c_size_t),
        ("parameters", ctypes.c_void_p),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class KeptLaunch:
    """A launch as the driver got it.

    Args:
        name: of the kernel in its image.
        grid, block: blocks, and threads of a block.
        shared_bytes: of dynamic shared memory.
        stream: its handle.
        arguments: packed as the kernel reads them.
    """

    name: str
    grid: Grid
    block: Grid
    shared_bytes: int
    stream: int
    arguments: bytes


class Stub:
    """The library, loaded in this process.

    Args:
        library: another one than `build_stub` makes.
        options: of `struct stub_options`: `total_bytes`, `late`, `capability` and others.
    """

    def __init__(self, library: Path | None = None, **options: int):
        self.library = ctypes.CDLL(str(library or build_stub()))
        self._declare()
        self._interpreter: Any = None
        self.reset(**options)

    def reset(self, **options: int) -> None:
        """As if it were loaded anew; a name that is not an option is an error."""
        self.library.stub_reset()
        for name, value in options.items():
            if not self.library.stub_set(name.encode(), value):
                raise ValueError(f"the stub driver has no option {name!r}")

    def open(self) -> CudaDriver:
        """This project's own driver object over it, by its real binary interface."""
        return open_cuda_driver(load=lambda _name: self.library)

    def fail(self, after: int, status: int, calls: str = "*") -> None:
        """Lets the call after the next `after` of these calls (names with spaces) fail once."""
        self.library.stub_fail(calls.encode(), after, status)

    def clear_fault(self) -> bool:
        """Takes back what `fail` ordered; whether it was still to come."""
        return bool(self.library.stub_clear_fault())

    @property
    def why(self) -> str:
        """Why the last refused call was refused."""
        return self.library.stub_why().decode()

    def calls(self, name: str) -> int:
        """How often a function of the driver was called, by its exported name."""
        return self.library.stub_calls(name.encode())

    def number(self, name: str) -> int:
        """One of `struct stub_numbers`: "contexts_made", "used_bytes", "streams" and others."""
        found = self.library.stub_number(name.encode())
        if found < 0:
            raise ValueError(f"the stub driver counts no {name!r}")
        return found

    def hole(self, address: int, size_bytes: int) -> int:
        """The first address of a range that a kernel may not touch; 0: it may touch all."""
        return self.library.stub_hole(address, size_bytes)

    def launches(self) -> list[KeptLaunch]:
        """What was launched and has been done, oldest first; the latest 4096 are kept."""
        done = self.library.stub_launches_done()
        found = [self.library.stub_launch(number) for number in range(max(0, done - 4096), done)]
        return [_launch(kept.contents) for kept in found if kept]

    def on_launch(self, run: Callable[..., int] | None) -> None:
        """Hands each launch to a function when its turn in its stream comes (`OnLaunch`).

        An exception in it is not passed on by ctypes: it returns the number of an error instead.
        """
        self._interpreter = OnLaunch(run) if run else OnLaunch()  # kept alive with the stub
        self.library.stub_on_launch(self._interpreter)

    def _declare(self) -> None:
        """Tells ctypes what takes and gives more than an int."""
        functions: dict[str, tuple[Any, tuple[Any, ...]]] = {
            "stub_reset": (None, ()),
            "stub_set": (ctypes.c_int, (ctypes.c_char_p, ctypes.c_longlong)),
            "stub_fail": (None, (ctypes.c_char_p, ctypes.c_long, ctypes.c_int)),
            "stub_why": (ctypes.c_char_p, ()),
            "stub_calls": (ctypes.c_long, (ctypes.c_char_p,)),
            "stub_number": (ctypes.c_longlong, (ctypes.c_char_p,)),
            "stub_hole": (ctypes.c_uint64, (ctypes.c_uint64, ctypes.c_size_t)),
            "stub_launches_done": (ctypes.c_size_t, ()),
            "stub_launch": (ctypes.POINTER(_Launch), (ctypes.c_size_t,)),
            "stub_on_launch": (None, (OnLaunch,)),
        }
        for name, (result, arguments) in functions.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments


def _launch(kept: _Launch) -> KeptLaunch:
    arguments = ctypes.string_at(kept.parameters, kept.parameter_bytes)
    return KeptLaunch(
        kept.name.decode(), tuple(kept.grid), tuple(kept.block), kept.shared_bytes,
        kept.stream or 0, arguments,
    )  # fmt: skip
