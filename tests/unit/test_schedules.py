"""Schedules against the formulas that PyTorch documents; resumed, chained, one after another."""

import math

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import nn, optim
from ooctrain.errors import ConfigError
from ooctrain.execution.checkpoint import RunState
from ooctrain.layers.update import SGDUpdate

BASE = 0.8


def optimizer(kind=optim.SGD, groups=(BASE,), **settings):
    return kind([{"params": [nn.Parameter(np.ones(2))], "lr": lr} for lr in groups], **settings)


def rates(schedule, steps):
    """The first group's rate before each step."""
    found = []
    for _ in range(steps):
        found.append(schedule.get_last_lr()[0])
        schedule.step()
    return found


def line(epoch, start=0.25, end=0.75, epochs=4):
    return start + (end - start) * min(epoch, epochs) / epochs


FORMULAS = {
    "step": (lambda o: optim.StepLR(o, 2, 0.5), lambda e: 0.5 ** (e // 2)),
    "milestones": (
        lambda o: optim.MultiStepLR(o, [5, 2, 5], 0.5), lambda e: 0.5 ** ((e >= 2) + 2 * (e >= 5)),
    ),
    "power": (lambda o: optim.ExponentialLR(o, 0.7), lambda e: 0.7**e),
    "line": (lambda o: optim.LinearLR(o, 0.25, 0.75, 4), line),
    "cosine": (
        lambda o: optim.CosineAnnealingLR(o, 4), lambda e: (1 + math.cos(e * math.pi / 4)) / 2,
    ),
    "one after another": (
        lambda o: optim.SequentialLR(
            o, [optim.LinearLR(o, 0.25, 0.75, 4), optim.ExponentialLR(o, 0.5)], [3]
        ),
        lambda e: line(e) if e < 3 else 0.5 ** (e - 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name):
    make, share = FORMULAS[name]
    wanted = [BASE * share(epoch) for epoch in range(9)]
    np.testing.assert_allclose(rates(make(optimizer()), 9), wanted, rtol=1e-14)


def test_defaults_of_the_line_are_those_of_pytorch():
    wanted = [BASE * (1 / 3 + 2 / 3 * min(epoch, 5) / 5) for epoch in range(8)]
    np.testing.assert_allclose(rates(optim.LinearLR(optimizer()), 8), wanted, rtol=1e-14)


def test_one_cycle():
    """Ten steps, the top after the third: rate and momentum go opposite ways."""
    made = optimizer(momentum=0.5)
    schedule = optim.OneCycleLR(made, 1.0, total_steps=10, anneal_strategy="linear")
    found, momenta = [], []
    for _ in range(10):
        found.append(schedule.get_last_lr()[0])
        momenta.append(made.param_groups[0]["momentum"])
        schedule.step()
    first, last = 1 / 25, 1 / 25 / 1e4
    wanted = [first, (first + 1) / 2, 1.0, *(1 + (last - 1) * k / 7 for k in range(1, 8))]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    wanted = [0.95, 0.9, 0.85, *(0.85 + 0.1 * k / 7 for k in range(1, 8))]
    np.testing.assert_allclose(momenta, wanted, rtol=1e-12)
    with pytest.raises(ConfigError, match="step 11 lies beyond the cycle of 10 steps"):
        schedule.step()


def test_one_cycle_moves_the_first_beta_of_adam_and_leaves_what_it_is_not_asked_for():
    made = optimizer(optim.Adam)
    optim.OneCycleLR(made, 0.1, epochs=2, steps_per_epoch=5, max_momentum=0.9)
    assert made.param_groups[0]["betas"] == (0.9, 0.999)
    other = optimizer()
    optim.OneCycleLR(other, 0.1, total_steps=9, cycle_momentum=False)
    assert other.param_groups[0]["momentum"] == 0


def test_a_plateau_lowers_the_rate_after_more_than_its_patience():
    schedule = optim.ReduceLROnPlateau(optimizer(), factor=0.5, patience=1, cooldown=1, min_lr=0.3)
    found = []
    for loss in (1.0, 2.0, 0.9, 0.95, math.nan, 1.0, 1.0, 1.0, 1.0, 1.0):
        schedule.step(loss)
        found.append(schedule.get_last_lr()[0])
    assert found == [0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.3, 0.3, 0.3]
    assert schedule.best == 0.9


@pytest.mark.parametrize(
    ("mode", "threshold_mode", "value", "better"),
    [
        ("min", "rel", 0.95, False), ("min", "rel", 0.85, True), ("min", "abs", 0.95, False),
        ("min", "abs", 0.89, True), ("max", "rel", 1.05, False), ("max", "rel", 1.15, True),
        ("max", "abs", 1.05, False), ("max", "abs", 1.11, True),
    ],
)  # fmt: skip
def test_what_a_plateau_calls_better(mode, threshold_mode, value, better):
    schedule = optim.ReduceLROnPlateau(
        optimizer(), mode, patience=0, threshold=0.1, threshold_mode=threshold_mode
    )
    schedule.step(1.0)
    schedule.step(value)
    assert (schedule.get_last_lr() == [BASE]) == better


def test_each_group_has_its_rates():
    made = optimizer(groups=(1.0, 0.1), momentum=0.9)
    schedule = optim.OneCycleLR(made, [1.0, 0.5], total_steps=20, max_momentum=[0.9, 0.8])
    first = [pytest.approx(0.04), pytest.approx(0.02)]
    assert schedule.get_last_lr() == first
    assert [group["momentum"] for group in made.param_groups] == [0.9, 0.8]
    names = ["lr", "momentum", "lr.1", "momentum.1"]
    assert made.scalars() == dict(zip(names, [first[0], 0.9, first[1], 0.8], strict=True))


def test_schedules_of_one_optimizer_are_chained():
    made = optimizer()
    warm, fall = optim.LinearLR(made, 0.25, 1.0, 4), optim.ExponentialLR(made, 0.9)
    found = []
    for _ in range(7):
        found.append(made.param_groups[0]["lr"])
        warm.step()
        fall.step()
    wanted = [BASE * line(epoch, 0.25, 1.0) * 0.9**epoch for epoch in range(7)]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_rate_that_the_user_changes_stays_changed():
    made = optimizer()
    schedule = optim.CosineAnnealingLR(made, 10, eta_min=0.1)
    schedule.step()
    made.param_groups[0]["lr"] = 0.5
    schedule.step()
    share = (1 + math.cos(0.2 * math.pi)) / (1 + math.cos(0.1 * math.pi))
    assert made.param_groups[0]["lr"] == pytest.approx(0.1 + 0.4 * share, rel=1e-12)


def test_a_schedule_goes_on_after_an_epoch():
    made = optimizer()
    with pytest.raises(ConfigError, match="its first rate is unknown"):
        optim.StepLR(made, 2, last_epoch=3)
    made.param_groups[0]["initial_lr"] = 1.0
    assert optim.StepLR(made, 2, 0.5, last_epoch=3).get_last_lr() == [0.25]


def test_a_trainer_keeps_the_schedule_in_its_checkpoint(tmp_path):
    """A cycled momentum neither traces nor plans anew; resumed within a budget, the bits are the
    same."""
    x = np.random.default_rng(0).standard_normal((4, 5), np.float32)
    y = np.arange(4) % 3

    def begin(**memory):
        oc.manual_seed(1)
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
        made = optim.RMSprop(model.parameters(), lr=0.01, momentum=0.9, centered=True)
        schedule = optim.OneCycleLR(made, 0.02, total_steps=6)
        return oc.Trainer(model, optimizer=made, threads=1, clip=1.0, **memory), schedule

    def go(trainer, schedule, count):
        losses = []
        for _ in range(count):
            losses.append(trainer.step(x, y))
            schedule.step()
        return losses

    trainer, schedule = begin()
    with trainer:
        go(trainer, schedule, 1)
        first = trainer.prepared
        go(trainer, schedule, 2)
        assert trainer.prepared is first
        run = RunState(step=trainer.steps_done, schedule=schedule.state_dict())
        trainer.save(str(tmp_path / "run.safetensors"), run)
        expected = go(trainer, schedule, 2), trainer.state_arrays()
    trainer, schedule = begin(budget="20%", planner="naive")
    with trainer:
        schedule.load_state_dict(trainer.resume(str(tmp_path / "run.safetensors")).schedule)
        losses, arrays = go(trainer, schedule, 2), trainer.state_arrays()
    assert losses == expected[0]
    assert {n: a.tobytes() for n, a in arrays.items()} == {
        n: a.tobytes() for n, a in expected[1].items()
    }
    assert any(name.endswith("grad_avg") for name in arrays)


def test_fit_tells_a_plateau_the_mean_loss_of_each_epoch():
    model = nn.Sequential(nn.Linear(5, 3))
    made = optim.SGD(model.parameters(), lr=0.1)
    schedule = optim.ReduceLROnPlateau(made)
    batches = [(np.ones((4, 5), np.float32), np.arange(4) % 3)] * 2
    with oc.Trainer(model, optimizer=made, threads=1) as trainer:
        losses = trainer.fit(batches, 2, schedule=schedule)
    assert schedule.last_epoch == 2
    assert schedule.best == pytest.approx(np.mean(losses[2:]))


WRONG = [
    lambda: optim.LinearLR(optimizer(), 0.0),
    lambda: optim.LinearLR(optimizer(), end_factor=1.5),
    lambda: optim.LinearLR(optimizer(), total_iters=0),
    lambda: optim.OneCycleLR(optimizer(), 0.1),
    lambda: optim.OneCycleLR(optimizer(), 0.1, epochs=3),
    lambda: optim.OneCycleLR(optimizer(), 0.1, total_steps=0),
    lambda: optim.OneCycleLR(optimizer(), 0.1, total_steps=9, pct_start=1.5),
    lambda: optim.OneCycleLR(optimizer(), 0.1, total_steps=10, pct_start=0.1),
    lambda: optim.OneCycleLR(optimizer(), [0.1, 0.2], total_steps=9),
    lambda: optim.OneCycleLR(optimizer(), 0.1, total_steps=9, anneal_strategy="steep"),
    lambda: optim.OneCycleLR(optimizer(), 0.1, total_steps=9, base_momentum=0.0),
    lambda: optim.ReduceLROnPlateau(optimizer(), "least"),
    lambda: optim.ReduceLROnPlateau(optimizer(), factor=1.0),
    lambda: optim.ReduceLROnPlateau(optimizer(), min_lr=[0.1, 0.2]),
    lambda: optim.SequentialLR(optimizer(), [], []),
    lambda: optim.SequentialLR(optimizer(), [optim.StepLR(optimizer(), 1)], []),
]


@pytest.mark.parametrize("make", WRONG)
def test_wrong_settings(make):
    with pytest.raises(ConfigError):
        make()


def test_wrong_sequences_and_groups_that_come_later():
    made = optimizer()
    one, two = optim.StepLR(made, 1), optim.StepLR(made, 2)
    with pytest.raises(ConfigError, match="one milestone fewer"):
        optim.SequentialLR(made, [one, two], [])
    with pytest.raises(ConfigError, match="not in order"):
        optim.SequentialLR(made, [one, two, one], [4, 2])
    with pytest.raises(ConfigError, match="wants a loss"):
        optim.SequentialLR(made, [optim.ReduceLROnPlateau(made)], [])
    made.add_param_group({"params": [nn.Parameter(np.ones(3))]})
    with pytest.raises(ConfigError, match="made for 1 parameter groups"):
        one.step()


class Baked(optim.SGD):
    """An optimizer of one's own that takes its momentum for a setting."""

    def update_op(self, group, lr):
        return SGDUpdate(group["momentum"], 0.0, 0.0, False, lr)


def test_a_cycled_momentum_that_an_optimizer_takes_for_a_setting_is_seen():
    """Each step is traced and planned anew then, but none has the momentum of another one."""
    x, y = np.ones((4, 5), np.float32), np.arange(4) % 3
    values = []
    for kind in (optim.SGD, Baked):
        oc.manual_seed(1)
        model = nn.Sequential(nn.Linear(5, 3))
        made = kind(model.parameters(), lr=0.1, momentum=0.9)
        schedule = optim.OneCycleLR(made, 0.1, total_steps=6)
        with oc.Trainer(model, optimizer=made, threads=1) as trainer:
            for _ in range(4):
                trainer.step(x, y)
                schedule.step()
            values.append([value.tobytes() for value in trainer.state_arrays().values()])
    assert values[0] == values[1]
