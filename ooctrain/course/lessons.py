"""Tutorials, puzzles and assignments as files: what there is, and copies to work in.

They are scripts to change, so do not work on the installed ones. In a checkout they lie in
`tutorials/`; a wheel carries the same folder inside the package. A copy has the pages of the
documentation that they name in `docs/`, and never replaces a file: a student's answers are worth
more than a fresh stub. Read next: `pages.py`; `../cli/tutorials_command.py`, the command;
`puzzles/`, the judges of the puzzles.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ooctrain.course.notebooks import notebook_text
from ooctrain.course.pages import mended, page_files, pages_folder
from ooctrain.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]
#: Where the files are: in an installed package, in a checkout.
PLACES = (_PACKAGE / "tutorials", _PACKAGE.parent / "tutorials")
#: What a lesson is made of; nothing that a run leaves behind.
SUFFIXES = (".py", ".md", ".toml", ".svg", ".gz")
_TITLE = re.compile(r"^#(?: #)? ([^%#].*)$", re.MULTILINE)
_MINUTES = re.compile(r"\*\*Minutes:\*\* (\d+)")
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Lesson:
    """A tutorial, a puzzle, an assignment, or the pocket system.

    Args:
        kind: "pocket", "tutorial", "puzzle" or "assignment".
        path: path of its script or folder, below the folder of all.
        title: its first line.
        minutes: that it says it takes; None: it does not say.
    """

    kind: str
    path: str
    title: str
    minutes: int | None


def lessons_folder() -> Path:
    """Where this installation has the tutorials.

    Raises:
        ConfigError: nowhere.
    """
    for place in PLACES:
        if (place / "lesson.py").is_file():
            return place
    raise ConfigError(
        "this installation has no tutorials", code="OOC-108", fix="install the wheel again"
    )


def lessons() -> Iterator[Lesson]:
    """All of them, in the order of the course."""
    folder = lessons_folder()
    for path in folder.glob("pocket/README.md"):  # a course wheel has none
        yield _lesson("pocket", folder, path.parent, path)
    for path in sorted(folder.glob("[0-9]*.py")):
        yield _lesson("tutorial", folder, path, path)
    for path in sorted(folder.glob("puzzles/[a-z][0-9]*.py")):
        yield _lesson("puzzle", folder, path, path)
    for path in sorted(folder.glob("assignments/*/README.md")):
        yield _lesson("assignment", folder, path.parent, path)


def _lesson(kind: str, folder: Path, path: Path, told_in: Path) -> Lesson:
    text = told_in.read_text(encoding="utf-8")
    title, minutes = _TITLE.search(text), _MINUTES.search(text)
    name = path.relative_to(folder).as_posix()
    return Lesson(
        kind, name, title[1] if title else path.stem, int(minutes[1]) if minutes else None
    )


def copy_lessons(target: Path, *, notebooks: bool = False) -> list[str]:
    """Copies all files into a folder, which is made, and the documentation into its `docs/`.

    Args:
        notebooks: whether each tutorial and puzzle comes as a notebook, too, beside its script.

    Returns:
        Their names, below the folder.

    Raises:
        ConfigError: some of them are there already, and nothing was copied; or the folder cannot be
            written.
    """
    sources = {name.as_posix(): lessons_folder() / name for name in _files(lessons_folder())}
    in_checkout = {name: f"tutorials/{name}" for name in sources}
    for name in page_files():
        sources[f"docs/{name}"], in_checkout[f"docs/{name}"] = pages_folder() / name, f"docs/{name}"
    scripts = [lesson.path for lesson in lessons() if notebooks and lesson.path.endswith(".py")]
    made = {f"{script.removesuffix('.py')}.ipynb": sources[script] for script in scripts}
    names = [*sources, *made]
    try:
        there = [name for name in names if (target / name).exists()]
        if there:
            raise _refused(target, there)
        for name, source in sources.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            if source.suffix in (".py", ".md"):
                text = source.read_bytes().decode()
                text = mended(text, in_checkout[name], in_checkout.values())
                (target / name).write_bytes(text.encode())
            else:
                shutil.copyfile(source, target / name)
        for name, script in made.items():
            (target / name).write_text(notebook_text(script), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be written: {error.strerror}", code="OOC-117", fix="another folder"
        ) from error
    return names


def _files(source: Path) -> Iterator[Path]:
    """Paths of the files below a folder; none of what begins with a dot or two underscores."""
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        hidden = any(part.startswith((".", "__")) for part in name.parts)
        if path.suffix in SUFFIXES and path.is_file() and not hidden:
            yield name


def _refused(target: Path, there: list[str]) -> ConfigError:
    named = ", ".join(there[:MOST_NAMED]) + (", ..." if len(there) > MOST_NAMED else "")
    many = f"{len(there)} files" if len(there) > 1 else "a file"
    return ConfigError(
        f"{target} already has {many} of these names, and nothing was copied", where=named,
        code="OOC-117", fix="another folder; your work stays as it is",
    )  # fmt: skip
