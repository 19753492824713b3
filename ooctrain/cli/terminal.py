"""The terminal of the commands: wide enough for a table when piped, colours only where wanted.

It is a console of rich, with the characters for bars that the terminal's encoding can show.
Read next: `output_streams.py`, `report/text.py`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment

from ooctrain.errors import printable
from ooctrain.report.text import BLOCKS, PLAIN_BLOCKS, lanes
from ooctrain.sched.timeline import Timeline

PIPED_WIDTH = LANES_WIDTH = 120


class _TextConsole(Console):
    """A console that shows the control characters of others' names, and lets only rich control the
    terminal."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the process


def make_console(*, stderr: bool = False) -> Console:
    """A console on stdout (or stderr); a pipe is given room for the tables.

    `$COLUMNS` says another width. Text is printed as it is: brackets in a file's or a variable's
    name are not markup.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _piped_width()
    return _TextConsole(
        file=stream, width=width, highlight=False, soft_wrap=False, markup=False, emoji=False
    )


def _piped_width() -> int:
    """Columns as `$COLUMNS` says, else enough for a table."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    return max(PIPED_WIDTH, shutil.get_terminal_size().columns)


def bar_blocks(console: Console) -> str:
    """Characters from empty to full that this console can show."""
    return BLOCKS if console.encoding.startswith("utf") else PLAIN_BLOCKS


def lanes_on(console: Console, timeline: Timeline) -> Group:
    """The streams and the memory of a step, as wide as a console, or as can be read."""
    return lanes(timeline, min(console.width, LANES_WIDTH), bar_blocks(console))
