"""`ooctrain course`: what a teacher hands to students, and to the platform that grades them.

    ooctrain course list
    ooctrain course copy lru_planner --out week4
    ooctrain course strip lru_planner
    ooctrain course gradescope lru_planner --seed 20260301
    ooctrain course otter lru_planner
    ooctrain course nbgrader lru_planner

`strip` makes a wheel without the assignment's solution, for students to install; the other three
pack the same grader for the platform that a course uses. An assignment is a name of the list, or a
folder with a grade.toml. Read next: docs/teaching.md; `ooctrain/course/handout.py`,
`ooctrain/course/autograders/gradescope.py`.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ooctrain.cli.terminal import make_console
from ooctrain.cli.values import UserPath, WholeNumber
from ooctrain.course.assignments import ASSIGNMENTS, folder_of
from ooctrain.course.autograders.gradescope import write_zip
from ooctrain.course.autograders.notebook_graders import write_nbgrader, write_otter
from ooctrain.course.handout import write_course_wheel
from ooctrain.course.pages import without_dead_links
from ooctrain.course.rubric import Rubric, read_rubric
from ooctrain.errors import ConfigError
from ooctrain.report.text import plain_table

#: A secret seed is below this.
_SEEDS = 2**31
#: The first graded cell does all the grading, and nbgrader gives a cell 30 seconds.
_PATIENCE = "put c.Execute.timeout = 900 into nbgrader_config.py: by default a cell has 30 seconds"
_assignment = click.argument("assignment", metavar="ASSIGNMENT")


def _seed_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--seed", type=WholeNumber(0), default=None, show_default="drawn, and printed",
        help="Of the hidden cases; keep it to yourself.",
    )(command)  # fmt: skip


def _out_option(what: str) -> Callable[..., Any]:
    return click.option("--out", type=UserPath(), default=None, help=what)


@click.group()
def course() -> None:
    """Make what a course hands out: wheels without solutions, and autograders."""


@course.command("list")
def list_assignments() -> None:
    """List the assignments that come with the library."""
    table = plain_table(
        "assignment", "what is written", "points", left=("assignment", "what is written")
    )
    for name, what in ASSIGNMENTS.items():
        table.add_row(name, what, f"{read_rubric(folder_of(name)).most_points:g}")
    make_console().print(table)


@course.command("copy")
@_assignment
@_out_option("The folder; default: the assignment's name.")
def copy(assignment: str, out: str | None) -> None:
    """Copy an ASSIGNMENT's handout, stub, tests and rubric into a folder."""
    source = read_rubric(folder_of(assignment)).folder
    target = Path(out or source.name)
    if target.exists():
        raise ConfigError(f"{target} already exists", code="OOC-117", fix="--out FOLDER")
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    for path in target.glob("*.md"):
        path.write_text(without_dead_links(path.read_text(encoding="utf-8"), target), "utf-8")
    make_console().print(f"written: {target}")


@course.command("strip")
@_assignment
@_out_option("The folder for the wheel; default: dist.")
def strip(assignment: str, out: str | None) -> None:
    """Make a wheel of the library without the solution of an ASSIGNMENT, for students."""
    rubric = read_rubric(folder_of(assignment))
    console = make_console()
    wheel = write_course_wheel(Path(out or "dist"), rubric)
    console.print(f"written: {wheel}", soft_wrap=True)
    console.print(f"left out: {', '.join(rubric.withheld)}", soft_wrap=True)


@course.command("gradescope")
@_assignment
@_seed_option
@_out_option("The zip; default: ASSIGNMENT-gradescope.zip.")
def gradescope(assignment: str, seed: int | None, out: str | None) -> None:
    """Make the autograder zip that Gradescope takes for an ASSIGNMENT."""
    _packed(assignment, seed, out, "gradescope.zip", write_zip)


@course.command("otter")
@_assignment
@_seed_option
@_out_option("The folder; default: ASSIGNMENT-otter.")
def otter(assignment: str, seed: int | None, out: str | None) -> None:
    """Make test files for Otter-Grader of an ASSIGNMENT."""
    _packed(assignment, seed, out, "otter", write_otter)


@course.command("nbgrader")
@_assignment
@_seed_option
@_out_option("The folder; default: ASSIGNMENT-nbgrader.")
def nbgrader(assignment: str, seed: int | None, out: str | None) -> None:
    """Make a notebook for nbgrader's source folder of an ASSIGNMENT."""
    _packed(assignment, seed, out, "nbgrader", write_nbgrader)
    make_console().print(_PATIENCE, soft_wrap=True)


def _packed(
    assignment: str, seed: int | None, out: str | None, kind: str,
    write: Callable[[Path, Rubric, int], None],
) -> None:  # fmt: skip
    rubric = read_rubric(folder_of(assignment))
    target = Path(out or f"{rubric.folder.resolve().name}-{kind}")
    secret = secrets.randbelow(_SEEDS) if seed is None else seed
    try:
        write(target, rubric, secret)
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be written: {error.strerror}", code="OOC-117", fix="--out elsewhere"
        ) from error
    console = make_console()
    console.print(f"written: {target}", soft_wrap=True)
    console.print(f"the seed of its hidden cases is {secret}")
