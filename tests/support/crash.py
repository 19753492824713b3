"""A folder on a machine that may lose power: every state in which a crash could leave it.

A process that is killed loses nothing that it has passed to the system; a machine that loses power
keeps only what was flushed: of a file its content at the last `fsync`, of the folder all names at
its last `fsync` and the first few of the changes after that. A function writes files in a folder by
`os`; after each call that changes the folder it yields the states that a crash at that moment could
leave. Source: Pillai and others, All File Systems Are Not Created Equal (OSDI 2014), with names
changing in order. Read next: `tests/properties/test_checkpoint_crashes.py`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Calls that change names.
NAMING = ("replace", "rename", "link", "unlink", "remove", "symlink")
Files = Mapping[str, bytes]


@dataclass
class CrashingOs:
    """The module `os` for one folder, with a memory.

    Args:
        folder: what is watched; nothing else may change it meanwhile.
        refused: calls that raise OSError, such as {"link"} on a disk that knows no links.

    Attributes:
        killed: what a killed process would have left, after each change.
        unpowered: what a machine without power would have left, after each change.
    """

    folder: Path
    refused: frozenset[str] = frozenset()
    killed: list[Files] = field(default_factory=list)
    unpowered: list[Files] = field(default_factory=list)
    _flushed: dict[int, bytes] = field(default_factory=dict)  # by inode
    _names: list[dict[str, int]] = field(default_factory=list)  # flushed, and after each change
    _kept: list[int] = field(default_factory=list)  # descriptors: so that no inode is used again

    def __post_init__(self) -> None:
        self._names = [self._now()]
        for name, inode in self._names[0].items():
            self._flushed[inode] = (self.folder / name).read_bytes()

    def __getattr__(self, name: str) -> Any:
        right = getattr(os, name)
        if name in (*NAMING, "open", "fsync", "truncate", "ftruncate", "write"):
            return self._watched(name, right)
        return right

    def _watched(self, name: str, right: Callable) -> Callable:
        def call(*args: Any, **options: Any) -> Any:
            if name in self.refused:
                raise OSError(95, "Operation not supported")
            self.look()  # what was written since by other ways, such as a file object
            result = right(*args, **options)
            if name == "fsync":
                self._flush(args[0])
            self.look()
            return result

        return call

    def _flush(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._names = [self._now()]
        else:
            self._flushed[status.st_ino] = _content(descriptor)

    def look(self) -> None:
        """Notes the states in which a crash now would leave the folder."""
        now = self._now()
        if now != self._names[-1]:
            self._names.append(now)
        self.killed.append({name: (self.folder / name).read_bytes() for name in now})
        for names in self._names:
            self.unpowered.append({n: self._flushed.get(i, b"") for n, i in names.items()})

    def at_rest(self) -> Iterator[Files]:
        """What a crash would leave now, when all is said to be done."""
        for names in self._names:
            yield {name: self._flushed.get(inode, b"") for name, inode in names.items()}

    def _now(self) -> dict[str, int]:
        found = {}
        for path in sorted(self.folder.iterdir()):
            found[path.name] = path.stat().st_ino
            if path.stat().st_ino not in {os.fstat(fd).st_ino for fd in self._kept}:
                self._kept.append(os.open(path, os.O_RDONLY))
        return found

    def end(self) -> None:
        """Gives the descriptors back."""
        while self._kept:
            os.close(self._kept.pop())


def _content(descriptor: int) -> bytes:
    """What the file of a descriptor holds, also where that is open for writing alone."""
    return Path(f"/proc/self/fd/{descriptor}").read_bytes()
