"""What is in a hand-in: a file, a folder or an archive, as the pieces that may be a submission.

Students hand in what their system makes: zips in folders, folders in zips, with what macOS and
Jupyter add. Pieces are read into memory and nothing is extracted, so no path of an archive leads
anywhere, and what is read is limited in all, so no archive fills anything. What cannot be read is a
fault in one line, and the other pieces are still found. Read next: `handed_in.py`, which chooses
one of them.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

#: Of one hand-in: bytes that are read, files of an archive, archives within archives.
MOST_BYTES, MOST_FILES, MOST_DEPTH = 64 << 20, 5000, 3
#: Python files, as systems that hide endings store them too.
PYTHON = (".py", ".py.txt")
NOTEBOOK = (".ipynb",)
_TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz")
ARCHIVES = (".zip", *_TAR, ".gz", ".bz2", ".xz")
#: Archives that Python's library cannot read.
_UNKNOWN = (".7z", ".rar")
_OPENERS: tuple[tuple[bytes, Callable[[IO[bytes]], Any]], ...] = (
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ", lzma.LZMAFile),
)
#: Names of files that come along with a submission: of the handout, of Windows.
_NO_SUBMISSIONS = ("adapters.py", "conftest.py", "__init__.py", "thumbs.db", "desktop.ini")


@dataclass(frozen=True, slots=True)
class HandedPiece:
    """A file of a hand-in.

    Args:
        name: its path below the hand-in, with "/".
        content: all of it.
    """

    name: str
    content: bytes

    @property
    def file(self) -> str:
        """The last part of its name."""
        return PurePosixPath(self.name).name


def is_noise(name: str) -> bool:
    """Whether a path is of something that a system or an editor adds, such as `__MACOSX/._a.py`."""
    parts = PurePosixPath(name).parts
    hidden = any(part.startswith((".", "__")) and part != ".." for part in parts)
    return hidden or (bool(parts) and parts[-1].lower() in _NO_SUBMISSIONS)


def stem(name: str) -> str:
    """A file's name without the endings that are known here, such as mine of mine.py.gz."""
    known = sorted((*PYTHON, *NOTEBOOK, *ARCHIVES, *_UNKNOWN), key=len, reverse=True)
    for ending in known:
        if name.lower().endswith(ending) and len(name) > len(ending):
            inner = name[: -len(ending)]
            return stem(inner) if inner.lower().endswith(tuple(known)) else inner
    return PurePosixPath(name).stem


def pieces_of(path: Path) -> tuple[list[HandedPiece], list[str]]:
    """The Python files and notebooks of a hand-in, and what could not be read, each in one line."""
    bag = _Bag()
    if path.is_symlink():  # it may lead to somebody else's file, or to the teacher's
        bag.faults.append(f"{path.name} is not a file, but a link")
    elif path.is_dir():
        for file in _files(path, bag):
            bag.add_file(file, file.relative_to(path).as_posix())
    else:
        bag.add_file(path, path.name)
    return bag.pieces, bag.faults


def _files(folder: Path, bag: _Bag) -> Iterator[Path]:
    def fault(error: OSError) -> None:
        bag.faults.append(f"{Path(error.filename).name} cannot be read: {error.strerror}")

    for place, folders, names in os.walk(folder, onerror=fault):
        folders.sort()
        yield from (Path(place) / name for name in sorted(names))


@dataclass(slots=True)
class _Bag:
    """What was found so far.

    Args:
        left_bytes, left_files: that may still be read.
    """

    pieces: list[HandedPiece] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    left_bytes: int = MOST_BYTES
    left_files: int = MOST_FILES

    def add_file(self, path: Path, name: str) -> None:
        """A file on the disk."""
        if is_noise(name) or not self._may_count(name):
            return
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                self.faults.append(f"{path.name} is not a file, but a link or a device")
                return
            with path.open("rb") as stream:
                content = self._read(stream)
        except OSError as error:
            self.faults.append(f"{path.name} cannot be read: {error.strerror or error}")
            return
        self._add(name, content, 0)

    def _may_count(self, name: str) -> bool:
        lower = name.lower()
        if lower.endswith(_UNKNOWN):
            self.faults.append(f"{name} is an archive of a kind that is not read; zip and tar are")
        return lower.endswith((*PYTHON, *NOTEBOOK, *ARCHIVES))

    def _read(self, stream: IO[bytes]) -> bytes | None:
        """All of it; None where that is more than may be read."""
        content = stream.read(self.left_bytes + 1)
        if len(content) > self.left_bytes:
            return None
        self.left_bytes -= len(content)
        return content

    def _add(self, name: str, content: bytes | None, depth: int) -> None:
        if content is None:
            self.faults.append(f"{name} is larger than {MOST_BYTES >> 20} MiB, or unpacks to more")
        elif not name.lower().endswith(ARCHIVES):
            self.pieces.append(HandedPiece(name, content))
        elif depth == MOST_DEPTH:
            self.faults.append(f"{name} is an archive in more than {MOST_DEPTH} others")
        else:
            self._unpack(name, content, depth + 1)

    def _unpack(self, name: str, content: bytes, depth: int) -> None:
        kind = self._zip if name.lower().endswith(".zip") else self._tar
        try:
            kind(name, content, depth)
        except Exception as error:  # a stranger's bytes: whatever fails, it is the archive's fault
            why = next(iter(str(error).splitlines()), "") or type(error).__name__
            self.faults.append(f"{name} cannot be unpacked: {why}")

    def _zip(self, name: str, content: bytes, depth: int) -> None:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            for entry in packed.infolist():
                inner = entry.filename.replace("\\", "/")  # Windows makes those
                mode = entry.external_attr >> 16
                regular = stat.S_IFMT(mode) in (0, stat.S_IFREG)
                if self._wanted(name, inner, regular=regular and not entry.is_dir()):
                    if entry.flag_bits & 1:
                        self.faults.append(f"{inner} in {name} is encrypted")
                        continue
                    with packed.open(entry) as stream:
                        self._add(inner, self._read(stream), depth)

    def _tar(self, name: str, content: bytes, depth: int) -> None:
        stream: IO[bytes] = io.BytesIO(content)
        for magic, opened in _OPENERS:
            if content.startswith(magic):
                plain = self._read(opened(stream))
                if plain is None:
                    self._add(name, None, depth)
                    return
                stream = io.BytesIO(plain)
        if not name.lower().endswith(_TAR):  # one file alone, such as mine.py.gz
            inner = name.rpartition(".")[0]
            if self._may_count(inner):
                self._add(inner, stream.read(), depth)
            return
        with tarfile.open(fileobj=stream, mode="r:") as packed:
            for entry in packed:
                if self._wanted(name, entry.name, regular=entry.isreg()):
                    member = packed.extractfile(entry)
                    self._add(entry.name, self._read(member) if member else b"", depth)

    def _wanted(self, archive: str, inner: str, *, regular: bool) -> bool:
        """Whether an entry of an archive is to be read. Raises ValueError: nothing of it is."""
        self.left_files -= 1
        if self.left_files < 0:
            raise ValueError(f"it has more than {MOST_FILES} files")
        if ".." in PurePosixPath(inner).parts or inner.startswith("/") or inner[1:2] == ":":
            raise ValueError(f"a path in it leads out of it: {inner[:80]!r}")
        return regular and not is_noise(inner) and self._may_count(inner)
