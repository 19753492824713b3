"""A training run as data alone: its options, what it did, the two together.

The loop of `../training.py` fills a `RunRecord` step by step; the display, the summary and the file
of `--json` read it. Read next: `../training.py`, `../live.py`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from ooctrain.cli.step_options import Extent, Workload
from ooctrain.cli.workload import Task
from ooctrain.data import DataIdentity
from ooctrain.devices.cpu.process_memory import MemoryWatch
from ooctrain.execution.settings import Options
from ooctrain.sched.timeline import Timeline
from ooctrain.train import Trainer

#: The first step brings memory and caches into their state; it is not counted as a step time.
WARMUP_STEPS = 1
KEPT_TIMELINES = 10


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the user typed: what is trained, how, and how far."""

    workload: Workload
    how: Options
    extent: Extent


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """What an epoch came to.

    Args:
        number: number of the epoch, from 1.
        loss: mean of its steps.
        accuracy, test_loss: on the test part; None where there is none.
    """

    number: int
    loss: float
    accuracy: float | None
    test_loss: float | None = None


@dataclass(slots=True)
class RunRecord:
    """What a run did.

    Args:
        losses: losses of all steps, those before a resume included.
        step_us: wall-clock times of this process's steps.
        plan_us: time of tracing and planning before them; next to nothing where shapes stay.
        timeline: timeline of the last step, measured.
        timelines: timelines of the last steps after warm-up.
        epochs: those that ended in this process.
        test_loss, test_accuracy: on the test part, the last time; None where there is none.
        tested_at: steps done then.
        tested_on: what the accuracy is a share of.
        saved: checkpoints written.
        ranks: the numbers of ranks that did steps before a resume.
        verify_steps: as `Looking` has it.
        values_then: {name: digest} of all values after that number of steps.
        identical_to_incore: None where it was not requested.
        incore_step_us: wall-clock times of the in-core run's steps.
        incore_timelines: timelines of its last steps.
        seen: {"train", "test": what the images are known by}, for a run with a checkpoint.
        other_images: whether some steps before a resume were done on other images.
        lengths: the epochs over which the learning rates went before a resume, then now.
        rates: the learning rates typed before a resume, then now.
        watch: record of what the process holds; None where no memory was promised.
    """

    losses: list[float] = field(default_factory=list)
    step_us: list[float] = field(default_factory=list)
    plan_us: list[float] = field(default_factory=list)
    timeline: Timeline | None = None
    timelines: deque[Timeline] = field(default_factory=lambda: deque(maxlen=KEPT_TIMELINES))
    epochs: list[EpochEnd] = field(default_factory=list)
    test_loss: float | None = None
    test_accuracy: float | None = None
    tested_at: int | None = None
    tested_on: str = "the test images"
    saved: int = 0
    ranks: list[int] = field(default_factory=list)
    verify_steps: int | None = None
    values_then: dict[str, str] = field(default_factory=dict)
    identical_to_incore: bool | None = None
    incore_step_us: list[float] = field(default_factory=list)
    incore_timelines: deque[Timeline] = field(default_factory=deque)
    seen: dict[str, DataIdentity] = field(default_factory=dict)
    other_images: bool = False
    lengths: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    watch: MemoryWatch | None = None


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A training that goes on: its options, its trainer, what it did."""

    options: RunOptions
    task: Task
    trainer: Trainer
    record: RunRecord = field(default_factory=RunRecord)


def typical_us(step_us: list[float]) -> float | None:
    """The median without the warm-up, if anything is left."""
    counted = step_us[WARMUP_STEPS:] or step_us
    return median(counted) if counted else None
