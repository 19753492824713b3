"""A loss that is not a finite number never reaches what persists: the step might not have been.

A run with bad batches among the good ones has, to the bit, the parameters, buffers, slots and
losses of the run with the good ones alone, within any budget, clipped, accumulated or not.
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ooctrain as oc
from ooctrain import nn, optim
from ooctrain.devices.base import FRESH_POISON, Debug
from ooctrain.errors import TrainingStopped

SHAPE = (4, 2, 8, 8)
#: {name: (loss, optimizer)}; the large number is finite, its square is not.
KINDS = {
    "sgd": ("cross_entropy", lambda p: optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01)),
    "adam": ("cross_entropy", lambda p: optim.Adam(p, lr=0.01)),
    "mse": ("mse", lambda p: optim.SGD(p, lr=0.01, momentum=0.9)),
}
BAD = [np.nan, np.inf, -np.inf]
LARGE = 1e30


def network(kind=""):
    oc.manual_seed(4)
    if kind == "mse":
        return nn.Sequential(nn.Flatten(), nn.Linear(128, 3))
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=None), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 64, 3),
    )  # fmt: skip


def batch(number, spoilt=None, kind=""):
    rng = np.random.default_rng(number)
    x, y = rng.standard_normal(SHAPE, np.float32), rng.integers(0, 3, 4)
    if kind == "mse":
        y = rng.standard_normal((4, 3), np.float32)
    if spoilt is not None:
        x[rng.integers(0, 4), 0, 3, 3] = spoilt
    return x, y


def run(events, kind, options):
    """What good steps give, and everything afterwards. Events: None, or what spoils a batch."""
    model, (loss, make) = network(kind), KINDS[kind]
    optimizer = make(model.parameters())
    losses = []
    with oc.Trainer(model, loss, optimizer, threads=1, seed=3, **options) as trainer:
        for number, spoilt in events:
            if spoilt is None:
                losses.append(trainer.step(*batch(number, kind=kind)))
            else:
                with pytest.raises(TrainingStopped):
                    trainer.step(*batch(number, spoilt, kind))
        values = {name: sha256(value).hexdigest() for name, value in trainer.state_arrays().items()}
    return losses, values, optimizer.steps_done, list(optimizer.steps.values())


@settings(max_examples=8)
@given(
    events=st.lists(st.sampled_from([None, *BAD]), min_size=2, max_size=4),
    kind=st.sampled_from(sorted(KINDS)),
    budget=st.sampled_from([None, "50%"]),
    accumulate=st.sampled_from([1, 2]),
    clip=st.sampled_from([None, 0.1]),
    poisoned=st.booleans(),
)
@example([np.nan, None, np.inf, None], "adam", "50%", 2, None, True)
@example([None, LARGE, None], "mse", None, 1, None, False)
def test_a_bad_batch_leaves_no_trace(events, kind, budget, accumulate, clip, poisoned):
    debug = Debug(poison=FRESH_POISON) if poisoned else None
    options = {"budget": budget, "planner": "window", "accumulate": accumulate, "clip": clip}
    numbered = list(enumerate(events))
    good = [event for event in numbered if event[1] is None]
    found = run(numbered, kind, {**options, "debug": debug})
    assert found == run(good, kind, options)
