"""Every network of the zoo against torch's arithmetic, in float64.

The same `forward` runs twice: on our tape, computed by the NumPy definitions, and on torch's
tensors, with `functional` replaced by torch's own functions. So losses and all gradients must agree
to rounding; what the networks are is checked by counts, keys and work in `tests/unit`.
"""

import contextlib
import sys

import numpy as np
import pytest

from ooctrain import models
from ooctrain.engine.autograd import manual_seed
from ooctrain.engine.incore import initial_values, run_trace
from ooctrain.engine.module import Module
from ooctrain.engine.parameter import Parameter
from ooctrain.models.deeplab import DeepLabV3Plus
from ooctrain.models.densenet import DenseNet
from ooctrain.models.pix2pixhd import Pix2PixHD
from ooctrain.models.unet import UNet
from ooctrain.models.xception import SeparableConv2d, XceptionBlock
from ooctrain.nn import Dropout, Sequential
from ooctrain.tracing import trace

torch = pytest.importorskip("torch", reason="torch is not installed")
TF = torch.nn.functional
pytestmark = pytest.mark.peers
CLASSES = 3
SCALARS = {"lr": 0.1, "step": 0, "seed": 0}


class TorchFunctions:
    """`ooctrain.functional` over torch; parameters become float64 leaves of torch's graph."""

    def __init__(self, model):
        arrays = {p: p.numpy().astype(np.float64) for _, p in model.named_parameters()}
        self.leaves = {p: torch.tensor(a, requires_grad=True) for p, a in arrays.items()}

    def __getattr__(self, name):
        own = vars(TorchFunctions).get(f"_{name}")
        function = own.__get__(self) if own else getattr(TF, name)
        return lambda *args, **options: function(*map(self._given, args), **options)

    def _given(self, value):
        return self.leaves[value] if isinstance(value, Parameter) else value

    def _concat(self, tensors, dim):
        return torch.cat(list(tensors), dim)

    def _batch_norm(self, x, mean, var, weight, bias, training, momentum, eps, counted):
        return TF.batch_norm(x, None, None, weight, bias, True, 0.0, eps)

    def _instance_norm(self, x, mean, var, weight, bias, eps):
        return TF.instance_norm(x, None, None, weight, bias, eps=eps)

    def _interpolate(self, x, size=None, scale=None, mode="nearest", align_corners=None):
        return TF.interpolate(x, tuple(size) if size else None, scale, mode, align_corners)


@contextlib.contextmanager
def on_torch(functions):
    """Within the block every module computes with torch."""
    places = ("ooctrain.models.", "ooctrain.nn.")
    rooms = [m for name, m in sys.modules.items() if name.startswith(places) and hasattr(m, "F")]
    before = [room.F for room in rooms]
    for room in rooms:
        room.F = functions
    try:
        yield
    finally:
        for room, functional in zip(rooms, before, strict=True):
            room.F = functional


class Separable(Module):
    """What Xception is made of, with few channels: a grouped convolution's definition is slow."""

    def __init__(self):
        super().__init__()
        self.blocks = Sequential(
            SeparableConv2d(3, 4, 2, 1, relu=True), SeparableConv2d(4, 5, 1, 2)
        )
        self.conv = XceptionBlock(5, (4, 4, 6), 2)
        self.sum = XceptionBlock(6, (6, 6, 6), skip="sum")
        self.none = XceptionBlock(6, (5, 5, CLASSES), dilation=2, skip="none")

    def forward(self, x):
        x, low = self.conv(self.blocks(x))
        x, _ = self.none(self.sum(x)[0])
        return x + low[:, :CLASSES, : x.shape[2], : x.shape[3]]


NETWORKS = {
    "alexnet": (lambda: models.build("alexnet", CLASSES, "cifar"), (2, 3, 32, 32)),
    "darknet19": (lambda: models.build("darknet19", CLASSES, "cifar"), (2, 3, 16, 16)),
    "densenet": (lambda: DenseNet(4, (2, 3, 2, 2), 8, CLASSES, "imagenet"), (2, 3, 64, 64)),
    "inception_v3": (lambda: models.build("inception_v3", CLASSES, "cifar"), (2, 3, 18, 18)),
    "unet": (lambda: UNet(CLASSES, 3, 4, 3), (2, 3, 19, 24)),
    "deeplabv3plus": (lambda: DeepLabV3Plus(CLASSES, small=True), (2, 3, 9, 12)),
    "separable": (Separable, (2, 3, 18, 17)),
}


