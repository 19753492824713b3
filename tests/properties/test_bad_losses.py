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
from ooctrain.devices.interface import FRESH_POISON, Debug
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


class Root(oc.Op):
    """sqrt(x), whose gradient at 0 is infinite."""

    def shape(self, x):
        return x

    def forward(self, x):
        return np.sqrt(x)

    def backward(self, dy, y):
        with np.errstate(all="ignore"):
            return dy / (2 * y)


def _lengths(h):
    return Root()((h * h).sum((2, 3)))


def _steep(h):
    """Forwards about 1, backwards 1e38 and more."""
    return (h * 4e25).mean((2, 3))


#: {name: (what a network does with its first convolution, the scale of its input and of its
#: weights, whether the step is undone as a whole)}
FINITE_LOSSES = {
    "a root at 0": (_lengths, 1.0, 0.0, True),
    "the library's root": (lambda h: (h * h).sum((2, 3)).sqrt(), 1.0, 0.0, True),
    "a power at 0": (lambda h: (h * h).sum((2, 3)) ** 0.3, 1.0, 0.0, True),
    "an overflow": (_steep, 1e14, 1e-38, False),
}


class Pole(nn.Module):
    """Its last layer is updated before the gradient that is not finite is computed."""

    def __init__(self, kind):
        super().__init__()
        oc.manual_seed(4)
        self.use, _, scale, _ = FINITE_LOSSES[kind]
        self.conv, self.norm = nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)
        weight = self.conv.weight.numpy() * np.float32(scale)
        weight[1:] = weight[1:] if scale else self.conv.weight.numpy()[1:]
        self.conv.weight.copy_(weight)

    def forward(self, x):
        return self.head(self.use(self.conv(x)))


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("budget", [None, "30%"])
@pytest.mark.parametrize("kind", FINITE_LOSSES)
def test_a_gradient_that_is_not_finite_is_not_written(kind, budget, clip):
    model = Pole(kind)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    _, scale, _, undone = FINITE_LOSSES[kind]
    x, y = batch(0)
    with oc.Trainer(
        model, optimizer=optimizer, threads=1, budget=budget, planner="window", clip=clip
    ) as trainer:
        before = trainer.state_arrays()
        for _ in range(2):
            with pytest.raises(TrainingStopped) as stopped:
                trainer.step(abs(x) * np.float32(scale), y)
            after = trainer.state_arrays()
            assert all(np.isfinite(value).all() for value in after.values())
            changed = [n for n in after if after[n].tobytes() != before[n].tobytes()]
            assert not any("conv" in name for name in changed)
            if undone or clip:
                assert not changed
                assert "nothing" in str(stopped.value)
            else:
                assert f"{len(changed)} values" in str(stopped.value)
            before = after
            assert optimizer.steps_done == 0
        trainer.predict(x)
