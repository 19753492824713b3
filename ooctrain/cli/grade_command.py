"""`ooctrain grade`: the points of a student's file for an assignment, each with its reason.

It takes an assignment and a planner or an allocator as "file.py:Class", and prints a table; status
4 means that the points are not enough to pass. In the place of one file a folder holds a class's.
The file is run in processes of its own, isolated as well as this system allows, which is stated
below the points. Read next: `grade_class.py`, `ooctrain/course/grade.py`, `tutorials/assignments/`.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ooctrain.cli import BELOW, DONE
from ooctrain.cli.grade_class import ClassOptions, grade_all
from ooctrain.cli.options import json_option, options_of
from ooctrain.cli.terminal import make_console
from ooctrain.cli.values import OutputFile, UserPath, WholeNumber
from ooctrain.course.assignments import folder_of
from ooctrain.course.autograders.gradescope import not_graded, results_of
from ooctrain.course.classroom import assignment_of, no_submission
from ooctrain.course.grade import Grade
from ooctrain.course.grade import grade as run_grade
from ooctrain.course.handed_in import file_of
from ooctrain.course.isolation import in_words
from ooctrain.course.rubric import RUBRIC, read_rubric
from ooctrain.errors import ConfigError
from ooctrain.execution.settings import Options
from ooctrain.plugins import refuse_path
from ooctrain.report.numbers_file import write_numbers
from ooctrain.report.text import plain_table

JSON_VERSION = 1


@click.command()
@click.argument("assignment", metavar="ASSIGNMENT", type=click.Path())
@click.argument("submission", metavar="[FILE.py:CLASS | FILE | FOLDER]", required=False)
@options_of(Options, "seed", text="Of the laws' random cases; one of your own makes them unknown.")
@json_option
@click.option(
    "--gradescope", type=OutputFile(), help="Also write the grade as Gradescope's results.json."
)
@click.option(
    "--jobs", type=WholeNumber(1), default=2, show_default=True,
    help="For a class: submissions graded at a time.",
)  # fmt: skip
@click.option(
    "--out", type=UserPath(file_okay=False), default="grades", show_default=True,
    help="For a class: the folder for grades.csv, items.csv and leaderboard.csv.",
)  # fmt: skip
def grade(
    assignment: str, submission: str | None, gradescope: str | None, **rest: Any
) -> int:  # fmt: skip
    """Grade one submission, FILE.py:CLASS, or a FOLDER with those of a whole class.

    A notebook or an archive, as it was handed in, is a submission too.

    ASSIGNMENT is a name, such as lru_planner, or a folder with a grade.toml. Without a submission
    its own stub is graded. `ooctrain grade FOLDER` grades a class, too: the names of the files tell
    which assignment they are for.
    """
    if gradescope is None:
        return _graded(assignment, submission, None, **rest)
    write_numbers(gradescope, not_graded("the grader did not come to its end"))
    try:
        return _graded(assignment, submission, gradescope, **rest)
    except BaseException as error:
        line = next(iter(str(error).splitlines()), "") or type(error).__name__
        write_numbers(gradescope, not_graded(f"the grader failed: {line}"))
        raise


def _graded(
    assignment: str, submission: str | None, gradescope: str | None, **rest: Any
) -> int:  # fmt: skip
    folder = folder_of(assignment)
    students = Path(submission) if submission else folder
    is_folder = students.is_dir() and not (students / RUBRIC).is_file()
    if is_folder and not gradescope:
        of_class = folder if submission else assignment_of(students) or students
        return grade_all(of_class, students, ClassOptions(**rest))
    rubric = read_rubric(folder)
    with tempfile.TemporaryDirectory(prefix="ooctrain-handed-in-") as unpacked:
        submitted, why = submission or str(rubric.folder / rubric.submission), ""
        if submission and (is_folder or students.is_file()):
            file, why = file_of(students, rubric, Path(unpacked) / "one")
            submitted = f"{file}:{rubric.submission.partition(':')[2]}"
        if why:
            found = no_submission(rubric, why)
        else:
            submitted = _whole_path(submitted)
            with make_console(stderr=True).status("trying it, test by test ..."):
                found = run_grade(rubric, submitted, rest["seed"])
    named = submission or str(rubric.folder / rubric.submission)
    return _shown(found, assignment, named, gradescope, rest["seed"], rest["json_path"])


def _shown(
    found: Grade, assignment: str, named: str, gradescope: str | None, seed: int,
    json_path: str | None,
) -> int:  # fmt: skip
    console = make_console()
    console.print(grade_table(found))
    console.print()
    verdict = "passed" if found.passed else f"not passed: {found.pass_points:g} are needed"
    if found.unsafe:
        verdict = f"not passed: nobody passes without {found.unsafe}"
    console.print(f"{found.points:g} of {found.most_points:g} points, {verdict}", markup=False)
    if found.isolation:
        console.print(f"isolation: {in_words(found.isolation)}", style="dim")
    if json_path:
        write_numbers(json_path, _as_json(assignment, named, seed, found))
    if gradescope:
        write_numbers(gradescope, results_of(found))
    return DONE if found.passed else BELOW


def _whole_path(submission: str) -> str:
    """A submission that can be found from any folder.

    Raises:
        ConfigError: there is no such file.
    """
    file, separator, rest = submission.partition(".py:")
    if not separator:
        refuse_path(submission, "submission")
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
        "unsafe": found.unsafe,
        "rows": [asdict(row) for row in found.rows],
        "isolation": list(found.isolation),
        "error": None,
    }
