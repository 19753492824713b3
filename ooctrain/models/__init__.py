"""Networks by name, with torchvision's module names and layouts, so that its weights load.

The networks stand in a registry that a reader can see: a name, a number of classes and a stem give
a `Module`. With each network stands the input that it is usually given, so that `ooctrain plan
NAME` asks a sensible question without further options. Read next: `resnet.py`; `inception.py` for a
step with two losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Literal

from ooctrain.data import Target
from ooctrain.engine.module import Module
from ooctrain.errors import ConfigError, unknown_name
from ooctrain.models.alexnet import alexnet
from ooctrain.models.darknet import darknet19
from ooctrain.models.deeplab import deeplabv3plus_resnet50, deeplabv3plus_xception65
from ooctrain.models.densenet import densenet121, densenet161, densenet169, densenet201
from ooctrain.models.inception import inception_v3
from ooctrain.models.lenet import lenet
from ooctrain.models.own import is_own, own_model, refuse_foreign, takes, usual_of
from ooctrain.models.pix2pixhd import pix2pixhd, pix2pixhd_perceptual
from ooctrain.models.resnet import resnet18, resnet34, resnet50, resnet101, resnet152
from ooctrain.models.unet import unet
from ooctrain.models.vgg import vgg11, vgg11_bn, vgg16, vgg16_bn, vgg19, vgg19_bn
from ooctrain.plugins import refuse_path
from ooctrain.step.arguments import checked

Stem = Literal["cifar", "imagenet"]
#: Images with no side longer than this, in pixels, get the stem for small ones.
SMALL_SIDE = 64


@dataclass(frozen=True, slots=True)
class Recipe:
    """A network and what it is usually trained on.

    Args:
        make: takes num_classes, stem, in_channels.
        height, width, channels, classes: those of the usual images and labels.
        target: "class": a class number for each image; "pixels": one for each pixel; "image":
            another image.
        own: which of these are the defaults of a function of one's own: "classes", "channels".
    """

    make: Callable[..., Module]
    height: int = 224
    width: int = 224
    channels: int = 3
    classes: int = 1000
    target: Target = "class"
    own: frozenset[str] = frozenset()


MODELS: Mapping[str, Recipe] = MappingProxyType(
    {
        "alexnet": Recipe(alexnet),
        "darknet19": Recipe(darknet19),
        "deeplabv3plus": Recipe(deeplabv3plus_resnet50, 513, 513, classes=21, target="pixels"),
        "deeplabv3plus_xception65": Recipe(
            deeplabv3plus_xception65, 513, 513, classes=21, target="pixels"
        ),
        "densenet121": Recipe(densenet121),
        "densenet161": Recipe(densenet161),
        "densenet169": Recipe(densenet169),
        "densenet201": Recipe(densenet201),
        "inception_v3": Recipe(inception_v3, 299, 299),
        "lenet": Recipe(lenet, 32, 32, classes=10),
        "pix2pixhd": Recipe(pix2pixhd, 512, 1024, channels=36, classes=3, target="image"),
        "pix2pixhd_perceptual": Recipe(
            pix2pixhd_perceptual, 512, 1024, channels=36, classes=3, target="image"
        ),
        "resnet18": Recipe(resnet18),
        "resnet34": Recipe(resnet34),
        "resnet50": Recipe(resnet50),
        "resnet101": Recipe(resnet101),
        "resnet152": Recipe(resnet152),
        "unet": Recipe(unet, 512, 512, classes=2, target="pixels"),
        "vgg11": Recipe(vgg11),
        "vgg11_bn": Recipe(vgg11_bn),
        "vgg16": Recipe(vgg16),
        "vgg16_bn": Recipe(vgg16_bn),
        "vgg19": Recipe(vgg19),
        "vgg19_bn": Recipe(vgg19_bn),
    }
)


def recipe_of(name: str) -> Recipe:
    """A network and what it is usually trained on; one of your own as its function's defaults say,
    else as classifiers of ImageNet are.

    Args:
        name: one of `MODELS`, or "file.py:function".

    Raises:
        ConfigError: no such network (the nearest name is suggested), or a file of another
            framework.
    """
    if is_own(name):
        usual, any_own = usual_of(name), Recipe(partial(own_model, name))
        classes = usual.get("classes", any_own.classes)
        channels = usual.get("channels", any_own.channels)
        return replace(any_own, channels=channels, classes=classes, own=frozenset(usual))
    if name not in MODELS:
        refuse_foreign(name)
        refuse_path(name, "function that makes the network", "function")
        otherwise = "one of these, or file.py:function"
        raise unknown_name("no model is called", name, MODELS, otherwise)
    return MODELS[name]


def expect_classes(name: str, wanted: int, target: Target) -> None:
    """Raises ConfigError where a network cannot be built with as many outputs as requested.

    Args:
        target: what it learns; one that makes images has none that could be counted.
    """
    if target == "image":
        raise ConfigError(
            f"--classes {wanted}, but {name} makes images", code="OOC-106",
            fix="leave --classes out",
        )  # fmt: skip
    if is_own(name) and not takes(name, "num_classes"):
        raise ConfigError(
            f"--classes {wanted}, but {name} takes no num_classes", code="OOC-106",
            fix="a parameter num_classes of that function, or leave --classes out",
        )  # fmt: skip


def stem_for(height: int, width: int) -> Stem:
    """The stem that images of a size are usually given."""
    return "cifar" if max(height, width) <= SMALL_SIDE else "imagenet"


@checked
def build(
    name: str, num_classes: int | None = None, stem: Stem | None = None,
    in_channels: int | None = None,
) -> Module:  # fmt: skip
    """A network with fresh weights (seeded by `oc.manual_seed`).

    Args:
        name: one of `MODELS`, or "file.py:function", which is given those of the other arguments
            that it takes.
        num_classes: outputs; None: 10, or the default of your own function.
        stem: "imagenet": torchvision's layout; "cifar": for small images (28 to 64 pixels). None:
            the one for the images that the network is usually given: torchvision's, and of LeNet
            the one for 32 x 32.
        in_channels: channels of the images; None: 3, or the default of your own function.

    Raises:
        ConfigError: no such network, or no such stem.
    """
    recipe = recipe_of(name)
    stem = stem_for(recipe.height, recipe.width) if stem is None else stem
    if stem not in ("cifar", "imagenet"):
        raise ConfigError(
            f"stem {stem!r} is neither 'cifar' nor 'imagenet'",
            code="OOC-106",
            fix="--stem cifar for images of 32 x 32, --stem imagenet for large ones",
        )
    if num_classes is None:
        num_classes = recipe.classes if "classes" in recipe.own else 10
    if in_channels is None:
        in_channels = recipe.channels if "channels" in recipe.own else 3
    return recipe.make(num_classes=num_classes, stem=stem, in_channels=in_channels)
