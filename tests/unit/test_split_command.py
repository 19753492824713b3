"""--split on the command line, the codes of what cannot be split, and fitting a budget."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ooctrain as oc
from ooctrain.api import split_by_words
from ooctrain.cli import main
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.execution.settings import DEFAULT_REWRITES
from ooctrain.split.model import SplitModel
from ooctrain.split.split_settings import Splitting, coarser, parse_splitting

LENET = ["lenet", "--batch", "8", "--machine", "cpu-generic"]


def test_plan_and_simulate_say_that_it_is_another_network(capsys, tmp_path):
    for command in ("plan", "simulate"):
        path = tmp_path / f"{command}.json"
        words = ["--split", "depth=0.5,grid=2x2", "--planner", "belady", "--json", str(path)]
        assert main([command, *LENET, *words]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "split 1 of 2 convolutions in 2 x 2 patches" in shown
        assert "another network" in shown
        assert json.loads(path.read_text())["model"] == "lenet split (depth=0.5,grid=2x2)"
        assert main(["report", str(path)]) == 0
        assert "another network" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("omega=0.5,stochastic", "OOC-170"), ("depth=1.5", "OOC-170"), ("grid=0x2", "OOC-170"),
        ("grid=two", "OOC-170"), ("deep", "OOC-170"), ("seed=-1", "OOC-170"),
        ("fit=1MiB,depth=0.25", "OOC-170"), ("fit=x", "OOC-101"),
        ("grid=40x1", "OOC-171"), ("depth=1,grid=11x1", "OOC-171"),
    ],
)  # fmt: skip
def test_words_that_make_no_sense_have_a_code(words, code, capsys):
    assert main(["plan", *LENET, "--split", words]) == 2
    assert code in capsys.readouterr().err


def test_words_are_read():
    how, fit = parse_splitting("depth=0.25, grid=3x2, stochastic, omega=0.1", seed=4)
    assert how == Splitting(0.25, (3, 2), True, 0.1, 4)
    assert str(how) == "depth=0.25,grid=3x2,stochastic,omega=0.1"
    assert fit == ""
    assert parse_splitting("fit=4GiB")[1] == "4GiB"


def test_numbers_of_numpy_and_a_list_as_grid_are_numbers():
    given = oc.split(
        wide(), np.float32(0.25), [3, np.int64(2)], True, omega=np.float64(0), seed=np.int64(3)
    ).how  # type: ignore[arg-type]
    assert given == Splitting(0.25, (3, 2), True, 0.0, 3)
    assert [type(n) for n in (given.depth, *given.grid, given.seed)] == [float, int, int, int]
    assert str(Splitting(depth=-0.0)) == "depth=0,grid=2x2"


def test_what_cannot_be_split_has_a_code():
    conv = oc.nn.Sequential(oc.nn.Conv2d(1, 1, 3))
    linear = oc.nn.Sequential(oc.nn.Flatten(), oc.nn.Linear(16, 4))
    wrong = {
        "split already": lambda: oc.split(oc.split(conv)),
        "no convolution": lambda: oc.trace(oc.split(linear), (2, 1, 4, 4), threads=1),
        "its own loss": lambda: oc.split(oc.models.build("inception_v3")),
    }
    for what, tried in wrong.items():
        with pytest.raises(ConfigError) as caught:
            tried()
        assert caught.value.code == "OOC-172", what


def wide() -> oc.nn.Sequential:
    """A network whose first convolutions need most of the memory."""
    return oc.nn.Sequential(
        oc.nn.Conv2d(3, 8, 3, padding=1), oc.nn.ReLU(), oc.nn.MaxPool2d(2),
        oc.nn.Conv2d(8, 8, 3, padding=1), oc.nn.ReLU(), oc.nn.MaxPool2d(2),
        oc.nn.Conv2d(8, 8, 3, padding=1), oc.nn.AdaptiveAvgPool2d(1), oc.nn.Flatten(),
    )  # fmt: skip


SHAPE = (4, 3, 64, 64)


def least(model: oc.nn.Module, shape: tuple[int, ...] = SHAPE) -> int:
    return oc.trace_minimum_bytes(oc.apply_rewrites(oc.trace(model, shape), DEFAULT_REWRITES))


def test_fit_chooses_depth_and_grid_for_the_first_batch_and_stays_with_them():
    model = wide()
    whole = least(model)
    assert oc.trace(oc.split(model, fit=whole), SHAPE) == oc.trace(model, SHAPE)
    made, named = oc.split(model, fit=whole - 1), oc.split_to_fit(model, SHAPE, whole - 1)
    assert "fit" in repr(made)
    assert least(made) < whole
    assert str(made.how) == str(named.how) == "depth=0.25,grid=2x1"
    assert "depth=0.25,grid=2x1" in repr(made)
    oc.trace(made, (64, *SHAPE[1:]))
    assert str(made.how) == str(named.how), "the last batch of an epoch trains no other network"
    drawn = oc.split(model, stochastic=True, fit="0%", omega=0.1, seed=3)
    assert drawn.shape_of(SHAPE).of == 3
    assert (drawn.how.stochastic, drawn.how.omega, drawn.how.seed) == (True, 0.1, 3)
    with pytest.raises(Infeasible, match="no split"):
        oc.trace(oc.split(model, fit="64KiB"), SHAPE)
    linear = oc.nn.Sequential(oc.nn.Flatten(), oc.nn.Linear(16, 4))
    with pytest.raises(ConfigError, match="no convolution"):
        oc.trace(oc.split(linear, fit=1), (2, 1, 4, 4))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"fit": "banana"}, "OOC-101"), ({"fit": 0}, "OOC-102"), ({"fit": "1GiB", "omega": 0.5},
        "OOC-170"), ({"fit": "1GiB", "depth": 0.25}, "OOC-170"),
        ({"fit": "1GiB", "grid": (3, 3)}, "OOC-170"),
    ],
)  # fmt: skip
def test_a_fit_that_makes_no_sense_is_refused_at_once(given, code):
    with pytest.raises(ConfigError) as caught:
        oc.split(wide(), **given)
    assert caught.value.code == code


@pytest.mark.slow
def test_what_is_fitted_trains_within_its_budget_and_evaluates_whole():
    """Without another word: the network is chosen when the trainer traces its first step."""
    model = wide()
    budget = least(model) - 1
    images = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    made = oc.split(model, fit=budget)
    assert made.eval()(oc.tensor(images)).numpy().shape == (4, 8)
    assert made.pending, "an evaluation chooses nothing"
    with oc.Trainer(made.train()) as trainer:
        trainer.step(images, np.arange(4))
    assert made.how.splits
    assert oc.plan(oc.trace(made, SHAPE), budget, planner="belady").peak_bytes <= budget


def test_a_depth_at_which_a_patch_has_no_row_is_refused_and_not_made_smaller():
    """At half the depth ResNet-18 has 16 x 16 pixels at its joint, at the whole depth 4 x 4."""
    model, shape = oc.models.build("resnet18", 10, "cifar"), (2, 3, 32, 32)
    assert oc.split(model, 0.5, (9, 1)).shape_of(shape).share == 0.5
    with pytest.raises(ConfigError, match="4 x 4") as caught:
        oc.split(model, 1.0, (9, 1)).shape_of(shape)
    assert caught.value.code == "OOC-171"


@pytest.mark.slow
def test_the_least_split_that_fits_is_taken():
    shape, model = SHAPE, wide()
    whole = oc.plan(oc.trace(model, shape, threads=1), "0%", planner="belady").peak_bytes
    assert oc.split_to_fit(model, shape, whole) is model
    made = oc.split_to_fit(model, shape, whole - 1)
    assert isinstance(made, SplitModel)
    assert made.how.depth == 0.25
    tried = list(coarser(Splitting()))
    assert [how.depth for how in tried] == sorted(how.depth for how in tried)
    with pytest.raises(Infeasible):
        oc.split_to_fit(model, shape, "64KiB")
    assert split_by_words(model, "") is model


@pytest.mark.slow
def test_training_is_resumed_with_the_same_boundaries_and_no_others(tmp_path, capsys):
    """The bits of a run that is not interrupted; another split is refused."""
    file, split = str(tmp_path / "r.safetensors"), "depth=1,grid=2x2,stochastic"
    common = ["lenet", "--batch", "64", "--threads", "1", "--planner", "belady", "--split", split]
    paths = [str(tmp_path / f"{n}.json") for n in "ab"]
    assert main(["train", *common, "--steps", "6", "--json", paths[0]]) == 0
    assert "planning" in capsys.readouterr().out
    assert main(["train", *common, "--steps", "3", "--checkpoint", file]) == 0
    assert main(["train", *common, "--steps", "6", "--resume", file, "--json", paths[1]]) == 0
    whole, resumed = (json.loads(Path(path).read_text())["losses"] for path in paths)
    assert np.array_equal(whole, resumed)
    other = [*common[:-1], "depth=1,grid=2x1", "--steps", "7", "--resume", file]
    assert main(["train", *other]) != 0


#: A network whose values are large beside its parameters.
WIDE = """
from ooctrain import nn

