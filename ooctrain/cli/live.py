"""The display of a training run: a picture that is redrawn, or plain lines into a pipe.

It shows how far the run is, how fast it goes and how long it still takes; the loss; the accuracy
after each epoch; the memory at the peak by kind, with the budget; and the streams of the last
step. A step is never held up for a picture: the thread that redraws, four times a second, makes it
from what the last step left. Every line fits the console, from 60 columns on. Read next:
`stepping.py`, which shows single instructions; `report/text.py`, which draws.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ooctrain.cli.run.run_record import WARMUP_STEPS, TrainingRun
from ooctrain.cli.step_options import Extent
from ooctrain.cli.terminal import bar_blocks
from ooctrain.report.holdings import held_at_peak
from ooctrain.report.text import flowing, lanes, memory_bar, spark
from ooctrain.sched.schedule import Plan
from ooctrain.units import format_bytes, format_clock, format_percent, format_us

LABEL_COLUMNS = 10
SPARK_COLUMNS = 40
MOST_COLUMNS = 110
PICTURES_PER_S = 4
#: Of steps in a pipe; --json has every step.
MOST_LINES = 8
#: Steps over which speed is averaged.
COUNTED_STEPS = 20
KIND_COLOURS: Mapping[str, str] = MappingProxyType(
    {"parameters": "blue", "activations": "yellow", "gradients": "magenta", "workspace": "cyan"}
)


class Pace:
    """How fast steps come, with all that lies between them.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._steps = clock, 0
        self._ends: deque[float] = deque(maxlen=COUNTED_STEPS + 1)

    def count(self, step_us: float) -> None:
        """A step has ended, which took so long."""
        now = self._clock()
        if not self._ends:
            self._ends.append(now - step_us / 1e6)
        self._ends.append(now)
        self._steps += 1
        if self._steps == 1 + WARMUP_STEPS < len(self._ends):
            self._ends.popleft()  # the first step compiles and fills caches

    def pause(self) -> None:
        """What lies before the next step is not a part of it."""
        self._ends.clear()

    @property
    def is_warm(self) -> bool:
        """Whether a step has ended from which the time of others can be estimated."""
        return self._steps > WARMUP_STEPS

    def step_s(self) -> float | None:
        """Seconds for a step; None: none has ended."""
        steps = len(self._ends) - 1
        return (self._ends[-1] - self._ends[0]) / steps if steps > 0 else None


