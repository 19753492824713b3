"""Settings that make no sense are refused by name before a step, and never train a model into
something that is not a number: at construction, and when they are changed between steps."""

from __future__ import annotations

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import nn, optim
from ooctrain.engine.clip import ClipEach, ClipNorm
from ooctrain.errors import OoctrainError

NAN, INF = float("nan"), float("inf")
NO_RATES = [NAN, INF, -1.0, "fast", None]
#: As in PyTorch: a negative dampening, and a learning rate that becomes negative.
ALLOWED = {("dampening", -1.0)}
ALLOWED_LATER = {*ALLOWED, ("lr", -1.0)}


def network():
    oc.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def batch():
    rng = np.random.default_rng(2)
    return rng.standard_normal((4, 5), np.float32), rng.integers(0, 3, 4)


def refused(call) -> OoctrainError:
    with pytest.raises(OoctrainError) as caught:
        call()
    assert caught.value.fix
    return caught.value


def trained(**options):
    with oc.Trainer(network(), threads=1, **options) as trainer:
        trainer.step(*batch())


WRONG = [
    ("accumulate", 2.0), ("accumulate", "2"), ("optimizer", 3), ("optimizer", optim.SGD),
    ("seed", "x"), ("seed", 1.5), ("time_limit_s", NAN), ("time_limit_s", -1.0),
    ("time_limit_s", "x"), ("clip", NAN), ("clip", -1.0), ("clip", "1"), ("budget", True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_a_trainer_refuses_what_makes_no_sense(name, value):
    refused(lambda: trained(**{name: value}))


def test_no_bound_of_gradients_is_below_0_or_no_number():
    for bound in (NAN, -1.0, "1", None):
        refused(lambda bound=bound: ClipNorm(bound))
        refused(lambda bound=bound: ClipEach(bound))
    assert ClipNorm(INF).max_norm == INF  # what measures the norm, and clips nothing


def test_what_is_no_model_or_knows_no_thread_is_refused():
    refused(lambda: oc.Trainer("resnet18"))
    refused(lambda: oc.Trainer(network(), threads=1.5).step(*batch()))
    refused(lambda: oc.Trainer(network(), threads=1).evaluate([batch()[0]]))


def test_an_optimizer_of_another_model_is_refused():
    """It would train nothing, without a word."""
    other = optim.SGD(network().parameters(), lr=0.1)
    assert "no parameter" in str(refused(lambda: trained(optimizer=other)))


SETTINGS = {
    "SGD": (optim.SGD, {"momentum": 0.9}, ("lr", "momentum", "dampening", "weight_decay")),
    "Adam": (optim.Adam, {}, ("lr", "eps", "weight_decay", "betas")),
    "RMSprop": (optim.RMSprop, {"momentum": 0.5}, ("lr", "alpha", "eps", "weight_decay")),
}
CASES = [(kind, name, wrong) for kind, (_, _, names) in SETTINGS.items()
         for name in names for wrong in NO_RATES]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "wrong"), CASES)
def test_an_optimizer_refuses_a_setting_that_is_no_finite_number(kind, name, wrong):
    make, others, _ = SETTINGS[kind]
    if (name, wrong) in ALLOWED:
        return
    refused(lambda: make(network().parameters(), **{**others, "lr": 0.1, name: wrong}))


AT_ONCE = [("SGD", "lr", NAN), ("SGD", "dampening", NAN), ("Adam", "betas", "fast"),
           ("RMSprop", "eps", INF)]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [case if case in AT_ONCE else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_a_setting_that_becomes_no_finite_number_is_refused_by_the_next_step(kind, name, wrong):
    make, others, _ = SETTINGS[kind]
    model = network()
    optimizer = make(model.parameters(), **{"lr": 0.01, **others})
    with oc.Trainer(model, optimizer=optimizer, threads=1) as trainer:
        trainer.step(*batch())
        before = trainer.state_arrays()
        right, optimizer.param_groups[0][name] = optimizer.param_groups[0][name], wrong
        if (name, wrong) not in ALLOWED_LATER:
            refused(lambda: trainer.step(*batch()))
            optimizer.param_groups[0][name] = right
            after = trainer.state_arrays()
            assert all(np.array_equal(after[key], value) for key, value in before.items())
        optimizer.param_groups[0][name] = right
        trainer.step(*batch())
        assert all(np.isfinite(value).all() for value in trainer.state_arrays().values())


def test_eager_steps_refuse_it_too():
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x, y = batch()
    oc.functional.cross_entropy(model(oc.tensor(x)), oc.tensor(y)).backward()
    before = model.state_dict()
    optimizer.param_groups[0]["lr"] = NAN
    refused(optimizer.step)
    assert all(np.array_equal(model.state_dict()[k], v) for k, v in before.items())
