"""The checkpoints of a training run: what is saved of it, and what must be the same to go on.

A run that is stopped and resumed ends with the bits of one that never stopped. So its file holds
where the data and the learning rates stand, and the settings on which the bits depend; memory is
not among them. What may change is reported (`changes`): the images, and over how many epochs the
learning rates go. Read next: `../training.py`; `../../execution/checkpoint.py` for the file itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeGuard

from ooctrain.cli.run.run_record import RunOptions, TrainingRun
from ooctrain.cli.schedules import SCHEDULES, depends_on_the_end
from ooctrain.cli.step_options import Workload
from ooctrain.cli.workload import stem_that_takes
from ooctrain.data import DataLoader, identity_of
from ooctrain.data.data_sets import same_source
from ooctrain.data.folder import ImageFolder
from ooctrain.errors import CheckpointError, ConfigError
from ooctrain.execution import weights
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
        ConfigError: weights of another model, or weights besides a checkpoint.
    """
    extent, before = run.options.extent, None
    if extent.weights_path is not None:
        _begin_with(run, extent.weights_path)
    if extent.checkpoint_path is not None:
        parts = {"train": run.task.train, "test": run.task.test}
        run.record.seen.update({n: identity_of(p) for n, p in parts.items() if p is not None})
    if extent.resume_path is not None:
        before = run.trainer.resume(extent.resume_path, partial(_expected, run))
    ranks = run.trainer.ranks
    for path in filter(None, (extent.checkpoint_path, extent.save_weights_path)):
        if ranks is None or ranks.is_first:
            expect_writable(path)
    return before


def _begin_with(run: TrainingRun, path: str) -> None:
    if run.options.extent.resume_path is not None:
        raise ConfigError(
            "--weights and --resume both say what the run begins with", code="OOC-106",
            fix="--resume alone goes on; --weights alone begins anew",
        )  # fmt: skip
    state = weights.load(path)
    try:
        run.task.model.load_state_dict(state)
    except ConfigError as error:
        error.where = error.where or path
        if stem := stem_that_takes(state, run.options.workload, run.task):
            error.fix = f"--stem {stem}"
        raise


def save_weights(run: TrainingRun) -> None:
    """Writes the file of weights, if there is to be one."""
    path = run.options.extent.save_weights_path
    if path is not None:
        weights.save(run.task.model.state_dict(), path)


def save_run(run: TrainingRun, loader: DataLoader, schedule: LRScheduler) -> None:
    """Writes the checkpoint, if there is to be one."""
    path, position = run.options.extent.checkpoint_path, loader.state_dict()
    if path is None:
        return
    state = RunState(
        step=run.trainer.steps_done,
        epoch=position["epoch"],
        seed=run.options.how.seed,
        data=position,
        schedule={**schedule.state_dict(), "lr": schedule.get_last_lr()},
        # The cosine's length; a constant learning rate knows no end.
        config=_config(run) | {"epochs": run.record.lengths[-1] if _has_length(run) else None},
        history={
            "losses": run.record.losses,
            "ranks": sorted({*run.record.ranks, _ranks_of(run)}),
            "data": _data_of(run),
            "epochs": run.record.lengths if _has_length(run) else [],
            "other_images": run.record.other_images,
            "rates": run.record.rates or _rate_now(run),
        },
    )
    run.trainer.save(path, state)
    run.record.saved += 1


def epochs_of_rates(run: TrainingRun, before: RunState | None, steps_per_epoch: int) -> int:
    """Over how many epochs the learning rates go: those requested; where these have been done
    already, as many as the saved run had, so that its rates stay what they were."""
    asked, saved = run.options.extent.epochs, _saved_epochs(before)
    if before is None or saved is None:
        return asked
    return asked if asked > _position(run, before, steps_per_epoch)["epoch"] else max(asked, saved)


def steps_apart(run: TrainingRun, before: RunState | None, steps_per_epoch: int) -> int:
    """Steps more than the epochs before would have now: 0 but where the number of images has
    changed meanwhile."""
    if before is None:
        return 0
    position = _position(run, before, steps_per_epoch)
    return before.step - position["epoch"] * steps_per_epoch - position["position"]


def _position(run: TrainingRun, before: RunState, steps_per_epoch: int) -> dict[str, int]:
    """Where the data goes on. Of other images an epoch may be shorter, and over by now."""
    found = {"epoch": 0, "position": 0, **before.data}
    if _trained_on_others(run, before) and found["position"] >= steps_per_epoch:
        return {"epoch": found["epoch"] + 1, "position": 0}
    return found


def changes(run: TrainingRun, before: RunState | None, steps_per_epoch: int) -> list[str]:
    """What is no longer as it was when the run was saved, in a line each."""
    if before is None:
        return []
    saved, now = _saved_epochs(before), epochs_of_rates(run, before, steps_per_epoch)
    found = [_change_of_data(run, before)]
    is_over = run.options.extent.epochs <= _position(run, before, steps_per_epoch)["epoch"]
    if saved not in (None, now) and not is_over:
        schedule = run.options.extent.lr_schedule
        how = "is stretched" if _stretches(run) else "goes on from its saved state"
        found.append(f"the schedule {schedule} {how}: it went over {saved} epochs, and now {now}")
    rates, rate = _rates_before(run, before), _rate_now(run)
    if rates and rate and rates[-1:] != rate and not is_over:
        found.append(f"the learning rate was {rates[-1]:g}, and is {rate[0]:g} from here on")
    return [line for line in found if line]


