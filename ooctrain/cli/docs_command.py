"""`ooctrain docs`: the pages of the documentation that this installation carries.

    ooctrain docs                  lists them
    ooctrain docs memory           shows one
    ooctrain docs --copy FOLDER    copies them all, with their pictures, and the lessons they name

In a terminal a page is set for reading; in a pipe it is its Markdown. Read next:
`../course/pages.py`.
"""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from ooctrain.cli.terminal import make_console
from ooctrain.cli.values import UserPath
from ooctrain.course.lessons import copy_lessons
from ooctrain.course.pages import page, pages
from ooctrain.report.text import plain_table


@click.command()
@click.argument("name", metavar="PAGE", required=False)
@click.option("--copy", "folder", type=UserPath(), metavar="FOLDER",
              help="Copy all pages into FOLDER/docs, and tutorials into FOLDER.")  # fmt: skip
def docs(name: str | None, folder: str | None) -> None:
    """Show PAGE of the documentation; without it, list all pages."""
    console = make_console()
    if folder is not None:
        copied = copy_lessons(Path(folder))
        click.echo(f"copied {len(copied)} files; begin with {Path(folder) / 'docs' / 'index.md'}")
    if name is not None:
        text = page(name)
        if console.is_terminal:
            # Not at the top: a list of names needs no Markdown.
            from rich.markdown import Markdown

            console.print(Markdown(text))
        else:
            click.echo(text, nl=False)
    elif folder is None:
        table = plain_table("page", "title", left=("page", "title"))
        table.columns[0].no_wrap = True  # it is typed or copied
        for known, title in pages().items():
            table.add_row(Text(known), Text(title))
        console.print(table)
