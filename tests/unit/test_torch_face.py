"""PyTorch's face: what is refused and with which words, defaults of modules, a dictionary of
modules, what trains within a budget. Values are compared in tests/peers/test_torch_random_calls.py,
gradients in tests/properties/test_composed_gradients.py."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from support.quick import every

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.torch_names import INSTEAD
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.models.resnet import BasicBlock, ResNet

X = np.random.default_rng(0).standard_normal((2, 4, 3, 5)).astype(np.float32)


def tensor(*shape):
    return oc.tensor(np.ones(shape, np.float32))


REFUSED = {
    "arrays": (lambda x: x * X, ShapeError, "oc.tensor"),
    "arrays on the left": (lambda x: X * x, ShapeError, "oc.tensor"),
    "a power": (lambda x: x**x, ConfigError, "raised"),
    "a matrix product": (lambda x: x @ x, ShapeError, "5 columns for 3 rows"),
    "a product with a number": (lambda x: x @ 2, ShapeError, "two tensors"),
    "other images": (lambda x: x @ tensor(3, 1, 5, 2), ShapeError, "do not fit"),
    "a variance of one": (lambda x: x[0, 0, 0, 0].std(), ShapeError, "correction"),
    "parts": (lambda x: x.split([2, 1], 1), ShapeError, "no parts"),
    "places": (lambda x: x.narrow(3, 3, 3), ShapeError, "no 3 places"),
    "an extent": (lambda x: x.expand(2, 4, 6, 5), ShapeError, "expanded"),
    "a border beyond": (lambda x: F.pad(x, (0, 6, 0, 0), "circular"), ShapeError, "more"),
    "three sides": (lambda x: F.pad(x, (1, 1, 1)), ConfigError, "two whole numbers"),
    "a norm": (lambda x: x.norm(0), ConfigError, "above 0"),
    "bounds": (lambda x: F.hardtanh(x, 1, 0), ConfigError, "less"),
    "halves": (lambda x: F.glu(x, 2), ShapeError, "halves"),
    "groups of channels": (lambda x: F.channel_shuffle(x, 3), ShapeError, "multiple of 3"),
    "attention that drops": (
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1), ConfigError, "dropout"
    ),
    "text": (lambda x: x + "1", ShapeError, "str"),
    "shapes that do not fit": (lambda x: x * tensor(2, 5), ShapeError, "do not fit"),
    "whole numbers": (lambda x: x * oc.tensor(np.arange(5)), ShapeError, "int64"),
    "an axis too many": (lambda x: x.sum(4), ShapeError, "no axis 4"),
    "an axis twice": (lambda x: x.mean((1, -3)), ShapeError, "twice"),
    "not all axes": (lambda x: x.permute(0, 1), ShapeError, "permute"),
    "no bound": (lambda x: x.clamp(), ConfigError, "min, max"),
    "a tensor as bound": (lambda x: x.clamp(min=x), ConfigError, "not a number"),
    "a guess of the axis": (lambda x: F.softmax(x), ConfigError, "axis"),
    "another gelu": (lambda x: F.gelu(x, "fast"), ConfigError, "fast"),
    "slopes": (lambda x: F.prelu(x, tensor(3)), ShapeError, "slope"),
    "groups": (lambda x: F.group_norm(x, 3), ShapeError, "3 groups"),
    "one value": (lambda x: F.layer_norm(x.mean(3, keepdim=True), 1), ShapeError, "variance"),
    "other extents": (lambda x: F.layer_norm(x, (4, 5)), ShapeError, "layer_norm"),
    "pixels": (lambda x: F.pixel_shuffle(x, 3), ShapeError, "multiple of 9"),
    "a value to mirror": (lambda x: F.pad(x, (1, 1, 1, 1), "reflect", 1.0), ConfigError, "value"),
    "channels of rows": (lambda x: F.dropout2d(x.flatten(1)), ShapeError, "images"),
    "a negative beta": (lambda x: F.smooth_l1_loss(x, x, beta=-1), ConfigError, "beta"),
    "a reduction": (lambda x: F.smooth_l1_loss(x, x, reduction="max"), ConfigError, "max"),
    "targets of a shape": (
        lambda x: F.binary_cross_entropy_with_logits(x, tensor(2, 4, 3, 1)), ShapeError, "differ",
    ),
    "labels": (lambda x: F.nll_loss(x.mean((2, 3)), oc.tensor([0, 9])), ConfigError, "label 9"),
    "trained class weights": (
        lambda x: F.nll_loss(x.mean((2, 3)), oc.tensor([0, 1]), nn.Parameter(np.ones(4))),
        ConfigError, "no gradient",
    ),
    "images for one axis": (lambda x: nn.BatchNorm1d(4)(x), ShapeError, "BatchNorm2d"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named(name):
    function, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        function(oc.tensor(X, requires_grad=True))


@pytest.mark.parametrize(("module", "table"), [(F, INSTEAD["functional"]), (nn, INSTEAD["nn"])])
def test_a_missing_name_says_what_to_do(module, table):
    for name, instead in table.items():
        assert name not in module.__all__
        with pytest.raises(AttributeError) as caught:
            getattr(module, name)
        assert instead in str(caught.value)
    assert not hasattr(module, "nothing_of_torch")
    with pytest.raises(AttributeError, match=r"has no 'xyz_qqq'$"):
        module.xyz_qqq  # noqa: B018


def test_a_method_that_is_missing_says_what_to_do():
    for name, instead in INSTEAD["tensor"].items():
        with pytest.raises(AttributeError) as caught:
            getattr(oc.tensor(X), name)
        assert instead in str(caught.value)
    with pytest.raises(AttributeError, match=r"has no 'xyz_qqq'$"):
        oc.tensor(X).xyz_qqq  # noqa: B018
    twice = copy.deepcopy(oc.tensor(X))
    assert np.array_equal(np.maximum(twice, 0), np.maximum(X, 0))
    assert np.array_equal((twice**2).numpy(), X * X)


def test_modules_have_torchs_defaults_and_keys():
    found = {
        "GroupNorm": (nn.GroupNorm(2, 4), ["weight", "bias"]),
        "LayerNorm": (nn.LayerNorm(5), ["weight", "bias"]),
        "LayerNorm without bias": (nn.LayerNorm((3, 5), bias=False), ["weight"]),
        "LayerNorm without either": (nn.LayerNorm(5, elementwise_affine=False), []),
        "BatchNorm1d": (
            nn.BatchNorm1d(4),
            ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"],
        ),
        "PReLU": (nn.PReLU(), ["weight"]),
        "GELU": (nn.GELU(), []),
    }
    for module, keys in found.values():
        assert list(module.state_dict()) == keys
    assert nn.PReLU().weight.numpy().tolist() == [0.25]
    assert found["LayerNorm"][0].normalized_shape == (5,)
    assert not isinstance(nn.BatchNorm1d(4), nn.BatchNorm2d)


def test_means_of_a_norm_are_0_and_deviations_1():
    y = nn.GroupNorm(2, 4)(oc.tensor(X)).numpy().reshape(2, 2, -1)
    assert np.allclose(y.mean(2), 0, atol=1e-5)
    assert np.allclose(y.std(2), 1, atol=1e-3)
    y = nn.LayerNorm((4, 3, 5))(oc.tensor(X)).numpy().reshape(2, -1)
    assert np.allclose(y.mean(1), 0, atol=1e-5)


def test_whole_channels_are_dropped():
    x = oc.tensor(np.ones((8, 16, 3, 3), np.float32), requires_grad=True)
    y = nn.Dropout2d(0.25)(x)
    whole = y.numpy().reshape(8, 16, 9)
    assert (whole == whole[:, :, :1]).all()
    assert set(np.unique(whole)) == {np.float32(0), np.float32(1 / 0.75)}
    y.sum().backward()
    assert np.array_equal(x.grad.numpy(), y.numpy())
    assert nn.Dropout2d(0.25).eval()(x) is x


@pytest.mark.parametrize("shape", [(32, 3, 2, 2), (32, 5), (32, 4, 3), (32,)])
def test_whole_samples_are_dropped(shape):
    x = oc.tensor(np.ones(shape, np.float32), requires_grad=True)
    y = nn.StochasticDepth(0.25, "row")(x)
    rows = y.numpy().reshape(32, -1)
    assert (rows == rows[:, :1]).all()
    assert set(np.unique(rows)) == {np.float32(0), np.float32(1 / 0.75)}
    y.sum().backward()
    assert np.array_equal(x.grad.numpy(), y.numpy())
    assert nn.StochasticDepth(0.25, "row").eval()(x) is x
    assert not nn.StochasticDepth(1.0, "row")(x).numpy().any()


def test_a_batch_is_dropped_whole():
    x = oc.tensor(np.ones((3, 2), np.float32))
    drawn = [nn.StochasticDepth(0.5, "batch")(x).numpy() for _ in range(40)]
    assert {tuple(np.unique(one)) for one in drawn} == {(0.0,), (2.0,)}


class Deep(nn.Module):
    def __init__(self, mode):
        super().__init__()
        oc.manual_seed(0)
        self.stem, self.depth = nn.Linear(6, 6), nn.StochasticDepth(0.5, mode)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(x + self.depth(self.stem(x)))


@pytest.mark.parametrize("mode", ["row", "batch"])
def test_parts_of_a_batch_drop_what_the_whole_does(mode):
    """Step by step other samples, and with any accumulation the same ones."""
    x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    losses = {}
    for parts in (1, 2, 8):
        model = Deep(mode)
        sgd = oc.optim.SGD(model.parameters(), lr=0.0)
        with oc.Trainer(model, optimizer=sgd, accumulate=parts, threads=1, seed=3) as trainer:
            losses[parts] = [trainer.step(x, np.arange(8) % 3) for _ in range(6)]
    assert len(set(losses[1])) > (5 if mode == "row" else 1)
    assert np.allclose(losses[1], losses[2], rtol=1e-6)
    assert np.allclose(losses[1], losses[8], rtol=1e-6)


def test_later_blocks_of_a_resnet_are_dropped_more_often():
    net = ResNet(BasicBlock, (1, 1, 1, 1), 10, "cifar", stochastic_depth=0.4)
    found = [part.p for part in net.modules() if isinstance(part, nn.StochasticDepth)]
    assert np.allclose(found, [0.1, 0.2, 0.3, 0.4])
    plain = ResNet(BasicBlock, (1, 1, 1, 1), 10, "cifar")
    assert list(plain.state_dict()) == list(net.state_dict())
    step = oc.trace(net, (2, 3, 8, 8), threads=1)
    assert sum(type(call.op).__name__ == "Dropout" for call in step.calls) >= 4


def test_modes_of_stochastic_depth():
    for p, mode in ((0.5, "sample"), (1.5, "row")):
        with pytest.raises(ConfigError):
            nn.StochasticDepth(p, mode)(oc.tensor(X))


def test_a_dictionary_of_modules():
    parts = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.ReLU()})
    parts["c"] = nn.Linear(3, 1)
    parts.update({"b": nn.Tanh()})
    assert [*parts] == [*parts.keys()] == ["a", "b", "c"]
    assert "b" in parts
    assert len(parts) == 3
    assert list(parts.state_dict()) == ["a.weight", "a.bias", "c.weight", "c.bias"]
    assert isinstance(parts.pop("b"), nn.Tanh)
    del parts["a"]
    assert [name for name, _ in parts.items()] == ["c"]
    assert next(iter(parts.values())) is parts["c"]
    parts.clear()
    assert not len(parts)
    with pytest.raises(ConfigError, match="not a module"):
        parts["f"] = F.relu


class Block(nn.Module):
    """What small networks are made of today: gates, group norms, smooth functions."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.parts = nn.ModuleDict({
            "conv": nn.Conv2d(inputs, outputs, 3, padding=1), "norm": nn.GroupNorm(2, outputs),
            "gate": nn.Linear(outputs, outputs),
        })  # fmt: skip
        self.act, self.drop = nn.Hardswish(), nn.Dropout2d(0.1)

    def forward(self, x):
        y = self.act(self.parts["norm"](self.parts["conv"](x)))
        gate = F.hardsigmoid(self.parts["gate"](y.mean((2, 3))))
        return self.drop(y * gate.reshape(*gate.shape, 1, 1))


