"""Every network trains: the loss falls, and within a quarter of the budget every bit is the same.

The small forms are the same classes with fewer layers or channels; `-m slow` takes the whole ones.
"""

import numpy as np
import pytest

import ooctrain as oc
from ooctrain.models.alexnet import AlexNet
from ooctrain.models.deeplab import DeepLabV3Plus
from ooctrain.models.densenet import DenseNet
from ooctrain.models.pix2pixhd import Pix2PixHD
from ooctrain.models.resnet import Bottleneck, ResNet
from ooctrain.models.unet import UNet

CLASSES = 3
SIZE = 32
SMALL = {
    "alexnet": lambda: AlexNet(CLASSES, "cifar"),
    "densenet": lambda: DenseNet(4, (2, 2, 2, 2), 8, CLASSES, "cifar"),
    "dilated resnet": lambda: ResNet(
        Bottleneck, (1, 1, 1, 1), CLASSES, "cifar", 3, (False, True, True)
    ),
    "unet": lambda: UNet(CLASSES, 3, 8, 2),
    "pix2pixhd": lambda: Pix2PixHD(3, base=4, steps=2, blocks=1, layers=2),
}
TARGETS = {"unet": "pixels", "pix2pixhd": "image", "deeplab": "pixels"}


def batch_for(target, count=4, size=SIZE):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, 3, size, size), np.float32)
    if target == "class":
        return x, np.arange(count) % CLASSES
    if target == "pixels":
        return x, (x.sum(1) > 0).astype(np.int64)
    return x, np.tanh(x[:, ::-1])


def train(make, batch, budget, lr, steps=3):
    """Losses, the state after the steps, and the time line of the last one."""
    oc.manual_seed(0)
    model = make()
    optimizer = oc.optim.Adam(model.parameters(), lr=lr)
    with oc.Trainer(model, optimizer=optimizer, budget=budget, threads=2) as trainer:
        losses = [trainer.step(*batch) for _ in range(steps)]
        return losses, trainer.state_arrays(), trainer.timeline


def assert_trains_out_of_core(make, batch, lr=5e-4):
    losses, state, _ = train(make, batch, None, lr)
    again, state_again, timeline = train(make, batch, "25%", lr)
    assert losses[-1] < losses[0]
    assert again == losses
    assert timeline.bytes_out > 0 or timeline.recompute_us > 0, "it did not fit in-core"
    for key, value in state.items():
        assert np.isfinite(value).all(), key
        assert value.tobytes() == state_again[key].tobytes(), key


#: Each takes longer than most others together; the whole networks train in the slow tests.
LONG_FORMS = {"dilated resnet", "pix2pixhd", "densenet", "unet"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in LONG_FORMS else ()) for n in SMALL],
)
def test_small_forms_train_out_of_core(name):
    assert_trains_out_of_core(SMALL[name], batch_for(TARGETS.get(name, "class")))


#: the same classes as others of the list, only longer
LONGER = {"densenet161", "densenet169", "resnet34", "vgg16", "vgg16_bn", "vgg19_bn"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(oc.models.MODELS) - LONGER))
def test_whole_networks_train_out_of_core(name):
    target = oc.models.MODELS[name].target

    def make():
        return oc.models.build(name, CLASSES, "cifar")

    # Nineteen layers without batch norm overshoot at the rate of the others.
    lr = 5e-5 if name == "vgg19" else 5e-4
    # The norm under DeepLab's image mean makes plus and minus one of any two images.
    count = 4 if name.startswith("deeplab") else 2
    assert_trains_out_of_core(make, batch_for(target, count), lr)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["darknet19", "inception_v3", "deeplabv3plus_xception65"])
def test_one_step_of_the_others_reaches_every_parameter(name):
    """Adam moves every parameter by about its learning rate, however small the gradient."""
    recipe = oc.models.MODELS[name]
    oc.manual_seed(0)
    model = oc.models.build(name, CLASSES, "cifar")
    x, y = batch_for(recipe.target, 2, 20)
    with oc.Trainer(model, optimizer="adam", threads=2) as trainer:
        before = trainer.state_arrays()
        trainer.step(x, y)
        after = trainer.state_arrays()
    for key, _ in model.named_parameters():
        assert (before[key] != after[key]).any(), f"{key} was not trained"


def test_the_auxiliary_classifier_counts_less_than_half():
    model = oc.models.build("inception_v3", CLASSES, "cifar")
    logits, aux = (oc.tensor(np.random.default_rng(i).standard_normal((4, CLASSES))
                             .astype("f4")) for i in range(2))  # fmt: skip
    labels = oc.tensor(np.arange(4) % CLASSES)
    both, one, other = (model.loss(out, labels).item() for out in ((logits, aux), logits, aux))
    assert np.isclose(both, one + 0.4 * other)
    step = oc.trace(model, (2, 3, 32, 32))
    assert sum(call.op.name == "cross_entropy" for call in step.calls) == 2
    evaluated = oc.trace(model, (2, 3, 32, 32), training=False)
    assert sum(call.op.name == "cross_entropy" for call in evaluated.calls) == 1


def test_a_named_loss_of_several_outputs_says_so():
    model = oc.models.build("pix2pixhd", 3, "cifar")
    with pytest.raises(oc.errors.ConfigError, match="several outputs"):
        oc.trace(model, (2, 3, 32, 32), loss="mse")


@pytest.mark.slow
def test_accumulation_and_execute_with_a_loss_of_the_models_own():
    oc.manual_seed(0)
    model = oc.models.build("pix2pixhd", 3, "cifar")
    x, y = batch_for("image")
    whole = oc.trace(model, x.shape, optimizer="adam", threads=1)
    parts = oc.trace(model, x.shape, optimizer="adam", threads=1, accumulate=2)
    made = oc.plan(whole, "50%", machine="cpu-generic")
    run = oc.execute(made, model, (x, y))
    halves = oc.execute(oc.plan(parts, "100%", machine="cpu-generic"), model, (x, y))
    # Instance norm knows no batch: both halves together are the whole.
    assert np.isclose(run.loss, halves.loss, rtol=1e-5)
    sizes = {name: np.linalg.norm(gradient) for name, gradient in run.gradients.items()}
    # What an instance norm takes away again has no gradient but what others' rounding leaves.
    rounding = 1e-6 * max(sizes.values())
    for name, gradient in run.gradients.items():
        error = np.linalg.norm(gradient - halves.gradients[name])
        assert error <= 1e-3 * sizes[name] + rounding, name


@pytest.mark.slow
def test_evaluation_of_all_kinds_of_targets():
    for name, make in (("unet", SMALL["unet"]), ("pix2pixhd", SMALL["pix2pixhd"])):
        batch = batch_for(TARGETS[name])
        with oc.Trainer(make(), budget="50%", threads=1) as trainer:
            result = trainer.evaluate([batch])
            assert np.isfinite(result.loss)
            assert (result.accuracy is None) == (name == "pix2pixhd")
            assert trainer.predict(batch[0]).shape[2:] == (SIZE, SIZE)


def test_deeplab_of_one_image_says_why_not():
    """Batch norm under the image's mean has one value for each channel then."""
    model = DeepLabV3Plus(CLASSES, small=True)
    with pytest.raises(oc.errors.ShapeError, match="one value per channel"):
        oc.trace(model, (1, 3, SIZE, SIZE))
