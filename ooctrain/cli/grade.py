"""`ooctrain grade`: the points of a student's file for an assignment, each with its reason.

It takes the folder of an assignment and a planner or an allocator as "file.py:Class", and prints a
table; status 4 means that the points are not enough to pass. The file is run in processes of its
own, isolated as well as this system allows, which is stated below the points. Read next:
`ooctrain/course/grade.py`, `tutorials/assignments/`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ooctrain.cli import BELOW, DONE
from ooctrain.cli.options import json_option, seed_option
from ooctrain.cli.terminal import make_console
from ooctrain.course.grade import Grade
from ooctrain.course.grade import grade as run_grade
from ooctrain.course.isolation import in_words
from ooctrain.course.rubric import read_rubric
from ooctrain.errors import ConfigError
from ooctrain.report.numbers_file import write_numbers
from ooctrain.report.tables import plain_table

JSON_VERSION = 1


@click.command()
@click.argument("assignment", metavar="ASSIGNMENT", type=click.Path())
@click.argument("submission", metavar="[FILE.py:CLASS]", required=False)
@seed_option("Of the laws' random cases; one of your own makes them unknown.")
@json_option
def grade(assignment: str, submission: str | None, seed: int, json_path: str | None) -> int:
    """Grade a class for the ASSIGNMENT in a folder; default: the one that is handed out."""
    rubric = read_rubric(Path(assignment))
    named = submission or str(rubric.folder / rubric.submission)
    submitted = _whole_path(named)
    with make_console(stderr=True).status("trying it, test by test ..."):
        found = run_grade(rubric, submitted, seed)
    console = make_console()
    console.print(grade_table(found))
    console.print()
    verdict = "passed" if found.passed else f"not passed: {found.pass_points:g} are needed"
    console.print(f"{found.points:g} of {found.most_points:g} points, {verdict}")
    if found.isolation:
        console.print(f"isolation: {in_words(found.isolation)}", style="dim")
    if json_path:
        write_numbers(json_path, _as_json(assignment, named, seed, found))
    return DONE if found.passed else BELOW


def _whole_path(submission: str) -> str:
    """A submission that can be found from any folder.

    Raises:
        ConfigError: there is no such file.
    """
    file, separator, rest = submission.partition(".py:")
    if not separator:
        return submission
    path = Path(f"{file}.py").resolve()
    if not path.is_file():
        raise ConfigError(
            f"there is no Python file {file + '.py'!r}",
            code="OOC-106",
            fix="ooctrain grade ASSIGNMENT my_file.py:MyPlanner",
        )
    return f"{path}:{rest}"


def grade_table(found: Grade) -> Table:
    """A line for each row; a reason that is long goes on below."""
    table = plain_table("what", "name", "points", "of", left=("what", "name"))
    table.add_column("why", overflow="fold")
    for row in found.rows:
        style = "" if row.points == row.most_points else "red" if not row.points else "yellow"
        table.add_row(
            row.kind, Text(row.name), Text(_short(row.points), style), _short(row.most_points),
            Text(row.reason),
        )  # fmt: skip
    return table


def _short(points: float) -> str:
    """To a tenth."""
    return f"{round(points, 1):g}"


def _as_json(assignment: str, named: str, seed: int, found: Grade) -> dict[str, Any]:
    return {
        "version": JSON_VERSION,
        "assignment": assignment,
        "submission": named,
        "seed": seed,
        "points": found.points,
        "most_points": found.most_points,
        "pass_points": found.pass_points,
        "passed": found.passed,
        "rows": [asdict(row) for row in found.rows],
        "isolation": list(found.isolation),
        "error": None,
    }
