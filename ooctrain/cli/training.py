"""The run behind `ooctrain train`: steps, checkpoints, the comparison with in-core, and the record.

Whatever ends a run (a loss that is not finite, a full disk, Ctrl-C, `kill`, a terminal that is
closed), it ends between two steps with its last checkpoint whole, and the record says how far it
came. A `TrainingRun` (options, a task, a trainer) returns its `RunRecord`. Read next:
`train_command.py`, which prints the record; `ooctrain/train.py` for the trainer itself.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, Protocol

import numpy as np

from ooctrain.cli.run.run_files import (
    epochs_of_rates,
    learning_rate,
    restore_run,
    save_run,
    steps_apart,
)
from ooctrain.cli.run.run_record import WARMUP_STEPS, EpochEnd, RunRecord, TrainingRun
from ooctrain.cli.schedules import RunLength, find_schedule
from ooctrain.cli.step_options import Extent, Workload
from ooctrain.cli.workload import Task, make_task
from ooctrain.data import DataLoader
from ooctrain.distributed.ranks import Ranks
from ooctrain.errors import TrainingStopped
from ooctrain.execution.checkpoint import RunState
from ooctrain.execution.settings import Options
from ooctrain.optim import Optimizer
from ooctrain.optim.algorithms import get_optimizer
from ooctrain.plugins import parse_spec
from ooctrain.rewrite import keeps_bits
from ooctrain.train import Trainer

#: What ends a run between two steps; not every system has all.
STOPPING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Display(Protocol):
    """Shows a run while it goes on; what it raises ends the run."""

    @property
    def ends(self) -> bool:
        """Whether the user has asked it for no further step."""

    def on_step(self, run: TrainingRun) -> None:
        """After each step."""

    def on_epoch(self, run: TrainingRun) -> None:
        """After the last step of each epoch, once the test images were tried."""


def make_trainer(
    task: Task, workload: Workload, how: Options, *, in_core: bool = False,
    ranks: Ranks | None = None,
) -> Trainer:  # fmt: skip
    """The trainer that the options describe; in-core: without its budget or memory, so that
    everything stays in memory, whatever the planner."""
    if in_core:
        how = replace(how, budget=None, memory=None, spill=None)
    optimizer = make_optimizer(task, workload)
    return Trainer(task.model, optimizer=optimizer, ranks=ranks, options=how)


def make_optimizer(task: Task, workload: Workload) -> Optimizer:
    """The optimizer that is named, with the learning rate of `--lr`, of its text, or its usual
    one."""
    in_text = workload.lr is None and "lr" in parse_spec(workload.optimizer).options
    rate = None if in_text else learning_rate(workload)
    return get_optimizer(workload.optimizer, task.model.parameters(), rate)


def run_training(run: TrainingRun, display: Display, before: RunState | None = None) -> None:
    """Trains as far as the options say, filling the record as it goes.

    Args:
        before: where the run was stopped that `take_up` goes on with; None: at its beginning.

    Raises:
        TrainingStopped: by a loss that is not a number, or by the user.
        CheckpointError: a checkpoint cannot be written, or what `before` says cannot be.
    """
    trainer, extent = run.trainer, run.options.extent
    loader, ranks = make_loader(run, trainer.ranks), trainer.ranks
    run.record.lengths.append(epochs_of_rates(run, before, len(loader)))
    over, apart = run.record.lengths[-1], steps_apart(run, before, len(loader))
    length = RunLength(trainer.optimizer, over, len(loader), apart)
    schedule = find_schedule(extent.lr_schedule)(length)
    if before is not None:
        restore_run(run, loader, schedule, before)
    if not steps_left(loader, trainer, extent) and extent.checkpoint_path == extent.resume_path:
        return  # the file is as it would be
    with stop_on_signal(says_so=ranks is None or ranks.is_first) as asked:
        stopped = asked if ranks is None else partial(_any_rank, ranks, asked)
        while steps_left(loader, trainer, extent) and not display.ends:
            with closing(trainer.ahead(loader)) as batches:
                for images, labels in batches:
                    _one_step(trainer, images, labels, run.record)
                    del images, labels  # a test has no memory for them
                    schedule.step()
                    try:
                        display.on_step(run)
                    except OSError:  # no reader is left; what was learned is not lost
                        save_run(run, loader, schedule)
                        raise
                    ending = stopped()
                    if ending or _is_due(trainer, loader, extent):
                        save_run(run, loader, schedule)
                    if ending:
                        raise _interrupted(trainer, extent)
                    if not steps_left(loader, trainer, extent) or display.ends:
                        break
            if loader.state_dict()["position"] == 0:
                _end_epoch(run, loader)
                display.on_epoch(run)
    save_run(run, loader, schedule)


def make_loader(run: TrainingRun, ranks: Ranks | None = None) -> DataLoader:
    """Shuffled batches of one size: another size would be another plan. Of several ranks each reads
    its part of each batch."""
    task, asked = run.task, run.options
    assert task.train is not None, "training needs data"
    return DataLoader(
        task.train, asked.workload.batch, shuffle=True, drop_last=True, seed=asked.how.seed,
        share=None if ranks is None else ranks.part_of, transform=task.augmentation.training,
    )  # fmt: skip


def _any_rank(ranks: Ranks, asked: Callable[[], bool]) -> bool:
    """Whether any rank was asked to stop: all stop after the same step."""
    return ranks.any(asked())


def run_test(run: TrainingRun) -> None:
    """Loss and accuracy on the test part, under the same budget; nothing where it was just tried,
    or where there is none."""
    task, record, trainer = run.task, run.record, run.trainer
    if task.test is None or record.tested_at == trainer.steps_done:
        return
    parts = run.options.how.accumulate
    if trainer.ranks is not None:
        parts *= trainer.ranks.count
    # What does not fit as a whole is tested in parts: a network that trains in parts or in patches
    # is tested whole, and what one image needs need not be what a batch needs.
    batch = min(task.batch // parts, len(task.test))
    loader = DataLoader(task.test, batch, transform=task.augmentation.testing)
    result = trainer.evaluate(loader)
    record.test_loss, record.test_accuracy = result.loss, result.accuracy
    record.tested_at, record.tested_on = trainer.steps_done, task.tested_on


def tilings_of(trainer: Trainer) -> list[str]:
    """The rewrites of the step that was trained which add in another order than the step itself."""
    assert trainer.plan is not None, "it has been trained"
    return [name for name in trainer.plan.rewrites if not keeps_bits((name,))]


def compare_with_in_core(run: TrainingRun, display: Display, on_all: bool = False) -> None:
    """Runs the same steps in-core, tiled alike, and compares every loss and every value. With
    `verify_steps` only the first ones; the values are those after them.

    What several ranks did, one does in as many parts, or all of them do again. A resumed run is
    compared from its first step on, those before it was stopped included: its checkpoint has been
    overwritten by now, and in-core it must not have mattered.

    Args:
        on_all: ranks run again, this one among them.
    """
    asked, record, done = run.options, run.record, run.trainer.steps_done
    # As many epochs as the learning rates went over, or as were done before the options requested
    # fewer.
    steps_per_epoch = len(make_loader(run))
    epochs = max(record.lengths[-1], -(-done // steps_per_epoch))
    compared = min(done, record.verify_steps or done)
    until = replace(
        asked.extent, epochs=epochs, steps=compared, checkpoint_path=None, checkpoint_steps=None
    )
    ranks = run.trainer.ranks
    parts = asked.how.accumulate if ranks is None or on_all else ranks.count
    task = replace(make_task(asked.workload, asked.how.seed), test=None)
    asked_for = asked.how.rewrites  # and tilings that the planner chose: they add anew
    tilings = [name for name in tilings_of(run.trainer) if name not in asked_for]
    how = replace(asked.how, accumulate=parts, rewrites=(*asked_for, *tilings))
    again_on = ranks if on_all else None
    with make_trainer(task, asked.workload, how, in_core=True, ranks=again_on) as other:
        again = TrainingRun(replace(asked, extent=until), task, other)
        run_training(again, display)
        values = digests(run.trainer) if compared == done else record.values_then
        same_values = values == digests(other)
    record.identical_to_incore = same_values and again.record.losses == record.losses[:compared]
    record.incore_step_us = again.record.step_us
    record.incore_timelines = again.record.timelines


@contextmanager
def stop_on_signal(*, says_so: bool = True) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C, SIGTERM or SIGHUP only asks to stop after the step; a Ctrl-C after it
    interrupts at once. What `nohup` has the process ignore is ignored.

    Args:
        says_so: whether this process prints it; one of several ranks does.
    """
    asked: list[int] = []
    before: dict[int, Any] = {}

    def ask(number: int, _frame: FrameType | None) -> None:
        if says_so and not asked:
            # A handler may interrupt a print, so it must not print itself.
            with suppress(OSError):  # the terminal is gone, perhaps
                os.write(2, b"ooctrain: stopping after this step; Ctrl-C stops at once\n")
        asked.append(number)
        signal.signal(signal.SIGINT, before[signal.SIGINT])

    for number in STOPPING:
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, ask) or signal.SIG_DFL
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _one_step(trainer: Trainer, images: np.ndarray, labels: np.ndarray, record: RunRecord) -> None:
    started = time.perf_counter()
    trainer.prepare(images.shape)
    planned = time.perf_counter()
    loss = trainer.step(images, labels)
    record.step_us.append((time.perf_counter() - planned) * 1e6)
    record.plan_us.append((planned - started) * 1e6)
    record.losses.append(loss)
    record.timeline = trainer.timeline
    if trainer.steps_done == record.verify_steps:
        record.values_then = digests(trainer)
    if trainer.timeline is not None and len(record.step_us) > WARMUP_STEPS:
        record.timelines.append(trainer.timeline)