class Attended(nn.Module):
    """Attention within images, and attention to channels and to places, as in CBAM."""

    def __init__(self, channels):
        super().__init__()
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.places = nn.Conv2d(2, 1, 3, padding=1, bias=False)

    def forward(self, x):
        n, c, h, w = x.shape
        q, k, v = self.qkv(x.flatten(2).transpose(1, 2)).chunk(3, -1)
        q, k, v = (t.reshape(n, h * w, 2, c // 2).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        x = x + self.out(y).transpose(1, 2).reshape(n, c, h, w)
        x = x * F.sigmoid(F.adaptive_max_pool2d(x, 1) + F.adaptive_avg_pool2d(x, 1))
        seen = F.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True).values], 1)
        return x * F.sigmoid(self.places(F.pad(seen, (1, 0, 1, 0), "replicate")[:, :, 1:, 1:]))


class Edges(nn.Module):
    """What older and newer networks do with channels and steps."""

    def forward(self, x):
        a, b = F.channel_shuffle(F.local_response_norm(x, 3), 2).chunk(2, 1)
        y = F.maximum(F.elu(a, 0.5), F.mish(b)) + F.where(a.gt(0.0), b.exp() * 0.1, a.abs())
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))[:, 2:-2, :, :]
        y = F.softplus(y[:, :, 1::2, 1::2].flip(3)) + F.hardtanh(short.split(4, 1)[0][:, :, :3, :3])
        return F.normalize(y, dim=1) * y.std((2, 3), keepdim=True)


