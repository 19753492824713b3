"""Forty networks that people use, imported from PyTorch: names, values, gradients, training, back.

Values are judged by PyTorch's own float64, since its float32 is no better than ours. The largest
error of a gradient, over the largest gradient, is at most twice that of PyTorch's float32, or 1e-5.
A ReLU whose input is a rounding error away from 0 falls on another side in one of the two, and one
such value is an error of 1e-3, so several inputs are tried. Convolutions are computed by "im2col":
Winograd's are less exact by design. Random parts are switched off for the comparison.
"""

import copy
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from peers.own_networks import NETWORKS, build, torchvision

import ooctrain as oc
from ooctrain import functional as F
from ooctrain.errors import OoctrainError

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.peers, pytest.mark.slow]
BATCH, CLASSES, INPUTS, STEPS = 4, 10, 4, 10
ALGORITHM = "im2col"
#: {a network that is refused today: the operations}
REFUSED: dict[str, list[str]] = {}
#: {a part that draws random numbers: its rate}
RATES = {"Dropout": "p", "Dropout2d": "p", "StochasticDepth": "p", "DropPath": "drop_prob",
         "GhostNet": "drop_rate"}  # fmt: skip
by_name = pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)


def built(network):
    """Without what is drawn."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = build(network, CLASSES)
    except ImportError as error:
        pytest.skip(str(error))
    for part in net.modules():
        if type(part).__name__ in RATES:
            setattr(part, RATES[type(part).__name__], 0.0)
    return net


def imported(network, net):
    """The network here; a refusal is one that is known."""
    refused = REFUSED.get(network.name)
    if refused is None:
        return oc.from_torch(net, shape_of(network))
    with pytest.raises(OoctrainError) as refusal:
        oc.from_torch(net, shape_of(network))
    assert refusal.value.code == "OOC-190"
    assert [part.split(" x ")[0] for part in refusal.value.numbers.split("; ")] == refused
    pytest.skip(f"refused: {', '.join(refused)}")


def shape_of(network):
    return BATCH, 3, network.side, network.side


def batch(network, seed):
    images = np.random.default_rng(seed).standard_normal(shape_of(network)).astype(np.float32)
    return images, np.arange(BATCH) % CLASSES


def outputs(found):
    """All tensors of an output; images of classes by their mean."""
    several = list(found.values()) if isinstance(found, dict) else found
    every = several if isinstance(several, list | tuple) else [several]
    return [one.mean((2, 3)) if one.ndim == 4 else one for one in every if one is not None]


def torch_loss(found, target):
    return sum(torch.nn.functional.cross_entropy(one, target) for one in outputs(found))


def own_loss(found, target):
    losses = [F.cross_entropy(one, target) for one in outputs(found)]
    return sum(losses[1:], losses[0])


def torch_gradients(net, x, y, dtype):
    twin = copy.deepcopy(net).to(dtype).train()
    loss = torch_loss(twin(torch.from_numpy(x).to(dtype)), torch.from_numpy(y))
    loss.backward()
    grads = {n: p.grad.double().numpy() for n, p in twin.named_parameters() if p.grad is not None}
    return loss.item(), grads


def own_gradients(model, x, y):
    options = {"loss": own_loss, "optimizer": None, "conv_algorithm": ALGORITHM}
    step = oc.trace(model, x.shape, target_shape=y.shape, target_dtype="int64", **options)
    run = oc.execute(oc.plan(step, "100%"), model, (x, y))
    return float(run.loss), {n: np.asarray(g, np.float64) for n, g in run.gradients.items()}


def error_of(grads, exact):
    largest = max(np.abs(g).max() for g in exact.values())
    return max(np.abs(grads[name] - g).max() for name, g in exact.items()) / largest


@by_name
def test_names_values_and_gradients(network):
    net = built(network)
    model = imported(network, net)
    expected = {n: (tuple(v.shape), v.numpy().dtype) for n, v in net.state_dict().items()}
    found = {n: (v.shape, v.dtype) for n, v in model.state_dict().items()}
    assert list(found.items()) == list(expected.items())
    tried = []
    for seed in range(INPUTS):
        x, y = batch(network, seed)
        exact_loss, exact = torch_gradients(net, x, y, torch.float64)
        theirs_loss, theirs = torch_gradients(net, x, y, torch.float32)
        ours_loss, ours = own_gradients(model, x, y)
        assert set(ours) >= set(exact)
        bound = max(2 * abs(theirs_loss - exact_loss), 1e-5 * abs(exact_loss))
        tried.append((error_of(ours, exact), error_of(theirs, exact)))
        if abs(ours_loss - exact_loss) <= bound and tried[-1][0] <= max(2 * tried[-1][1], 1e-5):
            return
    pytest.fail(f"errors of ours and of PyTorch's float32: {tried}")


@by_name
def test_trained_within_a_quarter_and_taken_back(network):
    net = built(network)
    model = imported(network, net)
    start, results = model.state_dict(), []
    for budget in (None, "25%"):
        model.load_state_dict(start)
        model.train()
        optimizer = oc.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        limit = {} if budget is None else {"budget": budget, "planner": "belady"}
        with oc.Trainer(model, own_loss, optimizer, **limit) as trainer:
            losses = [trainer.step(*batch(network, seed)) for seed in range(STEPS)]
        results.append((list(map(float, losses)), model.state_dict()))
    (losses, values), (within, found) = results
    assert losses == within
    assert [n for n in values if not np.array_equal(values[n], found[n], equal_nan=True)] == []
    oc.to_torch(model, net)
    x, _ = batch(network, STEPS)
    with torch.no_grad(), oc.no_grad():
        ours = outputs(model.eval()(oc.tensor(x)))
        theirs = outputs(net.eval()(torch.from_numpy(x)))
        exact = outputs(copy.deepcopy(net).double()(torch.from_numpy(x).double()))
    for one, other, right in zip(ours, theirs, exact, strict=True):
        scale = max(1.0, float(right.abs().max()))
        rounding = float((other - right).abs().max())  # after ten steps some outputs are millions
        assert np.abs(one.numpy() - right.numpy()).max() <= max(1e-4 * scale, 2 * rounding)


def test_the_lines_of_the_quick_start_run():
    """With images of a batch, under its names."""
    try:
        names = {"torchvision": torchvision(), "oc": oc}
    except ImportError as error:
        pytest.skip(str(error))
    text = (Path(__file__).parents[2] / "docs" / "start.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```python\n(net = torchvision.*?)```", text, re.DOTALL)
    names |= {"x": np.ones((64, 3, 64, 64), np.float32), "y": np.arange(64) % 10}
    exec(compile(lines, "start.md", "exec"), names)
    names["trainer"].close()
    assert names["loss"] > 0


def test_at_least_36_of_40():
    assert len(NETWORKS) - len(REFUSED) >= 36
