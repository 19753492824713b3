"""Schedules beside torch: the same learning rates and momenta, alone, chained and in a row."""

from __future__ import annotations

import numpy as np
import pytest
from support.rate_schedules import LOSSES, MAKERS, STEPS

from ooctrain import nn, optim

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore::UserWarning")]

#: torch multiplies by the factor of each epoch, this library has the closed form
ROUNDING = 1e-12


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
