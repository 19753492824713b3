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
    if Path(assignment).is_dir() or assignment not in ASSIGNMENTS:
        if not Path(assignment).exists() and Path(assignment).name == assignment:
            raise unknown_name("no assignment is called", assignment, ASSIGNMENTS, "or its folder")
        return Path(assignment)
    return home() / assignment


def home() -> Path:
    """The folder with the library's assignments. Raises ConfigError: it was not installed."""
    for place in _HOMES:
        if place.is_dir():
            return place
    raise ConfigError(
        "this installation has no assignments", code="OOC-119", fix="install the wheel again"
    )
