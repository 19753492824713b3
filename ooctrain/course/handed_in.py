"""What a class handed in: for each student the file that is graded, or why there is none.

A folder has a file for each student, named after them, or a folder or an archive for each with the
file in it; a notebook stands for a file. Of several Python files that one counts which has the
expected name, else the one that defines the class; files of the handout as it was given out do not
count. Read next: `classroom.py`.
"""

from __future__ import annotations

import ast
import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import re
import stat
import symtable
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ooctrain.course.rubric import Rubric
from ooctrain.errors import ConfigError, printable

#: Files that are named where there are too many.
MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class HandedIn:
    """What a student handed in.

    Args:
        student: name of the file or folder.
        file: None where there is none that can be graded.
        why: there is none.
    """

    student: str
    file: Path | None
    why: str = ""


def handed_in(folder: Path, rubric: Rubric, unpacked: Path) -> list[HandedIn]:
    """All submissions of a folder, by name.

    Args:
        unpacked: a folder for what does not lie there as a Python file.

    Raises:
        ConfigError: there is none, or the folder cannot be read.
    """
    try:
        paths = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be read: {error.strerror}", code="OOC-119", fix="its permissions"
        ) from error
    found = [path for path in paths if not is_noise(path.name)]
    if not found:
        raise ConfigError(
            f"{folder} has no submissions", code="OOC-119",
            fix="a file for each student, or a folder or zip for each with "
            f"{rubric.submission.partition(':')[0]} in it",
        )  # fmt: skip
    names = [path.name if path.is_dir() else stem(path.name) for path in found]
    often = Counter(names)
    return [
        HandedIn(
            printable(name if often[name] == 1 else path.name),
            *file_of(path, rubric, unpacked / f"{number:04d}"),
        )
        for number, (path, name) in enumerate(zip(found, names, strict=True))
    ]


def file_of(path: Path, rubric: Rubric, place: Path) -> tuple[Path | None, str]:
    """The file of one hand-in that is graded, and "", or None and why there is none.

    Args:
        path: a file, a folder or an archive.
        place: a folder that is made where that is not a Python file already.
    """
    wanted, _, name = rubric.submission.partition(":")
    pieces, faults = pieces_of(path)
    try:
        piece = _chosen(pieces, faults, path, rubric)
        as_it_is = path / piece.name if path.is_dir() else path
        plain = as_it_is.suffix == ".py" and ":" not in str(as_it_is) and as_it_is.is_file()
        source = piece.content
        same = plain and as_it_is.read_bytes() == source
        if same and (path.is_dir() or path.name == piece.name):
            return as_it_is, ""
        if piece.file.lower().endswith(NOTEBOOK):
            source = source_of_notebook(source, name).encode()
    except ValueError as error:
        return None, printable(str(error))
    except (RecursionError, MemoryError) as error:  # of a notebook that is made to be so
        return None, f"{path.name} cannot be read: {type(error).__name__}"
    place.mkdir(parents=True)
    (place / wanted).write_bytes(source)
    return place / wanted, ""


def _chosen(
    pieces: Sequence[HandedPiece], faults: Sequence[str], path: Path, rubric: Rubric
) -> HandedPiece:
    """The piece that counts. Raises ValueError: there is none, or there are several."""
    wanted, _, name = rubric.submission.partition(":")
    own = [piece for piece in pieces if not _is_given(piece, rubric)] or list(pieces)
    books = [piece for piece in own if piece.file.lower().endswith(NOTEBOOK)]
    python = [piece for piece in own if piece not in books]
    defines = re.compile(
        rf"^[ \t]*(class\s+{re.escape(name)}\b|{re.escape(name)}\s*=)", re.MULTILINE
    )
    levels = (
        [piece for piece in python if stem(piece.file).lower() == stem(wanted).lower()],
        [piece for piece in python if defines.search(piece.content.decode(errors="replace"))],
        [piece for piece in books if name.encode() in piece.content],
        python,
        books,
    )
    best = next(filter(None, levels), [])
    different = list({piece.content: piece for piece in best}.values())
    if len(different) == 1:
        return different[0]
    if different:
        named = ", ".join(piece.name for piece in different[:MOST_NAMED])
        raise ValueError(f"it has {len(different)} files, and one is expected, {wanted}: {named}")
    if faults:
        raise ValueError(faults[0])
    if path.is_dir() or path.name.lower().endswith(ARCHIVES):
        raise ValueError(f"there is no {wanted} in it")
    raise ValueError(f"{path.name} is not a Python file, a notebook or an archive")


