"""Batches as they come: a look at one image before training, a smaller last batch, many shapes.

What is trained does not depend on what was asked before, an epoch ends with what is left over, and
shapes that come again and again are planned once.
"""

import numpy as np
import pytest
from support.quick import every

import ooctrain as oc
from ooctrain import nn


def batch(rows, side=4):
    rng = np.random.default_rng(rows)
    return rng.standard_normal((rows, 1, side, side)).astype(np.float32), np.arange(rows) % 3


def network():
    oc.manual_seed(0)
    head = nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3, padding=1), *head
    )


def trainer(**options):
    model = network()
    sgd = oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return oc.Trainer(model, optimizer=sgd, threads=1, **options)


BEFORE = {
    "nothing": lambda t: None,
    "one prediction": lambda t: t.predict(batch(1)[0]),
    "a large prediction": lambda t: t.predict(batch(64)[0]),
    "an evaluation": lambda t: t.evaluate([batch(3), batch(2)]),
    "a step of one": lambda t: t.step(*batch(1)),
    "another size of images": lambda t: t.predict(batch(1, side=9)[0]),
}


@pytest.mark.parametrize("share", ["20%", "60%"])
def test_a_percentage_is_that_of_what_is_trained(share):
    found = {}
    for name, use in BEFORE.items():
        with trainer(budget=share, planner="belady", allocator="best-fit") as t:
            use(t)
            found[name] = t.prepare((32, 1, 16, 16)).budget_bytes
            t.predict(batch(1)[0])
            assert t.prepare((32, 1, 16, 16)).budget_bytes == found[name]
    assert len(set(found.values())) == 1, found


def test_a_prediction_needs_no_target_of_the_loss():
    """Of a loss with a target of its own nobody knows the shape before there is one."""

    def loss(output, target):
        return oc.functional.mse_loss(output, target[:, :3])

    with trainer(loss=loss, budget="50%", planner="belady") as t:
        assert t.predict(batch(2)[0]).shape == (2, 3)


@pytest.mark.parametrize(
    ("accumulate", "budget"),
    every([(3, None), (2, None), (4, None), (8, None), (3, "60%")], 4, names=2),
)
def test_the_last_batch_of_an_epoch_is_trained_as_the_others(accumulate, budget):
    """Of 8, 8 and what is left over: losses are those of whole batches."""
    batches = [batch(8), batch(8), batch(7), batch(1), batch(3)]
    with (
        trainer() as whole,
        trainer(accumulate=accumulate, budget=budget, planner="belady") as parts,
    ):
        wanted, found = whole.fit(batches), parts.fit(batches)
        assert np.allclose(wanted, found, rtol=2e-5)
        for name, value in whole.model.state_dict().items():
            assert np.allclose(value, parts.model.state_dict()[name], rtol=1e-4, atol=1e-6)


def test_shapes_that_come_again_are_planned_once():
    shapes = [(rows, side) for rows in (1, 2, 3, 4) for side in range(3, 13)]
    with trainer() as t:
        plans = [[t.prepare(batch(*shape)[0].shape) for shape in shapes] for _ in range(3)]
        assert len(shapes) == 40
        for first, *others in zip(*plans, strict=True):
            assert all(one is first for one in others)


def test_a_batch_that_is_refused_changes_no_budget():
    """Of a size that was tried in vain no percentage is taken."""
    with trainer(budget="30%", planner="belady", host_budget="2KiB") as t:
        wanted = t.prepare((2, 1, 2, 2)).budget_bytes
        with pytest.raises(oc.OoctrainError):
            t.prepare((4096, 1, 12, 12))
        assert t.prepare((2, 1, 2, 2)).budget_bytes == wanted
