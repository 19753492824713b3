"""The stub driver with planted bugs: a changed line of its C, and a list of calls that shows it.

Read next: `support/two_drivers.py`, `tests/doubles/stub/`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from doubles.stub_driver import LIBRARY, SOURCES, compile_stub
from support.two_drivers import Action

MAPPED: tuple[Action, ...] = (
    ("reserve", 3, 0, 0), ("create", 1, 0, 0), ("map", 0, 0, 1), ("set_access", 0, 0, 1),
    ("create_stream", 0, 0, 0), ("create_event", 1, 0, 0), ("host_alloc", 1, 0, 0),
)  # fmt: skip
UNMAPPED = MAPPED[:3] + MAPPED[4:]


@dataclass(frozen=True, slots=True)
class StubBug:
    """A bug in one file.

    Args:
        name: what is wrong.
        file: which.
        piece, wrong: of its text: as it is, and with the bug.
        actions: calls to which the stub with the bug answers otherwise than the fake.
    """

    name: str
    file: str
    piece: str
    wrong: str
    actions: tuple[Action, ...]


BUGS = (
    StubBug(
        "unmaps what queued work is to use", "memory.c", "if (used_by_work(address, size))",
        "if (0)", (*MAPPED, ("fill", 0, 0, 1), ("unmap", 0, 0, 1)),
    ),
    StubBug(
        "a copy may reach what has no access", "memory.c",
        "if (!found || !found->access) return address ? address : 1;",
        "if (!found) return address ? address : 1;", (*UNMAPPED, ("copy_in", 0, 0, 1)),
    ),
    StubBug(
        "maps over a mapping", "memory.c",
        'if (overlaps(&device, address, size))\n        return refuse(CUDA_ERROR_INVALID_VALUE, '
        '"[%#llx, +%zu) is mapped already", address, size);', "",
        (*MAPPED, ("create", 1, 0, 0), ("map", 0, 1, 1)),
    ),
    StubBug(
        "maps what was released", "memory.c", "return found->references ? found : NULL;",
        "return found;", (*MAPPED, ("release", 0, 0, 0), ("map", 1, 0, 1)),
    ),
    StubBug(
        "frees addresses under a mapping", "memory.c",
        'if (overlaps(&device, address, size))\n        return refuse(CUDA_ERROR_INVALID_VALUE, '
        '"something is mapped', 'if (0)\n        return refuse(CUDA_ERROR_INVALID_VALUE, '
        '"something is mapped',
        (*MAPPED, ("address_free", 0, 3, 0)),
    ),
    StubBug(
        "memory is free again while it is mapped", "memory.c",
        "if (handle->references || handle->mappings) return;", "if (handle->references) return;",
        (*MAPPED, ("release", 0, 0, 0), ("memory_info", 0, 0, 0)),
    ),
    StubBug(
        "takes a destroyed event", "streams.c", "slots->items[slot] = NULL;", "",
        (*MAPPED, ("destroy_event", 0, 0, 0), ("record_event", 0, 0, 0)),
    ),
)  # fmt: skip


def library_with(bug: StubBug, folder: Path) -> Path:
    """The stub with a bug, compiled."""
    sources = folder / "sources"
    shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    text = (sources / bug.file).read_text(encoding="utf-8")
    assert text.count(bug.piece) == 1, f"{bug.piece!r} stands {text.count(bug.piece)} times"
    (sources / bug.file).write_text(text.replace(bug.piece, bug.wrong), encoding="utf-8")
    compile_stub(folder / LIBRARY, sources)
    return folder / LIBRARY
