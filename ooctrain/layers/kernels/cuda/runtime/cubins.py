"""Machine code of kernels: made once, kept on disk, found again without Numba compiling anything.

A kernel and a compute capability give a `Cubin`: the code as a driver loads it, and the name of the
kernel in it. A kernel is identified by a key of everything that its code depends on: all sources of
the CUDA kernels, its own code with the contents of its closure, signature, registers, capability
and toolkit. The closure identifies kernels that are made in functions, which Numba's own cache
misses. A folder of cubins made elsewhere (`fill`) names the toolkit that made it and is used
unchanged; then not even NVVM is needed. nvJitLink turns PTX into machine code and needs no driver;
where it is missing the PTX itself is the code, and the driver compiles it. Read next: `shim.py`,
`devices/cuda/launches.py`.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import types
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ooctrain.layers.kernels.cuda.runtime import shim
from ooctrain.layers.kernels.cuda.runtime.packing import moved, with_numbers_in_memory
from ooctrain.layers.kernels.cuda.runtime.shim import Capability, Kernel
from ooctrain.step.presets import cache_base

ROOM = Path(__file__).parents[1]
#: Names the toolkit in a folder of cubins.
TOOLKIT_FILE = "toolkit.txt"
_DISTRIBUTIONS = (
    "numba", "llvmlite", "numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-nvvm-cu12",
    "nvidia-nvjitlink-cu12",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cubin:
    """A kernel's code.

    Args:
        entry: its name within.
        image: what `cuModuleLoadData` takes: machine code, or PTX with a closing 0.
    """

    entry: str
    image: bytes


class CubinStore:
    """Cubins in a folder, made when they are missing.

    Args:
        folder: where they lie; default: `$OOCTRAIN_CUBINS`, else in the cache folder. One that has
            a toolkit file is searched for what that toolkit made.
    """

    def __init__(self, folder: Path | None = None):
        given = folder or os.environ.get("OOCTRAIN_CUBINS")
        self.folder = Path(given) if given else cache_base() / "cubins"
        said = self.folder / TOOLKIT_FILE
        self._toolkit = said.read_text(encoding="utf-8") if said.is_file() else toolkit()
        self._found: dict[tuple[Kernel, Capability], Cubin] = {}
        self.made = 0  # how many were not there

    def get(self, kernel: Kernel, capability: Capability) -> Cubin:
        """A kernel's code for a capability. Raises what Numba raises: it does not compile."""
        found = self._found.get((kernel, capability))
        if found is None:
            found = self._found[kernel, capability] = self._search(kernel, capability)
        return found

    def _search(self, kernel: Kernel, capability: Capability) -> Cubin:
        key = key_of(kernel, capability, self._toolkit)
        path = self.folder / f"{key}.cubin" if key else None
        if path is not None and path.is_file():
            entry, image = path.read_bytes().split(b"\n", 1)
            return Cubin(entry.decode("ascii"), image)
        made = make_cubin(kernel, capability)
        self.made += 1
        if path is not None:
            _keep(path, f"{made.entry}\n".encode("ascii") + made.image)
        return made


def fill(folder: Path, kernels: Iterable[Kernel], capabilities: Iterable[Capability]) -> int:
    """Makes the cubins of kernels for GPUs that need not be here; returns how many were made.

    Cost: about a second for each kernel and capability.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TOOLKIT_FILE).write_text(toolkit(), encoding="utf-8")
    store, wanted = CubinStore(folder), list(capabilities)
    asked = list(kernels)
    for kernel in [*asked, *(moved(kernel) for kernel in asked if kernel.changing)]:
        for capability in wanted:
            if capability >= kernel.capability:
                store.get(kernel, capability)
    return store.made


def text_of(kernel: Kernel, capability: Capability) -> str:
    """The PTX that is linked, with a moved kernel's numbers in memory."""
    ptx = shim.compile_ptx(kernel, capability)
    if kernel.moved:
        ptx = with_numbers_in_memory(ptx, kernel)
    if kernel.max_registers is not None:  # for whoever links it, the driver included
        ptx = re.sub(r"(\.entry[^{]*)\{", rf"\1.maxnreg {kernel.max_registers}\n{{", ptx, count=1)
    return ptx


