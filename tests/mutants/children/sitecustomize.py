"""What each Python process that a test starts imports first: there, too, a mutant is planted.

The court names this folder in PYTHONPATH and leaves compiled modules of the package in another one
(`../planted.py`). A process imports those in place of the real ones, so it runs a mutant, or
probes; what the probes reach goes to a file, since the process may end in any way. A process that
ignores the environment (`python -I`) is not seen, but for the cage of `ooctrain grade`, for whose
copy of the library `../planted.py` cares.
"""

from __future__ import annotations

import builtins
import marshal
import os
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import SupportsIndex

#: Environment variables: the folder of compiled modules, and the file for what is reached.
PLANTED, REACHED = "MUTANTS_PLANTED", "MUTANTS_REACHED"
PROBE = "__reached__"
PACKAGE = "ooctrain"


class ReachedApart:
    """The probe of another process: writes down each block once.

    Args:
        notes: the file, one block a line.
    """

    def __init__(self, notes: str):
        # Open from now on: a process that confines itself cannot open it later.
        self._notes = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._known: set[str] = set()

    def __call__(self, block: str) -> None:
        if block not in self._known:
            self._known.add(block)
            with suppress(OSError):
                os.write(self._notes, f"{block}\n".encode())


class PlantedLoader(SourceFileLoader):
    """Loads what the court has compiled."""

    def get_code(self, fullname: str) -> CodeType:
        return marshal.loads(compiled_module(fullname).read_bytes())


class PlantedFinder:
    """Finds modules as ever, and has those loaded that the court has compiled."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] != PACKAGE or not compiled_module(name).exists():
            return None
        spec = PathFinder.find_spec(name, path, target)  # type: ignore[arg-type]
        if spec is not None and spec.origin is not None:
            loader = PlantedLoader(name, spec.origin)
            if loader.get_code(name).co_filename == spec.origin:  # not of another copy
                spec.loader = loader
        return spec


class PlantedFirst(list):
    """Finders, of which that of the planted modules stays the first: pytest puts its own, which
    rewrites the assertions of plug-ins and tests, before all others."""

    def insert(self, place: SupportsIndex, finder: object) -> None:
        super().insert(max(1, place.__index__()), finder)


def compiled_module(name: str) -> Path:
    """Where the court leaves a module for this Python."""
    return Path(os.environ[PLANTED]) / f"{name}.{sys.implementation.cache_tag}"


if PLANTED in os.environ:
    setattr(builtins, PROBE, ReachedApart(os.environ.get(REACHED, os.devnull)))
    sys.meta_path = PlantedFirst([PlantedFinder, *sys.meta_path])
