"""Forty networks of others that are imported: named before there was an importer.

Rows are (library, name, side of the square input in pixels). The first 27 are those of an early
trial. Thirteen more: three segmentation heads, three with attention, three depthwise with
squeeze-and-excitation, four of newer families. Read next: `test_from_torch.py`.
"""

from __future__ import annotations

from typing import NamedTuple


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
