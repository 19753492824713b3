"""DeepLabv3+: a dilated backbone, pyramid pooling by dilated convolutions, a small decoder.

DeepLabv3+ maps images (N, 3, H, W) to logits for each pixel, (N, classes, H, W). Dilation instead
of stride keeps the maps large (1/16 of the size). Parallel windows of several dilations see several
scales. A decoder enlarges the result four times and joins it with the backbone's maps of a quarter
of the size. Source: Chen et al. 2018, figure 2: two 3 x 3 convolutions of 256 filters in the
decoder, 48 channels of low-level features, rates 6, 12, 18. Papers 000 and 001 use this network and
do not state its backbone: `resnet50` is our default; `xception65` is the one that the network's
authors recommend, then with separable convolutions in pyramid and decoder too, as in their code.
Names as in torchvision's DeepLabv3 where it has the part. Read next: `pix2pixhd.py`.
"""

from __future__ import annotations

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.tensor import Tensor
from ooctrain.models.resnet import Bottleneck, ResNet
from ooctrain.models.xception import SeparableConv2d, Xception65
from ooctrain.step.arguments import checked

RATES = (6, 12, 18)
PLANES = 256
LOW_PLANES = 48


class ResNetBackbone(nn.Module):
    """ResNet-50 without its classifier, the last stage dilated.

    Args:
        small: with the stem for small images.
    """

    planes, low_planes = 2048, 256

    def __init__(self, in_channels: int = 3, small: bool = False):
        super().__init__()
        stem = "cifar" if small else "imagenet"
        whole = ResNet(Bottleneck, (3, 4, 6, 3), 1, stem, in_channels, (False, False, True))
        for name, part in whole.named_children():
            if name not in ("avgpool", "fc"):
                self.add_module(name, part)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The last maps, and those of the first stage."""
        low = self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        return self.layer4(self.layer3(self.layer2(low))), low


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling: 1 x 1, three dilations, and the mean of the image."""

    def __init__(self, in_planes: int, rates: tuple[int, ...], separable: bool):
        super().__init__()
        dilated = [_conv3x3(in_planes, PLANES, rate, separable) for rate in rates]
        pooling = nn.Sequential(nn.AdaptiveAvgPool2d(1), *_conv1x1(in_planes, PLANES))
        self.convs = nn.ModuleList([nn.Sequential(*_conv1x1(in_planes, PLANES)), *dilated, pooling])
        self.project = nn.Sequential(*_conv1x1((2 + len(rates)) * PLANES, PLANES), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        *local, pooling = self.convs
        mean = F.interpolate(pooling(x), x.shape[2:], mode="bilinear")
        return self.project(F.concat([*(conv(x) for conv in local), mean], 1))


class Decoder(nn.Module):
    """Joins the pyramid with the low-level features, and says the class of each pixel."""

    def __init__(
        self, planes: int, low_planes: int, num_classes: int, rates: tuple[int, ...],
        separable: bool,
    ):  # fmt: skip
        super().__init__()
        self.project = nn.Sequential(*_conv1x1(low_planes, LOW_PLANES))
        self.aspp = ASPP(planes, rates, separable)
        self.classifier = nn.Sequential(
            _conv3x3(PLANES + LOW_PLANES, PLANES, 1, separable),
            _conv3x3(PLANES, PLANES, 1, separable),
            nn.Conv2d(PLANES, num_classes, 1),
        )

    def forward(self, x: Tensor, low: Tensor) -> Tensor:
        low = self.project(low)
        x = F.interpolate(self.aspp(x), low.shape[2:], mode="bilinear")
        return self.classifier(F.concat([low, x], 1))


class DeepLabV3Plus(nn.Module):
    """Backbone and decoder; the logits are enlarged to the size of the image.

    Args:
        backbone: "resnet50" or "xception65".
        small: for small images: no stride before the first stage, rates 1, 2, 3.
    """

    def __init__(
        self, num_classes: int = 21, backbone: str = "resnet50", in_channels: int = 3,
        small: bool = False,
    ):  # fmt: skip
        super().__init__()
        separable = backbone == "xception65"
        self.backbone = (Xception65 if separable else ResNetBackbone)(in_channels, small)
        rates = (1, 2, 3) if small else RATES
        self.classifier = Decoder(
            self.backbone.planes, self.backbone.low_planes, num_classes, rates, separable
        )
        for module in self.classifier.modules():
            if isinstance(module, nn.Conv2d):
                nn.init_kaiming_normal(module.weight, mode="fan_in")

    def forward(self, x: Tensor) -> Tensor:
        logits = self.classifier(*self.backbone(x))
        return F.interpolate(logits, x.shape[2:], mode="bilinear")


def _conv1x1(in_planes: int, planes: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(in_planes, planes, 1, bias=False), nn.BatchNorm2d(planes), nn.ReLU(True)


def _conv3x3(in_planes: int, planes: int, dilation: int, separable: bool) -> nn.Module:
    if separable:
        return SeparableConv2d(in_planes, planes, dilation=dilation, relu=True)
    conv = nn.Conv2d(in_planes, planes, 3, 1, dilation, dilation, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(planes), nn.ReLU(True))


@checked
def deeplabv3plus_resnet50(
    num_classes: int = 21, stem: str = "imagenet", in_channels: int = 3
) -> DeepLabV3Plus:
    """On ResNet-50."""
    return DeepLabV3Plus(num_classes, "resnet50", in_channels, stem == "cifar")


@checked
def deeplabv3plus_xception65(
    num_classes: int = 21, stem: str = "imagenet", in_channels: int = 3
) -> DeepLabV3Plus:
    """On Xception-65."""
    return DeepLabV3Plus(num_classes, "xception65", in_channels, stem == "cifar")
