"""What experiments of paper 004 ask of a trainer, and what they make of its answers.

A training takes seconds and its accuracy has no definition. So trainers here compute nothing: they
write down what they are given, and answer with numbers that tell which of them it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import astuple, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from support import known
from support.known_steps import row_of

from ooctrain.distributed import Network, mpi
from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.experiments.paper_004 import distributed, ranks_program, split_accuracy
from ooctrain.experiments.paper_004.split_accuracy import (
    BASELINE,
    DIGITS,
    GRIDS,
    PRINTED,
    SMALL,
    SPLIT,
    STOCHASTIC,
    Recipe004,
    recipe_of,
    trained,
    trained_case,
)
from ooctrain.sched.schedule import Run
from ooctrain.testing.thread_ranks import lone_rank
from ooctrain.tracing import trace

BYTES_OF_A_GBIT = 125.0  # in a microsecond


class MadeUpTrainer:
    """Notes its arguments; its accuracies are those of a list, one for each `evaluate`."""

    def __init__(self, notes: list, accuracies: list[float], model, **given):
        self.notes, self.accuracies, self.model, self.given = notes, accuracies, model, given

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.notes.append("closed")

    def fit(self, loader, epochs, *, schedule):
        group, rates = self.given["optimizer"].param_groups[0], []
        for _ in range(epochs):
            rates += schedule.get_last_lr()
            schedule.step()
        images, labels = next(iter(loader))
        self.notes.append(
            {"epochs": epochs, "rates": rates, "momentum": group["momentum"],
             "decay": group["weight_decay"], "batches": len(loader), "images": images.shape,
             "labels": labels.tolist(), "threads": self.given["threads"],
             "seed": self.given["seed"], "how": self.model.how}
        )  # fmt: skip

    def evaluate(self, loader):
        asked = getattr(self.model, "tested_in_patches", None)
        self.notes.append((sum(len(labels) for _, labels in loader), len(loader), asked))
        return SimpleNamespace(accuracy=self.accuracies.pop(0))


@pytest.mark.parametrize("model", SMALL)
def test_the_small_networks_are_the_ones_that_were_known(model):
    name, make = SMALL[model]
    small = make()
    step = trace(small, (4, 3, 16, 16), threads=2)
    known.check_rows("small", name, [(name, *row_of(step)), *[
        (parameter, *value.shape) for parameter, value in small.named_parameters()
    ]])  # fmt: skip


def test_a_training_by_a_recipe(monkeypatch):
    notes: list = []
    shares = [0.25, 0.5, 0.75, 1.0, 0.125, 0.375]

    def make(model, **given):
        return MadeUpTrainer(notes, shares, model, **given)

    monkeypatch.setattr(split_accuracy, "Trainer", make)
    recipe = Recipe004(epochs=7, batch=30, lr=0.5, seeds=3, images=90)
    found = trained(recipe, "vgg19", 0.5, 6, STOCHASTIC)
    assert found.accuracies == (25.0, 75.0, 12.5)
    assert found.in_patches == (50.0, 100.0, 37.5)
    assert (found.model, found.paper, found.kind) == ("small vgg", "vgg19", STOCHASTIC)
    assert (found.depth, found.patches, found.share) == (0.5, 6, 0.5)
    assert found.printed == PRINTED["vgg19", STOCHASTIC]
    assert shares == []
    fits = [note for note in notes if isinstance(note, dict)]
    assert notes.count("closed") == 3
    for seed, fit in enumerate(fits):
        assert (fit["epochs"], fit["momentum"], fit["decay"]) == (7, 0.9, 1e-4)
        # Epochs 150 and 250 of 350 are 3 and 5 of 7.
        assert fit["rates"] == pytest.approx([0.5] * 3 + [0.05] * 2 + [0.005] * 2)
        assert (fit["batches"], fit["images"]) == (3, (30, 3, 16, 16))
        assert (fit["threads"], fit["seed"]) == (1, seed)
        how = fit["how"]
        assert (how.depth, how.grid, how.stochastic, how.seed) == (0.5, (3, 2), True, seed)
    assert len({tuple(fit["labels"]) for fit in fits}) == 3, "each seed has its own order"
    tests = [note for note in notes if isinstance(note, tuple)]
    count = len(split_accuracy.load(DIGITS, train=False))
    assert [(images, batches) for images, batches, _ in tests] == [(count, -(-count // 120))] * 6
    assert [asked for _, _, asked in tests[1::2]] == [True] * 3
    assert not any(asked for _, _, asked in tests[::2])


@pytest.mark.parametrize(
    ("depth", "patches", "kind", "counts", "printed"),
    [
        (0.0, 4, BASELINE, 1, 95.3), (0.5, 4, SPLIT, 4, 94.8), (0.25, 4, SPLIT, 4, None),
        (0.5, 1, SPLIT, 1, 94.8), (0.25, 9, SPLIT, 9, None),
    ],
)  # fmt: skip
def test_what_is_not_split_has_one_patch_and_no_share(
    depth, patches, kind, counts, printed, monkeypatch
):
    notes: list = []

    def make(model, **given):
        return MadeUpTrainer(notes, [0.5, 0.25], model, **given)  # of each training

    monkeypatch.setattr(split_accuracy, "Trainer", make)
    images = None if kind == BASELINE else 63  # one fewer than two batches
    recipe = Recipe004(epochs=1, seeds=1, images=images)
    found = trained(recipe, "resnet18", depth, patches, kind)
    assert [found] == trained_case((recipe, "resnet18", depth, patches, kind))
    assert (found.patches, found.printed) == (counts, printed)
    assert (found.share > 0) == (counts > 1)
    fit, _ = [note for note in notes if isinstance(note, dict)]
    every = len(split_accuracy.load(DIGITS, train=True)) // 32
    assert fit["batches"] == (1 if images else every)
    assert (fit["how"].grid, fit["how"].stochastic) == (GRIDS[patches], False)
    assert [note[2] for note in notes if isinstance(note, tuple)][1] == (counts > 1)


@pytest.mark.parametrize(("model", "name"), [("vgg19", "vgg19_bn"), ("resnet18", "resnet18")])
def test_other_data_is_learned_by_the_networks_of_the_paper(model, name, monkeypatch):
    built, loaded, digits = [], [], split_accuracy.load

    def build(*given):
        built.append(given)
        return SMALL[model][1]()

    def load(data, *, train, image_size):
        loaded.append((data, train, image_size))
        return digits(DIGITS, train=train, image_size=16)

    def make(model, **given):
        return MadeUpTrainer([], [0.5, 0.25], model, **given)

    for what, made in {"build": build, "load": load, "Trainer": make}.items():
        monkeypatch.setattr(split_accuracy, what, made)
    recipe = Recipe004("cifar10:here", epochs=1, seeds=1)
    assert trained(recipe, model, 0.0, 4, BASELINE).model == name
    assert built == [(name, 10, "cifar")]
    assert loaded == [("cifar10:here", True, None), ("cifar10:here", False, None)]


def test_settings_change_a_recipe_one_by_one():
    base = Recipe004()
    assert recipe_of((), base) == base
    assert recipe_of(("epochs=9,seeds=1", "images=5"), base) == replace(
        base, epochs=9, seeds=1, images=5
    )
    assert recipe_of(("batch=7,",), base) == replace(base, batch=7)
    # Whoever names other data wants all of it, unless a number is named, too.
    assert recipe_of(("data=cifar10:here",), base) == replace(
        base, data="cifar10:here", images=None
    )
    assert recipe_of(("images=3,data=digits",), base) == replace(base, images=3)
    for wrong in ("epoch=3", "epochs=0", "epochs=", "epochs=-1", "seeds=1.5", "data=", "lr=1", "x"):
        with pytest.raises(ConfigError) as refusal:
            recipe_of((wrong,), base)
        assert refusal.value.code == "OOC-106"


# Steps of ranks.


def rank_row(batch: int, rate: float | None, forward_us: float, step_us: float) -> dict:
    return {"batch": batch, "bytes_per_us": rate, "gradient_bytes": 1000,
            "forward_us": forward_us, "step_us": step_us}  # fmt: skip


def test_the_steps_of_ranks_are_predicted_by_the_formula(monkeypatch):
    """Backwards take 60 and 400 us; 2 (k - 1) / k G / B are 1000 / 10 and 1500 / 10 us."""
    asked = []

    def run(command, **options):
        asked.append((command, options["timeout"]))
        rows = [rank_row(2, None, 40.0, 100.0), rank_row(2, 10.0, 41.0, 150.0),
                rank_row(12, None, 200.0, 600.0), rank_row(12, 10.0, 201.0, 666.0)]  # fmt: skip
        return subprocess.CompletedProcess(command, 0, json.dumps(rows), "")

    monkeypatch.setattr(distributed, "find_mpiexec", lambda: "starter")
    monkeypatch.setattr(distributed.subprocess, "run", run)
    found = [astuple(row) for row in distributed.rank_steps((2, 4))]
    gbit_s = 10.0 / BYTES_OF_A_GBIT
    assert found == [
        (2, 2, None, 40.0, 100.0, None), (2, 2, gbit_s, 40.0, 150.0, 40.0 + 100.0),
        (2, 12, None, 200.0, 600.0, None), (2, 12, gbit_s, 200.0, 666.0, 200.0 + 400.0),
        (4, 2, None, 40.0, 100.0, None), (4, 2, gbit_s, 40.0, 150.0, 40.0 + 150.0),
        (4, 12, None, 200.0, 600.0, None), (4, 12, gbit_s, 200.0, 666.0, 200.0 + 400.0),
    ]  # fmt: skip
    assert [command[:6] for command, _ in asked] == [
        ["starter", "-n", count, sys.executable, "-m", "mpi4py"] for count in ("2", "4")
    ]
    wanted = json.loads(asked[0][0][-1])
    assert wanted == {
        "model": "vgg11", "batches": [2, 12], "rounds": 5, "bytes_per_us": [1000.0, 250.0, 62.5]
    }  # fmt: skip
    assert asked[0][0][6:8] == ["-m", ranks_program.__name__]
    assert asked[0][1] == 600
    table = distributed.runs_table([distributed.RankStep(*row) for row in found])
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["2"] * 4 + ["4"] * 4
    assert cells[1] == ["as fast as it goes", "0.08"] * 4
    assert cells[2] == ["2", "2", "12", "12"] * 2
    # Six times the images in 600 us instead of 100: 1.0; in 666 instead of 150: 1.35.
    assert cells[5] == ["", "-7%", "", "-10%", "", "+27%", "", "-10%"]
    assert cells[6] == ["", "", "1.00", "1.35"] * 2
    assert cells[7] == ["", "", "", "1.40", "", "", "", "1.90"]


def test_ranks_that_end_with_an_error_are_named(monkeypatch):
    def run(command, **_):
        return subprocess.CompletedProcess(command, 3, "", "x" * 500 + "the end\n")

    monkeypatch.setattr(distributed, "find_mpiexec", lambda: "starter")
    monkeypatch.setattr(distributed.subprocess, "run", run)
    with pytest.raises(OoctrainError) as error:
        list(distributed.rank_steps((2,)))
    assert error.value.numbers == f"status 3; {'x' * 193}the end"
    assert error.value.where.startswith("starter -n 2 ")


def test_without_a_launcher_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(distributed, "find_mpiexec", lambda: "starter")
    assert distributed.why_not() == ""

    def none():
        raise ConfigError("ranks need mpiexec", fix="install it")

    monkeypatch.setattr(distributed, "find_mpiexec", none)
    assert distributed.why_not() == "not run here: install it"


class SteppingTrainer:
    """Each step of the n-th trainer takes n + 1 s more than the one before; a clock says so."""

    made: list[SteppingTrainer]
    now_s = 0.0

    def __init__(self, model, **given):
        self.number, self.given, self.steps = len(self.made), given, []
        self.made.append(self)
        self.model, self.closed = model, False
        calls = [SimpleNamespace(phase=phase) for phase in ("forward", "loss", "backward")]
        listed = [object(), Run(0), Run(1), Run(2)]
        trace = SimpleNamespace(calls=calls)
        self.plan = SimpleNamespace(schedule=SimpleNamespace(instructions=listed), trace=trace)

    @classmethod
    def clock(cls) -> float:
        return cls.now_s

    def step(self, x, y):
        self.steps.append((x, y))
        type(self).now_s += (self.number + 1) * len(self.steps)
        begin = 100.0 * len(self.steps)
        self.timeline = SimpleNamespace(events=[
            SimpleNamespace(stream="C", index=0, start_us=1.0),
            SimpleNamespace(stream="C", index=1, start_us=2.0),
            SimpleNamespace(stream="C", index=2, start_us=3.0),
            SimpleNamespace(stream="D", index=3, start_us=4.0),
            SimpleNamespace(stream="C", index=3, start_us=begin),
        ])  # fmt: skip

    def close(self):
        self.closed = True


@pytest.fixture
def steps_of_ranks(monkeypatch):
    class Trainer(SteppingTrainer):
        made: ClassVar = []

    networks = []

    def world(network=None):
        networks.append(network)
        return lone_rank()

    monkeypatch.setattr(ranks_program, "Trainer", Trainer)
    monkeypatch.setattr(ranks_program, "world", world)
    monkeypatch.setattr(ranks_program.time, "perf_counter", Trainer.clock)
    return Trainer.made, networks


WANTED = {"model": "lenet", "batches": [2, 4], "rounds": 4, "bytes_per_us": [1000.0, 62.5]}


def test_each_bandwidth_has_a_trainer_and_the_first_step_does_not_count(steps_of_ranks):
    made, networks = steps_of_ranks
    rows = ranks_program.steps_of(2, WANTED)
    parameters = sum(int(np.prod(p.shape)) for p in made[0].model.parameters())
    # The steps of a trainer take 1, 2, 3, 4, 5 times its number; without the first 3.5 is between.
    assert rows == [
        {"batch": 2, "bytes_per_us": rate, "gradient_bytes": 4 * parameters,
         "forward_us": 350.0, "step_us": 3.5e6 * (number + 1)}
        for number, rate in enumerate((None, 1000.0, 62.5))
    ]  # fmt: skip
    assert networks == [None, Network(1000.0), Network(62.5)]
    assert all(trainer.closed for trainer in made)
    for trainer in made:
        assert trainer.given["threads"] == trainer.given["seed"] == 1
        assert len(trainer.steps) == 5
        assert {(x.shape, x.dtype.name, y.shape) for x, y in trainer.steps} == {
            ((2, 3, 32, 32), "float32", (2,))
        }
    x, y = made[0].steps[0]
    again = np.random.default_rng(0)
    assert np.array_equal(x, again.standard_normal(x.shape, np.float32))
    assert np.array_equal(y, again.integers(0, 10, 2))


def test_the_first_rank_prints_all_rows(steps_of_ranks, capsys):
    ranks_program.main(json.dumps(WANTED))
    rows = json.loads(capsys.readouterr().out)
    assert [(row["batch"], row["bytes_per_us"]) for row in rows] == [
        (batch, rate) for batch in (2, 4) for rate in (None, 1000.0, 62.5)
    ]


# What launchers say, and what mpi4py is asked.


class MadeUpRequest:
    def __init__(self, tests: int):
        self.tests, self.asked = tests, 0

    def Test(self) -> bool:
        self.asked += 1
        return self.asked > self.tests


@pytest.mark.parametrize("tests", [0, 1, 99, 100, 101, 130])
def test_a_wait_asks_a_hundred_times_before_it_sleeps(tests, monkeypatch):
    slept = []
    monkeypatch.setattr(mpi.time, "sleep", slept.append)
    request = MadeUpRequest(tests)
    mpi.MpiRequest(request).wait()
    assert request.asked == tests + 1
    assert slept == [20e-6] * max(0, tests - 100)


class MadeUpMpi:
    """A communicator of mpi4py that notes what it is asked."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.notes = rank, size, []

    def __getattr__(self, name: str):
        def noted(*args):
            self.notes.append((name, args))
            return self if name == "Dup" else [name, *args]

        return noted