def without_dropout(model):
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    return model


def our_gradients(model, x, y):
    step = trace(model, x.shape, optimizer=None, threads=1)
    inputs = {"input": x, "target": y}
    return run_trace(step, initial_values(step, model) | inputs, SCALARS, "reference")


def torch_loss(output, y):
    if isinstance(output, tuple):
        return TF.cross_entropy(output[0], y) + 0.4 * TF.cross_entropy(output[1], y)
    return TF.cross_entropy(output, y)


@pytest.mark.parametrize("name", NETWORKS)
def test_loss_and_all_gradients(name):
    manual_seed(3)
    make, shape = NETWORKS[name]
    model = without_dropout(make())
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape).astype(np.float32)
    functions = TorchFunctions(model)
    with on_torch(functions):
        output = model(torch.tensor(x, dtype=torch.float64))
    logits = output[0] if isinstance(output, tuple) else output
    y = rng.integers(0, CLASSES, (logits.shape[0], *logits.shape[2:]))
    loss = torch_loss(output, torch.tensor(y))
    loss.backward()
    found = our_gradients(model, x, y)
    assert np.isclose(found["loss"], loss.item(), rtol=1e-9)
    assert_same_gradients(model, found, {p: t.grad for p, t in functions.leaves.items()})


@pytest.mark.parametrize("perceptual", [False, True])
def test_both_players_of_pix2pixhd(perceptual):
    """Torch takes the published way: a backward pass and an optimizer for each player."""
    manual_seed(3)
    model = Pix2PixHD(4, base=4, steps=2, blocks=1, layers=2, scales=2, perceptual=perceptual)
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal((2, c, 20, 24)).astype(np.float32) for c in (4, 3))
    functions = TorchFunctions(model)
    with on_torch(functions):
        loss_g, loss_d = published_losses(model, *(torch.tensor(a).double() for a in (x, y)))
    players = {
        kind: [functions.leaves[p] for p in net.parameters()]
        for kind, net in (("g", model.netG), ("d", model.netD))
    }
    grads = torch.autograd.grad(loss_g, players["g"], retain_graph=True)
    grads += torch.autograd.grad(loss_d, players["d"])
    found = our_gradients(model, x, y)
    assert np.isclose(found["loss"], (loss_g + loss_d).item(), rtol=1e-9)
    order = (*model.netG.parameters(), *model.netD.parameters())
    assert_same_gradients(model, found, dict(zip(order, grads, strict=True)))


def published_losses(model, labels, real):
    """`pix2pixHD_model.forward` of the published code."""

    def gan(predictions, wanted):
        verdicts = [features[-1] for features in predictions]
        return sum(TF.mse_loss(v, torch.full_like(v, wanted)) for v in verdicts)

    fake = model.netG(labels)
    pred_fake_pool = model.netD(torch.cat([labels, fake.detach()], 1))
    pred_real = model.netD(torch.cat([labels, real], 1))
    pred_fake = model.netD(torch.cat([labels, fake], 1))
    loss_g = gan(pred_fake, 1.0)
    for i in range(2):
        for j in range(len(pred_fake[i]) - 1):
            weight = 0.5 * 4.0 / (2 + 1) * 10.0
            loss_g = loss_g + weight * TF.l1_loss(pred_fake[i][j], pred_real[i][j].detach())
    if model.vgg is not None:
        weights = [1.0 / 32, 1.0 / 16, 1.0 / 8, 1.0 / 4, 1.0]
        for weight, a, b in zip(weights, model.vgg(fake), model.vgg(real), strict=True):
            loss_g = loss_g + 10.0 * weight * TF.l1_loss(a, b.detach())
    return loss_g, 0.5 * (gan(pred_fake_pool, 0.0) + gan(pred_real, 1.0))


def assert_same_gradients(model, found, grads):
    largest = max(float(g.abs().max()) for g in grads.values())
    for key, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert f"grad:{key}" not in found
            continue
        error = np.abs(found[f"grad:{key}"] - grads[parameter].numpy()).max()
        assert error <= 1e-9 * largest, f"gradient of {key} is off by {error / largest:.1e}"
