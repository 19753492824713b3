"""Modules: registration, names, state, modes, initial weights, as in PyTorch."""

import copy
from collections import OrderedDict

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.autograd import manual_seed, tensor
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.models.resnet import BasicBlock
from ooctrain.tracing import trace


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))

    def forward(self, x):
        return self.head(F.relu(self.bn(self.conv(x))))


def test_names_and_state_dict_keys_are_pytorch_s():
    net = Net()
    assert list(net.state_dict()) == [
        "conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var",
        "bn.num_batches_tracked", "head.1.weight", "head.1.bias",
    ]  # fmt: skip
    assert [name for name, _ in net.named_parameters()] == [
        "conv.weight", "bn.weight", "bn.bias", "head.1.weight", "head.1.bias",
    ]  # fmt: skip
    assert net.state_dict()["conv.weight"].shape == (4, 3, 3, 3)
    assert net.state_dict()["head.1.weight"].shape == (2, 16)
    assert net.state_dict()["bn.num_batches_tracked"].dtype == np.int64
    assert [name for name, _ in net.named_modules()] == [
        "",
        "conv",
        "bn",
        "head",
        "head.0",
        "head.1",
    ]


def test_state_round_trip_and_its_errors():
    a, b = Net(), Net()
    a(tensor(values(2, 3, 4, 4)))
    b.load_state_dict(a.state_dict())
    for key, value in a.state_dict().items():
        np.testing.assert_array_equal(value, b.state_dict()[key])
    assert b.state_dict()["bn.num_batches_tracked"] == 1
    state = a.state_dict()
    state["extra"] = state.pop("conv.weight")
    with pytest.raises(ConfigError, match="does not fit") as caught:
        b.load_state_dict(state)
    assert "missing conv.weight" in str(caught.value)
    assert "unexpected extra" in str(caught.value)
    assert b.load_state_dict(state, strict=False) == (["conv.weight"], ["extra"])
    with pytest.raises(ShapeError, match=r"'conv.weight' has shape \(3,\)"):
        b.load_state_dict(a.state_dict() | {"conv.weight": np.zeros(3)})


def test_a_failed_load_changes_nothing():
    net = Net()
    before = net.state_dict()
    with pytest.raises(ShapeError):
        net.load_state_dict({**{k: v + 1 for k, v in before.items()}, "head.1.bias": np.zeros(7)})
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[key])


def test_modes_reach_all_parts():
    net = Net().eval()
    assert not any(module.training for module in net.modules())
    net.train()
    assert all(module.training for module in net.modules())


def test_moving_a_module_is_the_trainer_s_business():
    net = Net()
    assert net.to("cpu") is net
    with pytest.raises(ConfigError, match="cannot be moved") as caught:
        net.to("cuda")
    assert caught.value.code == "OOC-106"


def test_registration_errors_and_replacement():
    class Early(nn.Module):
        def __init__(self):
            self.conv = nn.Conv2d(1, 1, 1)

    with pytest.raises(ConfigError, match="super"):
        Early()
    net = Net()
    with pytest.raises(ConfigError, match="registered"):
        net.conv.weight = 3
    net.conv = nn.Identity()
    assert "conv.weight" not in net.state_dict()
    with pytest.raises(AttributeError, match="Net has no 'missing'"):
        _ = net.missing


def test_what_is_registered_is_replaced_by_its_kind_only():
    net = Net()
    for name in ("weight", "bias"):
        with pytest.raises(ConfigError, match="only a parameter"):
            setattr(net.conv, name, tensor(values(4)))
    with pytest.raises(ConfigError, match="only a parameter"):
        net.bn = tensor(values(4))
    net.bn.running_mean = tensor(values(4))
    np.testing.assert_array_equal(net.state_dict()["bn.running_mean"], values(4))
    step = trace(net, (2, 3, 4, 4), threads=1)
    assert {v.name for v in step.variables if v.kind == "input"} == {"input", "target"}
    net.conv.bias = None
    assert "conv.bias" not in net.state_dict()


