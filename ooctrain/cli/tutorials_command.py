"""`ooctrain tutorials`: the tutorials, puzzles and assignments of this installation.

    ooctrain tutorials list
    ooctrain tutorials copy my_course

A pip user has no checkout: `copy` brings the scripts out of the package, and each of them runs from
its copy. It replaces no file. Read next: `../course/lessons.py`.
"""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from ooctrain.cli.terminal import make_console
from ooctrain.cli.values import UserPath
from ooctrain.course.lessons import copy_lessons, lessons
from ooctrain.report.text import plain_table


@click.group()
def tutorials() -> None:
    """List the tutorials, puzzles and assignments, or copy them to work in."""


@tutorials.command("list")
def list_command() -> None:
    """List all of them, in the order of the course."""
    table = plain_table("kind", "path", "title", "minutes", left=("kind", "path", "title"))
    table.columns[1].no_wrap = True  # it is typed or copied
    for lesson in lessons():
        minutes = "" if lesson.minutes is None else str(lesson.minutes)
        table.add_row(lesson.kind, Text(lesson.path), Text(lesson.title), minutes)
    make_console().print(table)


@tutorials.command("copy")
@click.argument("folder", type=UserPath())
@click.option("--notebooks", is_flag=True, help="Tutorials and puzzles as notebooks, too.")
def copy_command(folder: str, notebooks: bool) -> None:
    """Copy all files into FOLDER, which is made if it does not exist.

    Other files in FOLDER stay. If a file of one of these names is there already, it is named, and
    nothing is copied.
    """
    copied = copy_lessons(Path(folder), notebooks=notebooks)
    click.echo(f"copied {len(copied)} files into {folder}; other files there stay as they were")
    click.echo(f"the whole idea in six files: python {Path(folder) / 'pocket' / 'train.py'}")
    click.echo(f"the course begins with: python {Path(folder) / '00_tour.py'}")
    if notebooks:
        click.echo(f"as a notebook: jupyter lab {Path(folder) / '00_tour.ipynb'}")