def restore_run(
    run: TrainingRun, loader: DataLoader, schedule: LRScheduler, before: RunState
) -> None:
    """Data, learning rates and losses as they were saved. Raises CheckpointError: the file says
    something that cannot be."""
    path = str(run.options.extent.resume_path)
    run.record.other_images = _trained_on_others(run, before)
    loader.load_state_dict(_position(run, before, len(loader)))
    saved = _saved_epochs(before)
    changed = run.record.other_images or saved != run.record.lengths[-1]
    stretched = saved is not None and changed and _stretches(run)
    rates, now = _rates_before(run, before), _rate_now(run)
    factor = now[0] / rates[-1] if rates and now else 1.0
    _restore(schedule, before.schedule, path, factor, stretched=stretched)
    run.record.rates = rates if rates[-1:] == now else rates + now
    earlier = _lengths_before(run, before)
    run.record.lengths[:0] = earlier[:-1] if earlier[-1:] == run.record.lengths else earlier
    run.record.losses += _numbers(before.history.get("losses", []), "losses", path)
    run.record.ranks = _ranks_before(run, before)


def expect_comparable(run: TrainingRun, before: RunState | None, steps_per_epoch: int) -> None:
    """Raises ConfigError: --verify runs all steps again as they are done now, and some of those
    before were done on other images, with learning rates over another length, or by another number
    of ranks, whose bits are others."""
    if before is None:
        return
    first = run.record.verify_steps
    if first is not None and before.step >= first:
        raise ConfigError(
            f"--verify-steps {first} compares steps that were done before the run goes on",
            numbers=f"{before.step} steps were done", fix="--verify, or more steps",
        )  # fmt: skip
    lengths = {*_lengths_before(run, before)} if _has_length(run) else set()
    lengths |= {epochs_of_rates(run, before, steps_per_epoch)} if lengths else set()
    other_images = _trained_on_others(run, before)
    if other_images or len(lengths) > 1:
        raise ConfigError(
            "--verify cannot compare steps that were done otherwise than they would be now",
            numbers="on other images" if other_images else f"rates over {sorted(lengths)} epochs",
            fix="no --verify",
        )
    rates = {*_rates_before(run, before), *_rate_now(run)}
    if len(rates) > 1:
        raise ConfigError(
            "--verify cannot compare steps that were done with another learning rate",
            numbers=f"rates {', '.join(f'{rate:g}' for rate in sorted(rates))}", fix="no --verify",
        )  # fmt: skip
    earlier = _ranks_before(run, before)
    others = [n for n in earlier if n != _ranks_of(run)]
    if others:
        raise ConfigError(
            f"--verify cannot compare steps that were done by {others[0]} ranks with those of "
            f"{_ranks_of(run)}", numbers="sums of other parts round otherwise",
            fix=f"--ranks {others[0]}, or no --verify",
        )  # fmt: skip


def _saved_epochs(before: RunState | None) -> int | None:
    """Over how many epochs the rates of a saved run went; None: their schedule knows no end."""
    saved = None if before is None else before.config.get("epochs")
    return saved if isinstance(saved, int) and saved > 0 else None


def _lengths_before(run: TrainingRun, before: RunState) -> list[int]:
    """The lengths of the rates before; files of old say the last one alone."""
    path, last = str(run.options.extent.resume_path), _saved_epochs(before)
    found = _numbers(before.history.get("epochs", []), "epochs", path)
    return [int(n) for n in found] or ([] if last is None else [last])


def _has_length(run: TrainingRun) -> bool:
    return depends_on_the_end(run.options.extent.lr_schedule)


def _stretches(run: TrainingRun) -> bool:
    """Whether the schedule is a formula of the step and the length; one of the user's own is given
    the state that it saved."""
    return run.options.extent.lr_schedule.partition(":")[0] in SCHEDULES


def _data_of(run: TrainingRun) -> dict[str, Any]:
    return {part: [each.count, each.fingerprint] for part, each in run.record.seen.items()}


