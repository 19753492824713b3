"""What `make gpu` times as torch's side computes what ours computes (here on torch's CPU)."""

from __future__ import annotations

import numpy as np
import pytest

from ooctrain.layers.batch_norm import BatchNormApply, BatchNormStats
from ooctrain.layers.combine import Add
from ooctrain.layers.linear import Linear
from ooctrain.layers.relu import ReLU
from ooctrain.layers.update import AdamUpdate, SGDUpdate

torch = pytest.importorskip("torch")
torch_peer = pytest.importorskip("benchmarks.gpu.torch_peer")
pytestmark = pytest.mark.peers
SHAPE, CHANNELS = (2, 4, 3, 5), (4,)


def normal(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(found, wanted):
    return np.allclose(np.asarray(found), np.asarray(wanted), rtol=1e-5, atol=1e-6)


def theirs(op, *arrays):
    """(what the call returns, its tensors afterwards)."""
    tensors = [torch.from_numpy(array.copy()) for array in arrays]
    return torch_peer.CALLS[type(op)](torch, op, tensors)(), tensors


def test_statistics():
    x = normal(SHAPE, 0)
    (var, mean), _ = theirs(BatchNormStats(torch_peer.EPS), x)
    wanted = BatchNormStats(torch_peer.EPS).reference(x, scalars={})
    assert close(mean, wanted[0])
    assert close(1 / torch.sqrt(var + torch_peer.EPS), wanted[1])


@pytest.mark.parametrize("relu", [True, False])
def test_batch_norm(relu):
    x, mean, gamma, beta = (normal(s, i) for i, s in enumerate((SHAPE, *[CHANNELS] * 3)))
    var = np.abs(normal(CHANNELS, 4)) + 0.1
    op = BatchNormApply(relu=relu)
    found, _ = theirs(op, x, mean, var, gamma, beta)
    inv_std = 1 / np.sqrt(var + torch_peer.EPS)
    (wanted, *_) = op.reference(x, mean, inv_std, gamma, beta, scalars={})
    assert close(found, wanted)


def test_sgd_and_adam_take_the_same_step():
    arrays = [normal(40, seed) for seed in range(4)]
    arrays[3] = np.abs(arrays[3])
    scalars = {"lr": torch_peer.LR, "step": 0}
    sgd, adam = SGDUpdate(0.9, 0.0, 1e-4), AdamUpdate()
    for op, inputs, results in ((sgd, arrays[:3], (0, 2)), (adam, arrays, (0, 2, 3))):
        _, tensors = theirs(op, *inputs)
        wanted = op.reference(*inputs, scalars=scalars)
        for place, value in zip(results, wanted, strict=True):
            assert close(tensors[place], value), op


def test_what_has_one_input_or_two():
    x, y, w = normal((3, 6), 0), normal((3, 6), 1), normal((4, 6), 2)
    for op, inputs in ((ReLU(), (x,)), (Add(), (x, y)), (Linear(), (x, w))):
        found, _ = theirs(op, *inputs)
        assert close(found, op.reference(*inputs, scalars={})[0]), op
