"""Forty networks of others that are imported: named before there was an importer.

Rows are (library, name, side of the square input in pixels). The first 27 are those of an early
trial. Thirteen more: three segmentation heads, three with attention, three depthwise with
squeeze-and-excitation, four of newer families. Read next: `test_from_torch.py`.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Network(NamedTuple):
    """One network: `timm.create_model(name)`, or of `torchvision.models`, its `segmentation`."""

    library: str
    name: str
    side: int = 64


NETWORKS = (
    Network("torchvision", "alexnet"), Network("torchvision", "vgg11_bn"),
    Network("torchvision", "resnet18"), Network("torchvision", "resnext50_32x4d"),
    Network("torchvision", "densenet121"), Network("torchvision", "squeezenet1_0"),
    Network("torchvision", "googlenet"), Network("torchvision", "inception_v3", 299),
    Network("torchvision", "mobilenet_v2"), Network("torchvision", "mobilenet_v3_small"),
    Network("torchvision", "mnasnet1_0"), Network("torchvision", "shufflenet_v2_x1_0"),
    Network("torchvision", "efficientnet_b0"), Network("torchvision", "regnet_y_400mf"),
    Network("torchvision", "convnext_tiny"),
    Network("timm", "seresnet50"), Network("timm", "darknet53"),
    Network("timm", "res2net50_26w_4s"), Network("timm", "hrnet_w18_small"),
    Network("timm", "resnetv2_50"), Network("timm", "repvgg_a0"), Network("timm", "cspdarknet53"),
    Network("timm", "dla34"), Network("timm", "xception41"), Network("timm", "convmixer_768_32"),
    Network("timm", "ghostnet_100"), Network("timm", "dm_nfnet_f0"),
    # segmentation heads
    Network("segmentation", "fcn_resnet50"),
    Network("segmentation", "deeplabv3_mobilenet_v3_large"),
    Network("segmentation", "lraspp_mobilenet_v3_large"),
    # attention
    Network("timm", "skresnet18"), Network("timm", "resnest14d"),
    Network("timm", "botnet26t_256", 256),
    # depthwise with squeeze-and-excitation
    Network("timm", "fbnetv3_b"), Network("timm", "mixnet_s"), Network("timm", "lcnet_050"),
    # newer families
    Network("timm", "mobilenetv4_conv_small"), Network("timm", "starnet_s1"),
    Network("timm", "fasternet_t0"), Network("timm", "repvit_m0_9"),
)  # fmt: skip


def torchvision() -> Any:
    """The package; beside a PyTorch that it was not built for, its own operators are declared
    first, of which these networks need none.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import torchvision
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _declare_operators()
        import torchvision
    return torchvision


def _declare_operators() -> None:
    import torch

    spec = importlib.util.find_spec("torchvision")
    text = (Path(spec.origin).parent / "_meta_registrations.py").read_text(encoding="utf-8")
    names = re.findall(r'register_(?:fake|meta)\("(?:torchvision::)?(\w+)"', text)
    library = torch.library.Library("torchvision", "DEF")
    for name in sorted(set(names)):
        library.define(f"{name}(Tensor a) -> Tensor")
    torchvision_library.append(library)


#: Declarations go with the object that has made them.
torchvision_library: list[Any] = []


def build(network: Network, classes: int) -> Any:
    """The network with first weights that are always the same.

    Raises:
        ImportError: its library is not installed.
    """
    import torch

    vision = torchvision()
    torch.manual_seed(0)
    if network.library == "timm":
        import timm

        return timm.create_model(network.name, num_classes=classes)
    heads = {"weights_backbone": None} if network.library == "segmentation" else {}
    return vision.models.get_model(network.name, weights=None, num_classes=classes, **heads)
