"""The run behind `ooctrain train`: steps, checkpoints, the comparison with in-core, and the record.

Whatever ends a run (a loss that is not finite, a full disk, Ctrl-C, `kill`, a terminal that is
closed), it ends between two steps with its last checkpoint whole, and the record says how far it
came. A `TrainingRun` (options, a task, a trainer) returns its `RunRecord`. Read next: `train.py`,
which prints the record; `ooctrain/train.py` for the trainer itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from types import FrameType
from typing import Any

import numpy as np

from ooctrain.cli.limits import all_rewrites
from ooctrain.cli.options import Extent, MemoryOptions, Workload
from ooctrain.cli.schedules import RunLength, depends_on_the_end, find_schedule
from ooctrain.cli.workload import Task, link_rate, make_task, threads_of
from ooctrain.data import DataLoader
from ooctrain.distributed.ranks import Ranks
from ooctrain.errors import CheckpointError, TrainingStopped
from ooctrain.execution.checkpoint import RunState, expect_writable
from ooctrain.optim import LRScheduler, Optimizer
from ooctrain.optim.named import get_optimizer
from ooctrain.plugins import parse_spec
from ooctrain.rewrite import keeps_bits
from ooctrain.sched.planning.planner import TIME_LIMIT_S
from ooctrain.sched.timeline import Timeline
from ooctrain.train import Trainer

#: The first step brings memory and caches into their state; it is not counted as a step time.
WARMUP_STEPS = 1
KEPT_TIMELINES = 10
#: What ends a run between two steps; not every system has all.
STOPPING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
LARGEST = sys.float_info.max
DEFAULT_LR = {"sgd": 0.05, "adam": 0.001, "adamw": 0.001, "rmsprop": 0.01}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the user typed: what is trained, in how much memory, how far."""

    workload: Workload
    memory: MemoryOptions
    extent: Extent


@dataclass(slots=True)
class RunRecord:
    """What a run did.

    Args:
        losses: of all steps, those before a resume included.
        step_us: wall-clock times of this process's steps.
        plan_us: of tracing and planning before them; next to nothing where shapes stay.
        timeline: of the last step, measured.
        timelines: of the last steps that are no warm-up.
        test_loss, test_accuracy: in the end; None where there is no test part.
        saved: checkpoints written.
        identical_to_incore: None where it was not asked for.
        incore_step_us: wall-clock times of the in-core run's steps.
        incore_timelines: of its last steps.
    """

    losses: list[float] = field(default_factory=list)
    step_us: list[float] = field(default_factory=list)
    plan_us: list[float] = field(default_factory=list)
    timeline: Timeline | None = None
    timelines: deque[Timeline] = field(default_factory=lambda: deque(maxlen=KEPT_TIMELINES))
    test_loss: float | None = None
    test_accuracy: float | None = None
    saved: int = 0
    identical_to_incore: bool | None = None
    incore_step_us: list[float] = field(default_factory=list)
    incore_timelines: deque[Timeline] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A training that goes on: what was asked for, what is trained and by whom, what it did."""

    options: RunOptions
    task: Task
    trainer: Trainer
    record: RunRecord = field(default_factory=RunRecord)


OnStep = Callable[[Trainer, RunRecord], None]


def make_trainer(
    task: Task, workload: Workload, memory: MemoryOptions, *, in_core: bool = False,
    ranks: Ranks | None = None,
) -> Trainer:  # fmt: skip
    """The trainer that the options describe; in-core: without its budget, so that everything stays
    in memory, whatever the planner."""
    return Trainer(
        task.model,
        optimizer=make_optimizer(task, workload),
        budget=None if in_core else memory.budget,
        planner=memory.planner,
        allocator=memory.allocator,
        device=workload.device,
        accumulate=workload.accumulate,
        threads=threads_of(workload),
        machine=memory.machine,
        link_bandwidth=link_rate(memory),
        host_budget=memory.host_budget,
        conv_algorithm=workload.conv_algorithm,
        seed=workload.seed,
        allow_tf32=workload.allow_tf32,
        time_limit_s=memory.time_limit or TIME_LIMIT_S,
        rewrites=all_rewrites(memory),
        ranks=ranks,
    )


def make_optimizer(task: Task, workload: Workload) -> Optimizer:
    """The optimizer that is named, with the learning rate of `--lr`, of its text, or its usual
    one."""
    in_text = workload.lr is None and "lr" in parse_spec(workload.optimizer).options
    rate = None if in_text else learning_rate(workload)
    return get_optimizer(workload.optimizer, task.model.parameters(), rate)


def learning_rate(workload: Workload) -> float | None:
    """As given, else the usual one of the optimizer; None: a class of the user's knows its own."""
    spec = parse_spec(workload.optimizer)
    usual = None if spec.file else DEFAULT_LR.get(spec.name)
    return workload.lr if workload.lr is not None else spec.options.get("lr", usual)