def test_shared_modules_are_counted_once_and_saved_twice():
    layer = nn.Linear(3, 3)
    net = nn.Sequential(OrderedDict(a=layer, b=layer))
    assert len(list(net.parameters())) == 2
    assert list(net.state_dict()) == ["a.weight", "a.bias", "b.weight", "b.bias"]


def test_initial_weights_follow_pytorch_s_rules():
    manual_seed(0)
    conv, linear = nn.Conv2d(16, 64, 3), nn.Linear(400, 300)
    for parameter, fan_in in ((conv.weight, 144), (conv.bias, 144), (linear.weight, 400)):
        bound = 1 / np.sqrt(fan_in)
        w = parameter.numpy()
        assert np.abs(w).max() <= bound
        assert np.abs(w).max() > 0.9 * bound
        assert abs(w.mean()) < 0.2 * bound
    nn.init_kaiming_normal(conv.weight)
    assert np.isclose(conv.weight.numpy().std(), np.sqrt(2 / (64 * 9)), rtol=0.05)


def test_building_a_large_layer_draws_no_weights():
    layer = nn.Linear(1 << 15, 1 << 15)
    assert layer.weight.storage._physical is None


def test_batch_norm_running_statistics():
    bn = nn.BatchNorm2d(3, momentum=0.3)
    x = values(4, 3, 5, 5)
    bn(tensor(x))
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), ddof=1)
    np.testing.assert_allclose(bn.running_mean.numpy(), 0.3 * mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(bn.running_var.numpy(), 0.7 + 0.3 * var, rtol=1e-5)
    before = bn.state_dict()
    y = bn.eval()(tensor(x)).numpy()
    for key, value in bn.state_dict().items():
        np.testing.assert_array_equal(value, before[key])
    std = np.sqrt(before["running_var"] + 1e-5)[:, None, None]
    np.testing.assert_allclose(
        y, (x - before["running_mean"][:, None, None]) / std, rtol=1e-4, atol=1e-5
    )


def test_batch_norm_cumulative_average():
    bn = nn.BatchNorm2d(2, momentum=None)
    batches = [values(4, 2, 3, 3, seed=s) for s in range(3)]
    for batch in batches:
        bn(tensor(batch))
    mean = np.mean([batch.mean((0, 2, 3)) for batch in batches], axis=0)
    np.testing.assert_allclose(bn.running_mean.numpy(), mean, rtol=1e-4, atol=1e-6)
    assert bn.num_batches_tracked.item() == 3


def test_batch_norm_function_without_a_count():
    mean, var = tensor(np.zeros(2, np.float32)), tensor(np.ones(2, np.float32))
    x = values(4, 2, 3, 3)
    F.batch_norm(tensor(x), mean, var, training=True, momentum=0.5)
    np.testing.assert_allclose(mean.numpy(), 0.5 * x.mean((0, 2, 3)), rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match="needs a count"):
        F.batch_norm(tensor(x), mean, var, training=True, momentum=None)


def test_batch_norm_without_state_or_affine_and_on_one_value():
    x = values(4, 2, 3, 3)
    y = nn.BatchNorm2d(2, affine=False, track_running_stats=False).eval()(tensor(x)).numpy()
    np.testing.assert_allclose(y.mean((0, 2, 3)), 0, atol=1e-5)
    with pytest.raises(ShapeError, match="one value per channel"):
        nn.BatchNorm2d(2)(tensor(values(1, 2, 1, 1)))


def test_dropout_scales_what_it_keeps_and_rests_in_evaluation():
    manual_seed(1)
    layer = nn.Dropout(0.25)
    x = tensor(np.ones((40, 50), np.float32))
    y = layer(x).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.03
    assert not np.array_equal(y, layer(x).numpy())
    assert layer.eval()(x) is x
    with pytest.raises(ConfigError, match="not in"):
        F.dropout(x, 1.5)


def test_layers_call_their_functions():
    x = tensor(values(2, 3, 6, 6))
    for layer, expected in [
        (nn.ReLU(inplace=True), F.relu(x)),
        (nn.LeakyReLU(0.1), F.leaky_relu(x, 0.1)),
        (nn.Tanh(), F.tanh(x)),
        (nn.Sigmoid(), F.sigmoid(x)),
        (nn.MaxPool2d(2), F.max_pool2d(x, 2)),
        (nn.AvgPool2d(3, 2, 1, count_include_pad=False), F.avg_pool2d(x, 3, 2, 1, False, False)),
        (nn.AdaptiveAvgPool2d((2, 3)), F.adaptive_avg_pool2d(x, (2, 3))),
        (nn.ZeroPad2d((1, 2, 3, 4)), F.pad(x, (1, 2, 3, 4))),
        (nn.Identity(), x),
    ]:
        np.testing.assert_array_equal(layer(x).numpy(), expected.numpy())
    assert F.pad(x, (1, 2, 3, 4)).shape == (2, 3, 13, 9)
    assert F.conv2d(x, tensor(values(4, 3, 4, 2)), padding="same", dilation=2).shape == (2, 4, 6, 6)
    with pytest.raises(ConfigError, match="stride 1"):
        F.conv2d(x, tensor(values(4, 3, 3, 3)), padding="same", stride=2)


def test_a_pooled_size_may_be_the_input_s():
    x = tensor(values(2, 3, 6, 4))
    whole = F.adaptive_avg_pool2d(x, (6, 2)).numpy()
    np.testing.assert_array_equal(nn.AdaptiveAvgPool2d((None, 2))(x).numpy(), whole)
    np.testing.assert_array_equal(F.adaptive_avg_pool2d(x, None).numpy(), x.numpy())
    with pytest.raises(ShapeError, match="not an image size"):
        F.adaptive_avg_pool2d(x, 0)


def test_module_list_and_repr():
    blocks = nn.ModuleList([nn.Linear(2, 2)]).append(nn.ReLU())
    assert len(blocks) == 2
    assert isinstance(blocks[1], nn.ReLU)
    assert "Linear(in_features=2, out_features=2)" in repr(nn.Sequential(*blocks))
    assert len(nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())[:2]) == 2