def make_cubin(kernel: Kernel, capability: Capability) -> Cubin:
    """Compiles and links a kernel; no driver is needed."""
    ptx = text_of(kernel, capability)
    entry = re.search(r"\.entry\s+([\w$]+)", ptx)
    assert entry is not None, "PTX of a kernel has an entry"
    image = _link(ptx.encode("ascii"), target_of(kernel, capability))
    return Cubin(entry.group(1), image or ptx.encode("ascii") + b"\0")


def target_of(kernel: Kernel, capability: Capability) -> str:
    """What NVIDIA's tools call the GPUs that a kernel's code is for: "sm_90"."""
    return f"sm_{capability[0]}{capability[1]}{'a' * kernel.specific}"


def key_of(kernel: Kernel, capability: Capability, made_by: str) -> str:
    """What a kernel's code depends on, as a name for a file; empty: it cannot be determined.

    Args:
        made_by: the toolkit.
    """
    if not Path(kernel.function.__code__.co_filename).resolve().is_relative_to(ROOM):
        return ""  # what a kernel of the user's own calls may lie anywhere
    try:
        parts = [
            sources(), made_by, kernel.signature, kernel.max_registers,
            target_of(kernel, capability), kernel.moved and kernel.changing,
            *_of_function(kernel.function),
        ]  # fmt: skip
    except TypeError:
        return ""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@cache
def sources() -> str:
    """Hash of every source of this room."""
    digest = hashlib.sha256()
    for path in sorted(ROOM.rglob("*.py")):
        digest.update(path.relative_to(ROOM).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def toolkit() -> str:
    """What makes code here: Numba's target, NVIDIA's libraries."""
    versions = [f"{name} {_version(name)}" for name in _DISTRIBUTIONS if _version(name)]
    home = os.environ.get("CUDA_HOME", "")
    return " ".join([shim.cuda.implementation, *versions, home])


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _of_function(function: Any) -> Iterator[Any]:
    """Code and closure of a function, the same in every process. Raises TypeError: they are not."""
    yield from (function.__module__, function.__qualname__)
    yield from _of_code(function.__code__)
    yield from (_stable(value) for value in function.__defaults__ or ())
    yield from (_stable(cell.cell_contents) for cell in function.__closure__ or ())


def _of_code(code: types.CodeType) -> Iterator[Any]:
    yield from (code.co_code.hex(), code.co_names, code.co_varnames)
    for value in code.co_consts:
        yield list(_of_code(value)) if isinstance(value, types.CodeType) else repr(value)


def _stable(value: Any) -> Any:
    """A value of a closure in words that another process says, too."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return [_stable(item) for item in value]
    inner = getattr(value, "py_func", None) or getattr(value, "_defn", None)
    if isinstance(value, types.FunctionType):
        inner = value
    if inner is None:
        raise TypeError(f"a closure with {value!r}")
    return list(_of_function(inner))


def _link(ptx: bytes, target: str) -> bytes:
    """Machine code; empty: nvJitLink is not there."""
    try:
        linker: Any = importlib.import_module("cuda.bindings.nvjitlink")
        linker.version()
    except (ImportError, RuntimeError, OSError):  # the package, or the library behind it
        return b""
    handle = linker.create(1, [f"-arch={target}"])
    try:
        linker.add_data(handle, linker.InputType.PTX, ptx, len(ptx), "kernel")
        linker.complete(handle)
        image = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, image)
        return bytes(image)
    finally:
        linker.destroy(handle)


def _keep(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all; a folder that cannot be written keeps nothing."""
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