def attended():
    oc.manual_seed(3)
    return nn.Sequential(
        Block(3, 8), Attended(8), nn.SELU(), Edges(), nn.CircularPad2d(1), Block(4, 4),
        nn.AdaptiveMaxPool2d((2, 3)), nn.Flatten(), nn.Linear(24, 4),
    )  # fmt: skip


def network():
    oc.manual_seed(3)
    return nn.Sequential(
        Block(3, 8), nn.SiLU(), nn.Conv2d(8, 16, 1), nn.PixelShuffle(2), nn.ReLU6(), Block(4, 8),
        nn.ConstantPad2d(1, 0.5), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(200, 12),
        nn.LayerNorm(12), nn.PReLU(12), nn.BatchNorm1d(12), nn.GELU(), nn.Linear(12, 4),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("planner", "loss", "network"),
    every([("naive", nn.NLLLoss, network), ("lru", nn.BCEWithLogitsLoss, network),
           ("belady", nn.SmoothL1Loss, network), ("belady", nn.BCEWithLogitsLoss, attended),
           ("capuchin", nn.NLLLoss, attended)], 3, names=3),
)  # fmt: skip
def test_a_network_of_them_trains_within_a_budget_to_the_same_bits(planner, loss, network):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((6, 3, 7, 7)).astype(np.float32)
    y = rng.integers(0, 4, 6) if loss is nn.NLLLoss else rng.random((6, 4)).astype(np.float32)
    results = []
    for options in ({}, {"budget": "60%", "planner": planner}):
        model = network()
        optimizer = oc.optim.SGD(model.parameters(), lr=0.05)
        with oc.Trainer(model, loss(), optimizer, threads=1, **options) as trainer:
            losses = [trainer.step(x, y) for _ in range(3)]
        results.append((losses, {k: v.tobytes() for k, v in model.state_dict().items()}))
    assert results[0] == results[1]
    assert results[0][0][-1] < results[0][0][0]
