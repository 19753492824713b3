"""Builds the stub driver, a `libcuda.so.1` in C, where there is a C compiler.

The library is built from the C files of this folder, once for each state of the sources. It has the
name by which all programs load CUDA's driver, in a folder of its own. A process with that folder
first in LD_LIBRARY_PATH (`environment`) runs Numba's real compiler, linker and launches, and the
whole cuda device, without a GPU. In the current process it is loaded by its path (`stub.py`), so no
other code uses it. Read next: `stub.py`; `stub.h`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ooctrain.step.presets import cache_base

LIBRARY = "libcuda.so.1"
SOURCES = Path(__file__).parent
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
