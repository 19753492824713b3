"""Compiled kernels on disk, each in one file that begins with a checksum of its content.

A file holds what Numba keeps of one compiled function. Numba itself unpickles whatever it finds and
runs the machine code in it, so a truncated file raises an error in the middle of an import, and a
corrupted one does worse. Here a file that is not whole counts as absent: a warning says so once,
and Numba compiles again and replaces it. What is loaded is machine code alone (`MachineCode`). Read
next: `jit.py`, which puts both classes in place of Numba's own (`numba.core.caching`).
"""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
import shutil
import warnings
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from llvmlite.binding import parse_bitcode
from numba.core import caching
from numba.core.serialize import dumps

from ooctrain.errors import ConfigError
from ooctrain.step.allowance import memory_rooms
from ooctrain.units import MIB, format_bytes

#: Of address space, what LLVM may take for all kernels of a step.
COMPILER_BYTES = 320 * MIB
DIGEST_BYTES = hashlib.sha256().digest_size


@lru_cache(maxsize=2)  # before the first: what the compiler takes itself is not to count
def require_room(needed_bytes: int = COMPILER_BYTES) -> None:
    """Raises ConfigError where `ulimit` leaves too little for LLVM, which would end the process."""
    limits = [room for room in memory_rooms() if room.source.startswith("ulimit")]
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
            require_room()
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
    """What a file holds as a compiled function, whose LLVM module waits until somebody wants it.

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
    warnings.warn(
        f"compiled kernels in {folder} are damaged; they are thrown away and compiled again, which "
        "takes a minute or two, once",
        stacklevel=3,
    )


@lru_cache(maxsize=1)
def _warn_of_disk(folder: Path, why: str | None) -> None:
    warnings.warn(
        f"compiled kernels cannot be kept in {folder} ({why}), so every start compiles them; "
        "OOCTRAIN_CACHE names another folder",
        stacklevel=3,
    )
