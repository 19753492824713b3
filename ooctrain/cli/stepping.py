"""`ooctrain train --step`: the run stops before each instruction of the list, and explains it.

Enter goes on to the next instruction, `c` continues without stops, and `q` quits: the step at hand
is finished first, so that a checkpoint is that of whole steps. Answers may come from a pipe; where
it ends, the run goes on without stops. Everything before the instruction is done when its words are
printed, and nothing after it has begun. Read next: `../sched/list_words.py`, for the words.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.text import Text

from ooctrain.cli.live import Lines
from ooctrain.cli.run.run_record import TrainingRun
from ooctrain.report.text import memory_bar
from ooctrain.sched.list_words import ListGuide
from ooctrain.train import Trainer
from ooctrain.units import format_bytes

PROMPT = "enter: next, c: continue, q: quit> "
INDENT = 4
BAR_COLUMNS = 30


class Stepping:
    """Shows instruction after instruction, and asks what to do.

    Args:
        lines: for whole steps and epochs.
        trainer: whose training steps are stopped; its tests are not.

    Attributes:
        ends: whether the user has quit.
    """

    def __init__(self, lines: Lines, trainer: Trainer):
        self.ends = False
        self._lines, self._trainer = lines, trainer
        self._stops = True
        self._guide: ListGuide | None = None
        self._met: set[type] = set()

    def before(self, program: Any, position: int) -> None:
        """Called by the executor before it issues a step of its program."""
        prepared = self._trainer.prepared
        if not self._stops or prepared is None or program.trace is not prepared.plan.trace:
            return
        if self._guide is None or self._guide.trace is not program.trace:
            self._guide = ListGuide(program.trace, program.schedule)
        row = self._guide.rows[program.rows[position]]
        if row.implied:
            return
        self._show(self._guide, row, prepared.budget_bytes)
        self._take(self._ask())

    def on_step(self, run: TrainingRun) -> None:
        """Prints the step."""
        self._lines.tell(run)

    def on_epoch(self, run: TrainingRun) -> None:
        """Prints the epoch."""
        self._lines.on_epoch(run)

    def _show(self, guide: ListGuide, row: Any, budget_bytes: int) -> None:
        console, width = self._lines.console, self._lines.console.width
        place = f"step {self._trainer.steps_done + 1}, {row.index + 1}/{len(guide.schedule)}:"
        console.print(Text(f"{place} ", style="dim").append(guide.line(row), style="bold"))
        kind = type(row.instruction)
        for sentence in guide.words(row, briefly=kind in self._met):
            for part in Text(sentence).wrap(console, max(1, width - INDENT)):
                part.rstrip()
                console.print(Text(" " * INDENT).append_text(part))
        self._met.add(kind)
        bar = memory_bar({"yellow": row.ledger_bytes}, budget_bytes, BAR_COLUMNS)
        words = f" {format_bytes(row.ledger_bytes)} of {format_bytes(budget_bytes)}"
        console.print(Text(" " * INDENT).append_text(bar).append(words, style="dim"))

    def _ask(self) -> str:
        """What was typed; "" at the end of the input, which goes on by itself from then on."""
        console, typed = self._lines.console, sys.stdin is not None and sys.stdin.isatty()
        console.print(PROMPT, end="" if typed else "\n")
        sys.stdout.flush()
        try:
            with _interrupting():
                answer = "" if sys.stdin is None else sys.stdin.readline()
        except KeyboardInterrupt:
            return "q"
        if not answer:
            console.print("the input has ended: going on without stops")
            return "c"
        return answer.strip().lower()

    def _take(self, answer: str) -> None:
        self._stops = answer[:1] not in ("c", "q")
        self.ends = answer[:1] == "q"
        if self.ends:
            self._lines.console.print("finishing this step, then stopping")


@contextmanager
def _interrupting() -> Iterator[None]:
    """Ctrl-C ends the wait for an answer; elsewhere it asks a run to stop after its step."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
