"""Answers that were found before: a table of rows that a later version finds again, all of them.

A law says what must be true of every answer; it seldom says which one of many true answers is
given. A planner with another rule of thumb still plans legally, an operation with another count of
its work still computes the same. What was found once is therefore written down, and a change of any
number shows up in a table that a reviewer reads, where it is meant or a mistake:

    WRITE_KNOWN=1 pytest tests/unit/test_known_plans.py     # writes them anew; read the diff

Tables lie in `tests/data/known/`, a row for each answer, the first column says whose. Nothing in
them may depend on a machine, on the time, or on a solver of others. Read next:
`../unit/test_known_plans.py`.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "data" / "known"
Row = Sequence[object]
_FLOAT = re.compile(r"\d+\.\d+(e[-+]?\d+)?")


def check_rows(table: str, whose: str, rows: Iterable[Row]) -> None:
    """Asserts that what is found now is what stands in a table.

    Args:
        whose: the first column of the rows, which one test writes or compares.
    """
    found = [[whose, *map(spelled, row)] for row in rows]
    place = FOLDER / f"{table}.csv"
    kept = read(place)
    if os.environ.get("WRITE_KNOWN"):
        lines = sorted([row for row in kept if row[0] != whose] + found, key=lambda row: row[0])
        with place.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
        return
    known = [row for row in kept if row[0] == whose]
    assert found == known, f"{place.name} has another answer: is that meant?"


def read(place: Path) -> list[list[str]]:
    """All rows of a table."""
    if not place.exists():
        return []
    with place.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def whose(table: str) -> set[str]:
    """The first column of a table."""
    return {row[0] for row in read(FOLDER / f"{table}.csv")}


def spelled(value: object) -> str:
    """A number or text in a cell; a float with nine digits, so that the last bits may differ."""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def digest(text: object) -> str:
    """A long text as a short one; floats in it with six digits, as sums of them differ between
    versions of Python."""
    rounded = _FLOAT.sub(lambda found: f"{float(found[0]):.6g}", str(text))
    return hashlib.sha256(rounded.encode()).hexdigest()[:12]