def take_up(run: TrainingRun) -> RunState | None:
    """Takes up the checkpoint that the run goes on from; None where it begins anew.

    Raises:
        CheckpointError: missing, broken, or of another model or run; or the run's own cannot be
            written.
    """
    extent, before = run.options.extent, None
    if extent.resume_path is not None:
        before = run.trainer.resume(extent.resume_path, config_of(run.options))
    ranks = run.trainer.ranks
    if extent.checkpoint_path is not None and (ranks is None or ranks.is_first):
        expect_writable(extent.checkpoint_path)
    return before


def run_training(run: TrainingRun, on_step: OnStep, before: RunState | None = None) -> None:
    """Trains as far as the options say, filling the record as it goes.

    Args:
        on_step: called after each step; what it raises ends the run.
        before: where the run was stopped that `take_up` goes on with; None: at its beginning.

    Raises:
        TrainingStopped: by a loss that is no number, or by the user.
        CheckpointError: a checkpoint cannot be written, or what `before` says cannot be.
    """
    trainer, extent = run.trainer, run.options.extent
    loader, ranks = make_loader(run.task, run.options.workload, trainer.ranks), trainer.ranks
    schedule = make_schedule(trainer.optimizer, extent, len(loader))
    if before is not None:
        loader.load_state_dict(before.data)
        _restore(schedule, before.schedule)
        run.record.losses += _numbers(before.history.get("losses", []), "losses")
    with stop_on_signal() as asked:
        stopped = asked if ranks is None else partial(_any_rank, ranks, asked)
        while _more(loader, trainer, extent):
            with closing(trainer.ahead(loader)) as batches:
                for images, labels in batches:
                    _one_step(trainer, images, labels, run.record)
                    schedule.step()
                    try:
                        on_step(trainer, run.record)
                    except OSError:  # nobody reads any more; what was learned is not lost
                        _save(run, loader, schedule)
                        raise
                    ending = stopped()
                    if ending or _is_due(trainer, loader, extent):
                        _save(run, loader, schedule)
                    if ending:
                        raise _interrupted(trainer, extent)
                    if not _more(loader, trainer, extent):
                        break
    _save(run, loader, schedule)


def make_schedule(optimizer: Optimizer, extent: Extent, steps_per_epoch: int) -> LRScheduler:
    """Stepped after each training step."""
    return find_schedule(extent.lr_schedule)(RunLength(optimizer, extent.epochs, steps_per_epoch))


def make_loader(task: Task, workload: Workload, ranks: Ranks | None = None) -> DataLoader:
    """Shuffled batches of one size: another size would be another plan. Of several ranks each reads
    its part of each batch."""
    assert task.train is not None, "training needs data"
    return DataLoader(
        task.train, workload.batch, shuffle=True, drop_last=True, seed=workload.seed,
        share=None if ranks is None else ranks.part_of,
    )  # fmt: skip


def _any_rank(ranks: Ranks, asked: Callable[[], bool]) -> bool:
    """Whether any rank was asked to stop: all stop after the same step."""
    return ranks.any(asked())


def run_test(run: TrainingRun) -> None:
    """Loss and accuracy on the test part, under the same budget."""
    task = run.task
    if task.test is not None:
        result = run.trainer.evaluate(DataLoader(task.test, min(task.batch, len(task.test))))
        run.record.test_loss, run.record.test_accuracy = result.loss, result.accuracy


def tilings_of(trainer: Trainer) -> list[str]:
    """The rewrites of the step that was trained which add in another order than the step itself."""
    assert trainer.plan is not None, "it has been trained"
    return [name for name in trainer.plan.rewrites if not keeps_bits((name,))]


def compare_with_in_core(run: TrainingRun, on_step: OnStep, on_all: bool = False) -> None:
    """Runs the same steps in-core, tiled alike, and compares every loss and every value.

    What several ranks did, one does in as many parts, or all of them do again. A resumed run is
    compared from its first step on, those before it was stopped included: its checkpoint has been
    overwritten by now, and in-core it must not have mattered.

    Args:
        on_all: ranks run again, this one among them.
    """
    asked, record, done = run.options, run.record, run.trainer.steps_done
    until = replace(asked.extent, steps=done, checkpoint_path=None, checkpoint_steps=None)
    ranks = run.trainer.ranks
    parts = asked.workload.accumulate if ranks is None or on_all else ranks.count
    workload = replace(asked.workload, accumulate=parts)
    task = make_task(workload)
    asked_for = asked.memory.rewrites  # and tilings that the planner chose: they add anew
    tilings = [name for name in tilings_of(run.trainer) if name not in asked_for]
    memory = replace(asked.memory, rewrites=[*asked_for, *tilings])
    again_on = ranks if on_all else None
    with make_trainer(task, workload, memory, in_core=True, ranks=again_on) as other:
        again = TrainingRun(replace(asked, extent=until), task, other)
        run_training(again, on_step)
        same_values = _same(run.trainer.state_arrays(), other.state_arrays())
    record.identical_to_incore = same_values and again.record.losses == record.losses
    record.incore_step_us = again.record.step_us
    record.incore_timelines = again.record.timelines


