"""Which test files judge a file: those that import it, then tables of known answers, then those
that import its room, then all others; of those that do not import it, the slow ones come last.

What a test imports is read in its text, so nothing has to run. Read next: `reach.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from mutants.operators import ROOMS, ROOT, Mutant, parsed

#: How many lists `near_files` gives, and how many of them are near.
STAGES, NEAREST = 5, 2
#: The room whose tests need software of others.
FOREIGN = "ooctrain.interop"
#: Begin the names of test files that compile kernels, or start many processes, or look at sources.
LATE = tuple(
    f"tests/{name}"
    for name in (
        "contracts/", "unit/cuda/", "unit/test_cage", "unit/test_course_tools", "unit/test_cuda",
        "unit/test_ended", "unit/test_gpu", "unit/test_kernel", "unit/test_mpi",
        "unit/test_notebook", "unit/test_page_in", "unit/test_spread",
    )
)  # fmt: skip


def near_files(file: str) -> list[list[str]]:
    """Test files that import a module, or its folder if none does; other tables; the others that
    import any of its room; all others; and the late ones. A table compares every number of an
    answer, so it notices what many laws allow; those that ask a room seldom import all its files.
    """
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    room = ".".join(module.split(".")[:2])
    known = {path: imported_by(path) for path in judging_files(room)}
    near = [path for path, names in known.items() if module in names]
    early = [path for path in known if not path.startswith(LATE)]
    if not near:
        folder = module.rpartition(".")[0]
        near = [path for path in known if any(n.startswith(folder) for n in known[path])]
    tables = [path for path in early if is_table(path) and path not in near]
    of_room = [path for path in early if any(name.startswith(room) for name in known[path])]
    room_too = [path for path in of_room if path not in {*near, *tables}]
    others = [path for path in early if path not in {*near, *tables, *room_too}]
    late = [path for path in known if path not in {*near, *early}]
    return [near, tables, room_too, others, late]


@cache
def is_table(file: str) -> bool:
    """Whether a test file compares with answers that were found before."""
    return Path(file).name.startswith("test_known_") or "known.check_rows(" in text_of(file)


@cache
def reads_defaults(file: str) -> bool:
    """Whether the tests of a file look at default values of functions that they do not call."""
    return "inspect.signature(" in text_of(file)


def text_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def judging_files(room: str = "") -> tuple[str, ...]:
    """Laws, tests by hand and contracts; not planted bugs, whose tests ask whether a law bites.
    Comparisons with other software judge the room that reads that software's networks alone.
    """
    rooms = ["unit", "properties", "errata", "strangers", "contracts"]
    rooms += ["peers"] * (room == FOREIGN)
    found = sorted(
        path for room in rooms for path in (ROOT / "tests" / room).rglob("test_*.py")
    )  # fmt: skip
    return tuple(path.relative_to(ROOT).as_posix() for path in found)


@cache
def imported_by(file: str) -> frozenset[str]:
    """Modules of the mutated rooms that a test file imports, and those of their names."""
    rooms = tuple(f"ooctrain.{room.removesuffix('.py')}" for room in ROOMS)
    found: set[str] = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return frozenset(name for name in found if name.startswith(rooms))


def collected(mutants: Sequence[Mutant], nearest: bool = False) -> Iterator[str]:
    """Test files that pytest has to know for some mutants.

    Args:
        nearest: only those that import a mutant's own module, and tables.
    """
    last = NEAREST if nearest else None
    wanted = {
        path for mutant in mutants for stage in near_files(mutant.file)[:last] for path in stage
    }  # fmt: skip
    yield from sorted(wanted)