def _is_given(piece: HandedPiece, rubric: Rubric) -> bool:
    """Whether it is a file of the handout, unchanged."""
    given = rubric.folder / piece.file
    return given.is_file() and _text(given.read_bytes()) == _text(piece.content)


def _text(content: bytes) -> bytes:
    """Without a mark at the start, and with the ends of lines of Unix."""
    return content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").strip()


# A hand-in: a file, a folder or an archive, as the pieces that may be a submission. Students hand
# in what their system makes: zips in folders, folders in zips, with what macOS and Jupyter add.
# Pieces are read into memory and nothing is extracted, so no path of an archive leads anywhere, and
# what is read is limited in all, so no archive fills anything. What cannot be read is a fault in
# one line, and the other pieces are still found.

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
#: Folders of what others wrote, in a virtual environment that was packed, too.
_OF_OTHERS = ("site-packages", "dist-packages", "node_modules")
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
    """Whether a path is of something that a system, an editor or an installer adds, such as
    `__MACOSX/._a.py`.
    """
    parts = PurePosixPath(name).parts
    hidden = any(part.startswith((".", "__")) and part != ".." for part in parts)
    return (
        hidden
        or any(part in _OF_OTHERS for part in parts)
        or (bool(parts) and parts[-1].lower() in _NO_SUBMISSIONS)
    )


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
    if path.is_symlink():  # it may lead to another student's file, or to the teacher's
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
            if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as Windows saves
                content = content.decode("utf-16", errors="replace").encode()
            self.pieces.append(HandedPiece(name, content))
        elif depth == MOST_DEPTH:
            self.faults.append(f"{name} is an archive in more than {MOST_DEPTH} others")
        else:
            self._unpack(name, content, depth + 1)

    def _unpack(self, name: str, content: bytes, depth: int) -> None:
        kind = self._zip if name.lower().endswith(".zip") else self._tar
        try:
            kind(name, content, depth)
        except Exception as error:  # untrusted bytes: whatever fails, it is the archive's fault
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
        noise = is_noise(inner)
        self.left_files -= not noise
        if self.left_files < 0:
            raise ValueError(f"it has more than {MOST_FILES} files")
        if ".." in PurePosixPath(inner).parts or inner.startswith("/") or inner[1:2] == ":":
            raise ValueError(f"a path in it leads out of it: {inner[:80]!r}")
        return regular and not noise and self._may_count(inner)


# A class out of a notebook, with what it needs and nothing else: plots, experiments and shell
# commands do not run where a submission is tried. Of all statements at the top of a cell only those
# count that the class needs: its definition, the last one where there are several, and, again and
# again, whatever binds or changes a name that is needed so far. A cell in which the class stands
# and which is not Python is named, with its line. Sources: the notebook format, versions 3 and 4
# (nbformat.readthedocs.io); IPython, "Magics".

_ASSIGNED = re.compile(r"^(\s*)([\w, ]+)=\s*[!%].*$")
_MAGIC = re.compile(r"^(\s*)(?:[!%?].*|[\w.]+\?{1,2}\s*)$")
#: Magics of a whole cell whose text is Python that runs.
_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python", "%%python3")
#: Of a line of a cell that may be a magic.
MOST_LETTERS = 1000
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def source_of_notebook(content: bytes, name: str) -> str:
    """The source of a class.

    Args:
        content: content of the file.
        name: name of the class.

    Raises:
        ValueError: it is not a notebook, or no cell defines the class; in one line.
    """
    statements: list[ast.stmt] = []
    broken = ""
    for number, cell in enumerate(_code_cells(content), 1):
        try:
            statements += _parsed(cell)
        except SyntaxError as error:
            if re.search(rf"^class\s+{re.escape(name)}\b", cell, re.MULTILINE):
                broken = f"code cell {number} is not Python: {error.msg} (line {error.lineno})"
        except ValueError as error:  # a null byte
            broken = broken or f"code cell {number} is not Python: {error}"
    if broken or not any(name in _bound(statement) for statement in statements):
        raise ValueError(broken or f"no code cell defines {name}")
    return "\n\n".join(ast.unparse(statement) for statement in _needed(statements, name)) + "\n"


