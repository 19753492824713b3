"""Optimizers and schedules by name: what a text makes is what the class makes, to the bit, in a
trainer and on the command line; a run that is stopped and resumed goes on with the same rates."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import nn, optim
from ooctrain.cli import main
from ooctrain.cli.schedules import SCHEDULES, RunLength, find_schedule
from ooctrain.errors import ConfigError
from ooctrain.optim.algorithms import OPTIMIZERS, get_optimizer

NAMED = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd:momentum=0.5,nesterov=true,lr=0.02": lambda p: optim.SGD(p, 0.02, 0.5, nesterov=True),
    "adam": optim.Adam,
    "adam:betas=0.8+0.9,eps=0.01": lambda p: optim.Adam(p, 1e-3, (0.8, 0.9), 0.01),
    "adamw": optim.AdamW,
    "adamw:weight_decay=0.1,lr=0.01": lambda p: optim.AdamW(p, 0.01, weight_decay=0.1),
    "rmsprop": optim.RMSprop,
    "rmsprop:alpha=0.9,momentum=0.5,centered=true": lambda p: optim.RMSprop(
        p, alpha=0.9, momentum=0.5, centered=True
    ),
}


def values_after_steps(make):
    oc.manual_seed(4)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    rng = np.random.default_rng(2)
    with oc.Trainer(model, optimizer=make(model), threads=1) as trainer:
        for _ in range(3):
            trainer.step(rng.standard_normal((4, 5), np.float32), rng.integers(0, 3, 4))
        return {name: value.tobytes() for name, value in trainer.state_arrays().items()}


@pytest.mark.parametrize("text", NAMED)
def test_a_name_makes_what_the_class_makes(text):
    by_class = values_after_steps(lambda model: NAMED[text](model.parameters()))
    assert values_after_steps(lambda model: text) == by_class


def test_every_name_is_tried():
    assert {text.partition(":")[0] for text in NAMED} == set(OPTIMIZERS)


def parameters():
    return [nn.Parameter(np.zeros(2, np.float32))]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("rmsprob", "did you mean 'rmsprop'"), ("adam:beta=1", "did you mean 'betas'"),
        ("adam:betas=1", "betas (1,)"),
        ("sgd:momentum=fast", "momentum is 'fast'"), ("sgd:lr=-1", "lr -1"), ("", "names nothing"),
        ("rmsprop:alpha=2", "alpha 2"), ("none.py:Mine", "there is no Python file"),
        ("adam:betas=0.9+1.5", "betas"), ("adam:betas=a+b", "betas"), ("sgd:lr=nan", "lr nan"),
    ],
)  # fmt: skip
def test_what_names_no_optimizer_is_refused(text, hint):
    with pytest.raises(ConfigError) as caught:
        get_optimizer(text, parameters())
    assert hint in str(caught.value)
    assert caught.value.fix


def test_an_own_class_may_be_named(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import ooctrain as oc\nclass Slow(oc.optim.SGD):\n"
        "    def __init__(self, params, lr=0.5): super().__init__(params, lr)\n"
        "def nothing(params): return 3\n"
    )
    assert get_optimizer(f"{path}:Slow", parameters()).param_groups[0]["lr"] == 0.5
    assert get_optimizer(f"{path}:Slow", parameters(), 0.2).param_groups[0]["lr"] == 0.2
    with pytest.raises(ConfigError, match="not an optimizer"):
        get_optimizer(f"{path}:nothing", parameters())
    with pytest.raises(ConfigError, match="given twice"):
        get_optimizer("sgd:lr=0.1", parameters(), 0.2)


#: What each name stands for, stepped after each of 3 steps in each of 4 epochs.
RATES = {
    "constant": lambda o: optim.StepLR(o, 1, 1.0),
    "cosine": lambda o: optim.CosineAnnealingLR(o, 12),
    "cosine:eta_min=0.01": lambda o: optim.CosineAnnealingLR(o, 12, 0.01),
    "step:epochs=2,gamma=0.5": lambda o: optim.StepLR(o, 6, 0.5),
    "multistep:epochs=1+3": lambda o: optim.MultiStepLR(o, [3, 9], 0.1),
    "multistep:epochs=2,gamma=0.3": lambda o: optim.MultiStepLR(o, [6], 0.3),
    "exponential:gamma=0.9": lambda o: optim.StepLR(o, 3, 0.9),
    "linear:epochs=2,start_factor=0.1": lambda o: optim.LinearLR(o, 0.1, 1.0, 6),
    "onecycle:pct_start=0.4": lambda o: optim.OneCycleLR(o, 0.1, total_steps=12, pct_start=0.4),
}


def rates(make, momentum=0.9):
    optimizer = optim.SGD(parameters(), lr=0.1, momentum=momentum)
    schedule, found = make(optimizer), []
    for _ in range(12):
        found.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        schedule.step()
    return found


@pytest.mark.parametrize("text", RATES)
def test_a_schedule_by_name_is_that_of_the_class(text):
    assert rates(lambda o: find_schedule(text)(RunLength(o, 4, 3))) == rates(RATES[text])


def test_every_schedule_is_tried():
    assert {text.partition(":")[0] for text in RATES} == set(SCHEDULES)


def test_a_momentum_that_is_not_there_is_not_cycled():
    found = rates(lambda o: find_schedule("onecycle")(RunLength(o, 4, 3)), momentum=0.0)
    assert {momentum for _, momentum in found} == {0.0}
    assert max(rate for rate, _ in found) <= 0.1


@pytest.mark.parametrize(
    "text",
    ["stepp", "step:epochs=0", "step:gamma=-1", "multistep", "multistep:epochs=3+x", "step:size=3",
     "linear:start_factor=2", "onecycle:div_factor=0", "step:gamma=nan", "exponential:gamma=fast",
     "onecycle:pct_start=3", ""],
)  # fmt: skip
def test_what_names_no_schedule_is_refused(text):
    with pytest.raises(ConfigError) as caught:
        find_schedule(text)(RunLength(optim.SGD(parameters(), lr=0.1, momentum=0.9), 4, 3))
    assert caught.value.fix


def losses_of_a_run(path, *arguments):
    asked = ["train", "lenet", "--batch", "256", "--threads", "1", "--epochs", "2"]
    assert main([*asked, "--json", str(path), *arguments]) == 0
    return json.loads(path.read_text())["losses"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [("rmsprop:momentum=0.5", "onecycle"), ("adamw", "step:epochs=1"), ("adamw", "exponential"),
     ("adamw", "multistep:epochs=1"), ("adamw", "linear")],
)  # fmt: skip
def test_a_resumed_run_goes_on_with_the_same_rates(tmp_path, capsys, optimizer, schedule):
    chosen = ["--optimizer", optimizer, "--lr-schedule", schedule]
    whole = losses_of_a_run(tmp_path / "whole.json", *chosen, "--steps", "8")
    saved = str(tmp_path / "run.safetensors")
    losses_of_a_run(tmp_path / "a.json", *chosen, "--steps", "4", "--checkpoint", saved)
    again = losses_of_a_run(tmp_path / "b.json", *chosen, "--steps", "8", "--resume", saved)
    assert again == whole
    other = ["--optimizer", optimizer, "--lr-schedule", "constant"]
    assert losses_of_a_run(tmp_path / "c.json", *other, "--steps", "8") != whole


def test_plans_know_the_slots_of_every_optimizer():
    """A step's memory counts what the optimizer keeps."""
    slots = {"sgd:momentum=0": 0, "sgd": 1, "adam": 2, "rmsprop": 1, "rmsprop:centered=true": 2}
    for text, count in slots.items():
        model = nn.Sequential(nn.Linear(5, 3))
        trace = oc.trace(model, (4, 5), optimizer=text)
        kept = [v for v in trace.initial if trace.variables[v].kind == "state"]
        assert len(kept) == 2 * count, text
