"""Networks: the published keys, shapes, parameter counts and work; small-image stems; a step.

`test_models_train.py` trains each of them within a budget.
"""

import numpy as np
import pytest
from support.quick import quick
from support.work import lines_run

from ooctrain import models, nn
from ooctrain.engine.autograd import manual_seed, tensor
from ooctrain.engine.incore import initial_values, run_trace
from ooctrain.errors import ConfigError
from ooctrain.layers.conv2d import Conv2d
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.linear import Linear
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.step.machine import specs_of
from ooctrain.tracing import trace

# Parameters, state_dict entries, and 10^9 multiply-adds of convolutions and linear layers on one
# usual image. torchvision's networks: `num_params` and `_ops` of its published weights' metadata.
# darknet19: pytorchcv's table; 5.58 10^9 operations in table 6 of the YOLO9000 paper.
# unet: milesial's Pytorch-UNet, 31,037,633 with one class. pix2pixhd: 182,546,755 is what the
# published code prints for the global generator.
KNOWN = {
    "alexnet": (61_100_840, 16, 0.714),
    "darknet19": (20_842_376, 110, 2.791),
    "densenet121": (7_978_856, 727, 2.834),
    "densenet161": (28_681_000, 967, 7.728),
    "densenet169": (14_149_480, 1015, 3.360),
    "densenet201": (20_013_928, 1207, 4.291),
    "inception_v3": (27_161_264, 580, 5.713),
    "resnet18": (11_689_512, 122, 1.814),
    "resnet34": (21_797_672, 218, 3.664),
    "resnet50": (25_557_032, 320, 4.089),
    "resnet101": (44_549_160, 626, 7.801),
    "resnet152": (60_192_808, 932, 11.514),
    "unet": (31_037_633 + 65, 118, None),
    "vgg11": (132_863_336, 22, 7.609),
    "vgg16": (138_357_544, 32, 15.470),
    "vgg19": (143_667_240, 38, 19.632),
    "vgg11_bn": (132_868_840, 62, None),
    "vgg16_bn": (138_365_992, 97, None),
    "vgg19_bn": (143_678_248, 118, None),
}
#: published nowhere for exactly this network: see the tests of their own
COUNTED_APART = {
    "lenet", "deeplabv3plus", "deeplabv3plus_xception65", "pix2pixhd", "pix2pixhd_perceptual",
}  # fmt: skip
BATCH_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def usual(name):
    recipe = models.MODELS[name]
    return models.build(name, recipe.classes, "imagenet", recipe.channels)


def usual_shape(name, batch=1):
    recipe = models.MODELS[name]
    return batch, recipe.channels, recipe.height, recipe.width


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def multiply_adds(step):
    calls = (c for c in step.calls if isinstance(c.op, Conv2d | ConvTranspose2d | Linear))
    return sum(c.op.flops(specs_of(step, c.ins), specs_of(step, c.outs)) for c in calls) / 2


def test_every_model_is_counted():
    assert set(KNOWN) | COUNTED_APART == set(models.MODELS)


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_keys_and_work_are_the_published_ones(name):
    model = usual(name)
    keys = sum(1 for _ in model._state())
    wanted, wanted_keys, giga = KNOWN[name]
    assert (parameters(model), keys) == (wanted, wanted_keys)
    if giga is not None:
        step = trace(model, usual_shape(name), None, training=False, threads=1)
        assert round(multiply_adds(step) / 1e9, 3) == giga


@pytest.mark.parametrize("name", quick(list(models.MODELS), 0, 12))
def test_tracing_a_call_costs_the_same_at_any_batch(name):
    model = usual(name)
    calls = len(trace(model, usual_shape(name, 2)).calls)
    for batch in (2, 4096):
        shape = usual_shape(name, batch)
        assert lines_run(lambda shape=shape: trace(model, shape)) < 1500 * calls


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
    [("resnet18", 2, (2, 2, 2, 2)), ("resnet34", 2, (3, 4, 6, 3)), ("resnet50", 3, (3, 4, 6, 3)),
     ("resnet101", 3, (3, 4, 23, 3)), ("resnet152", 3, (3, 8, 36, 3))],
)  # fmt: skip
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


def conv_bn(*names):
    for conv, norm in names:
        yield f"{conv}.weight"
        yield from (f"{norm}.{key}" for key in BATCH_NORM)


