"""Puzzles: write the list, the allocator, the kernel, the law yourself.

    oc.puzzles.copy("puzzles")                  # the files, one for each puzzle
    print(oc.puzzles.a2)                        # what is given
    oc.puzzles.a2.check(LIST, picture="a2.svg") # two numbers, a picture, and what is wrong first

Series a: the list by hand; b: allocators; c: tiles; d: kernels in the emulator; e: autograd; f:
laws. The library computes the targets when they are requested, and this package contains no
solution. Read next: `attempt.py`; docs/puzzles.md; `tutorials/puzzles/`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from ooctrain.course.lessons import lessons_folder
from ooctrain.course.puzzles import (
    allocator_puzzles,
    kernel_puzzles,
    law_puzzles,
    list_puzzles,
    tape_puzzles,
    tile_puzzles,
)
from ooctrain.course.puzzles.attempt import Attempt, Puzzle
from ooctrain.errors import ConfigError

__all__ = ["PUZZLES", "Attempt", "Puzzle", "copy"]

_SERIES = (
    list_puzzles, allocator_puzzles, tile_puzzles, kernel_puzzles, tape_puzzles, law_puzzles,
)  # fmt: skip
#: {name: puzzle}, in the order of the course; each is an attribute of this module, too.
PUZZLES: Mapping[str, Puzzle] = {p.name: p for series in _SERIES for p in series.PUZZLES}


def __getattr__(name: str) -> Puzzle:
    if name not in PUZZLES:
        raise AttributeError(f"no puzzle is called {name!r}: there are {', '.join(PUZZLES)}")
    return PUZZLES[name]


def __dir__() -> list[str]:
    return [*__all__, *PUZZLES]


def copy(folder: str) -> list[str]:
    """Copies the puzzles' files into a folder, which is made; files that are there stay.

    Returns:
        The names of the files that were copied.

    Raises:
        ConfigError: the files are not there, or the folder cannot be written.
    """
    source = lessons_folder() / "puzzles"
    target, copied = Path(folder), []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(source.iterdir()):
            if path.suffix in (".py", ".md") and not (target / path.name).exists():
                shutil.copyfile(path, target / path.name)
                copied.append(path.name)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written: {error.strerror}", code="OOC-117", fix="another folder"
        ) from error
    return copied
