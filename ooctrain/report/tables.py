"""Tables for a terminal, all of one kind: bold titles, no lines, words to the left.

Titles become an empty table of rich, which is filled row by row; there are texts for its cells too.
All tables look alike, so a reader who has learnt to read one can read all. Read next:
`experiments/paper_000/table1_shown.py`, `text.py`.
"""

from __future__ import annotations

from collections.abc import Collection

from rich.table import Table


def plain_table(*titles: str, left: Collection[str] = (), no_wrap: bool = False) -> Table:
    """A table without rows.

    Args:
        left: titles of the columns that hold words; all others are numbers, and end at the right.
        no_wrap: whether a cell stays on one line, however wide it is.
    """
    table = Table(header_style="bold", box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="left" if title in left else "right", no_wrap=no_wrap)
    return table


def or_dash(value: float | None, form: str = "") -> str:
    """A number in a form of `format`; "-" where there is none."""
    return "-" if value is None else format(value, form)