@pytest.mark.parametrize("part", [F.relu, None, nn.ReLU])
def test_what_is_no_module_is_not_left_out_silently(part):
    for make in (
        lambda: nn.Sequential(nn.Flatten(), part),
        lambda: nn.Sequential(OrderedDict(activation=part)),
        lambda: nn.ModuleList([part]),
    ):
        with pytest.raises(ConfigError, match="not a module"):
            make()


def test_a_slice_of_a_sequence_keeps_the_names():
    net = nn.Sequential(nn.ReLU(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert list(net[1:3].state_dict()) == ["1.weight", "1.bias"]
    assert net[1:3][0] is net[1]
    named = nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=nn.ReLU(), c=nn.Linear(2, 2)))
    assert [name for name, _ in named[::2].named_children()] == ["a", "c"]


def test_settings_that_pytorch_has_and_this_library_lacks_are_refused():
    image = tensor(values(1, 2, 4, 4))
    for mode in ("symmetric", "edge", None):
        with pytest.raises(ConfigError, match="neither 'constant' nor 'reflect'"):
            F.pad(image, (1, 1, 1, 1), mode=mode)


def test_an_image_is_not_enlarged_to_nothing():
    image = tensor(values(1, 2, 4, 4))
    for enlarge in (lambda: F.interpolate(image, scale_factor=0), lambda: F.interpolate(image, 0)):
        with pytest.raises(ShapeError, match="not an image size"):
            enlarge()


def test_numbers_of_numpy_are_numbers():
    x, w = tensor(values(1, 2, 5, 5)), tensor(values(3, 2, 3, 3))
    one = np.int64(1)
    expected = F.conv2d(x, w, stride=1, padding=1).numpy()
    np.testing.assert_array_equal(F.conv2d(x, w, stride=one, padding=one).numpy(), expected)


