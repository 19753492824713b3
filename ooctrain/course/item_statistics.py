"""What a class's grades say of the assignment, item by item: difficulty and discrimination.

An item is a law, a test or a measure. Its difficulty is the mean share of its points that the class
has got: 1 is an item that everybody solves. Its discrimination is the correlation of that share
with the points of all other items: an item that those solve who solve the rest has a high one, one
below 0 is to be looked at (those who are good elsewhere fail it, as when a test is wrong). It is
not defined where all have the same share. Source: Crocker and Algina, Introduction to classical and
modern test theory (1986), chapter 14; the rest of the points instead of all, so that an item is not
compared with itself. Read next: `classroom.py`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

from ooctrain.course.classroom import Graded
from ooctrain.course.grade import Row

Item = tuple[str, str]
#: What a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class ItemStatistics:
    """One item over a class.

    Args:
        kind, name: as in a grade.
        most_points: that can be reached.
        difficulty: the mean share of them that was had; 1: everybody has all.
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

    Who does not pass is not on it; how long code took does not matter.
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
                 graded.grade.passed, graded.grade.ratio, _note(graded),
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


def _note(graded: Graded) -> str:
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
