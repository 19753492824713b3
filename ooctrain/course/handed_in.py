"""What a class handed in: a line for everybody, with the file that is graded, or why there is none.

A folder has a file for each student, named after them, or a folder or an archive for each with the
file in it; a notebook stands for a file. Of several Python files that one counts which has the name
that is asked for, else the one that defines the class; files of the handout as it was given out do
not count. Read next: `unpacked.py`, which reads; `notebook_source.py`; `classroom.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ooctrain.course.notebook_source import source_of_notebook
from ooctrain.course.rubric import Rubric
from ooctrain.course.unpacked import ARCHIVES, NOTEBOOK, HandedPiece, is_noise, pieces_of, stem
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
        if plain and (path.is_dir() or path.name == piece.name):
            return as_it_is, ""
        source = piece.content
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
        raise ValueError(f"it has {len(different)} files, and one is asked for, {wanted}: {named}")
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