def test_each_verb_is_one_of_mpi():
    of_mpi = MadeUpMpi(1, 3)
    ours = mpi.MpiCommunicator(of_mpi)
    assert (ours.rank, ours.size) == (1, 3)
    assert ours.start_exchange("send", "receive").request == ["Ialltoall", "send", "receive"]
    assert ours.start_gathering("send", "receive").request == ["Iallgather", "send", "receive"]
    assert ours.all_ranks("v") == ["allgather", "v"]
    assert ours.of_the_first("v") == ["bcast", "v"]
    assert isinstance(ours.channel(), mpi.MpiCommunicator)
    ours.abort(7)
    assert of_mpi.notes[-2:] == [("Dup", ()), ("Abort", (7,))]


LAUNCHERS = [
    ({}, 1, 1), ({"PMI_SIZE": "4"}, 4, 4), ({"OMPI_COMM_WORLD_SIZE": "3"}, 3, 3),
    ({"PMIX_SIZE": "2"}, 2, 2), ({"PMI_SIZE": "0"}, 1, 1), ({"PMI_SIZE": "many"}, 1, 1),
    ({"PMI_SIZE": "0", "PMIX_SIZE": "5"}, 5, 5), ({"PMI_SIZE": "8", "MPI_LOCALNRANKS": "2"}, 8, 2),
    ({"OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 6, 3),
]  # fmt: skip


@pytest.mark.parametrize(("said", "all_of_them", "here"), LAUNCHERS)
def test_launchers_say_how_many_ranks_there_are(said, all_of_them, here, monkeypatch):
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS",
                 "OMPI_COMM_WORLD_LOCAL_SIZE"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert (mpi.launched_ranks(), mpi.launcher_of_ranks()) == (all_of_them, here)


@pytest.fixture
def mpi_of(monkeypatch):
    """mpi4py sees so many ranks, and a launcher says that it has started so many."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # put back afterwards

    def make(seen: int, said: int) -> MadeUpMpi:
        module, communicator = ModuleType("mpi4py"), MadeUpMpi(0, seen)
        module.MPI = SimpleNamespace(COMM_WORLD=communicator)
        monkeypatch.setitem(sys.modules, "mpi4py", module)
        monkeypatch.setenv("PMI_SIZE", str(said))
        return communicator

    return make


def test_the_world_of_one_is_as_if_there_were_none(mpi_of):
    mpi_of(1, 1)
    before = sys.excepthook
    alone = mpi.world()
    assert alone.settings == lone_rank().settings
    assert (alone.count, sys.excepthook) == (1, before)
    asked = mpi.world(bucket=4096, ahead=5, sync_batch_norm=True)
    assert (asked.bucket_bytes, asked.ahead, asked.sync_batch_norm) == (4096, 5, True)


def test_a_rank_whose_error_reaches_nobody_ends_all(mpi_of, monkeypatch):
    communicator, shown = mpi_of(3, 3), []
    monkeypatch.setattr(sys, "excepthook", lambda *given: shown.append(given))
    assert mpi.world().count == 3
    error = ValueError("a reason")
    sys.excepthook(ValueError, error, None)
    assert shown == [(ValueError, error, None)]
    assert communicator.notes[-1] == ("Abort", (1,))


@pytest.mark.parametrize(("seen", "said", "right"), [(1, 2, False), (1, 1, True), (2, 2, True),
                                                     (2, 1, True), (2, 3, True)])  # fmt: skip
def test_two_mpi_libraries_are_noticed(seen, said, right, mpi_of):
    mpi_of(seen, said)
    if right:
        assert mpi.world().count == seen
        return
    with pytest.raises(ConfigError, match=f"started {said} ranks"):
        mpi.world()


@pytest.mark.parametrize(("program", "module", "missing"), [
    ("/a/mpiexec", True, None), (None, True, "mpiexec"), ("/a/mpiexec", False, "mpi4py"),
    (None, False, "mpiexec"),
])  # fmt: skip
def test_what_ranks_need_is_named(program, module, missing, monkeypatch):
    asked = []

    def which(name, path):
        asked.append((name, path))
        return program

    monkeypatch.setattr(mpi.shutil, "which", which)
    monkeypatch.setattr(mpi, "find_spec", lambda name: (module and name == "mpi4py") or None)
    monkeypatch.setenv("PATH", "/others")
    if missing is None:
        assert mpi.find_mpiexec() == program
    else:
        with pytest.raises(ConfigError, match=f"ranks need {missing},"):
            mpi.find_mpiexec()
    ((name, path),) = asked
    assert name == "mpiexec"
    assert path == f"{Path(sys.executable).parent}{os.pathsep}/others"
