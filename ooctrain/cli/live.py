"""The display of a training run: a picture that is redrawn, or plain lines into a pipe.

After each step it shows losses, times, and the streams and the memory of that step, from its
record. Read next: `report/text.py`, which draws.
"""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ooctrain.cli.terminal import bar_blocks
from ooctrain.cli.training import RunRecord
from ooctrain.report.text import lanes, memory_bar, spark
from ooctrain.sched.timeline import Timeline
from ooctrain.train import Trainer
from ooctrain.units import format_bytes, format_us

SPARK_COLUMNS = 40
MOST_COLUMNS = 110


class LiveView:
    """Shows each step; a context manager.

    Args:
        console: where to.
        total_steps: how many there will be.
        title: before everything.
    """

    def __init__(self, console: Console, total_steps: int, title: str):
        self.console, self.total_steps, self.title = console, total_steps, title
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def on_step(self, trainer: Trainer, record: RunRecord) -> None:
        """Shows the step that was just done."""
        if self._live:
            self._live.update(self._picture(trainer, record))
        else:
            self.console.print(self._line(trainer, record))

    def _line(self, trainer: Trainer, record: RunRecord) -> str:
        timeline = record.timeline
        moved = ""
        if timeline is not None and timeline.bytes_out:
            out, back = format_bytes(timeline.bytes_out), format_bytes(timeline.bytes_in)
            moved = f"  out {out}  in {back}"
        peak = format_bytes(timeline.peak_bytes) if timeline else "-"
        return (
            f"{self.title} step {trainer.steps_done:4}/{self.total_steps}  "
            f"loss {record.losses[-1]:.4f}  {format_us(record.step_us[-1])}  peak {peak}{moved}"
        )

    def _picture(self, trainer: Trainer, record: RunRecord) -> RenderableType:
        blocks, timeline = bar_blocks(self.console), record.timeline
        width = min(self.console.width, MOST_COLUMNS)
        parts: list[RenderableType] = [Text(self._line(trainer, record), no_wrap=True)]
        parts.append(_labelled("loss", spark(record.losses, SPARK_COLUMNS, blocks), "cyan"))
        if timeline is not None and trainer.prepared is not None:
            budget = trainer.prepared.budget_bytes
            parts.append(
                Group(Text("budget    ", style="dim", end=""), _budget_bar(trainer, timeline))
            )
            parts.append(Text(f"{'':10}{format_bytes(budget)}", style="dim"))
            parts.append(lanes(timeline, width, blocks))
        return Group(*parts)


def _budget_bar(trainer: Trainer, timeline: Timeline) -> Text:
    """Parameters and states, then the most of all else, against the budget."""
    prepared = trainer.prepared
    assert prepared is not None
    trace = prepared.plan.trace
    lasting = sum(
        trace.variables[v].value_bytes for v in trace.initial if trace.variables[v].persistent
    )
    parts = {"blue": lasting, "yellow": max(0, timeline.peak_bytes - lasting)}
    return memory_bar(parts, prepared.budget_bytes, SPARK_COLUMNS)


def _labelled(label: str, picture: str, colour: str) -> Text:
    return Text(f"{label:10}", style="dim").append(picture, style=colour)


def total_steps(steps_per_epoch: int, epochs: int, most: int | None) -> int:
    """How many steps a run will have done in the end; `most`: at most so many."""
    whole = steps_per_epoch * epochs
    return whole if most is None else min(whole, most)
