"""What the experiments of `ooctrain reproduce` are given and give back.

An experiment is a function of what was requested. It prints tables on a console, writes a figure,
and returns a mapping for the JSON file. The function stands with the tables and pictures that it
shows (`paper_000/table1.py`), and its computation is in a file next to that
(`paper_000/table1.py`). What agrees with the paper and what differs is not printed: docs/papers.md
says it once. Read next: `cli/reproduce_command.py`, the table of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.text import Text

from ooctrain.report.numbers_file import write_file


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was requested.

    Args:
        quick: few batches, allocators and chunks.
        physical_bytes: memory of the device.
        allocators: by name; None: those of the experiment.
        figure_path: path of the SVG.
        settings: settings of the experiment, such as "epochs=350".
        keep: folder of what is found, so that an interrupted experiment goes on; None: nothing is
            kept.
    """

    quick: bool
    physical_bytes: int
    allocators: tuple[str, ...] | None
    figure_path: str
    settings: tuple[str, ...] = ()
    keep: Path | None = None


class Experiment(Protocol):
    """An experiment: prints what it finds and returns it for the JSON file."""

    def __call__(self, wanted: Wanted, console: Console) -> Mapping[str, Any]:
        """Runs it."""


def write_figure(wanted: Wanted, console: Console, svg: str) -> None:
    """Writes the figure where it was requested, and says so."""
    write_file(wanted.figure_path, svg)
    console.print(f"\nwrote {wanted.figure_path}")


def print_title(console: Console, title: str, about: str = "") -> None:
    """A line of its own above a table; `about` goes on in it less loudly."""
    console.print(Text.assemble((title, "bold"), about))
