"""A schedule that is loaded goes on with the same bits: rates and momenta of all steps that follow.

Whatever schedule it is, wherever it was stopped, and whoever else has changed a rate before:
another schedule of the same optimizer, or the user. The state is plain data, as a checkpoint keeps
it, and the optimizer that goes on had another rate at first.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooctrain import nn, optim

LOSSES = (1.0, 0.9, 0.9, 0.95, 0.92, 0.91, 0.8, 0.8, 0.7, 0.9)
STEPS = len(LOSSES)

SCHEDULES = {
    "step": lambda o: optim.StepLR(o, 2, 0.5),
    "milestones": lambda o: optim.MultiStepLR(o, [5, 2, 5], 0.5),
    "power": lambda o: optim.ExponentialLR(o, 0.7),
    "line": lambda o: optim.LinearLR(o, 0.25, 0.75, 4),
    "cosine": lambda o: optim.CosineAnnealingLR(o, 4, 0.1),
    "cycle": lambda o: optim.OneCycleLR(o, 0.5, total_steps=12),
    "three phases": lambda o: optim.OneCycleLR(o, 0.5, total_steps=12, three_phase=True),
    "plateau": lambda o: optim.ReduceLROnPlateau(o, patience=1, cooldown=1),
    "row": lambda o: optim.SequentialLR(
        o, [optim.LinearLR(o, 0.25, 0.75, 4), optim.ExponentialLR(o, 0.5)], [3]
    ),
    "row with a cycle": lambda o: optim.SequentialLR(
        o, [optim.StepLR(o, 1), optim.OneCycleLR(o, 0.5, total_steps=12)], [2]
    ),
    "row of two cycles": lambda o: optim.SequentialLR(
        o,
        [
            optim.OneCycleLR(o, 0.5, 7),
            optim.OneCycleLR(o, 0.2, 9, max_momentum=0.7, base_momentum=0.6),
        ],
        [4],
    ),
    "row of rows": lambda o: optim.SequentialLR(
        o,
        [
            optim.SequentialLR(o, [optim.LinearLR(o, 0.25), optim.StepLR(o, 2)], [2]),
            optim.SequentialLR(o, [optim.ExponentialLR(o, 0.5), optim.OneCycleLR(o, 0.5, 9)], [2]),
        ],
        [4],
    ),
}


def optimizer(lr):
    groups = [{"params": [nn.Parameter(np.ones(2))], "lr": lr / number} for number in (1, 4)]
    return optim.SGD(groups, momentum=0.9)


class Run:
    """Schedules of one optimizer that are all stepped, one after the other."""

    def __init__(self, names, lr):
        self.optimizer = optimizer(lr)
        self.schedules = [SCHEDULES[name](self.optimizer) for name in names]

    def in_force(self):
        return [(group["lr"], group["momentum"]) for group in self.optimizer.param_groups]

    def step(self, loss, factor):
        for schedule in self.schedules:
            plateau = isinstance(schedule, optim.ReduceLROnPlateau)
            schedule.step(loss) if plateau else schedule.step()
        for group in self.optimizer.param_groups:
            group["lr"] *= factor

    def state(self):
        return json.dumps([schedule.state_dict() for schedule in self.schedules], allow_nan=False)

    def load(self, state):
        for schedule, saved in zip(self.schedules, json.loads(state), strict=True):
            schedule.load_state_dict(saved)


def check(names, stop, factors):
    """
    Args:
        stop: steps before the state is saved.
        factors: {step: what the user multiplies the rates by after it}.
    """
    whole, again = Run(names, 0.8), Run(names, 0.01)
    for number, loss in enumerate(LOSSES):
        if number == stop:
            again.load(whole.state())
        if number >= stop:
            assert again.in_force() == whole.in_force(), f"before step {number}"
            again.step(loss, factors.get(number, 1))
        whole.step(loss, factors.get(number, 1))


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_loaded_schedule_goes_on_with_the_same_bits(name):
    for stop in range(STEPS):
        check([name], stop, {})
        check([name], stop, {1: 0.5})


@settings(max_examples=40)
@given(
    names=st.lists(st.sampled_from(sorted(SCHEDULES)), min_size=1, max_size=3),
    stop=st.integers(0, STEPS - 1),
    factors=st.dictionaries(st.integers(0, STEPS - 1), st.sampled_from([0.5, 3.0]), max_size=2),
)
def test_several_of_them_too(names, stop, factors):
    check(names, stop, factors)
