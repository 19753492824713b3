"""Schedules beside torch: the same learning rates and momenta, alone, chained and in a row."""

from __future__ import annotations

import numpy as np
import pytest

from ooctrain import nn, optim

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore::UserWarning")]

STEPS = 30
#: torch multiplies by the factor of each epoch, this library has the closed form
ROUNDING = 1e-12
LOSSES = np.random.default_rng(3).random(STEPS) + np.linspace(1, 0, STEPS)

MAKERS = {
    "StepLR": lambda s, o: s.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [4, 9, 9, 20]),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.9),
    "LinearLR": lambda s, o: s.LinearLR(o),
    "LinearLR down": lambda s, o: s.LinearLR(o, 1.0, 0.0, 7),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 11, 0.01),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, [0.3, 0.2], STEPS),
    "OneCycleLR to the end": lambda s, o: s.OneCycleLR(o, 0.3, epochs=5, steps_per_epoch=6),
    "OneCycleLR linear": lambda s, o: s.OneCycleLR(
        o, 0.3, 40, pct_start=0.45, anneal_strategy="linear", base_momentum=0.8,
        max_momentum=[0.9, 0.99], div_factor=10.0, final_div_factor=100.0,
    ),
    "OneCycleLR three phases": lambda s, o: s.OneCycleLR(o, 0.3, STEPS, three_phase=True),
    "OneCycleLR alone": lambda s, o: s.OneCycleLR(o, 0.3, STEPS, cycle_momentum=False),
    "ReduceLROnPlateau": lambda s, o: s.ReduceLROnPlateau(o, patience=1),
    "ReduceLROnPlateau max": lambda s, o: s.ReduceLROnPlateau(
        o, "max", 0.3, 2, 0.05, "abs", 2, [0.01, 1e-3]
    ),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, 1.0, 5), s.CosineAnnealingLR(o, 20), s.ExponentialLR(o, 0.5)],
        [5, 22],
    ),
    "SequentialLR of a cycle": lambda s, o: s.SequentialLR(
        o, [s.StepLR(o, 2), s.OneCycleLR(o, 0.4, 25)], [4]
    ),
    "SequentialLR of a late cycle": lambda s, o: s.SequentialLR(
        o, [s.StepLR(o, 3, 0.5), s.OneCycleLR(o, 0.1, 21, base_momentum=0.5, max_momentum=0.99,
                                              anneal_strategy="linear")], [12]
    ),
    "SequentialLR of two cycles": lambda s, o: s.SequentialLR(
        o, [s.OneCycleLR(o, 0.4, 9), s.OneCycleLR(o, [0.2, 0.1], 25, base_momentum=0.5,
                                                  max_momentum=0.7, final_div_factor=7.0)], [8]
    ),
    "SequentialLR after a cycle": lambda s, o: s.SequentialLR(
        o, [s.OneCycleLR(o, 0.4, 9), s.StepLR(o, 2), s.ExponentialLR(o, 0.9)], [5, 11]
    ),
}  # fmt: skip


def optimizers(kind, **settings):
    """One of each library, with two parameter groups."""
    ones = {optim: np.ones(2), torch.optim: torch.ones(2)}
    for library, parameter in ((optim, nn.Parameter), (torch.optim, torch.nn.Parameter)):
        groups = [{"params": [parameter(ones[library])], "lr": lr} for lr in (0.1, 0.02)]
        yield getattr(library, kind)(groups, **settings)


def settings_of(made):
    return [
        [group["lr"], group.get("momentum", 0.0), *group.get("betas", ())]
        for group in made.param_groups
    ]


def advance(schedules, loss):
    for schedule in schedules:
        plateau = type(schedule).__name__ == "ReduceLROnPlateau"
        schedule.step(loss) if plateau else schedule.step()


def assert_alike(mine, theirs, ours, peers):
    for number, loss in enumerate(LOSSES):
        for found, wanted in zip(settings_of(mine), settings_of(theirs), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=ROUNDING, atol=ROUNDING, err_msg=number)
        if number + 1 < STEPS:
            advance(ours, loss)
            advance(peers, loss)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "RMSprop"])
@pytest.mark.parametrize("name", MAKERS)
def test_rates_are_those_of_torch(name, kind):
    settings = {} if kind == "Adam" else {"momentum": 0.9}
    mine, theirs = optimizers(kind, **settings)
    ours, peers = MAKERS[name](optim, mine), MAKERS[name](torch.optim.lr_scheduler, theirs)
    assert_alike(mine, theirs, [ours], [peers])


CHAINED = [
    ("LinearLR", "ExponentialLR"), ("ExponentialLR", "LinearLR"), ("StepLR", "CosineAnnealingLR"),
    ("MultiStepLR", "ReduceLROnPlateau"), ("CosineAnnealingLR", "ExponentialLR", "StepLR"),
]  # fmt: skip


@pytest.mark.parametrize("names", CHAINED, ids="+".join)
def test_chained_rates_are_those_of_torch(names):
    mine, theirs = optimizers("SGD")
    ours = [MAKERS[name](optim, mine) for name in names]
    peers = [MAKERS[name](torch.optim.lr_scheduler, theirs) for name in names]
    assert_alike(mine, theirs, ours, peers)


@pytest.mark.parametrize("name", ["StepLR", "ExponentialLR", "MultiStepLR", "LinearLR"])
def test_a_rate_that_the_user_changes_goes_on_as_in_torch(name):
    mine, theirs = optimizers("SGD")
    ours, peers = MAKERS[name](optim, mine), MAKERS[name](torch.optim.lr_scheduler, theirs)
    for made, schedule in ((mine, ours), (theirs, peers)):
        schedule.step()
        made.param_groups[0]["lr"] = 0.5
    assert_alike(mine, theirs, [ours], [peers])


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("stop", [0, 3, 6, 10, 13])
@pytest.mark.parametrize("name", MAKERS)
def test_a_state_of_torch_can_be_loaded(name, stop, kind):
    mine, theirs = optimizers(kind, **({} if kind == "Adam" else {"momentum": 0.9}))
    ours, peers = MAKERS[name](optim, mine), MAKERS[name](torch.optim.lr_scheduler, theirs)
    for loss in LOSSES[:stop]:
        advance([peers], loss)
    ours.load_state_dict(peers.state_dict())
    for loss in LOSSES[stop : stop + 8]:
        for found, wanted in zip(settings_of(mine), settings_of(theirs), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=ROUNDING, atol=ROUNDING)
        advance([ours, peers], loss)