def _change_of_data(run: TrainingRun, before: RunState) -> str:
    """How the images are others than those of the saved run; "": they are not."""
    path, saved, now = run.options.extent.resume_path, before.history.get("data"), _data_of(run)
    if saved == now:
        return ""
    if not isinstance(saved, dict):
        also = "; they were dealt otherwise then, so images to test may be among them"
        return (
            f"{path} is of an older version and does not say which images it was trained on"
            f"{also if _is_dealt(run) else ''}"
        )
    words = []
    for part, does in (("train", "to train on"), ("test", "to test")):
        if saved.get(part) != now.get(part):
            was, is_ = (_count(each.get(part)) for each in (saved, now))
            words.append(f"{was} images {does}, now {'others' if was == is_ else is_}")
    batch = run.options.workload.batch
    was, is_ = (_count(each.get("train")) // batch for each in (saved, now))
    if was != is_:
        words.append(f"{was} steps an epoch, now {is_}")
    return f"the data has changed since {path} was saved: {'; '.join(words)}"


def _trained_on_others(run: TrainingRun, before: RunState) -> bool:
    """Whether some steps before were done on other images than those to train on now."""
    saved = before.history.get("data")
    if not isinstance(saved, dict):
        return _is_dealt(run)
    return bool(before.history.get("other_images")) or saved.get("train") != _data_of(run)["train"]


def _is_dealt(run: TrainingRun) -> bool:
    """Whether the images to train on and to test come from the same folders of classes."""
    train, test = run.task.train, run.task.test
    if not isinstance(train, ImageFolder) or not isinstance(test, ImageFolder):
        return False
    return train.top == test.top


def _count(part: Any) -> int:
    """Of images, as `_data_of` has it."""
    return part[0] if isinstance(part, list) and part and isinstance(part[0], int) else 0


def _config(run: TrainingRun) -> dict[str, object]:
    """What must be the same, the names of the classes included."""
    train = run.record.seen.get("train")
    return config_of(run.options) | {"classes": list(train.classes) or None if train else None}


def _expected(run: TrainingRun, before: RunState) -> dict[str, object]:
    """What a saved run must have been: as this one, but that its schedule may have had another
    length and learning rate, its file may be older than the names of classes in it, and a folder of
    the same classes may lie elsewhere now, or be called otherwise."""
    own = _config(run)
    named = isinstance(before.config.get("classes"), list) and own["classes"] is not None
    same = named or same_source(str(before.config.get("data")), str(own["data"]))
    kept = ["epochs"] + ["data"] * same + ["classes"] * (not named)
    kept += ["lr"] * (_is_rate(own["lr"]) and _is_rate(before.config.get("lr")))
    return own | {key: before.config.get(key) for key in kept}


def _ranks_before(run: TrainingRun, before: RunState) -> list[int]:
    """The numbers of ranks that did the steps before; files of old say nothing of them."""
    path = str(run.options.extent.resume_path)
    return [int(n) for n in _numbers(before.history.get("ranks", []), "ranks", path)]


def _rates_before(run: TrainingRun, before: RunState) -> list[float]:
    """The learning rates that were typed for the steps before; files of old say the last alone."""
    path, last = str(run.options.extent.resume_path), before.config.get("lr")
    found = _numbers(before.history.get("rates", []), "rates", path)
    return [float(rate) for rate in found] or ([last] if _is_rate(last) else [])


def _rate_now(run: TrainingRun) -> list[float]:
    """The learning rate; none where a class of the user's own has its own."""
    rate = learning_rate(run.options.workload)
    return [rate] if _is_rate(rate) else []


def _is_rate(value: object) -> TypeGuard[float]:
    return isinstance(value, float | int) and 0 < value <= LARGEST


def _ranks_of(run: TrainingRun) -> int:
    return 1 if run.trainer.ranks is None else run.trainer.ranks.count


def _restore(
    schedule: LRScheduler, state: Mapping[str, Any], path: str, factor: float, *, stretched: bool
) -> None:
    """The schedule and the learning rates in force, each times a factor; stretched: those of its
    new length."""
    groups = schedule.optimizer.param_groups
    rates, first_rates = (_numbers(state.get(k), k, path) for k in ("lr", "base_lrs"))
    whole = isinstance(state.get("last_epoch"), int)
    if not whole or not len(groups) == len(rates) == len(first_rates):
        raise CheckpointError(
            f"the checkpoint's schedule {dict(state)} is not that of this run",
            fix="the --lr-schedule and --epochs that the run began with",
        )
    state = {**state, "base_lrs": [rate * factor for rate in first_rates]}
    if stretched:
        schedule.load_state_dict({key: state[key] for key in ("base_lrs", "last_epoch")})
        return
    schedule.load_state_dict(state)
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate * factor


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
    workload, how, extent = options.workload, options.how, options.extent
    return {
        "model": workload.model,
        "data": workload.data,
        "batch": workload.batch,
        "image_size": workload.image_size,
        "optimizer": workload.optimizer,
        "lr": learning_rate(workload),
        "accumulate": how.accumulate,
        "conv_algorithm": how.conv_algorithm,
        "seed": how.seed,
        # A run that was saved before there were these says nothing of them.
        "split": workload.split or None,
        "crop": workload.crop,
        "pad": workload.pad or None,
        "flip": workload.flip or None,
        "stem": workload.stem,
        "lr_schedule": extent.lr_schedule,
    }


def learning_rate(workload: Workload) -> float | None:
    """As given, else the usual one of the optimizer; None: a class of the user's knows its own."""
    spec = parse_spec(workload.optimizer)
    usual = None if spec.file else DEFAULT_LR.get(spec.name)
    return workload.lr if workload.lr is not None else spec.options.get("lr", usual)
