"""Instance norm, transposed convolution, resizing, mirrored padding as layers; frozen modules."""

from collections import Counter

import numpy as np
import pytest

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.autograd import manual_seed, tensor
from ooctrain.engine.incore import initial_values, run_trace
from ooctrain.engine.module import frozen
from ooctrain.errors import AutogradError, ConfigError, OoctrainError, ShapeError
from ooctrain.models.pix2pixhd import Pix2PixHD
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.fuse import fuse
from ooctrain.tracing import trace

SCALARS = {"lr": 0.1, "step": 0, "seed": 0}


def values(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def operations(step):
    return Counter(type(call.op).__name__ for call in step.calls)


class Painter(nn.Module):
    """Every way in which a ReLU and a sum follow an instance norm."""

    def __init__(self, affine):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=affine)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 1), nn.InstanceNorm2d(8, affine=affine)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + y)


@pytest.mark.parametrize("affine", [False, True])
def test_fusing_instance_norm_keeps_the_bits(affine):
    model = Painter(affine)
    step = trace(model, (3, 3, 9, 7), loss="mse", threads=1, keep_gradients=True)
    fused = fuse(step)
    left = operations(fused)
    assert left["ReLU"] == left["ReLUGrad"] == 0
    assert left["AddMasked"] == 1
    x, y = values(3, 3, 9, 7), values(3, 8, 7, 5)
    inputs = initial_values(step, model) | {"input": x, "target": y}
    plain = run_trace(step, inputs, SCALARS)
    for other in (fused, apply_rewrites(step, ("fuse", "share_storage"))):
        found = run_trace(other, inputs, SCALARS)
        for name, value in plain.items():
            assert value.tobytes() == found[name].tobytes(), name


def test_the_generator_is_fused():
    model = Pix2PixHD(3, base=4, steps=2, blocks=2, layers=2)
    left = operations(fuse(trace(model, (1, 3, 32, 32))))
    assert left["ReLU"] == left["ReLUGrad"] == 0
    assert left["InstanceNormApply"] > 0


def two_players():
    manual_seed(1)
    return nn.Conv2d(2, 2, 1), nn.Conv2d(2, 1, 1)


def test_gradients_pass_through_a_frozen_module_and_leave_it_alone():
    first, second = two_players()
    x = tensor(values(1, 2, 3, 3))
    with frozen(second):
        loss = F.mse_loss(second(first(x)), tensor(np.zeros((1, 1, 3, 3), "f4")))
    loss.backward()
    assert second.weight.grad is None
    frozen_grad = first.weight.grad.numpy().copy()
    first.zero_grad()
    F.mse_loss(second(first(x)), tensor(np.zeros((1, 1, 3, 3), "f4"))).backward()
    assert second.weight.grad is not None
    np.testing.assert_array_equal(first.weight.grad.numpy(), frozen_grad)


class Game(nn.Module):
    """Two players; `late` records the frozen player's own loss after it was used frozen."""

    def __init__(self, late):
        super().__init__()
        self.first, self.second = two_players()
        self.late = late

    def forward(self, x):
        return self.first(x)

    def target_spec(self, output):
        return output[:, :1].spec

    def loss(self, output, target):
        def own():
            return F.mse_loss(self.second(output.detach()), target)

        def fooling():
            with frozen(self.second):
                return F.l1_loss(self.second(output), target)

        a, b = (fooling(), own()) if self.late else (own(), fooling())
        return a + b


def test_order_of_the_players_in_a_trace():
    step = trace(Game(late=False), (1, 2, 3, 3), threads=1)
    names = [call.name for call in step.calls]
    updated = names.index("sgd.second.weight")
    assert step.uses[step.variable_by_name["second.weight"].id][-1] == updated
    with pytest.raises(OoctrainError):
        trace(Game(late=True), (1, 2, 3, 3), threads=1)


def test_an_update_between_the_players_is_noticed():
    first, second = two_players()
    with frozen(second):
        loss = F.mse_loss(second(first(tensor(values(1, 2, 3, 3)))), tensor(values(1, 1, 3, 3)))
    second.weight.copy_(np.zeros(second.weight.shape, "f4"))
    with pytest.raises(AutogradError, match="changed in place"):
        loss.backward()


def test_sizes_of_a_transposed_convolution():
    x = tensor(values(1, 4, 5, 6))
    layer = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)
    assert layer(x).shape == (1, 6, 10, 12)
    assert nn.ConvTranspose2d(4, 6, (2, 3), (2, 1), groups=2)(x).shape == (1, 6, 10, 8)
    assert repr(layer) == "ConvTranspose2d(4, 6, kernel_size=(3, 3), stride=2, padding=1)"
    assert np.abs(layer.weight.numpy()).max() <= 1 / np.sqrt(6 * 9)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x: nn.ConvTranspose2d(4, 6, 3, output_padding=1)(x), "does not lead"),
        (lambda x: nn.ConvTranspose2d(3, 6, 3)(x), "the weight must be"),
        (lambda x: nn.ConvTranspose2d(4, 6, 3, groups=3), "cannot be split"),
        (lambda x: nn.ConvTranspose2d(4, 6, 3, padding=9)(x), "does not lead|extent|size"),
        (lambda x: F.conv_transpose2d(x, tensor(values(4, 2))), "wants images"),
        (lambda x: F.pad(x, (6, 0, 0, 0), mode="reflect"), "less than the image"),
        (lambda x: F.instance_norm(x[:, :, :1, :1]), "no variance"),
    ],
)
def test_shapes_that_do_not_fit(call, what):
    with pytest.raises(ShapeError, match=what):
        call(tensor(values(1, 4, 5, 6)))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x: F.interpolate(x), "either size or scale_factor"),
        (lambda x: F.interpolate(x, 4, 2.0), "either size or scale_factor"),
        (lambda x: F.interpolate(x, scale_factor=1.2345678), "is no fraction"),
        (lambda x: F.instance_norm(x, None, None, tensor(np.ones(4, "f4"))), "or neither"),
        (lambda x: F.instance_norm(x, use_input_stats=False), "no running statistics"),
    ],
)
def test_words_that_do_not_fit(call, what):
    with pytest.raises(ConfigError, match=what):
        call(tensor(values(1, 4, 5, 6)))


def test_unknown_mode_of_resizing():
    with pytest.raises(ShapeError, match="no mode 'cubic'"):
        F.interpolate(tensor(values(1, 4, 5, 6)), 3, mode="cubic")


def test_layers_call_their_functions():
    x = tensor(values(2, 4, 5, 6))
    assert nn.Upsample(scale_factor=2)(x).shape == (2, 4, 10, 12)
    assert nn.Upsample((7, 3), mode="bilinear")(x).shape == (2, 4, 7, 3)
    assert nn.ReflectionPad2d((1, 2, 3, 4))(x).shape == (2, 4, 12, 9)
    assert nn.ReflectionPad2d(2)(x).shape == (2, 4, 9, 10)
    norm = nn.InstanceNorm2d(4, affine=True)
    assert [key for key, _ in norm._state()] == ["weight", "bias"]
    y = norm(x).numpy()
    np.testing.assert_allclose(y.mean(axis=(2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(y.var(axis=(2, 3)), 1, atol=1e-3)
    assert not nn.InstanceNorm2d(4).state_dict()
