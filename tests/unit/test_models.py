"""Networks: torchvision's keys, shapes and parameter counts; small-image stems; training a step."""

import numpy as np
import pytest

from ooctrain import models, nn
from ooctrain.autograd import manual_seed, tensor
from ooctrain.errors import ConfigError
from ooctrain.tracing import initial_values, run_trace, trace

# Parameters and state_dict entries of torchvision 0.20's models with 1000 classes.
KNOWN = {
    "resnet18": (11_689_512, 122),
    "resnet34": (21_797_672, 218),
    "resnet50": (25_557_032, 320),
    "vgg11": (132_863_336, 22),
    "vgg16": (138_357_544, 32),
    "vgg19": (143_667_240, 38),
    "vgg11_bn": (132_868_840, 62),
    "vgg16_bn": (138_365_992, 97),
    "vgg19_bn": (143_678_248, 118),
}
BATCH_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


@pytest.mark.parametrize("name", KNOWN)
def test_parameter_and_key_counts(name):
    model = models.build(name, num_classes=1000, stem="imagenet")
    keys = sum(1 for _ in model._state())
    assert (sum(p.numel() for p in model.parameters()), keys) == KNOWN[name]


def resnet_keys(convolutions, blocks):
    """torchvision's key list, written down from its rule."""
    yield from ("conv1.weight", *(f"bn1.{key}" for key in BATCH_NORM))
    for stage, count in enumerate(blocks, 1):
        for block in range(count):
            at = f"layer{stage}.{block}"
            for i in range(1, convolutions + 1):
                yield f"{at}.conv{i}.weight"
                yield from (f"{at}.bn{i}.{key}" for key in BATCH_NORM)
            if block == 0 and (stage > 1 or convolutions == 3):
                yield f"{at}.downsample.0.weight"
                yield from (f"{at}.downsample.1.{key}" for key in BATCH_NORM)
    yield from ("fc.weight", "fc.bias")


@pytest.mark.parametrize(
    ("name", "convolutions", "blocks"),
    [("resnet18", 2, (2, 2, 2, 2)), ("resnet34", 2, (3, 4, 6, 3)), ("resnet50", 3, (3, 4, 6, 3))],
)
def test_resnet_keys(name, convolutions, blocks):
    model = models.build(name, 1000, "imagenet")
    assert [key for key, _ in model._state()] == list(resnet_keys(convolutions, blocks))


def test_resnet50_shapes():
    shapes = {
        key: value.shape for key, value in models.build("resnet50", 1000, "imagenet")._state()
    }
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["layer1.0.downsample.0.weight"] == (256, 64, 1, 1)
    assert shapes["layer2.0.conv2.weight"] == (128, 128, 3, 3)
    assert shapes["layer4.2.conv3.weight"] == (2048, 512, 1, 1)
    assert shapes["fc.weight"] == (1000, 2048)


def test_vgg_keys_and_shapes():
    shapes = {key: value.shape for key, value in models.build("vgg11", 1000, "imagenet")._state()}
    convolutions = (0, 3, 6, 8, 11, 13, 16, 18)
    expected = [f"features.{i}.{key}" for i in convolutions for key in ("weight", "bias")]
    expected += [f"classifier.{i}.{key}" for i in (0, 3, 6) for key in ("weight", "bias")]
    assert list(shapes) == expected
    assert shapes["features.3.weight"] == (128, 64, 3, 3)
    assert shapes["classifier.0.weight"] == (4096, 25088)
    keys = [key for key, _ in models.build("vgg16_bn", 1000, "imagenet")._state()]
    assert keys[:3] == ["features.0.weight", "features.0.bias", "features.1.weight"]
    assert "features.41.running_var" in keys


def test_sizes_through_the_imagenet_networks():
    for name, first, last in [
        ("resnet50", (2, 64, 112, 112), (2, 2048, 7, 7)),
        ("vgg16", (2, 64, 224, 224), (2, 512, 7, 7)),
    ]:
        step = trace(models.build(name, 1000, "imagenet"), (2, 3, 224, 224), training=False)
        shapes = [v.shape for v in step.variables if v.kind == "activation" and len(v.shape) == 4]
        assert shapes[0] == first
        assert last in shapes
        assert step.variables[step.outputs["output"]].shape == (2, 1000)


@pytest.mark.parametrize("name", ["lenet", "resnet18", "resnet50", "vgg11", "vgg11_bn"])
def test_small_image_networks_train(name):
    manual_seed(0)
    model = models.build(name, num_classes=7)
    shape = (2, 3, 32, 32)
    step = trace(model, shape, threads=1, conv_algorithm="direct")
    inputs = {
        "input": np.random.default_rng(0).standard_normal(shape, np.float32),
        "target": np.array([1, 6]),
    }
    results = run_trace(
        step, initial_values(step, model) | inputs, {"lr": 0.1, "step": 0, "seed": 0}
    )
    assert 0.5 < results["loss"] < 12
    for key, value in model.state_dict().items():
        assert np.isfinite(results[key]).all()
        assert (results[key] != value).any(), f"{key} was not trained"


def test_lenet_on_digits_and_channels():
    assert models.build("lenet", in_channels=1)(tensor(np.zeros((2, 1, 28, 28), "f4"))).shape == (
        2,
        10,
    )
    assert models.build("lenet", 5, "imagenet")(tensor(np.zeros((1, 3, 64, 64), "f4"))).shape == (
        1,
        5,
    )
    assert sum(p.numel() for p in models.build("lenet", in_channels=1).parameters()) == 61_706


def test_first_weights():
    manual_seed(0)
    net = models.build("resnet18")
    w = net.layer2[0].conv1.weight.numpy()
    assert np.isclose(w.std(), np.sqrt(2 / (128 * 9)), rtol=0.02)
    assert isinstance(net.maxpool, nn.Identity)
    vgg = models.build("vgg11")
    assert not vgg.features[0].bias.numpy().any()
    assert np.isclose(vgg.classifier[0].weight.numpy().std(), 0.01, rtol=0.02)


def test_unknown_names():
    with pytest.raises(ConfigError, match="no model 'resnet19'"):
        models.build("resnet19")
    with pytest.raises(ConfigError, match="neither"):
        models.build("resnet18", stem="mnist")
