"""Puzzles: write the list, the allocator, the kernel, the law yourself.

    oc.puzzles.copy("puzzles")                  # the files, one for each puzzle
    print(oc.puzzles.a2)                        # what is given
    oc.puzzles.a2.check(LIST, picture="a2.svg") # two numbers, a picture, and what is wrong first

Series a: the list by hand; b: allocators; c: tiles; d: kernels in the emulator; e: autograd; f:
laws. Targets are worked out by the library when they are asked for, and no solution stands in this
package. Read next: `attempt.py`; docs/puzzles.md; `tutorials/puzzles/`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

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

__all__ = [
    "PUZZLES", "Attempt", "Puzzle", "a1", "a2", "a3", "a4", "a5", "a6", "b1", "b2", "b3", "b4",
    "c1", "c2", "c3", "c4", "copy", "d1", "d2", "d3", "d4", "e1", "e2", "e3", "f1", "f2", "f3",
]  # fmt: skip

a1, a2, a3, a4, a5, a6 = list_puzzles.PUZZLES
b1, b2, b3, b4 = allocator_puzzles.PUZZLES
c1, c2, c3, c4 = tile_puzzles.PUZZLES
d1, d2, d3, d4 = kernel_puzzles.PUZZLES
e1, e2, e3 = tape_puzzles.PUZZLES
f1, f2, f3 = law_puzzles.PUZZLES
#: {name: puzzle}, in the order of the course.
PUZZLES: Mapping[str, Puzzle] = {
    puzzle.name: puzzle
    for puzzle in (
        *(a1, a2, a3, a4, a5, a6), *(b1, b2, b3, b4), *(c1, c2, c3, c4), *(d1, d2, d3, d4),
        *(e1, e2, e3), *(f1, f2, f3),
    )
}  # fmt: skip

_PACKAGE = Path(__file__).resolve().parents[2]
#: Where the files are: in an installed package, in a checkout.
_FILES = (_PACKAGE / "tutorials" / "puzzles", _PACKAGE.parent / "tutorials" / "puzzles")


def copy(folder: str) -> list[str]:
    """Copies the puzzles' files into a folder, which is made; files that are there stay.

    Returns:
        The names of the files that were copied.

    Raises:
        ConfigError: the files are not there, or the folder cannot be written.
    """
    source = next((path for path in _FILES if path.is_dir()), None)
    if source is None:
        raise ConfigError(
            "this installation has no puzzle files", code="OOC-108", fix="install the wheel again"
        )
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
