"""The checkpoints of a training run: what is saved of it, and what must be the same to go on.

A run that is stopped and resumed ends with the bits of one that never stopped. So its file holds
where the data and the learning rates stand, and the settings on which the bits depend; memory is
not among them. Read next: `../training.py`; `../../execution/checkpoint.py` for the file itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ooctrain.cli.options import Workload
from ooctrain.cli.run.run_record import RunOptions, TrainingRun
from ooctrain.cli.schedules import depends_on_the_end
from ooctrain.data import DataLoader
from ooctrain.errors import CheckpointError, ConfigError
from ooctrain.execution.checkpoint import RunState, expect_writable, older_than
from ooctrain.optim import LRScheduler
from ooctrain.plugins import parse_spec

LARGEST = sys.float_info.max
DEFAULT_LR = {"sgd": 0.05, "adam": 0.001, "adamw": 0.001, "rmsprop": 0.01}


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


def save_run(run: TrainingRun, loader: DataLoader, schedule: LRScheduler) -> None:
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
        history={"losses": run.record.losses, "ranks": sorted({*run.record.ranks, _ranks_of(run)})},
    )
    run.trainer.save(path, state)
    run.record.saved += 1


def restore_run(
    run: TrainingRun, loader: DataLoader, schedule: LRScheduler, before: RunState
) -> None:
    """Data, learning rates and losses as they were saved. Raises CheckpointError: the file says
    something that cannot be."""
    loader.load_state_dict(before.data)
    path = str(run.options.extent.resume_path)
    _restore(schedule, before.schedule, path)
    run.record.losses += _numbers(before.history.get("losses", []), "losses", path)
    run.record.ranks = _ranks_before(run, before)


def expect_comparable(run: TrainingRun, before: RunState | None) -> None:
    """Raises ConfigError: --verify runs all steps again as they are done now, and some of those
    before were done by another number of ranks, whose bits are others."""
    earlier = [] if before is None else _ranks_before(run, before)
    others = [n for n in earlier if n != _ranks_of(run)]
    if others:
        raise ConfigError(
            f"--verify cannot compare steps that were done by {others[0]} ranks with those of "
            f"{_ranks_of(run)}", numbers="sums of other parts round otherwise",
            fix=f"--ranks {others[0]}, or no --verify",
        )  # fmt: skip


def _ranks_before(run: TrainingRun, before: RunState) -> list[int]:
    """The numbers of ranks that did the steps before; files of old say nothing of them."""
    path = str(run.options.extent.resume_path)
    return [int(n) for n in _numbers(before.history.get("ranks", []), "ranks", path)]


def _ranks_of(run: TrainingRun) -> int:
    return 1 if run.trainer.ranks is None else run.trainer.ranks.count


def _restore(schedule: LRScheduler, state: Mapping[str, Any], path: str) -> None:
    """The schedule and the learning rates in force."""
    groups = schedule.optimizer.param_groups
    rates, first_rates = (_numbers(state.get(k), k, path) for k in ("lr", "base_lrs"))
    whole = isinstance(state.get("last_epoch"), int)
    if not whole or not len(groups) == len(rates) == len(first_rates):
        raise CheckpointError(
            f"the checkpoint's schedule {dict(state)} is not that of this run",
            fix="the --lr-schedule and --epochs that the run began with",
        )
    schedule.load_state_dict(state)
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate


def _numbers(values: Any, what: str, path: str) -> list[float]:
    """The same, if they are finite numbers. Raises CheckpointError: something else was saved."""
    if not isinstance(values, list) or not all(
        isinstance(value, float | int) and abs(value) <= LARGEST for value in values
    ):
        raise CheckpointError(
            f"the {what} of checkpoint {path} are not a list of finite numbers",
            fix=older_than(path),
        )
    return values


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
        # A run that was saved before there were these says nothing of them.
        "split": workload.split or None,
        "crop": workload.crop,
        "pad": workload.pad or None,
        "flip": workload.flip or None,
        "lr_schedule": extent.lr_schedule,
        # The cosine's length; a constant learning rate knows no end.
        "epochs": extent.epochs if depends_on_the_end(extent.lr_schedule) else None,
    }


def learning_rate(workload: Workload) -> float | None:
    """As given, else the usual one of the optimizer; None: a class of the user's knows its own."""
    spec = parse_spec(workload.optimizer)
    usual = None if spec.file else DEFAULT_LR.get(spec.name)
    return workload.lr if workload.lr is not None else spec.options.get("lr", usual)
