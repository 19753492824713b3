"""Law: a trainer has one budget, whatever the shapes that it sees, and in whatever order.

A percentage is of what a step needs, and each shape of input has a step of its own. So it is that
of the largest step that was trained: smaller ones, and all evaluations and predictions, run within
the same bytes, or are refused by name. Otherwise a last batch, or an evaluation with more images,
would take memory that nobody has. What was asked before any training step does not count: an
evaluation then has the bytes of the step that would train its batch.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.directed import always

import ooctrain as oc
from ooctrain import nn
from ooctrain.errors import DoesNotFit, Infeasible
from ooctrain.execution import step_cache
from ooctrain.execution.fit import prepare, share_bytes

WAYS = ("step", "evaluate", "predict", "clip")
events = st.lists(st.tuples(st.sampled_from(WAYS), st.integers(2, 6)), min_size=2, max_size=6)
#: Budgets, and what trainers are used for.
USES = [
    ("40%", [("step", 3), ("evaluate", 5)]),
    ("40%", [("evaluate", 5), ("step", 3), ("step", 2)]),
    ("100%", [("predict", 2), ("step", 4), ("clip", 2)]),
    (None, [("step", 2), ("step", 4), ("predict", 5)]),
    ("0%", [("step", 4), ("step", 2), ("predict", 3), ("clip", 5)]),
    ("40%", [("predict", 2), ("step", 2), ("step", 6), ("predict", 2), ("step", 2)]),
    ("40%", [("step", 5), ("evaluate", 2), ("predict", 6)]),
]


def network():
    oc.manual_seed(1)
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 3))


def batch(samples):
    rng = np.random.default_rng(samples)
    return rng.standard_normal((samples, 1, 4, 4), np.float32), rng.integers(0, 3, samples)


def act(trainer, way, samples):
    """One use of a trainer; "clip": a step that is planned anew, since something has changed."""
    x, y = batch(samples)
    if way == "evaluate":
        trainer.evaluate([(x, y)])
    elif way == "predict":
        trainer.predict(x)
    else:
        if way == "clip":
            trainer.clip = 1.0 + samples
        trainer.step(x, y)


def share(samples, trainer):
    """What a percentage is of the step that trains so many samples."""
    step = oc.trace(network(), batch(samples)[0].shape, threads=1, clip=trainer.clip)
    return share_bytes(step, trainer.settings)


def check_budgets(budget, uses):
    """All steps have the bytes of the largest that was trained, or that would train them."""
    prepared = []

    def noted(*given):
        prepared.append(prepare(*given))
        return prepared[-1]

    largest = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        oc.Trainer(
            network(), budget=budget, planner="naive", threads=1, allocator="best-fit"
        ) as trainer,
    ):
        patch.setattr(step_cache, "prepare", noted)
        for way, samples in uses:
            prepared.clear()
            refused = None
            try:
                act(trainer, way, samples)
            except (Infeasible, DoesNotFit) as error:
                refused = error  # by name, before anything was taken
            own = share(samples, trainer) if budget else 0
            trains = way in ("step", "clip")
            wanted = max(largest, own) if trains else largest or own
            for step in prepared:
                if budget is None:  # as much as each of them needs
                    wanted = prepare(step.original, trainer.settings).budget_bytes
                assert step.budget_bytes == wanted
                assert step.reserved_bytes <= wanted
            there = trainer._residence.open
            if refused is None:  # it may have been planned earlier
                assert there.prepared.budget_bytes == wanted
                largest = wanted if trains else largest


@pytest.mark.slow
@settings(max_examples=4)
@given(st.sampled_from(["0%", "40%", "100%", None]), events)
@always(USES)
def test_every_step_of_a_trainer_has_the_bytes_of_its_largest(budget, uses):
    check_budgets(budget, uses)