def steps_left(loader: DataLoader, trainer: Trainer, extent: Extent) -> bool:
    """Whether the options ask for a step more."""
    if extent.steps is not None and trainer.steps_done >= extent.steps:
        return False
    return loader.state_dict()["epoch"] < extent.epochs


def _end_epoch(run: TrainingRun, loader: DataLoader) -> None:
    """Tries the test images, and writes the epoch down."""
    run_test(run)
    number, record = loader.state_dict()["epoch"], run.record
    loss = float(np.mean(record.losses[-len(loader) :]))
    record.epochs.append(EpochEnd(number, loss, record.test_accuracy, record.test_loss))


def _is_due(trainer: Trainer, loader: DataLoader, extent: Extent) -> bool:
    if extent.checkpoint_path is None:
        return False
    every = extent.checkpoint_steps
    return loader.state_dict()["position"] == 0 or bool(every and trainer.steps_done % every == 0)


def _interrupted(trainer: Trainer, extent: Extent) -> TrainingStopped:
    path = extent.checkpoint_path
    return TrainingStopped(
        f"interrupted after step {trainer.steps_done}",
        step=trainer.steps_done,
        fix=f"go on with --resume {path}" if path else "--checkpoint FILE keeps what was learned",
    )


def digests(trainer: Trainer) -> dict[str, str]:
    """{name: digest of all bytes} of parameters, statistics and optimizer states."""
    return {
        name: hashlib.blake2b(np.ascontiguousarray(value).data).hexdigest()
        for name, value in trainer.state_arrays().items()
    }
