"""`ooctrain grade ASSIGNMENT FOLDER --jobs 4`: the grades of a class.

A line is printed for each submission as it is graded, then what the class says of each item; CSV
files hold all points, the items and the leaderboard. Read next: `ooctrain/course/classroom.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ooctrain.cli import DONE, FAILED
from ooctrain.cli.terminal import make_console
from ooctrain.course.classroom import (
    Graded,
    grade_class,
    item_statistics,
    leaderboard,
    note_of,
    write_class,
)
from ooctrain.course.handed_in import handed_in
from ooctrain.course.rubric import read_rubric
from ooctrain.errors import OoctrainError, printable
from ooctrain.report.numbers_file import write_numbers
from ooctrain.report.text import plain_table

JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class ClassOptions:
    """How a class is graded, as typed.

    Args:
        seed: seed of the laws' random cases.
        json_path: path of `--json`.
        jobs: submissions at a time.
        out: folder of the CSV files.
    """

    seed: int
    json_path: str | None
    jobs: int
    out: str


def grade_all(assignment: Path, students: Path, options: ClassOptions) -> int:
    """Grades a folder of submissions; the status says whether each one has a grade."""
    out, seed = options.out, options.seed
    rubric, console = read_rubric(assignment), make_console()
    with tempfile.TemporaryDirectory(prefix="ooctrain-handed-in-") as unpacked:
        found = handed_in(students, rubric, Path(unpacked))
        console.print(f"{assignment.name}: {len(found)} submissions, {options.jobs} at a time")

        def show(graded: Graded) -> None:
            grade = graded.grade
            verdict = "passed" if grade.passed else "not passed"
            if note := note_of(graded):
                verdict = f"{verdict}: {printable(note)}"
            console.print(
                f"{escape(printable(graded.student))}: {grade.points:g} of {grade.most_points:g}, "
                f"{escape(verdict)}",
                soft_wrap=True,
            )

        grades = grade_class(rubric, found, options.jobs, seed, show)
    console.print()
    console.print(item_table(grades))
    best = [f"{printable(graded.student)}" for graded in leaderboard(grades)[:3]]
    console.print(f"leaderboard, by the ratio to par: {escape(', '.join(best)) or 'nobody passed'}")
    try:
        files = write_class(Path(out), grades)
    except OSError as error:
        raise OoctrainError(
            f"{out} cannot be written: {error.strerror}", code="OOC-117", fix="--out FOLDER"
        ) from error
    console.print(f"written: {', '.join(map(str, files))}")
    if options.json_path:
        write_numbers(options.json_path, _as_json(assignment, students, seed, grades))
    return FAILED if any(graded.fault for graded in grades) else DONE


def item_table(grades: Sequence[Graded]) -> Table:
    """A line for each item."""
    table = plain_table("what", "item", "of", "difficulty", "discrimination", left=("what", "item"))
    for item in item_statistics(grades):
        discrimination = "" if item.discrimination is None else f"{item.discrimination:+.2f}"
        table.add_row(
            item.kind,
            Text(item.name),
            f"{item.most_points:.3g}",
            f"{item.difficulty:.2f}",
            discrimination,
        )
    return table


def _as_json(
    assignment: Path, students: Path, seed: int, grades: Sequence[Graded]
) -> dict[str, Any]:  # fmt: skip
    return {
        "version": JSON_VERSION,
        "assignment": assignment.name,
        "folder": str(students),
        "seed": seed,
        "students": [
            {
                "student": graded.student, "points": graded.grade.points,
                "most_points": graded.grade.most_points, "passed": graded.grade.passed,
                "ratio": graded.grade.ratio, "fault": graded.fault,
            }
            for graded in grades
        ],
        "leaderboard": [graded.student for graded in leaderboard(grades)],
        "error": None,
    }  # fmt: skip
