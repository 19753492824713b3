"""What a run takes from the checkpoint that it goes on from, and what it says has changed.

Saved runs are made up: of as many images or fewer, over as many epochs or more, by one rank or
several, by a version that did not say. What each gives stands in a table (`support/known.py`).
That a run goes on with the same bits is a law elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support import known

from ooctrain import nn, optim
from ooctrain.cli.run.run_files import (
    changes,
    config_of,
    epochs_of_rates,
    expect_comparable,
    learning_rate,
    restore_run,
    save_run,
    steps_apart,
)
from ooctrain.cli.run.run_record import RunOptions, RunRecord, TrainingRun
from ooctrain.cli.schedules import RunLength, find_schedule
from ooctrain.cli.step_options import Extent, Workload
from ooctrain.data.dataset import DataIdentity
from ooctrain.errors import CheckpointError, ConfigError
from ooctrain.execution.checkpoint import RunState
from ooctrain.execution.settings import Options

WORKLOAD = Workload("lenet", data="digits", batch=8)
HOW = Options(threads=1, seed=3)
EXTENT = Extent(epochs=4, checkpoint_path="c.npz", resume_path="r.npz")
SEEN = {"train": DataIdentity(40, ("a", "b"), "f1"), "test": DataIdentity(9, (), "f2")}
NOW = {"train": [40, "f1"], "test": [9, "f2"]}


class Loader:
    """A loader of five batches."""

    def __init__(self):
        self.state = {"epoch": 1, "position": 2}

    def __len__(self):
        return 5

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def a_run(words="cosine", epochs=4, ranks=None, seen=SEEN, **record):
    saved = []
    trainer = SimpleNamespace(
        steps_done=7, ranks=ranks and SimpleNamespace(count=ranks),
        save=lambda path, state: saved.append((path, state)), saved=saved,
    )  # fmt: skip
    extent = replace(EXTENT, lr_schedule=words, epochs=epochs)
    record = {"seen": dict(seen), "lengths": [epochs], **record}
    return TrainingRun(
        RunOptions(WORKLOAD, HOW, extent), SimpleNamespace(train=None, test=None), trainer,
        RunRecord(**record),
    )  # fmt: skip


def schedule_of(words="cosine", epochs=4):
    optimizer = optim.SGD([nn.Parameter(np.ones(2, np.float32))], lr=0.1)
    return find_schedule(words)(RunLength(optimizer, epochs, 5))


HISTORY = {"losses": [2.0, 1.5], "ranks": [1], "data": NOW, "epochs": [4]}
STATE = {**schedule_of().state_dict(), "lr": [0.1]}
BEFORE = RunState(7, 1, 3, {"epoch": 1, "position": 2}, STATE, {"epochs": 4}, HISTORY)
OF_BEFORE = {
    "same": BEFORE,
    "shorter": replace(BEFORE, config={"epochs": 1}, history={**HISTORY, "epochs": [1]}),
    "longer": replace(BEFORE, config={"epochs": 9}, history={**HISTORY, "epochs": [6, 9]}),
    "over": replace(BEFORE, step=20, data={"epoch": 4, "position": 0}),
    "no length": replace(BEFORE, config={"epochs": None}),
    "a wrong length": replace(BEFORE, config={"epochs": "4"}),
    "zero epochs": replace(BEFORE, config={"epochs": 0}),
    "old": replace(BEFORE, history={}, config={"epochs": 4}),
    "no data": replace(BEFORE, history={**HISTORY, "data": None}),
    "fewer images": replace(BEFORE, history={**HISTORY, "data": {**NOW, "train": [16, "f0"]}}),
    "more images": replace(
        BEFORE, step=19, data={"epoch": 1, "position": 9},
        history={**HISTORY, "data": {**NOW, "train": [80, "f0"]}},
    ),
    "just an epoch": replace(
        BEFORE, data={"epoch": 1, "position": 5},
        history={**HISTORY, "data": {**NOW, "train": [48, "f0"]}},
    ),
    "other images": replace(BEFORE, history={**HISTORY, "data": {**NOW, "train": [40, "f0"]}}),
    "other tests": replace(BEFORE, history={**HISTORY, "data": {**NOW, "test": [7, "f2"]}}),
    "others before": replace(BEFORE, history={**HISTORY, "other_images": True}),
    "odd counts": replace(BEFORE, history={**HISTORY, "data": {"train": [], "test": ["9", 1]}}),
    "three ranks": replace(BEFORE, history={**HISTORY, "ranks": [1, 3]}),
    "odd ranks": replace(BEFORE, history={**HISTORY, "ranks": ["1"]}),
    "odd losses": replace(BEFORE, history={**HISTORY, "losses": [float("nan")]}),
    "no state": replace(BEFORE, schedule={}),
    "two rates": replace(BEFORE, schedule={**STATE, "lr": [0.1, 0.2]}),
    "no position": replace(BEFORE, data={}),
}  # fmt: skip


def came(make):
    try:
        return make()
    except (ConfigError, CheckpointError) as error:
        return f"{type(error).__name__} {len(error.what.split())} {error.numbers}"


@pytest.mark.parametrize("words", ["cosine", "step:epochs=2", "own.py:mine"])
def test_what_a_run_takes_up(words):
    rows = []
    for name, before in OF_BEFORE.items():
        for epochs in (1, 4, 6):
            run = a_run(words, epochs)
            rows.append((
                name, epochs, epochs_of_rates(run, before, 5), steps_apart(run, before, 5),
                [len(line.split()) for line in changes(run, before, 5)],
                came(lambda r=run, b=before: expect_comparable(r, b, 5)),
            ))  # fmt: skip
    known.check_rows("resumed", f"of {words}", rows)
    run = a_run(words)
    assert (epochs_of_rates(run, None, 5), steps_apart(run, None, 5)) == (4, 0)
    assert changes(run, None, 5) == []
    expect_comparable(run, None, 5)
    with pytest.raises(ConfigError):
        expect_comparable(a_run(words, ranks=2), BEFORE, 5)


@pytest.mark.parametrize("words", ["cosine", "step:epochs=2"])
def test_what_a_run_has_after_it_is_restored(words):
    rows = []
    for name, before in OF_BEFORE.items():
        for epochs in (4, 6):
            run, loader, schedule = a_run(words, epochs), Loader(), schedule_of(words, epochs)
            outcome = came(lambda: restore_run(run, loader, schedule, before))  # noqa: B023
            record = run.record
            rate = schedule.optimizer.param_groups[0]["lr"]
            rows.append((
                name, epochs, outcome, sorted(loader.state.items()), record.lengths, record.losses,
                record.ranks, record.other_images, f"{rate:.5g}", schedule.last_epoch,
            ))  # fmt: skip
    known.check_rows("resumed", f"restored, {words}", rows)


@pytest.mark.parametrize("ranks", [None, 3])
def test_what_a_run_saves(ranks):
    rows = []
    for words in ("cosine", "constant"):
        run = a_run(words, ranks=ranks, losses=[3.0], lengths=[2, 4])
        run.record.ranks = [1]
        save_run(run, Loader(), schedule_of(words))
        path, state = run.trainer.saved[0]
        rows.append((path, state.step, state.epoch, state.seed, state.config["epochs"],
                     state.config["classes"], *state.history.items()))  # fmt: skip
        assert (run.record.saved, state.schedule["lr"]) == (1, [0.1])
    known.check_rows("resumed", f"saved by {ranks}", rows)
    run = a_run()
    run = TrainingRun(replace(run.options, extent=replace(EXTENT, checkpoint_path=None)), run.task,
                      run.trainer, run.record)  # fmt: skip
    save_run(run, Loader(), schedule_of())
    assert run.trainer.saved == []


def test_what_must_be_the_same_of_a_run():
    other = replace(WORKLOAD, split="depth=0.5", crop=3, pad=2, flip=True, lr=0.5, classes=4)
    rows = [
        tuple(config_of(RunOptions(workload, HOW, EXTENT)).items())
        for workload in (WORKLOAD, other)
    ]
    for optimizer in ("sgd", "adam", "adamw", "rmsprop", "sgd:lr=0.3", "own.py:Mine", "nothing"):
        for rate in (None, 0.7):
            found = learning_rate(replace(WORKLOAD, optimizer=optimizer, lr=rate))
            rows.append((optimizer, rate, found))
    known.check_rows("resumed", "config", rows)
