"""VGG-11, -16 and -19, with and without batch norm, in torchvision's names and layouts.

A VGG maps images (N, 3, H, W) to logits (N, classes); all its convolutions are 3 x 3. From stage to
stage the image is halved and the channels double, up to 512. The ImageNet classifier has three
linear layers on 7 x 7 maps (102 million of the 138 million weights of VGG-16); the CIFAR classifier
has two on the mean of the last maps: 512 - 512 - classes. Source: Simonyan and Zisserman 2015,
table 1 (A, D, E). Read next: `resnet.py`.
"""

from __future__ import annotations

from ooctrain import nn
from ooctrain.engine.tensor import Tensor
from ooctrain.step.arguments import checked

#: channels of each convolution; 0 stands for a max pooling
LAYERS = {
    "A": (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    "D": (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0),
    "E": (64, 64, 0, 128, 128, 0, *(256,) * 4, 0, *(512,) * 4, 0, *(512,) * 4, 0),
}


class VGG(nn.Module):
    """Convolutions by a table, then linear layers.

    Args:
        layers: "A", "D" or "E" of the paper's table.
        batch_norm: after every convolution.
    """

    def __init__(
        self, layers: str, batch_norm: bool, num_classes: int = 1000, stem: str = "imagenet",
        in_channels: int = 3,
    ):  # fmt: skip
        super().__init__()
        self.features = _features(layers, batch_norm, in_channels)
        if stem == "imagenet":
            self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
            self.classifier = nn.Sequential(
                nn.Linear(512 * 7 * 7, 4096), nn.ReLU(True), nn.Dropout(),
                nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout(),
                nn.Linear(4096, num_classes),
            )  # fmt: skip
        else:
            self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
            self.classifier = nn.Sequential(
                nn.Linear(512, 512), nn.ReLU(True), nn.Dropout(), nn.Linear(512, num_classes)
            )
        self.apply(_initialise)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def _features(layers: str, batch_norm: bool, in_channels: int) -> nn.Sequential:
    modules: list[nn.Module] = []
    for channels in LAYERS[layers]:
        if channels == 0:
            modules.append(nn.MaxPool2d(2, 2))
            continue
        modules.append(nn.Conv2d(in_channels, channels, 3, padding=1))
        modules += [nn.BatchNorm2d(channels)] if batch_norm else []
        modules.append(nn.ReLU(inplace=True))
        in_channels = channels
    return nn.Sequential(*modules)


def _initialise(module: nn.Module) -> None:
    """Torchvision's first weights."""
    if isinstance(module, nn.Conv2d):
        nn.init_kaiming_normal(module.weight)
        nn.init_constant(module.bias, 0.0)
    elif isinstance(module, nn.Linear):
        nn.init_normal(module.weight, 0.01)
        nn.init_constant(module.bias, 0.0)


@checked
def vgg11(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> VGG:
    """8 convolutions."""
    return VGG("A", False, num_classes, stem, in_channels)


@checked
def vgg11_bn(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> VGG:
    """8 convolutions with batch norm."""
    return VGG("A", True, num_classes, stem, in_channels)


@checked
def vgg16(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> VGG:
    """13 convolutions."""
    return VGG("D", False, num_classes, stem, in_channels)


@checked
def vgg16_bn(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> VGG:
    """13 convolutions with batch norm."""
    return VGG("D", True, num_classes, stem, in_channels)


@checked
def vgg19(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> VGG:
    """16 convolutions."""
    return VGG("E", False, num_classes, stem, in_channels)


@checked
def vgg19_bn(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> VGG:
    """16 convolutions with batch norm."""
    return VGG("E", True, num_classes, stem, in_channels)