def _code_cells(content: bytes) -> Iterator[str]:
    """The texts of the code cells, in their order. Raises ValueError."""
    try:
        book = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not a notebook: its text is not JSON") from error
    if not isinstance(book, dict) or not ("cells" in book or "worksheets" in book):
        raise ValueError("it is not a notebook: it has no cells")
    sheets = book.get("worksheets")
    parts = [book, *(sheets if isinstance(sheets, list) else [])]
    for part in parts:
        cells = part.get("cells") if isinstance(part, dict) else None
        for cell in cells if isinstance(cells, list) else []:
            if isinstance(cell, dict) and cell.get("cell_type") == "code":
                yield _source_text(cell.get("source", cell.get("input", "")))


def _source_text(source: Any) -> str:
    """A cell's text: a string, or its lines."""
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _parsed(cell: str) -> list[ast.stmt]:
    """The statements of a cell. Raises SyntaxError: it is not Python without its magics either."""
    first, _, rest = cell.lstrip().partition("\n")
    if first.startswith("%%"):
        words = first.split()
        if words[0] == "%%writefile" and words[-1].lower().endswith(".py"):
            return _parsed(rest)
        return _parsed(rest) if words[0] in _PYTHON_CELLS else []
    try:
        return ast.parse(cell).body
    except SyntaxError:  # a line that begins with % or ! may be the end of a sum, or of a text
        return ast.parse("\n".join(map(_without_magic, cell.split("\n")))).body


def _without_magic(line: str) -> str:
    """A line of Python instead of one of IPython's, and any other as it is."""
    if len(line) > MOST_LETTERS:  # patterns are slow on lines that were not typed by hand
        return line
    if assigned := _ASSIGNED.match(line):
        return f"{assigned[1]}{assigned[2]}= None"
    magic = _MAGIC.match(line)
    return f"{magic[1]}pass" if magic else line


def _needed(statements: list[ast.stmt], name: str) -> list[ast.stmt]:
    """The statements that a class needs, in their order."""
    tries = [n for n, one in enumerate(statements) if _begins(one, name)]
    # What was done to a class that is defined anew is lost; what is asked of it is an experiment.
    first = tries[-1] if tries else 0
    left = [
        one for n, one in enumerate(statements)
        if _bound(one) != {name} or (n >= first and not isinstance(one, ast.Expr))
    ]  # fmt: skip
    kept: set[int] = {n for n, one in enumerate(left) if _always(one)}
    wanted = {name}
    while True:
        more = {n for n, one in enumerate(left) if n not in kept and wanted & _bound(one)}
        if not more:
            chosen = [left[n] for n in sorted(kept)]
            return sorted(chosen, key=lambda one: not _is_future(one))  # those come first
        kept |= more
        wanted |= {word for n in more for word in _read(left[n])}


def _begins(statement: ast.stmt, name: str) -> bool:
    """Whether it defines a class of that name without reading an earlier one, as a base does."""
    return (
        isinstance(statement, ast.ClassDef) and statement.name == name
        and not any(name in _read(part) for part in (*statement.bases, *statement.decorator_list))
    )  # fmt: skip


def _always(statement: ast.stmt) -> bool:
    """Imports of all names, and of the future."""
    stars = isinstance(statement, ast.ImportFrom) and any(a.name == "*" for a in statement.names)
    return stars or _is_future(statement)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _bound(statement: ast.stmt) -> set[str]:
    """Names at the top of a module that a statement binds, or whose objects it changes: assigns to,
    or calls a method of.
    """
    found: set[str] = set()
    open_nodes: list[ast.AST] = [statement]
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, _SCOPES):
            found.add(getattr(node, "name", ""))  # a lambda has none
            continue
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and not isinstance(
            node.ctx, ast.Load
        ):
            found.add(_root(node))
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found.add(_root(node.func))
        open_nodes += ast.iter_child_nodes(node)
    return found


def _root(node: ast.expr) -> str:
    """The name that an attribute or a part belongs to; "" where it is of something without one."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _read(part: ast.AST) -> set[str]:
    """Names of the module that it reads, its functions too; those of the functions' own are not."""
    tables, found = [symtable.symtable(ast.unparse(part), "a cell", "exec")], set[str]()
    for table in tables:  # which grow
        outside = table.get_type() in ("module", "class")  # what these lack yet, the module has
        found |= {
            name.get_name() for name in table.get_symbols()
            if name.is_referenced() and (outside or name.is_global())
        }  # fmt: skip
        tables += table.get_children()
    return found
