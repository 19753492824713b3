"""Networks by name, with torchvision's module names and layouts, so that its weights load.

In: a name, the number of classes, a stem. Out: a `Module`. The one idea: a registry that a reader
can see. Read next: `resnet.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from ooctrain.errors import ConfigError
from ooctrain.models.lenet import lenet
from ooctrain.models.resnet import resnet18, resnet34, resnet50
from ooctrain.models.vgg import vgg11, vgg11_bn, vgg16, vgg16_bn, vgg19, vgg19_bn
from ooctrain.module import Module

Stem = Literal["cifar", "imagenet"]

MODELS: Mapping[str, Callable[..., Module]] = {
    "lenet": lenet,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "vgg11": vgg11,
    "vgg11_bn": vgg11_bn,
    "vgg16": vgg16,
    "vgg16_bn": vgg16_bn,
    "vgg19": vgg19,
    "vgg19_bn": vgg19_bn,
}


def build(name: str, num_classes: int = 10, stem: Stem = "cifar", in_channels: int = 3) -> Module:
    """A network with fresh weights (seeded by `oc.manual_seed`).

    Args:
        name: one of `MODELS`.
        num_classes: outputs.
        stem: "cifar" for small images (28 to 64 pixels), "imagenet" for torchvision's layout.
        in_channels: of the images.

    Raises:
        ConfigError: no such network, or no such stem.
    """
    if name not in MODELS:
        raise ConfigError(f"no model {name!r}", code="OOC-106", fix=f"one of {', '.join(MODELS)}")
    if stem not in ("cifar", "imagenet"):
        raise ConfigError(f"stem {stem!r} is neither 'cifar' nor 'imagenet'", code="OOC-106")
    return MODELS[name](num_classes=num_classes, stem=stem, in_channels=in_channels)
