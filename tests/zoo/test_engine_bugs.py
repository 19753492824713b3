"""The laws of the engine bite: each planted bug passes the plain tests and breaks its law.

The plain tests are the obvious ones: shapes, a whole trace, a loss that falls. The laws are those
of tests/properties (gradients, kernels, rewrites) on a small sample, and the state rule.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.quick import quick
from zoo.engine_bugs import BUGS

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.autograd import manual_seed, tensor
from ooctrain.engine.eager import EagerRunner
from ooctrain.engine.incore import initial_values, run_trace
from ooctrain.engine.tensor import Tape, use_tape
from ooctrain.layers.combine import Concat
from ooctrain.layers.layout import Reshape
from ooctrain.layers.losses import SoftmaxCrossEntropy
from ooctrain.optim import SGD
from ooctrain.rewrite import fuse, share_storage
from ooctrain.testing.check_op import check_gradient, check_op
from ooctrain.tracing import trace

SCALARS = {"lr": 0.05, "step": 1, "seed": 2}


def values(*shape, seed=0):
    x = np.random.default_rng((seed, *shape)).standard_normal(shape)
    return (x + 0.05 * np.sign(x)).astype(np.float32)


class Net(nn.Module):
    """A residual block with batch norm, a layer used twice, dropout, a flatten, a concat."""

    def __init__(self):
        super().__init__()
        self.stem, self.bn0 = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv, self.bn = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.twice = nn.Conv2d(4, 4, 1)
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(4 * 2 * 9, 3)

    def forward(self, x):
        x = F.relu(self.bn0(self.stem(x)))
        x = F.relu(self.bn(self.conv(x)) + x)
        x = F.concat([self.twice(F.tanh(self.twice(x))), x], dim=1)
        return self.fc(self.drop(F.max_pool2d(x, 2).flatten(1)))


def data():
    labels = np.arange(12) % 3
    images = values(12, 2, 6, 6) * 0.5
    images[:, 0] += (labels - 1)[:, None, None]
    return images, labels


def plain_training():
    """A loss that falls."""
    with use_tape(Tape(EagerRunner(threads=1), conv_algorithm="direct")):
        manual_seed(3)
        model, (x, t) = Net(), data()
        optimizer = SGD(model.parameters(), lr=0.05, momentum=0.5)
        losses = []
        for _ in range(25):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tensor(x)), tensor(t))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert np.mean(losses[-3:]) < 0.6 * losses[0]


def plain_trace():
    """Whole traces before and after rewriting, and a finite step."""
    model, (x, t) = Net(), data()
    step = trace(model, (12, 2, 6, 6), threads=1, conv_algorithm="direct")
    rewritten = share_storage(fuse(step))
    rewritten.check()
    results = run_trace(rewritten, initial_values(step, model) | {"input": x, "target": t}, SCALARS)
    assert all(np.isfinite(value).all() for value in results.values())
    assert results["grad:fc.weight"].shape == (3, 72)


def law_of_gradients():
    """Finite differences along random cotangents; forks, shared weights, dropout, batch norm."""

    def network(x, w, g, b):
        y = F.batch_norm(F.conv2d(x, w, padding=1), None, None, g, b, training=True)
        y = F.conv2d(F.tanh(y), w, padding=1)
        return F.dropout(y + F.sigmoid(y) + x, 0.3)

    check_gradient(network, values(2, 2, 4, 3), values(2, 2, 3, 3), values(2), values(2, seed=1))


def law_of_kernels():
    """Kernels against their definitions."""
    labels = np.array([0, -100, 2, 1])
    check_op(SoftmaxCrossEntropy(), values(4, 3), labels)
    check_op(Reshape((2, 3, 4, 5), (2, 60)), values(2, 3, 4, 5))
    check_op(Concat(1), values(2, 3, 2, 2), values(2, 1, 2, 2), values(2, 2, 2, 2))


def law_of_state():
    """Running statistics as PyTorch documents them."""
    bn, x = nn.BatchNorm2d(2, momentum=1.0), values(3, 2, 2, 2)
    bn(tensor(x))
    np.testing.assert_allclose(bn.running_var.numpy(), x.var((0, 2, 3), ddof=1), rtol=1e-5)


def law_of_rewrites():
    """Fusing and sharing storage keep the bits of all outputs."""
    model, (x, t) = Net(), data()
    for options in ({}, {"accumulate": 2}, {"training": False, "loss": None}):
        target = {} if options.get("training") is False else {"target": t}
        step = trace(model, (12, 2, 6, 6), threads=1, conv_algorithm="direct", **options)
        given = initial_values(step, model) | {"input": x} | target
        plain = run_trace(step, given, SCALARS)
        for rewritten in (fuse(step), share_storage(step), share_storage(fuse(step))):
            results = run_trace(rewritten, given, SCALARS)
            assert all(results[name].tobytes() == plain[name].tobytes() for name in plain)
    law_of_handed_out_values()


def law_of_handed_out_values():
    """What a trace hands out is still itself when its last reader is done."""

    class Twice(nn.Module):
        def forward(self, x):
            self.middle = F.tanh(x)
            return F.relu(self.middle)

    net = Twice()
    step = trace(net, (2, 3), training=False, loss=None)
    middle = step.variable_by_name["tanh.out"].id
    kept = type(step)(step.variables, step.calls, step.carries, {**step.outputs, "middle": middle})
    plain, shared = (
        run_trace(form, {"input": values(2, 3)}, {}) for form in (kept, share_storage(kept))
    )
    assert plain["middle"].tobytes() == shared["middle"].tobytes()


LAWS: dict[str, Callable[[], None]] = {
    "gradients": law_of_gradients,
    "kernels": law_of_kernels,
    "state": law_of_state,
    "rewrites": law_of_rewrites,
}


@pytest.mark.parametrize("law", LAWS)
def test_laws_hold_without_bugs(law):
    assert LAWS[law]() is None


def test_plain_tests_pass_without_bugs():
    plain_training()
    assert plain_trace() is None


@pytest.mark.parametrize("name", quick([*BUGS], *range(0, len(BUGS), 3)))
def test_the_bug_passes_plain_tests_and_breaks_its_law(name, monkeypatch):
    law, plant = BUGS[name]
    plant(monkeypatch)
    plain_training()
    plain_trace()
    with pytest.raises(AssertionError):
        LAWS[law]()