class Lines:
    """Prints a line for each epoch and for some steps: the first, the last, and a few between.

    Args:
        console: where to.
        title: before everything.
        steps_per_epoch: steps per epoch of training.
        extent: how far the run goes.
        apart: steps more than the epochs before would have now; fewer are below 0.

    Attributes:
        ends: always False: there is no prompt.
    """

    ends = False

    def __init__(
        self, console: Console, title: str, steps_per_epoch: int, extent: Extent, apart: int = 0
    ):
        self.console, self.title, self.epochs = console, title, extent.epochs
        self.steps_per_epoch, self._apart = steps_per_epoch, apart
        whole = steps_per_epoch * extent.epochs + apart
        self.total_steps = whole if extent.steps is None else min(whole, extent.steps)
        self._pace, self._held = Pace(), _Held()
        self._seen_memory = False

    def on_step(self, run: TrainingRun) -> None:
        """Prints the step, if it is one of those that are shown."""
        done = run.trainer.steps_done
        every = shown_every(self.total_steps, self.steps_per_epoch)
        position = (done - self._apart) % self.steps_per_epoch
        is_shown = position % every == 0 or done == self.total_steps
        if self._seen_memory and not is_shown:
            self.count(run)
        else:
            self.tell(run)

    def tell(self, run: TrainingRun) -> None:
        """Prints the step; after the first one also what its memory is held for."""
        self.count(run)
        self._print(self.step_fields(run))
        if not self._seen_memory:
            self._seen_memory = True
            self._print(self.memory_fields(run))

    def on_epoch(self, run: TrainingRun) -> None:
        """Prints what the epoch came to."""
        self._pace.pause()
        end = run.record.epochs[-1]
        fields = [f"{self.title} epoch {end.number}/{self.epochs}", f"mean loss {end.loss:.4f}"]
        if end.accuracy is not None:
            fields.append(f"accuracy {format_percent(end.accuracy, 1)} of {run.record.tested_on}")
        self._print(fields)

    def count(self, run: TrainingRun) -> None:
        """Takes the time of a step."""
        self._pace.count(run.record.step_us[-1])

    def step_fields(self, run: TrainingRun) -> list[str]:
        """Of the last step."""
        record, done = run.record, run.trainer.steps_done
        fields = [f"{self.title} step {done:{len(str(self.total_steps))}}/{self.total_steps}"]
        if self.epochs > 1:
            epoch = min(self.epochs, 1 + (done - self._apart - 1) // self.steps_per_epoch)
            fields.append(f"epoch {epoch}/{self.epochs}")
        fields += [f"loss {record.losses[-1]:.4f}", format_us(record.step_us[-1])]
        step_s = self._pace.step_s()
        if step_s:
            fields.append(f"{_three_digits(run.options.workload.batch / step_s)} images/s")
        if step_s and self._pace.is_warm:
            left_s = max(0, self.total_steps - done) * step_s
            fields.append(f"ETA {format_clock(left_s)}")
        timeline = record.timeline
        if timeline is not None and timeline.bytes_out:
            out, back = format_bytes(timeline.bytes_out), format_bytes(timeline.bytes_in)
            fields.append(f"out {out}  in {back}")
        return fields

    def memory_fields(self, run: TrainingRun) -> list[str]:
        """What is held at the peak, by kind, with the budget."""
        held, prepared = self._held.by_kind(run), run.trainer.prepared
        assert prepared is not None, "a step was done"
        whole, budget = format_bytes(sum(held.values())), format_bytes(prepared.budget_bytes)
        kinds = [f"{kind} {format_bytes(size)}" for kind, size in held.items() if size]
        return [f"memory at the peak: {whole} of {budget}", *kinds]

    def memory_bar(self, run: TrainingRun, columns: int) -> Text:
        """The same as a bar, which is full where the budget is used up."""
        prepared = run.trainer.prepared
        assert prepared is not None, "a step was done"
        held = self._held.by_kind(run)
        sizes = {KIND_COLOURS[kind]: size for kind, size in held.items()}
        return memory_bar(sizes, prepared.budget_bytes, columns)

    def _print(self, fields: list[str]) -> None:
        self.console.print(flowing(fields, self.console.width))


class _Held:
    """What is held at the peak, worked out once for each plan."""

    def __init__(self) -> None:
        self._known: tuple[Plan, dict[str, int]] | None = None

    def by_kind(self, run: TrainingRun) -> dict[str, int]:
        prepared, timeline = run.trainer.prepared, run.record.timeline
        if prepared is None or timeline is None:
            return {}
        plan = prepared.plan
        if self._known is None or self._known[0] is not plan:
            self._known = plan, held_at_peak(plan.trace, plan.schedule, timeline)
        return self._known[1]


class Redrawn:
    """A picture of the last step.

    Args:
        lines: its words.

    Attributes:
        ends: as of `Lines`.
        live: redraws the picture while it is open, by a thread of its own.
        pictures: how many were drawn.
    """

    ends = False

    def __init__(self, lines: Lines):
        self._lines, self.pictures = lines, 0
        self._run: TrainingRun | None = None
        self.live = Live(
            console=lines.console, refresh_per_second=PICTURES_PER_S, transient=True,
            get_renderable=self._picture,
        )  # fmt: skip

    def on_step(self, run: TrainingRun) -> None:
        """Leaves the step to the thread that redraws."""
        self._lines.count(run)
        self._run = run

    def on_epoch(self, run: TrainingRun) -> None:
        """Prints what the epoch came to, above the picture."""
        self._lines.on_epoch(run)

    def _picture(self) -> RenderableType:
        lines, run = self._lines, self._run
        width = min(lines.console.width, MOST_COLUMNS)
        self.pictures += 1
        if run is None:
            return Text("")
        blocks = bar_blocks(lines.console)
        parts: list[RenderableType] = [
            Text(flowing(lines.step_fields(run), width)),
            _labelled("loss", Text(spark(run.record.losses, SPARK_COLUMNS, blocks), "cyan")),
        ]
        if run.record.timeline is not None:
            room = min(SPARK_COLUMNS, width - LABEL_COLUMNS)
            parts.append(_labelled("budget", lines.memory_bar(run, room)))
            parts.append(Text(flowing(lines.memory_fields(run), width), style="dim"))
            parts.append(lanes(run.record.timeline, width, blocks))
        return Group(*parts)


@contextmanager
def shown(lines: Lines) -> Iterator[Lines | Redrawn]:
    """A picture on a terminal, lines elsewhere."""
    if not lines.console.is_terminal:
        yield lines
        return
    view = Redrawn(lines)
    with view.live:
        yield view


def shown_every(total_steps: int, steps_per_epoch: int) -> int:
    """k, where a pipe shows each k-th step of an epoch: all steps of a short run, else at most
    `MOST_LINES`, but the last step of each epoch in any case.
    """
    if total_steps <= MOST_LINES:
        return 1
    epochs = math.ceil(total_steps / steps_per_epoch)
    lines_an_epoch = max(1, MOST_LINES // epochs)
    return math.ceil(min(steps_per_epoch, total_steps) / lines_an_epoch)


def _three_digits(number: float) -> str:
    return f"{number:.0f}" if number >= 1000 else f"{number:.3g}"


def _labelled(label: str, picture: Text) -> Text:
    return Text(f"{label:{LABEL_COLUMNS}}", style="dim").append_text(picture)