class Wide(nn.Sequential):
    def __init__(self, num_classes=10, stem="cifar", in_channels=3):
        super().__init__(
            nn.Conv2d(in_channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(4, num_classes),
        )
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--split", "depth=1,grid=4x4", "--planner", "belady"),
        ("--split", "depth=1,grid=4x4", "--planner", "auto"),
        ("--accumulate", "4", "--planner", "belady"),
        ("--budget", "2MiB", "--planner", "banded"),
    ],
)  # fmt: skip
def test_what_trains_within_a_budget_is_tested_within_it(words, tmp_path):
    """Tested whole, a batch needs more than in patches, parts or bands: it goes in smaller ones."""
    (tmp_path / "own.py").write_text(WIDE)
    path = tmp_path / "run.json"
    run = [
        "train",
        f"{tmp_path}/own.py:Wide",
        "--image-size",
        "48",
        "--batch",
        "16",
        "--steps",
        "1",
    ]
    run += ["--threads", "1", "--allocator", "va:chunk=4KiB", "--json", str(path)]
    assert main([*run, "--budget", "0%", "--time-limit", "0.2", *words]) == 0
    numbers, whole = json.loads(path.read_text()), tmp_path / "whole.json"
    assert main([*run[:-1], str(whole), *words[:2], "--planner", "belady", "--budget", "100%"]) == 0
    expected = json.loads(whole.read_text())
    assert numbers["test_accuracy"] == expected["test_accuracy"]
    assert numbers["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-4)
