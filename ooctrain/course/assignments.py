"""The assignments by name, and where their folders are.

An assignment is a folder: a handout, a stub, tests, `grade.toml`. A command takes the folder of any
assignment, a teacher's own too; those that come with the library can be named. A new one is a
folder beside the others and a line in the table. Read next: `rubric.py`, which reads a folder;
docs/teaching.md, which makes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ooctrain.errors import ConfigError, unknown_name
from ooctrain.plugins import is_path

_PACKAGE = Path(__file__).resolve().parents[1]
#: Where the folders are: in an installed package, in a checkout.
_HOMES = (
    _PACKAGE / "tutorials" / "assignments",
    _PACKAGE.parent / "tutorials" / "assignments",
)  # fmt: skip
#: {name of the folder: what is written}, in the order of the course.
ASSIGNMENTS: Mapping[str, str] = MappingProxyType(
    {
        "lru_planner": "a planner that evicts the least recently used value",
        "window_planner": "a planner that fetches values before they are needed",
        "recompute_chain": "a planner that computes again what it does not keep",
        "best_fit": "an allocator that fills the smallest hole",
        "tiling": "bands of an image, of which no row is computed twice",
        "allocator_law": "a law that tells a broken allocator from a right one",
    }
)


def folder_of(assignment: str) -> Path:
    """The folder of an assignment, as it is named on the command line: a name or a folder.

    Raises:
        ConfigError: neither.
    """
    folder = Path(assignment)
    if folder.is_dir():
        return folder
    if assignment in ASSIGNMENTS:
        return home() / assignment
    if not is_path(assignment):
        raise unknown_name("no assignment is called", assignment, ASSIGNMENTS, "or its folder")
    file, colon, _ = assignment.partition(".py:")
    there = Path(f"{file}.py" if colon else file).exists()
    raise ConfigError(
        f"{assignment!r} is a file, not an assignment or its folder" if there
        else f"there is no folder {assignment!r}",
        code="OOC-106", numbers=f"known: {', '.join(ASSIGNMENTS)}",
        fix="ooctrain grade ASSIGNMENT FILE",
    )  # fmt: skip


def home() -> Path:
    """The folder with the library's assignments. Raises ConfigError: it was not installed."""
    for place in _HOMES:
        if place.is_dir():
            return place
    raise ConfigError(
        "this installation has no assignments", code="OOC-119", fix="install the wheel again"
    )
