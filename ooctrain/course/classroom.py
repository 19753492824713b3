"""A class: every submission of a folder is graded, several at a time.

What was handed in (`handed_in.py`) is graded by a process of its own for each student, which is the
command for one submission; so whatever a submission does (crash, hang, print, write files), and
even if the grader itself ends, the others have their grades. Results are in the order of the names,
not in that of the finish. Read next: `grade.py`.
"""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from ooctrain.course.assignments import ASSIGNMENTS, home
from ooctrain.course.cage.wire import printable
from ooctrain.course.grade import Grade, Row
from ooctrain.course.handed_in import HandedIn, is_noise, pieces_of, stem
from ooctrain.course.rubric import Rubric, read_rubric


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
    for path in folder.iterdir():
        pieces, _ = ([], []) if is_noise(path.name) else pieces_of(path)
        names |= {f"{stem(piece.file).lower()}.py" for piece in pieces}
    fitting = [
        place
        for place in (home() / name for name in ASSIGNMENTS)
        if read_rubric(place).submission.partition(":")[0] in names
    ]
    return fitting.pop() if len(fitting) == 1 else None


def grade_class(
    rubric: Rubric, all_handed_in: Sequence[HandedIn], jobs: int, seed: int,
    on_graded: Callable[[Graded], None] = lambda graded: None,
) -> list[Graded]:  # fmt: skip
    """Grades all, `jobs` at a time.

    Args:
        on_graded: is called with each one as it is graded.
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
                on_graded(graded)
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


# What a class's grades say of the assignment, item by item: difficulty and discrimination. An item
# is a law, a test or a measure. Its difficulty is the mean share of its points over the class: 1 is
# an item that all solve. Its discrimination is the correlation of that share with the points
# of all other items: high where those solve it who solve the rest; below 0, look at the item (a
# test may be wrong). It is not defined where all have the same share. Source: Crocker and Algina,
# Introduction to classical and modern test theory (1986), chapter 14.

Item = tuple[str, str]
#: What a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class ItemStatistics:
    """One item over a class.

    Args:
        kind, name: as in a grade.
        most_points: that can be reached.
        difficulty: the mean share of them that was reached; 1: all have all.
        discrimination: None where it is not defined.
    """

    kind: str
    name: str
    most_points: float
    difficulty: float
    discrimination: float | None


def item_statistics(grades: Sequence[Graded]) -> list[ItemStatistics]:
    """Of all items; a submission that cannot be loaded has none of their points."""
    shares = [_shares(graded) for graded in grades]
    totals = [graded.grade.points for graded in grades]
    found = []
    for (kind, name), most in _items(grades).items():
        own = [row.get((kind, name), 0.0) for row in shares]
        rest = [total - share * most for total, share in zip(totals, own, strict=True)]
        found.append(ItemStatistics(kind, name, most, fmean(own), correlation(own, rest)))
    return found


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's; None where one of both does not vary."""
    spread = pstdev(first) * pstdev(second)
    if spread < 1e-9:
        return None
    one, two = fmean(first), fmean(second)
    pairs = zip(first, second, strict=True)
    return max(-1.0, min(1.0, fmean((a - one) * (b - two) for a, b in pairs) / spread))


def leaderboard(grades: Sequence[Graded]) -> list[Graded]:
    """The best first, by what their data is worth: the ratio to par, then the points.

    A submission that does not pass is not on it; how long code took does not matter.
    """
    passed = [graded for graded in grades if graded.grade.passed]
    return sorted(passed, key=lambda graded: (_ratio(graded), -graded.grade.points, graded.student))


def write_class(folder: Path, grades: Sequence[Graded]) -> list[Path]:
    """Writes grades.csv, items.csv and leaderboard.csv into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    items = _items(grades)
    had = [{(r.kind, r.name): r.points for r in graded.grade.rows} for graded in grades]
    tables: dict[str, list[Sequence[object]]] = {
        "grades.csv": [
            ("student", "points", "most_points", "passed", "ratio", "note",
             *(f"{kind}: {name}" for kind, name in items)),
            *(
                (graded.student, graded.grade.points, graded.grade.most_points,
                 graded.grade.passed, graded.grade.ratio, note_of(graded),
                 *(round(own.get(item, 0.0), 2) for item in items))
                for graded, own in zip(grades, had, strict=True)
            ),
        ],
        "items.csv": [
            ("kind", "item", "most_points", "difficulty", "discrimination"),
            *(
                (item.kind, item.name, round(item.most_points, 2), round(item.difficulty, 3),
                 None if item.discrimination is None else round(item.discrimination, 3))
                for item in item_statistics(grades)
            ),
        ],
        "leaderboard.csv": [
            ("rank", "student", "ratio", "points"),
            *(
                (rank, graded.student, graded.grade.ratio, graded.grade.points)
                for rank, graded in enumerate(leaderboard(grades), 1)
            ),
        ],
    }  # fmt: skip
    for name, rows in tables.items():
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([_cell(cell) for cell in row] for row in rows)
    return [folder / name for name in tables]


def _items(grades: Sequence[Graded]) -> dict[Item, float]:
    """{(kind, name): possible points}, in the order of a rubric."""
    rows: Iterable[Row] = (row for graded in grades for row in graded.grade.rows)
    return {(row.kind, row.name): row.most_points for row in rows if row.kind != "file"}


def _shares(graded: Graded) -> dict[Item, float]:
    rows = (row for row in graded.grade.rows if row.most_points > 0)
    return {(row.kind, row.name): row.points / row.most_points for row in rows}


def _ratio(graded: Graded) -> float:
    return math.inf if graded.grade.ratio is None else graded.grade.ratio


def note_of(graded: Graded) -> str:
    """Why a student has no grade, or does not pass, or has nothing to grade; "" for no reason."""
    if graded.fault:
        return f"no grade: {graded.fault}"
    if graded.grade.unsafe:
        return f"does not pass without {graded.grade.unsafe}"
    return next((row.reason for row in graded.grade.rows if row.kind == "file"), "")


def _cell(value: object) -> object:
    """A value that a spreadsheet takes for text, if it is one."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else round(value, 4) if isinstance(value, float) else value