def densenet_keys(blocks):
    yield from conv_bn(("features.conv0", "features.norm0"))
    for i, count in enumerate(blocks, 1):
        for j in range(1, count + 1):
            at = f"features.denseblock{i}.denselayer{j}"
            for k in (1, 2):
                yield from (f"{at}.norm{k}.{key}" for key in BATCH_NORM)
                yield f"{at}.conv{k}.weight"
        if i < 4:
            yield from (f"features.transition{i}.norm.{key}" for key in BATCH_NORM)
            yield f"features.transition{i}.conv.weight"
    yield from (f"features.norm5.{key}" for key in BATCH_NORM)
    yield from ("classifier.weight", "classifier.bias")


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("densenet121", (6, 12, 24, 16)), ("densenet161", (6, 12, 36, 24)),
     ("densenet169", (6, 12, 32, 32)), ("densenet201", (6, 12, 48, 32))],
)  # fmt: skip
def test_densenet_keys(name, blocks):
    assert [key for key, _ in usual(name)._state()] == list(densenet_keys(blocks))


# torchvision's branches of each kind of block, in order.
INCEPTION = {
    "A": "branch1x1 branch5x5_1 branch5x5_2 branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3 "
    "branch_pool",
    "B": "branch3x3 branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3",
    "C": "branch1x1 branch7x7_1 branch7x7_2 branch7x7_3 branch7x7dbl_1 branch7x7dbl_2 "
    "branch7x7dbl_3 branch7x7dbl_4 branch7x7dbl_5 branch_pool",
    "D": "branch3x3_1 branch3x3_2 branch7x7x3_1 branch7x7x3_2 branch7x7x3_3 branch7x7x3_4",
    "E": "branch1x1 branch3x3_1 branch3x3_2a branch3x3_2b branch3x3dbl_1 branch3x3dbl_2 "
    "branch3x3dbl_3a branch3x3dbl_3b branch_pool",
}


def inception_keys():
    def basic(at):
        return conv_bn((f"{at}.conv", f"{at}.bn"))

    for at in ("1a_3x3", "2a_3x3", "2b_3x3", "3b_1x1", "4a_3x3"):
        yield from basic(f"Conv2d_{at}")
    for stage, kinds in ((5, "AAA"), (6, "BCCCC"), (7, "DEE")):
        for at, kind in zip("bcd" if stage == 5 else "abcde", kinds, strict=False):
            for branch in INCEPTION[kind].split():
                yield from basic(f"Mixed_{stage}{at}.{branch}")
        if stage == 6:
            yield from (*basic("AuxLogits.conv0"), *basic("AuxLogits.conv1"))
            yield from ("AuxLogits.fc.weight", "AuxLogits.fc.bias")
    yield from ("fc.weight", "fc.bias")


def test_inception_keys_and_shapes():
    shapes = {key: value.shape for key, value in usual("inception_v3")._state()}
    assert list(shapes) == list(inception_keys())
    assert shapes["Mixed_6c.branch7x7dbl_2.conv.weight"] == (160, 160, 7, 1)
    assert shapes["Mixed_7a.branch3x3_2.conv.weight"] == (320, 192, 3, 3)
    assert shapes["AuxLogits.conv1.conv.weight"] == (768, 128, 5, 5)


def test_alexnet_keys():
    keys = [key for key, _ in usual("alexnet")._state()]
    features = [f"features.{i}.{kind}" for i in (0, 3, 6, 8, 10) for kind in ("weight", "bias")]
    classifier = [f"classifier.{i}.{kind}" for i in (1, 4, 6) for kind in ("weight", "bias")]
    assert keys == features + classifier


def test_deeplab_counts():
    """No torchvision model: parts that are published, and the rest by the paper's figure 2."""
    model = usual("deeplabv3plus")
    norm = 2 * 256
    backbone = 25_557_032 - 2048 * 1000 - 1000
    pyramid = 2 * (2048 * 256 + norm) + 3 * (9 * 2048 * 256 + norm) + 5 * 256 * 256 + norm
    decoder = 256 * 48 + 2 * 48 + (9 * 304 * 256 + norm) + (9 * 256 * 256 + norm) + 257 * 21
    assert parameters(model.backbone) == backbone
    assert parameters(model) == backbone + pyramid + decoder
    # 39.92 million with a classifier of 1000 classes, as in the collections that have it; and
    # 54.17 10^9 multiply-adds at 513 x 513 in the authors' model zoo, within one percent.
    xception = usual("deeplabv3plus_xception65")
    assert round((parameters(xception.backbone) + 2049 * 1000) / 1e6, 2) == 39.92
    step = trace(xception, (1, 3, 513, 513), None, training=False, threads=1)
    assert abs(multiply_adds(step) / 54.17e9 - 1) < 0.01


def test_deeplab_keeps_maps_of_a_sixteenth():
    step = trace(usual("deeplabv3plus"), (2, 3, 513, 513), None, training=False)
    shapes = {v.name: v.shape for v in step.variables}
    assert shapes["backbone.layer4.2.bn3.out"] == (2, 2048, 33, 33)
    assert shapes["backbone.layer1.2.bn3.out"] == (2, 256, 129, 129)
    assert step.variables[step.outputs["output"]].shape == (2, 21, 513, 513)