def typical_us(step_us: list[float]) -> float | None:
    """The median without the warm-up, if anything is left."""
    counted = step_us[WARMUP_STEPS:] or step_us
    return median(counted) if counted else None


def config_of(options: RunOptions) -> dict[str, object]:
    """What must be the same for a resumed run to go on with the same bits; memory is not among
    it."""
    workload, extent = options.workload, options.extent
    return {
        "model": workload.model,
        "data": workload.data,
        "batch": workload.batch,
        "image_size": workload.image_size,
        "optimizer": workload.optimizer,
        "lr": learning_rate(workload),
        "accumulate": workload.accumulate,
        "conv_algorithm": workload.conv_algorithm,
        "seed": workload.seed,
        # A run that was saved before there were splits says nothing of them.
        "split": workload.split or None,
        "lr_schedule": extent.lr_schedule,
        # The cosine's length; a constant learning rate knows no end.
        "epochs": extent.epochs if depends_on_the_end(extent.lr_schedule) else None,
    }


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C, SIGTERM or SIGHUP only asks to stop after the step; a Ctrl-C after it
    interrupts at once. What `nohup` has the process ignore is ignored.
    """
    asked: list[int] = []
    before: dict[int, Any] = {}

    def ask(number: int, _frame: FrameType | None) -> None:
        if not asked:
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
    if trainer.timeline is not None and len(record.step_us) > WARMUP_STEPS:
        record.timelines.append(trainer.timeline)


def _more(loader: DataLoader, trainer: Trainer, extent: Extent) -> bool:
    if extent.steps is not None and trainer.steps_done >= extent.steps:
        return False
    return loader.state_dict()["epoch"] < extent.epochs


def _is_due(trainer: Trainer, loader: DataLoader, extent: Extent) -> bool:
    if extent.checkpoint_path is None:
        return False
    every = extent.checkpoint_steps
    return loader.state_dict()["position"] == 0 or bool(every and trainer.steps_done % every == 0)


def _save(run: TrainingRun, loader: DataLoader, schedule: LRScheduler) -> None:
    """Writes the checkpoint, if there is to be one."""
    path, position = run.options.extent.checkpoint_path, loader.state_dict()
    if path is None:
        return
    state = RunState(
        step=run.trainer.steps_done,
        epoch=position["epoch"],
        seed=run.options.workload.seed,
        data=position,
        schedule={**schedule.state_dict(), "lr": schedule.get_last_lr()},
        config=config_of(run.options),
        history={"losses": run.record.losses},
    )
    run.trainer.save(path, state)
    run.record.saved += 1


def _restore(schedule: LRScheduler, state: Mapping[str, Any]) -> None:
    """The schedule and the learning rates in force, as they were saved. Raises CheckpointError: the
    file says something else."""
    groups = schedule.optimizer.param_groups
    rates, first_rates = (_numbers(state.get(k), k) for k in ("lr", "base_lrs"))
    whole = isinstance(state.get("last_epoch"), int)
    if not whole or not len(groups) == len(rates) == len(first_rates):
        raise CheckpointError(
            f"the checkpoint's schedule {dict(state)} is not that of this run",
            fix="the --lr-schedule and --epochs that the run began with",
        )
    schedule.load_state_dict(state)
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate


def _numbers(values: Any, what: str) -> list[float]:
    """The same, if they are finite numbers. Raises CheckpointError: something else was saved."""
    if not isinstance(values, list) or not all(
        isinstance(value, float | int) and abs(value) <= LARGEST for value in values
    ):
        raise CheckpointError(
            f"the checkpoint's {what} are no list of finite numbers",
            fix="another checkpoint of the run; the newest whole one before this is kept beside it",
        )
    return values


def _interrupted(trainer: Trainer, extent: Extent) -> TrainingStopped:
    path = extent.checkpoint_path
    return TrainingStopped(
        f"interrupted after step {trainer.steps_done}",
        step=trainer.steps_done,
        fix=f"go on with --resume {path}" if path else "--checkpoint FILE keeps what was learned",
    )


def _same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        value.tobytes() == other[name].tobytes() for name, value in one.items()
    )
