"""A user's own operation: eager, traced, checked; and what goes wrong is said."""

from dataclasses import dataclass

import numpy as np
import pytest

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.autograd import tensor
from ooctrain.engine.incore import initial_values, run_trace
from ooctrain.engine.own_op import Op
from ooctrain.errors import AutogradError, ConfigError, ShapeError
from ooctrain.rewrite import fuse, share_storage
from ooctrain.testing.check_op import check_op
from ooctrain.tracing import trace


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Softplus(Op):
    def shape(self, x):
        return x

    def forward(self, x):
        return np.logaddexp(x, 0)

    def backward(self, dy, x):
        return dy / (1 + np.exp(-x))


@dataclass(frozen=True)
class Power(Op):
    """Needs its output, and has a setting."""

    exponent: float

    def shape(self, x):
        return x

    def forward(self, x):
        return np.abs(x) ** self.exponent

    def backward(self, dy, x, y):
        return dy * self.exponent * y / x


class Halves(Op):
    """Two inputs, one of them whole numbers, and two outputs."""

    outputs = 2

    def shape(self, x, order):
        n, c = x
        return (n, c // 2), (n, c // 2)

    def forward(self, x, order):
        picked = x[:, order]
        half = x.shape[1] // 2
        return picked[:, :half] ** 2, picked[:, half:]

    def backward(self, da, db, x, order):
        dx = np.zeros_like(x)
        half = x.shape[1] // 2
        dx[:, order] = np.concatenate([2 * da * x[:, order[:half]], db], axis=1)
        return dx, None


@dataclass(frozen=True)
class Product(Op):
    """The second input has the name that the output has elsewhere."""

    def shape(self, x, y):
        return x

    def forward(self, x, y):
        return x * y

    def backward(self, dz, x, y):
        return dz * y, dz * x


def test_laws():
    check_op(Softplus(), values(2, 3, 4, 5))
    check_op(Product(), values(2, 3), values(2, 3, seed=1))
    check_op(Power(3.0), values(2, 3) + np.sign(values(2, 3)))
    check_op(Halves(), values(3, 6), np.array([3, 0, 5, 1, 2, 4]))


def test_eager():
    x = tensor(values(2, 3, 4, 4), requires_grad=True)
    y = Softplus()(x)
    F.mse_loss(y, tensor(np.zeros(y.shape, np.float32))).backward()
    expected = 2 * y.numpy() / y.numel() / (1 + np.exp(-x.numpy()))
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-5)


def test_an_output_that_nobody_uses_gets_zeros():
    x = tensor(values(3, 6), requires_grad=True)
    _, second = Halves()(x, tensor(np.arange(6)))
    F.mse_loss(second, tensor(np.zeros((3, 3), np.float32))).backward()
    assert not x.grad.numpy()[:, :3].any()
    assert x.grad.numpy()[:, 3:].any()


class Gate(Op):
    """Its two inputs have different gradients, and the second may have none."""

    def __init__(self, learns=True):
        self.learns = learns

    def shape(self, x, gate):
        return x

    def forward(self, x, gate):
        return x * gate**2

    def backward(self, dy, x, gate):
        return dy * gate**2, 2 * dy * x * gate if self.learns else None


def test_one_tensor_as_several_inputs_gets_the_sum_of_their_gradients():
    x = tensor(values(2, 3), requires_grad=True)
    Gate()(x, x).backward(tensor(np.ones((2, 3), np.float32)))
    np.testing.assert_allclose(x.grad.numpy(), 3 * x.numpy() ** 2, rtol=1e-5)


def test_an_input_without_a_gradient():
    x, gate = tensor(values(2, 3), requires_grad=True), tensor(values(2, 3, seed=1))
    Gate(learns=False)(x, gate).backward(tensor(np.ones((2, 3), np.float32)))
    np.testing.assert_allclose(x.grad.numpy(), gate.numpy() ** 2, rtol=1e-6)
    trained = tensor(gate.numpy(), requires_grad=True)
    Gate(learns=False)(x, trained).backward(tensor(np.ones((2, 3), np.float32)))
    assert not trained.grad.numpy().any()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = Power(2.0)(Softplus()(self.conv(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def test_trace_names_saved_values_and_reruns():
    model = Net()
    step = trace(model, (4, 3, 6, 6), threads=1)
    (backward,) = (call for call in step.calls if call.name == "power.grad")
    read = [step.variables[v].name for v in backward.ins]
    assert read[1:] == ["softplus.out", "power.out"]
    again = trace(model, (4, 3, 6, 6), threads=1)
    assert again.fingerprint == step.fingerprint, (
        "the name of an operation must not hold an address"
    )
    inputs = {"input": values(4, 3, 6, 6), "target": np.array([0, 1, 1, 0])}
    given = initial_values(step, model) | inputs
    plain = run_trace(step, given, {"lr": 0.1, "step": 0})
    shared = run_trace(share_storage(fuse(step)), given, {"lr": 0.1, "step": 0})
    assert all(plain[name].tobytes() == shared[name].tobytes() for name in plain)


def test_mistakes_are_named():
    class Forgetful(Softplus):
        def backward(self, dy, z):
            return dy

    class Liar(Softplus):
        def shape(self, x):
            return (*x[:-1], x[-1] + 1)

    class OneWay(Op):
        def shape(self, x):
            return x

        def forward(self, x):
            return x + 1

    def train(op):
        y = op(tensor(values(2, 3), requires_grad=True))
        F.mse_loss(y, tensor(np.zeros(y.shape, np.float32))).backward()

    class Shapeless(Softplus):
        def shape(self, x):
            return None

    class Ungraded(Softplus):
        def backward(self):
            return 1

    class Complex(Softplus):
        def forward(self, x):
            return x * 1j

    class Mute(Softplus):
        def backward(self, dy, x):
            dy / (1 + np.exp(-x))

    class Generous(Softplus):
        def backward(self, dy, x):
            return dy, x, dy

    class Empty(Op):
        pass

    class Negative(Softplus):
        def shape(self, x):
            return 3, -1

    with pytest.raises(ConfigError, match=r"Empty lacks shape\(\)"):
        train(Empty())
    with pytest.raises(ShapeError, match=r"shape\(\) gives \(3, -1\), not a shape"):
        train(Negative())
    with pytest.raises(ShapeError, match=r"shape\(\) gives None, not a shape"):
        train(Shapeless())
    with pytest.raises(AutogradError, match="takes no gradient"):
        train(Ungraded())
    with pytest.raises(ShapeError, match="gives complex64, which is no float32"):
        train(Complex())
    with pytest.raises(AutogradError, match="requests 'z'"):
        train(Forgetful())
    with pytest.raises(ShapeError, match="its shape rule says"):
        train(Liar())
    with pytest.raises(AutogradError, match=r"OneWay has no backward\(\)"):
        train(OneWay())
    with pytest.raises(ShapeError, match=r"backward\(\) returns nothing"):
        train(Mute())
    with pytest.raises(ShapeError, match="gives 3 gradients for 1 inputs"):
        train(Generous())
    with pytest.raises(AssertionError, match="gradient of input 0"):
        check_op(Wrong(), values(2, 3))


class Wrong(Softplus):
    def backward(self, dy, x):
        return dy / (1 + np.exp(x))


def test_an_output_may_be_empty():
    class First(Op):
        def __init__(self, rows):
            self.rows = rows

        def shape(self, x):
            return self.rows, *x[1:]

        def forward(self, x):
            return x[: self.rows]

    x = values(4, 3)
    for rows in (0, 2):
        assert np.array_equal(First(rows)(tensor(x)).numpy(), x[:rows])