def test_pix2pixhd_counts_and_names():
    model = usual("pix2pixhd")
    assert parameters(model.netG) == 182_546_755
    judge = [(39, 64), (64, 128), (128, 256), (256, 512), (512, 1)]
    assert parameters(model.netD) == 2 * sum(16 * a * b + b for a, b in judge)
    keys = [key for key, _ in model._state()]
    assert keys[0] == "netG.model.1.weight"
    assert "netG.model.16.conv_block.5.bias" in keys
    assert "netD.scale1_layer4.0.weight" in keys
    step = trace(model, (1, 36, 512, 1024), training=False)
    assert step.variables[step.outputs["output"]].shape == (1, 3, 512, 1024)


def test_pix2pixhd_fills_16_gb_at_paper_000s_batch():
    """Its figure 5: the largest batch in-core is 4. So it trained with the perceptual loss."""
    for name, batch, fits in (("pix2pixhd_perceptual", 4, True), ("pix2pixhd_perceptual", 5, False),
                              ("pix2pixhd", 5, True)):  # fmt: skip
        step = trace(usual(name), (batch, 36, 512, 1024), optimizer="adam")
        peak = trace_peak_bytes(apply_rewrites(step, ("fuse", "share_storage")))
        assert (peak <= 16 * 10**9) == fits, (name, batch, peak)


def test_vgg_in_the_perceptual_loss_is_not_trained():
    step = trace(
        models.build("pix2pixhd_perceptual", stem="cifar"), (2, 3, 32, 32), optimizer="adam"
    )
    assert not any(name.startswith("grad:vgg") for name in step.outputs)
    assert not any("vgg" in call.name for call in step.calls if call.phase == "update")
    assert "grad:netG.model.1.weight" in step.outputs


def test_unet_of_odd_size_keeps_the_size():
    step = trace(models.build("unet", 5, "cifar"), (1, 3, 37, 22), None, training=False)
    assert step.variables[step.outputs["output"]].shape == (1, 5, 37, 22)


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


@pytest.mark.parametrize(
    "name", quick(["lenet", "resnet18", "resnet50", "vgg11", "vgg11_bn"], 0, 1)
)
def test_small_image_networks_train(name):
    manual_seed(0)
    model = models.build(name, num_classes=7, stem="cifar")
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
    net = models.build("resnet18", stem="cifar")
    w = net.layer2[0].conv1.weight.numpy()
    assert np.isclose(w.std(), np.sqrt(2 / (128 * 9)), rtol=0.02)
    assert isinstance(net.maxpool, nn.Identity)
    vgg = models.build("vgg11", stem="cifar")
    assert not vgg.features[0].bias.numpy().any()
    assert np.isclose(vgg.classifier[0].weight.numpy().std(), 0.01, rtol=0.02)


def test_unknown_names():
    with pytest.raises(ConfigError, match="no model is called 'resnet19'"):
        models.build("resnet19")
    with pytest.raises(ConfigError, match="neither"):
        models.build("resnet18", stem="mnist")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.pt", "pickled files"),
        ("resnet50-0676ba61.pth", "pickled files"),
        ("weights.safetensors", "a network from weights alone"),
    ],
)
def test_a_file_of_another_framework_is_told_how_its_network_comes_here(name, kind):
    with pytest.raises(ConfigError, match=f"does not read {kind}") as caught:
        models.build(name)
    assert caught.value.code == "OOC-106"
    for way in ("--torch file.py:function", "--weights FILE.safetensors", "docs howto/weights"):
        assert way in caught.value.fix


@pytest.mark.parametrize("name", ["model.onnx", "Model.ONNX", "runs/model.onnx"])
def test_an_onnx_file_is_not_built_by_name(name):
    with pytest.raises(ConfigError) as caught:
        models.build(name)
    assert caught.value.code == "OOC-106"
    assert "from_onnx" in caught.value.fix


def test_images_with_a_side_of_more_than_64_pixels_are_no_small_ones():
    assert models.stem_for(64, 28) == "cifar"
    assert models.stem_for(28, 65) == models.stem_for(65, 28) == "imagenet"


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_a_network_is_torchvisions_unless_the_stem_for_small_images_is_asked_for(name):
    """LeNet alone is usually given images of 32 x 32."""
    usual_stem, other = ("cifar", "imagenet") if name == "lenet" else ("imagenet", "cifar")
    assert repr(models.build(name)) == repr(models.build(name, stem=usual_stem))
    assert repr(models.build(name)) != repr(models.build(name, stem=other))


def test_lenet_lays_small_images_in_the_middle():
    """Of LeCun's 32 x 32: two zeros on each side of 28 x 28."""
    model = models.build("lenet", 10).eval()
    x = np.random.default_rng(0).standard_normal((2, 3, 28, 28)).astype(np.float32)
    large = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))
    assert np.array_equal(model(tensor(x)).numpy(), model(tensor(large)).numpy())
