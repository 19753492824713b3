"""Modules beside torch's: arguments and their defaults, keys of weights, values in training and
evaluation."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import functional, nn

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.peers
ROUNDING = 2e-5
#: PyTorch keeps these counts in the module.
OURS_ALONE = {"num_batches_tracked"}
SHARED = [name for name in nn.__all__ if hasattr(torch.nn, name) and name != "Parameter"]
FUNCTIONS = [
    name for name in functional.__all__
    if inspect.isfunction(getattr(torch.nn.functional, name, None))
    and name not in ("max_pool2d", "adaptive_max_pool2d")
]  # fmt: skip


def differences(mine, theirs):
    """Where our parameters are not PyTorch's first ones, or have another default."""
    ours, wanted = (inspect.signature(f).parameters for f in (mine, theirs))
    plain = [p for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for place, parameter in enumerate(plain):
        if parameter.name not in OURS_ALONE and parameter.name != [*wanted, None][place]:
            yield f"argument {place} is {parameter.name}"
    for name, parameter in ours.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in OURS_ALONE:
            continue
        if name not in wanted:
            yield f"no {name}"
        elif parameter.default not in (wanted[name].default, parameter.empty):
            yield f"{name} is {parameter.default}"


@pytest.mark.parametrize("name", SHARED)
def test_arguments_of_modules(name):
    mine, theirs = (getattr(room, name).__init__ for room in (nn, torch.nn))
    assert not list(differences(mine, theirs))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_of_functions(name):
    mine, theirs = (getattr(room, name) for room in (functional, torch.nn.functional))
    assert not list(differences(mine, theirs))


IMAGES, ROWS, LINES = (4, 6, 5, 3), (7, 6), (4, 6, 5)
MODULES = {
    "GroupNorm": (lambda t: t.GroupNorm(3, 6), IMAGES),
    "GroupNorm of rows": (lambda t: t.GroupNorm(2, 6, 1e-3), ROWS),
    "GroupNorm plain": (lambda t: t.GroupNorm(2, 6, affine=False), LINES),
    "LayerNorm": (lambda t: t.LayerNorm(6), ROWS),
    "LayerNorm of images": (lambda t: t.LayerNorm((6, 5, 3), elementwise_affine=False), IMAGES),
    "LayerNorm without bias": (lambda t: t.LayerNorm([5, 3], bias=False), IMAGES),
    "BatchNorm1d": (lambda t: t.BatchNorm1d(6, momentum=0.3), ROWS),
    "BatchNorm1d of lines": (lambda t: t.BatchNorm1d(6, affine=False), LINES),
    "PReLU": (lambda t: t.PReLU(6), IMAGES),
    "PReLU of one": (lambda t: t.PReLU(init=0.1), ROWS),
    "GELU": (lambda t: t.GELU(), ROWS),
    "GELU tanh": (lambda t: t.GELU("tanh"), ROWS),
    "SiLU": (lambda t: t.SiLU(), ROWS),
    "Hardswish": (lambda t: t.Hardswish(), ROWS),
    "Hardsigmoid": (lambda t: t.Hardsigmoid(), ROWS),
    "ReLU6": (lambda t: t.ReLU6(), ROWS),
    "Softmax": (lambda t: t.Softmax(1), IMAGES),
    "LogSoftmax": (lambda t: t.LogSoftmax(-1), IMAGES),
    "PixelShuffle": (lambda t: t.PixelShuffle(1), IMAGES),
    "ConstantPad2d": (lambda t: t.ConstantPad2d((1, 0, 2, 3), -2.0), IMAGES),
    "ModuleDict": (lambda t: t.Sequential(t.ModuleDict({"a": t.PReLU(6)})["a"]), IMAGES),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name):
    make, shape = MODULES[name]
    mine, peer = make(nn), make(torch.nn)
    assert list(mine.state_dict()) == list(peer.state_dict())
    rng = np.random.default_rng(3)
    for parameter in peer.parameters():
        parameter.data = torch.tensor(rng.standard_normal(parameter.shape).astype(np.float32))
    mine.load_state_dict({key: value.numpy() for key, value in peer.state_dict().items()})
    for training in (True, True, False):
        x = rng.standard_normal(shape).astype(np.float32)
        found = mine.train(training)(oc.tensor(x)).numpy()
        wanted = peer.train(training)(torch.tensor(x)).detach().numpy()
        assert np.abs(found - wanted).max() <= ROUNDING * (1 + np.abs(wanted).max())
    for key, value in mine.state_dict().items():
        assert np.allclose(value, peer.state_dict()[key].numpy(), rtol=ROUNDING, atol=ROUNDING), key


LOSSES = {
    "NLLLoss": lambda t, w: t.NLLLoss(w, ignore_index=1),
    "SmoothL1Loss": lambda t, w: t.SmoothL1Loss(beta=0.4),
    "BCEWithLogitsLoss": lambda t, w: t.BCEWithLogitsLoss(w, pos_weight=w),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    rng = np.random.default_rng(4)
    weight, x = rng.random(5).astype(np.float32), rng.standard_normal((6, 5)).astype(np.float32)
    y = np.array([0, 1, 2, 1, 4, 3]) if name == "NLLLoss" else rng.random((6, 5), np.float32)
    mine = LOSSES[name](nn, weight)(oc.tensor(x), oc.tensor(y)).numpy()
    peer = LOSSES[name](torch.nn, torch.tensor(weight))(torch.tensor(x), torch.tensor(y))
    assert abs(float(mine) - float(peer)) < ROUNDING
