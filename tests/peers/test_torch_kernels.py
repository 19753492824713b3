"""CPU kernels beside torch on the same data: forward, gradients, statistics, optimizer steps."""

from __future__ import annotations

import numpy as np
import pytest

from ooctrain.layers.kernels.cpu import batch_norm, elementwise, functions, losses, pooling, update
from ooctrain.layers.kernels.cpu import workspace as ws
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.pooling import PoolGeometry
from ooctrain.layers.update import AdamUpdate, ClipFactor, SGDUpdate, adam_factors, sgd_factors

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def pool():
    made = ThreadPool(2)
    yield made
    made.close()


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def nchw(array):
    """An NHWC array as a torch tensor that asks for gradients."""
    return torch.from_numpy(array).permute(0, 3, 1, 2).clone().requires_grad_()


def nhwc(tensor):
    return tensor.detach().permute(0, 2, 3, 1).contiguous().numpy()


def poisoned(*shape):
    return np.full(shape, np.nan, np.float32)


ACTIVATIONS = {
    "relu": (elementwise.relu, elementwise.relu_grad, F.relu),
    "tanh": (functions.tanh, functions.tanh_grad, torch.tanh),
    "sigmoid": (functions.sigmoid, functions.sigmoid_grad, torch.sigmoid),
    "leaky": (
        lambda p, x, y: functions.leaky_relu(p, x, y, 0.2),
        lambda p, dy, y, dx: functions.leaky_relu_grad(p, dy, y, dx, 0.2),
        lambda t: F.leaky_relu(t, 0.2),
    ),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(pool, name):
    forward, backward, theirs = ACTIVATIONS[name]
    x, dy, y, dx = 3 * normal(4, 9, 7, 17), normal(4, 9, 7, 17, seed=1), poisoned(4, 9, 7, 17), None
    dx = np.empty_like(y)
    t = torch.from_numpy(x).requires_grad_()
    out = theirs(t)
    out.backward(torch.from_numpy(dy))
    forward(pool, x, y)
    backward(pool, dy, y, dx)
    np.testing.assert_allclose(y, out.detach().numpy(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(dx, t.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 6, 5, 17), (8, 16, 16, 64)])
def test_batch_norm_with_residual_and_relu(pool, shape):
    channels, rows = shape[3], shape[0] * shape[1] * shape[2]
    x, residual, dy = normal(*shape), normal(*shape, seed=1), normal(*shape, seed=2)
    module = torch.nn.BatchNorm2d(channels)
    with torch.no_grad():
        module.weight.copy_(torch.rand(channels) + 0.5)
        module.bias.copy_(torch.randn(channels))
    gamma, beta = module.weight.detach().numpy().copy(), module.bias.detach().numpy().copy()
    running = np.zeros(channels, np.float32), np.ones(channels, np.float32)
    count = np.zeros(1, np.int64)
    mean, inv_std, var, dgamma, dbeta = (poisoned(channels) for _ in range(5))
    y, dx, scratch = poisoned(*shape), poisoned(*shape), np.zeros(0, np.uint8)
    scratch = np.zeros(ws.batch_norm_workspace_bytes(rows, channels), np.uint8)

    t = nchw(x)
    out = F.relu(module(t) + nchw(residual))
    out.backward(nchw(dy).detach())
    batch_norm.stats(pool, x, mean, inv_std, var, 1e-5, scratch)
    batch_norm.apply(pool, x, mean, inv_std, gamma, beta, y, residual=residual, relu=True)
    batch_norm.grad_reduce(pool, dy, x, mean, inv_std, dgamma, dbeta, y, scratch)
    batch_norm.grad_apply(pool, dy, x, mean, inv_std, gamma, dgamma, dbeta, dx, y, 0, scratch)
    counted = *running, count
    batch_norm.update_running(pool, mean, var, counted, counted, 0.1, rows)
    np.testing.assert_allclose(y, nhwc(out), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dx, nhwc(t.grad), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dgamma, module.weight.grad.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dbeta, module.bias.grad.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(running[0], module.running_mean.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(running[1], module.running_var.numpy(), rtol=1e-5, atol=1e-6)
    assert count[0] == module.num_batches_tracked

    module.eval()
    batch_norm.inv_std_of(pool, running[1], inv_std, 1e-5)
    batch_norm.apply(pool, x, running[0], inv_std, gamma, beta, y)
    np.testing.assert_allclose(y, nhwc(module(t)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 3, 2)]
)
def test_pooling(pool, kernel, stride, padding):
    x = np.random.default_rng(0).integers(-4, 5, (2, 17, 14, 70)).astype(np.float32)
    size = [(e + 2 * padding - kernel) // stride + 1 for e in x.shape[1:3]]
    y, index, dx = poisoned(2, *size, 70), np.zeros((2, *size, 70), np.uint8), poisoned(*x.shape)
    dy = normal(2, *size, 70)
    window = PoolGeometry((kernel, kernel), (stride, stride), (padding,) * 4)
    t = nchw(x)
    out = F.max_pool2d(t, kernel, stride, padding)
    out.backward(nchw(dy).detach())
    pooling.max_pool(pool, x, y, index, window)
    pooling.max_pool_grad(pool, dy, index, dx, window)
    np.testing.assert_array_equal(y, nhwc(out))
    np.testing.assert_allclose(dx, nhwc(t.grad), rtol=1e-6, atol=1e-6)
    for counted in (True, False):
        t = nchw(x)
        out = F.avg_pool2d(t, kernel, stride, padding, count_include_pad=counted)
        out.backward(nchw(dy).detach())
        pooling.avg_pool(pool, x, y, window, counted)
        pooling.avg_pool_grad(pool, dy, dx, window, counted)
        np.testing.assert_allclose(y, nhwc(out), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(dx, nhwc(t.grad), rtol=1e-6, atol=1e-6)


def test_max_pooling_of_nan_and_infinity(pool):
    x = np.random.default_rng(1).standard_normal((1, 8, 8, 40)).astype(np.float32)
    x[np.random.default_rng(2).random(x.shape) < 0.2] = np.nan
    x[np.random.default_rng(3).random(x.shape) < 0.3] = -np.inf
    y, index = poisoned(1, 4, 4, 40), np.zeros((1, 4, 4, 40), np.uint8)
    pooling.max_pool(pool, x, y, index, PoolGeometry((2, 2), (2, 2)))
    out, where = F.max_pool2d(nchw(x), 2, return_indices=True)
    np.testing.assert_array_equal(y, nhwc(out))
    rows, columns = np.divmod(nhwc(where), 8)
    oh, ow = np.indices((4, 4))
    expected = (rows - 2 * oh[None, :, :, None]) * 2 + columns - 2 * ow[None, :, :, None]
    np.testing.assert_array_equal(index, expected)


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (7, 7), (20, 15)])
def test_adaptive_pooling(pool, size):
    x, dy = normal(2, 13, 9, 33), normal(2, *size, 33, seed=1)
    y, dx = poisoned(*dy.shape), poisoned(*x.shape)
    t = nchw(x)
    out = F.adaptive_avg_pool2d(t, size)
    out.backward(nchw(dy).detach())
    pooling.adaptive_avg_pool(pool, x, y)
    pooling.adaptive_avg_pool_grad(pool, dy, dx)
    np.testing.assert_allclose(y, nhwc(out), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, nhwc(t.grad), rtol=1e-5, atol=1e-6)


def test_cross_entropy_with_ignored_rows(pool):
    logits, labels = 4 * normal(300, 37), np.random.default_rng(1).integers(0, 37, 300)
    labels[::7] = -100
    t = torch.from_numpy(logits).requires_grad_()
    loss = F.cross_entropy(t, torch.from_numpy(labels))
    loss.backward()
    row_losses, lse, dlogits, out = poisoned(300), poisoned(300), poisoned(300, 37), poisoned(1)
    losses.softmax_cross_entropy(pool, logits, labels, row_losses, lse)
    valid = losses.valid_rows(labels)
    scratch = np.zeros(ws.reduction_workspace_bytes(300), np.uint8)
    losses.total(pool, row_losses, out, 1 / valid, scratch)
    losses.softmax_cross_entropy_grad(pool, logits, labels, lse, dlogits, 1 / valid)
    np.testing.assert_allclose(out[0], loss.item(), rtol=1e-6)
    np.testing.assert_allclose(dlogits, t.grad.numpy(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}],
    ids=["plain", "momentum", "nesterov"],
)
def test_sgd(pool, options):
    w, m = normal(1003), np.zeros(1003, np.float32) if options else None
    parameter = torch.from_numpy(w.copy()).requires_grad_()
    optimizer = torch.optim.SGD([parameter], lr=0.1, **options)
    for step in range(4):
        g = normal(1003, seed=step + 1)
        parameter.grad = torch.from_numpy(g)
        optimizer.step()
        factors = sgd_factors(SGDUpdate(**options), {"lr": 0.1, "step": step})
        update.sgd(pool, w, g, m, w, m, factors)
    np.testing.assert_allclose(w, parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam(pool, decoupled, decay):
    w, m, v = normal(1003), np.zeros(1003, np.float32), np.zeros(1003, np.float32)
    parameter = torch.from_numpy(w.copy()).requires_grad_()
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind([parameter], lr=0.01, weight_decay=decay)
    for step in range(1, 5):
        g = normal(1003, seed=step)
        parameter.grad = torch.from_numpy(g)
        optimizer.step()
        op = AdamUpdate(weight_decay=decay, decoupled=decoupled)
        factors = adam_factors(op, {"lr": 0.01, "step": step - 1})
        update.adam(pool, w, g, m, v, w, m, v, factors)
    np.testing.assert_allclose(w, parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_clipping(pool):
    gradients = [normal(1000), 3 * normal(7, seed=1)]
    parameters = [torch.zeros(g.shape, requires_grad=True) for g in gradients]
    for parameter, g in zip(parameters, gradients, strict=True):
        parameter.grad = torch.from_numpy(g.copy())
    torch.nn.utils.clip_grad_norm_(parameters, 2.0)
    scratch = np.zeros(ws.reduction_workspace_bytes(1000), np.uint8)
    squares, factor = [np.zeros((), np.float32) for _ in gradients], np.zeros((), np.float32)
    for g, total in zip(gradients, squares, strict=True):
        update.sum_of_squares(pool, g, total, scratch)
    update.clip_factor(pool, ClipFactor(2.0), squares, [factor])
    for parameter, g in zip(parameters, gradients, strict=True):
        np.testing.assert_allclose(g * factor, parameter.grad.numpy(), rtol=1e-5)
