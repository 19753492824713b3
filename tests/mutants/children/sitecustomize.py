"""What each Python process that a test starts imports first: there, too, a mutant is planted.

The court names this folder in PYTHONPATH and leaves compiled modules of the package in another one
(`../planted.py`). A process imports those in place of the real ones, so it runs a mutant, or
probes; what the probes reach goes to a file, since the process may end in any way. A process that
ignores the environment (`python -I`, as the cage of `ooctrain grade` does) is not seen.
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
        self._notes = notes
        self._known: set[str] = set()

    def __call__(self, block: str) -> None:
        if block not in self._known:
            self._known.add(block)
            with suppress(OSError), open(self._notes, "a", encoding="utf-8") as lines:
                lines.write(f"{block}\n")


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


def compiled_module(name: str) -> Path:
    """Where the court leaves a module for this Python."""
    return Path(os.environ[PLANTED]) / f"{name}.{sys.implementation.cache_tag}"


if PLANTED in os.environ:
    setattr(builtins, PROBE, ReachedApart(os.environ.get(REACHED, os.devnull)))
    sys.meta_path.insert(0, PlantedFinder)  # type: ignore[arg-type]
