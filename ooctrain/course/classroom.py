"""A class: every submission of a folder is graded, several at a time.

What was handed in (`handed_in.py`) is graded by a process of its own for each student, which is the
command for one submission; so whatever a submission does (crash, hang, print, write files), and
even if the grader itself ends, the others have their grades. Results are in the order of the names,
not in that of the finish. Read next:
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
from ooctrain.course.handed_in import HandedIn
from ooctrain.course.rubric import RUBRIC, Rubric, read_rubric
from ooctrain.course.unpacked import is_noise, pieces_of, stem


@dataclass(frozen=True, slots=True)
class Graded:
    """A student's grade.

    Args:
        fault: why the grader has none; such a student has no points yet, and is to be looked at.
    """

    student: str
    grade: Grade
    fault: str = ""


def assignment_of(folder: Path) -> Path | None:
    """The library's assignment that the files of a class are for, by their names; None where they
    fit none, or several.
    """
    names = set()
    for path in folder.iterdir() if folder.is_dir() else ():
        pieces, _ = ([], []) if is_noise(path.name) else pieces_of(path)
        names |= {f"{stem(piece.file).lower()}.py" for piece in pieces}
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
    done: dict[int, Graded] = {}  # by place: two students may have one name
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {
            pool.submit(_graded, rubric, one, seed): place
            for place, one in enumerate(all_handed_in)
        }
        try:
            for future in as_completed(waiting):
                graded = future.result()
                done[waiting[future]] = graded
                told(graded)
        except BaseException:  # interrupted: what has not begun is not begun any more
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [done[place] for place in range(len(all_handed_in))]


def _graded(rubric: Rubric, one: HandedIn, seed: int) -> Graded:
    if one.file is None:
        return Graded(one.student, no_submission(rubric, one.why))
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
            return Graded(one.student, no_submission(rubric, printable(why)), printable(why))


def _read(data: dict[str, Any]) -> Grade:
    rows = tuple(Row(**row) for row in data["rows"])
    return Grade(data["submission"], rows, data["pass_points"], tuple(data["isolation"]))


def no_submission(rubric: Rubric, why: str) -> Grade:
    """A grade without points, for what cannot be tried."""
    row = Row("file", "can be loaded", 0.0, rubric.most_points, why)
    return Grade("", (row,), rubric.pass_points)
