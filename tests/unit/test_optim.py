"""Optimizers, schedules and clipping against the formulas that PyTorch documents."""

import numpy as np
import pytest

from ooctrain import functional as F
from ooctrain import nn, optim
from ooctrain.engine.autograd import tensor
from ooctrain.engine.clip import clip_grad_norm_, clip_grad_value_
from ooctrain.errors import AutogradError, ConfigError
from ooctrain.optim import SGD, Adam, AdamW, CosineAnnealingLR, StepLR


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_gradient(seed=0, shape=(3, 4)):
    parameter = nn.Parameter(values(*shape, seed=seed))
    parameter.grad = tensor(values(*shape, seed=seed + 10))
    return parameter


def run(make, steps=4):
    p = with_gradient()
    optimizer = make([p])
    for step in range(steps):
        p.grad = tensor(values(3, 4, seed=20 + step))
        optimizer.step()
    return p.numpy()


def expected_sgd(lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, steps=4):
    w, m = values(3, 4).astype(float), None
    for step in range(steps):
        d = values(3, 4, seed=20 + step) + weight_decay * w
        if momentum:
            m = d if m is None else momentum * m + (1 - dampening) * d
            d = d + momentum * m if nesterov else m
        w = w - lr * d
    return w


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 0.1},
        {"lr": 0.1, "weight_decay": 0.01},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.01},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ],
)
def test_sgd(settings):
    got = run(lambda params: SGD(params, **settings))
    np.testing.assert_allclose(got, expected_sgd(**settings), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_and_adamw(decoupled):
    lr, (b1, b2), eps, decay = 0.01, (0.8, 0.99), 1e-6, 0.1
    got = run(lambda params: (AdamW if decoupled else Adam)(params, lr, (b1, b2), eps, decay))
    w, m, v = values(3, 4).astype(float), 0.0, 0.0
    for t in range(1, 5):
        g = values(3, 4, seed=19 + t).astype(float)
        w, g = (w * (1 - lr * decay), g) if decoupled else (w, g + decay * w)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w = w - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
    np.testing.assert_allclose(got, w, rtol=2e-5, atol=1e-6)


def test_groups_have_their_own_settings():
    a, b = with_gradient(0), with_gradient(1)
    before = a.numpy().copy(), b.numpy().copy()
    optimizer = SGD([{"params": [a]}, {"params": b, "lr": 1.0}], lr=0.1)
    assert optimizer.scalars() == {"lr": 0.1, "lr.1": 1.0}
    optimizer.step()
    for p, w, lr in ((a, before[0], 0.1), (b, before[1], 1.0)):
        np.testing.assert_allclose(p.numpy(), w - lr * p.grad.numpy(), rtol=1e-6)


def test_zero_grad():
    p = with_gradient()
    optimizer = SGD([p], lr=0.1)
    optimizer.zero_grad(set_to_none=False)
    assert not p.grad.numpy().any()
    optimizer.zero_grad()
    assert p.grad is None
    optimizer.step()  # nothing to do, and nothing breaks


def test_wrong_settings():
    p = with_gradient()
    for make in (
        lambda: SGD([p, p]),
        lambda: SGD([]),
        lambda: SGD([p], lr=-1),
        lambda: SGD([p], lr=1, nesterov=True),
        lambda: SGD([{"params": [p], "speed": 3}]),
        lambda: SGD([p]).group_of(with_gradient()),
        lambda: SGD([{"lr": 0.1}]),
        lambda: SGD([p], lr="0.1"),
        lambda: SGD([p], lr=float("nan")),
        lambda: SGD([p], momentum=-1),
        lambda: SGD([{"params": [p], "weight_decay": -1}]),
        lambda: Adam([p], betas=(1.5, 0.9)),
        lambda: Adam([p], betas=(0.9,)),
        lambda: Adam([p], eps=-1),
    ):
        with pytest.raises(ConfigError):
            make()


def test_state_round_trip_continues_bit_for_bit():
    def steps(p, optimizer, first, count):
        for step in range(first, first + count):
            p.grad = tensor(values(3, 4, seed=step))
            optimizer.step()

    p = with_gradient()
    optimizer = Adam([p], lr=0.01)
    steps(p, optimizer, 0, 3)
    q = nn.Parameter(p.numpy())
    other = Adam([q], lr=1.0)
    other.load_state_dict(optimizer.state_dict())
    steps(p, optimizer, 3, 2)
    steps(q, other, 3, 2)
    assert p.numpy().tobytes() == q.numpy().tobytes()
    with pytest.raises(ConfigError, match="groups"):
        Adam([with_gradient(), with_gradient(1)]).load_state_dict(optimizer.state_dict())


def test_a_state_that_does_not_fit_changes_nothing():
    p = with_gradient()
    sgd, adam = SGD([p], lr=0.1, momentum=0.9), Adam([p], lr=0.2)
    for optimizer in (sgd, adam):
        optimizer.step()
    sgd_state, adam_state = sgd.state_dict(), adam.state_dict()
    wide = Adam([with_gradient(shape=(5, 4))])
    wide.step()
    for optimizer, state in ((sgd, adam_state), (adam, sgd_state), (wide, adam_state)):
        before = optimizer.state_dict()
        with pytest.raises(ConfigError, match="OOC-112"):
            optimizer.load_state_dict(state)
        assert repr(optimizer.state_dict()) == repr(before)


def test_a_state_without_steps_resets_an_optimizer_that_has_some():
    p = with_gradient()
    optimizer = Adam([p], lr=0.1)
    fresh, first = optimizer.state_dict(), p.numpy().copy()
    optimizer.step()
    once = p.numpy().copy()
    optimizer.load_state_dict(fresh)
    p.copy_(first)
    optimizer.step()
    assert p.numpy().tobytes() == once.tobytes()


def test_schedules():
    optimizer = SGD([with_gradient()], lr=0.8)
    schedule = StepLR(optimizer, step_size=2, gamma=0.5)
    rates = []
    for _ in range(5):
        rates.append(schedule.get_last_lr()[0])
        schedule.step()
    assert rates == [0.8, 0.8, 0.4, 0.4, 0.2]
    optimizer = SGD([with_gradient()], lr=0.8)
    schedule = CosineAnnealingLR(optimizer, T_max=4, eta_min=0.2)
    rates = []
    for _ in range(5):
        rates.append(schedule.get_last_lr()[0])
        schedule.step()
    np.testing.assert_allclose(
        rates, [0.8, 0.5 + 0.3 * np.sqrt(0.5), 0.5, 0.5 - 0.3 * np.sqrt(0.5), 0.2]
    )
    resumed = CosineAnnealingLR(SGD([with_gradient()], lr=0.8), T_max=4, eta_min=0.2)
    resumed.load_state_dict(schedule.state_dict())
    assert resumed.get_last_lr() == schedule.get_last_lr()
    resumed.step()
    schedule.step()
    assert resumed.get_last_lr() == schedule.get_last_lr()


def test_schedules_are_where_pytorch_has_them():
    assert optim.lr_scheduler.StepLR is StepLR


def test_clipping_by_norm():
    parameters = [with_gradient(0), with_gradient(1), nn.Parameter(values(2))]
    grads = [p.grad.numpy().copy() for p in parameters[:2]]
    norm = np.sqrt(sum((g.astype(float) ** 2).sum() for g in grads))
    assert np.isclose(clip_grad_norm_(parameters, 0.5), norm)
    for p, g in zip(parameters, grads, strict=False):
        np.testing.assert_allclose(p.grad.numpy(), g * 0.5 / norm, rtol=1e-5)
    assert np.isclose(clip_grad_norm_(parameters, 9.0), 0.5, rtol=1e-5)
    np.testing.assert_allclose(parameters[0].grad.numpy(), grads[0] * 0.5 / norm, rtol=1e-5)


def test_clipping_by_a_norm_that_is_no_finite_number_is_as_in_torch():
    """Factor max_norm / (norm + 1e-6), at most 1: NaN makes all gradients NaN, infinity makes the
    finite ones 0. torch 2.x, clip_grad_norm_(parameters, 1.0), gives these."""
    for bad, others in ((np.nan, np.nan), (np.inf, 0), (-np.inf, 0)):
        parameters = [with_gradient(0), with_gradient(1)]
        spoilt = parameters[0].grad.numpy().copy()
        spoilt[0] = bad
        parameters[0].grad = tensor(spoilt)
        before = [p.grad.numpy().copy() for p in parameters]
        with pytest.raises(AutogradError, match="common norm"):
            clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
        for p, grad in zip(parameters, before, strict=True):
            np.testing.assert_array_equal(p.grad.numpy(), grad)
        norm = clip_grad_norm_(parameters, 1.0)
        np.testing.assert_equal(norm, abs(bad))
        np.testing.assert_array_equal(parameters[1].grad.numpy(), before[1] * others)
        assert np.isnan(parameters[0].grad.numpy()[0]).all()
        np.testing.assert_array_equal(parameters[0].grad.numpy()[1:], before[0][1:] * others)


def test_other_norms_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"norm_type 1\.0 is not supported"):
        clip_grad_norm_([with_gradient()], 1.0, norm_type=1.0)


def test_clipping_by_value():
    p = with_gradient()
    g = p.grad.numpy().copy()
    clip_grad_value_(p, 0.3)
    np.testing.assert_array_equal(p.grad.numpy(), np.clip(g, np.float32(-0.3), np.float32(0.3)))


def test_training_lowers_the_loss():
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    x = values(64, 2)
    target = tensor((x[:, 0] * x[:, 1] > 0).astype(int))
    optimizer = Adam(net.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(tensor(x)), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]
