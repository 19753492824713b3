"""Which test files judge a file: those that import it, then those that import its room, then all.

What a test imports is read in its text, so nothing has to run. Read next: `reach.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache

from mutants.operators import ROOMS, ROOT, Mutant, parsed


def near_files(file: str) -> list[list[str]]:
    """Test files that import a module, or its folder if none does; the others that import any of
    its room; and all others.
    """
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    room = ".".join(module.split(".")[:2])
    known = {path: imported_by(path) for path in judging_files()}
    near = [path for path, names in known.items() if module in names]
    if not near:
        folder = module.rpartition(".")[0]
        near = [path for path in known if any(n.startswith(folder) for n in known[path])]
    of_room = [path for path in known if any(name.startswith(room) for name in known[path])]
    room_too = [path for path in of_room if path not in near]
    return [near, room_too, [path for path in known if path not in {*near, *room_too}]]


@cache
def judging_files() -> tuple[str, ...]:
    """Laws and tests by hand; neither planted bugs, whose tests ask whether a law bites, nor pages,
    nor what runs in processes of its own or compiles kernels.
    """
    found = sorted(
        path for room in ("unit", "properties", "errata", "strangers")
        for path in (ROOT / "tests" / room).glob("test_*.py")
    )  # fmt: skip
    apart = ("test_gpu", "test_kernels", "test_cage", "test_notebook", "test_ended", "test_cuda",
             "test_page_in")  # fmt: skip
    return tuple(
        path.relative_to(ROOT).as_posix() for path in found if not path.stem.startswith(apart)
    )


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
        nearest: only those that import a mutant's own module.
    """
    wanted = {
        path for mutant in mutants for stage in near_files(mutant.file)[: 1 if nearest else None]
        for path in stage
    }  # fmt: skip
    yield from sorted(wanted)
