"""What the experiments of `ooctrain reproduce` are given and give back.

In: what was asked for. Out: words and tables on a console, a figure, and a mapping for the JSON
file. The one idea: an experiment is a function of what is wanted; what it computes lies in
`experiments/`, how that looks in `report/`, so that here only the order of the two is left. Read
next: `cli/reproduce.py`, the table of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.text import Text

from ooctrain.experiments.verdicts.sentences import Verdict
from ooctrain.report.numbers_file import write_file


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for.

    Args:
        quick: few batches, allocators and chunks.
        physical_bytes: memory of the device.
        allocators: by name; None: those of the experiment.
        figure_path: of the SVG.
    """

    quick: bool
    physical_bytes: int
    allocators: tuple[str, ...] | None
    figure_path: str


class Experiment(Protocol):
    """An experiment: prints what it finds and returns it for the JSON file."""

    def __call__(self, wanted: Wanted, console: Console) -> Mapping[str, Any]:
        """Runs it."""


def finish(wanted: Wanted, console: Console, figure: str, found: Verdict) -> None:
    """Writes the figure and says what agrees with the paper, and what does not."""
    write_file(wanted.figure_path, figure)
    if found.agrees:
        say(console, "What agrees with the paper", found.agrees)
    say(console, "What differs from the paper, and why", found.differs)
    console.print(f"\nwrote {wanted.figure_path}")


def print_title(console: Console, title: str, about: str = "") -> None:
    """A line of its own above a table or a list; `about` goes on in it less loudly."""
    console.print(Text.assemble((title, "bold"), about))


def say(console: Console, title: str, texts: Sequence[str]) -> None:
    """A title and a list of sentences."""
    print_title(console, f"\n{title}")
    for text in texts:
        console.print(f"- {text}")
