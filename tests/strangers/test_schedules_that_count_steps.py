"""Schedules under `fit`, and their states: of PyTorch, with infinities, with cycles that wait.

What counts training steps is stepped after each of them; what would end before the last step is
refused before the first. States are plain JSON, and those of PyTorch go on as there.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import nn, optim
from ooctrain.errors import ConfigError

X, Y = np.zeros((8, 4), np.float32), np.arange(8) % 2


def made(kind=optim.SGD, **settings):
    return kind([nn.Parameter(np.ones(2, np.float32))], lr=0.1, **settings)


# --- fit


def fitted(make, epochs=3, batch=4, batches=None):
    """The schedule after `fit`, and the rate that each step had."""
    model, rates = nn.Linear(4, 2), []
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = make(optimizer)
    loader = oc.data.DataLoader(oc.data.TensorDataset(X, Y), batch) if batches is None else batches
    with oc.Trainer(model, optimizer=optimizer) as trainer:
        trainer.fit(loader, epochs, schedule=schedule,
                    on_step=lambda *_: rates.append(optimizer.param_groups[0]["lr"]))  # fmt: skip
    return schedule, rates


def cycle(steps):
    return lambda o: optim.OneCycleLR(o, 0.5, total_steps=steps)


def row(o):
    return optim.SequentialLR(o, [optim.LinearLR(o), optim.OneCycleLR(o, 0.5, 4)], [2])


@pytest.mark.parametrize(
    "make", [lambda o: optim.StepLR(made(), 1), lambda o: "cosine", lambda o: [optim.StepLR(o, 1)]]
)
def test_what_would_set_no_rate_of_the_trainer_is_refused(make):
    with pytest.raises(ConfigError) as caught:
        fitted(make)
    assert caught.value.code == "OOC-106"
    assert "trainer.optimizer" in caught.value.fix


@pytest.mark.parametrize("make", [cycle(6), row])
def test_fit_steps_a_cycle_once_a_step(make):
    schedule, rates = fitted(make)
    assert schedule.last_epoch == 6
    other = make(made(momentum=0.9))
    wanted = []
    for _ in range(6):
        other.step()
        wanted.append(other.get_last_lr()[0])
    assert rates == wanted


def test_fit_steps_the_others_once_an_epoch():
    schedule, rates = fitted(lambda o: optim.StepLR(o, 1, 0.5))
    assert schedule.last_epoch == 3
    assert rates == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]


@pytest.mark.parametrize(
    "make", [cycle(5), lambda o: optim.SequentialLR(o, [optim.LinearLR(o), cycle(3)(o)], [2])]
)
def test_a_cycle_that_ends_before_the_last_step_is_refused_before_the_first(make):
    model = nn.Linear(4, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = oc.data.DataLoader(oc.data.TensorDataset(X, Y), 4)
    with oc.Trainer(model, optimizer=optimizer) as trainer, pytest.raises(ConfigError):
        trainer.fit(loader, 3, schedule=make(optimizer))
    assert optimizer.steps_done == 0


def test_a_cycle_goes_on_where_its_loader_stopped():
    """Two epochs of two batches, one of which is done: three steps are left."""
    loader = oc.data.DataLoader(oc.data.TensorDataset(X, Y), 4)
    loader.load_state_dict({"epoch": 0, "position": 1})
    schedule, rates = fitted(cycle(3), epochs=2, batches=loader)
    assert (schedule.last_epoch, len(rates)) == (3, 3)


def test_batches_without_a_length_are_stepped_as_they_come():
    class Batches:
        def __iter__(self):
            yield X, Y

    assert fitted(cycle(3), batches=Batches())[0].last_epoch == 3


# --- states


def test_a_cycle_that_waits_in_a_state_of_pytorch_leaves_the_momentum_alone():
    """As torch 2.13 writes it after 3 steps, less what only repeats the arguments."""
    waiting = {"last_epoch": -1, "base_lrs": [0.004], "_last_lr": [0.004], "cycle_momentum": True}
    first = {"last_epoch": 3, "base_lrs": [0.1], "_last_lr": [0.002], "step_size": 3, "gamma": 0.5}
    state = {"last_epoch": 3, "_last_lr": [0.002], "_schedulers": [first, waiting]}
    optimizer = made(momentum=0.9)
    schedule = optim.SequentialLR(
        optimizer, [optim.StepLR(optimizer, 3, 0.5), optim.OneCycleLR(
            optimizer, 0.1, 21, base_momentum=0.5, max_momentum=0.99)], [8])  # fmt: skip
    schedule.load_state_dict(state)
    momenta, rates = [], []
    for _ in range(25):
        momenta.append(optimizer.param_groups[0]["momentum"])
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step()
    assert momenta[:5] == [0.99] * 5
    assert min(momenta) == pytest.approx(0.5, abs=0.02)
    assert max(momenta) <= 0.99
    assert rates[:3] == [0.002] * 3
    assert rates[3] == pytest.approx(0.001)


def test_two_cycles_of_one_optimizer_go_between_the_ends_of_the_last():
    """PyTorch keeps the ends in the parameter groups: rates of 0.2 at most, momenta from 0.7."""
    optimizer = made(momentum=0.9)
    schedule = optim.SequentialLR(
        optimizer, [optim.OneCycleLR(optimizer, 0.4, 9), optim.OneCycleLR(
            optimizer, 0.2, 9, base_momentum=0.5, max_momentum=0.7)], [8])  # fmt: skip
    seen = []
    for _ in range(16):
        seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        schedule.step()
    rates, momenta = zip(*seen, strict=True)
    assert max(rates) <= 0.2
    assert 0.5 <= min(momenta) <= max(momenta) == 0.7


def test_a_cycle_moves_the_first_beta_through_a_state():
    optimizer, other = made(optim.Adam), made(optim.Adam)
    one, again = cycle(9)(optimizer), cycle(9)(other)
    for _ in range(4):
        one.step()
    again.load_state_dict(json.loads(json.dumps(one.state_dict(), allow_nan=False)))
    for _ in range(4):
        assert other.param_groups[0]["betas"] == optimizer.param_groups[0]["betas"]
        one.step()
        again.step()
    assert other.param_groups[0]["betas"] == (0.95, 0.999)


METRICS = (1.0, math.inf, 1.0, -math.inf, 2.0, math.nan, 2.0, -math.inf, math.inf, 3.0)


@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("stop", range(len(METRICS)))
@pytest.mark.parametrize("order", [1, -1])
def test_a_plateau_remembers_an_infinite_best(mode, threshold_mode, stop, order):
    def plateau():
        return optim.ReduceLROnPlateau(made(), mode, 0.5, 0, threshold_mode=threshold_mode)

    whole, again = plateau(), plateau()
    for number, metric in enumerate(METRICS[::order]):
        if number == stop:
            again.load_state_dict(json.loads(json.dumps(whole.state_dict(), allow_nan=False)))
        if number >= stop:
            again.step(metric)
        whole.step(metric)
        if number >= stop:
            assert (again.get_last_lr(), again.best) == (whole.get_last_lr(), whole.best)


@pytest.mark.parametrize(
    ("mode", "best", "found"),
    [("min", math.inf, None), ("max", -math.inf, None), ("max", math.inf, math.inf),
     ("min", -math.inf, -math.inf), ("min", 2, 2.0)],
)  # fmt: skip
def test_the_best_of_a_state_of_pytorch(mode, best, found):
    schedule = optim.ReduceLROnPlateau(made(), mode)
    state = {**schedule.state_dict(), "best": best, "mode": mode, "threshold": 1e-4}
    schedule.load_state_dict(state)
    assert schedule.best == found


def test_a_group_that_was_added_later_is_a_typed_error():
    optimizer = made(momentum=0.9)
    schedule = cycle(9)(optimizer)
    optimizer.add_param_group({"params": [nn.Parameter(np.ones(2, np.float32))]})
    with pytest.raises(ConfigError):
        schedule.step()
