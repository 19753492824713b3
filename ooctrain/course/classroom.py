"""A class: every submission of a folder is graded, several at a time.

A folder has a file for each student, named after them, or a folder for each with the file in it.
Each one is graded by a process of its own, which is the command for one submission; so whatever a
submission does (crash, hang, print, write files), and even if the grader itself ends, the others
have their grades. Results are in the order of the names, not in that of the finish. Read next:
`grade.py`; `item_statistics.py`, what a teacher learns of the assignment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooctrain.course.assignments import ASSIGNMENTS, folder_of
from ooctrain.course.cage.told import printable
from ooctrain.course.grade import Grade, Row
from ooctrain.course.rubric import RUBRIC, Rubric, read_rubric
from ooctrain.errors import ConfigError

#: Names of files beside a student's that are not submission.
_NO_SUBMISSIONS = ("adapters.py", "conftest.py", "__init__.py")


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


@dataclass(frozen=True, slots=True)
class Graded:
    """A student's grade.

    Args:
        fault: why the grader has none; such a student has no points yet, and is to be looked at.
    """

    student: str
    grade: Grade
    fault: str = ""


def handed_in(folder: Path, rubric: Rubric) -> list[HandedIn]:
    """All submissions of a folder, by name.

    Raises:
        ConfigError: there is none.
    """
    wanted = rubric.submission.partition(":")[0]
    found = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.startswith((".", "__")) or path.name in _NO_SUBMISSIONS:
            continue
        if path.is_dir() and not path.is_symlink():
            found.append(_in_folder(path, wanted))
        elif path.suffix == ".py":
            found.append(_file(path.stem, path))
    if not found:
        raise ConfigError(
            f"{folder} has no submissions", code="OOC-119",
            fix=f"a file for each student, or a folder for each with {wanted} in it",
        )  # fmt: skip
    return found


def _in_folder(folder: Path, wanted: str) -> HandedIn:
    files = [path for path in sorted(folder.rglob("*.py")) if path.name not in _NO_SUBMISSIONS]
    named = [path for path in files if path.name == wanted]
    chosen = named or files
    if len(chosen) != 1:
        why = f"{len(chosen)} files, and one is asked for: {wanted}"
        return HandedIn(folder.name, None, f"it has {why}" if chosen else f"there is no {wanted}")
    return _file(folder.name, chosen[0])


def _file(student: str, path: Path) -> HandedIn:
    # A link may lead to somebody else's file, or to the teacher's.
    if path.is_symlink() or not path.is_file():
        return HandedIn(student, None, f"{path.name} is not a file, but a link or a folder")
    return HandedIn(student, path)


def assignment_of(folder: Path) -> Path | None:
    """The library's assignment that the files of a class are for, by their names; None where they
    fit none, or several.
    """
    names = {path.name for path in folder.rglob("*.py")} if folder.is_dir() else set()
    fitting = [
        place
        for place in map(folder_of, ASSIGNMENTS)
        if (place / RUBRIC).is_file()
        and read_rubric(place).submission.partition(":")[0] in names
    ]  # fmt: skip
    return fitting[0] if len(fitting) == 1 else None


def grade_class(
    rubric: Rubric, all_handed_in: Sequence[HandedIn], jobs: int, seed: int,
    told: Callable[[Graded], None] = lambda graded: None,
) -> list[Graded]:  # fmt: skip
    """Grades all, `jobs` at a time.

    Args:
        told: is called with each one as it is graded.
    """
    done: dict[str, Graded] = {}
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(_graded, rubric, one, seed) for one in all_handed_in]
        try:
            for future in as_completed(waiting):
                graded = future.result()
                done[graded.student] = graded
                told(graded)
        except BaseException:  # interrupted: what has not begun is not begun any more
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [done[one.student] for one in all_handed_in]


def _graded(rubric: Rubric, one: HandedIn, seed: int) -> Graded:
    if one.file is None:
        return Graded(one.student, _nothing(rubric, one.why))
    name = rubric.submission.partition(":")[2]
    with tempfile.TemporaryDirectory(prefix="ooctrain-class-") as folder:
        numbers, printed = Path(folder) / "grade.json", Path(folder) / "printed"
        command = [
            sys.executable, "-m", "ooctrain", "grade", str(rubric.folder.resolve()),
            f"{one.file.resolve()}:{name}", "--seed", str(seed), "--json", str(numbers),
        ]  # fmt: skip
        with printed.open("wb") as said:
            status = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                check=False,
            ).returncode  # fmt: skip
        try:
            return Graded(one.student, _read(json.loads(numbers.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError, TypeError):
            lines = printed.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            why = f"the grader ended with status {status}: {lines[-1] if lines else 'no word'}"
            return Graded(one.student, _nothing(rubric, printable(why)), printable(why))


def _read(data: dict[str, Any]) -> Grade:
    rows = tuple(Row(**row) for row in data["rows"])
    return Grade(data["submission"], rows, data["pass_points"], tuple(data["isolation"]))


def _nothing(rubric: Rubric, why: str) -> Grade:
    row = Row("file", "can be loaded", 0.0, rubric.most_points, why)
    return Grade("", (row,), rubric.pass_points)