def test_a_linear_weight_has_two_axes():
    with pytest.raises(ShapeError, match="the weight must be"):
        F.linear(tensor(values(2, 3)), tensor(values(3)))


def test_numbers_that_are_no_pair_are_named():
    image = tensor(np.zeros((1, 2, 6, 6), np.float32))
    assert F.max_pool2d(image, np.int64(2)).shape == (1, 2, 3, 3)
    for size in (1.5, (2.5, 2), (2, 2, 2), (None, 2), "two"):
        with pytest.raises(ConfigError, match=r"not a whole number,? or"):
            F.max_pool2d(image, size)


def test_joining_along_an_axis_that_is_not_there():
    image = tensor(np.zeros((1, 2, 6, 6), np.float32))
    assert F.concat([image, image], -3).shape == (1, 4, 6, 6)
    for dim in (4, -5):
        with pytest.raises(ShapeError, match="no axis"):
            F.concat([image, image], dim)
    with pytest.raises(ShapeError, match="0 tensors"):
        F.concat([])


def test_keywords_are_those_of_pytorch():
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    seen = []
    assert net.apply(fn=seen.append) is net
    assert seen == [net[0], net[1], net]
    net.register_parameter(name="scale", param=nn.Parameter(np.ones(2)))
    net.register_buffer(name="mean", tensor=np.zeros(3), persistent=True)
    assert [name for name, _ in net.named_parameters(recurse=False)] == ["scale"]
    names = [name for name, _ in net.named_parameters(prefix="net")]
    assert names == ["net.scale", "net.0.weight", "net.0.bias"]
    assert list(net.parameters(recurse=False)) == [net.scale]
    assert list(net.buffers(recurse=False)) == [net.mean]
    assert [name for name, _ in net.named_buffers("net", recurse=False)] == ["net.mean"]


def test_a_buffer_that_is_not_persistent_is_not_saved_with_the_weights():
    layer = nn.Linear(2, 3)
    layer.register_buffer("steps", np.zeros(2), persistent=False)
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert [name for name, _ in layer.named_buffers()] == ["steps"]
    layer.load_state_dict(layer.state_dict())
    layer.steps = tensor(np.ones(2, np.float32))
    assert "steps" not in copy.deepcopy(layer).state_dict()
    layer.register_buffer("steps", np.zeros(2))
    assert "steps" in layer.state_dict()
    layer.register_buffer("steps", np.zeros(2), persistent=False)
    del layer.steps
    layer.steps = nn.Parameter(np.ones(2))
    assert "steps" in layer.state_dict()


def test_a_checkpoint_keeps_buffers_that_the_weights_do_not(tmp_path):
    def begin():
        net = nn.Sequential(nn.Linear(2, 3))
        net.register_buffer("steps", np.full(2, 5.0), persistent=False)
        return oc.Trainer(net, threads=1)

    with begin() as trainer:
        assert trainer.state_arrays()["steps"].tolist() == [5.0, 5.0]
        trainer.save(str(tmp_path / "file"))
    with begin() as trainer:
        trainer.model.steps.copy_(np.zeros(2, np.float32))
        trainer.resume(str(tmp_path / "file"))
        assert trainer.model.steps.numpy().tolist() == [5.0, 5.0]


@pytest.mark.parametrize("call", [
    lambda x: F.interpolate(x, size=4, recompute_scale_factor=True),
    lambda x: F.interpolate(x, size=4, scale_factor=2.0),
    lambda x: F.interpolate(x),
    lambda x: F.batch_norm(x, None, None),
    lambda x: F.batch_norm(x, None, tensor(np.ones(3, np.float32))),
    lambda x: BasicBlock(3, 3, 1, None, dilation=2)(x),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(call):
    with pytest.raises(ConfigError):
        call(tensor(np.zeros((2, 3, 5, 5), np.float32)))
