"""DenseNet-121, -161, -169 and -201 in torchvision's names and layouts.

A DenseNet maps images (N, 3, H, W) to logits (N, classes). Every layer reads the outputs of all
layers before it in its block, joined along the channels. Each layer appends its output to a copy of
what it has read, so a block of n layers holds about n^2 / 2 times the growth in activations. These
are many large values that are cheap to compute, the case where recomputation pays. (torchvision
joins n + 1 single outputs before layer n: the same values and bytes, with n^2 / 2 pieces of
gradient instead of n.) Source: Huang et al. 2017, table 1. Read next: `inception.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.tensor import Tensor
from ooctrain.step.arguments import checked


class DenseLayer(nn.Module):
    """Norm, ReLU, 1 x 1 convolution, norm, ReLU, 3 x 3 convolution; appended to the input.

    Args:
        growth: channels that it adds.
        bottleneck: the 1 x 1 convolution has `bottleneck * growth` filters.
    """

    def __init__(self, in_planes: int, growth: int, bottleneck: int):
        super().__init__()
        middle = bottleneck * growth
        self.norm1 = nn.BatchNorm2d(in_planes)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(in_planes, middle, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(middle)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(middle, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv1(self.relu1(self.norm1(x)))
        new = self.conv2(self.relu2(self.norm2(new)))
        return F.concat([x, new], 1)


class DenseBlock(nn.Module):
    """Layers, each of which reads the block's input and all outputs before its own.

    Args:
        layers: how many.
    """

    def __init__(self, layers: int, in_planes: int, growth: int, bottleneck: int):
        super().__init__()
        for i in range(layers):
            layer = DenseLayer(in_planes + i * growth, growth, bottleneck)
            self.add_module(f"denselayer{i + 1}", layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


class Transition(nn.Sequential):
    """Halves the channels and the image between two blocks."""

    def __init__(self, in_planes: int, planes: int):
        parts = OrderedDict(
            norm=nn.BatchNorm2d(in_planes), relu=nn.ReLU(inplace=True),
            conv=nn.Conv2d(in_planes, planes, 1, bias=False), pool=nn.AvgPool2d(2, 2),
        )  # fmt: skip
        super().__init__(parts)


class DenseNet(nn.Module):
    """A stem, four dense blocks with transitions between, the mean over all pixels, a linear layer.

    Args:
        growth: channels that each layer adds.
        layers: in each of the four blocks.
        first_planes: channels after the stem.
        stem: "imagenet": 7 x 7 of stride 2 and max pooling; "cifar": 3 x 3.
    """

    def __init__(
        self, growth: int, layers: Sequence[int], first_planes: int, num_classes: int = 1000,
        stem: str = "imagenet", in_channels: int = 3, bottleneck: int = 4,
    ):  # fmt: skip
        super().__init__()
        large, planes = stem == "imagenet", first_planes
        kernel = (7, 2, 3) if large else (3, 1, 1)
        parts: OrderedDict[str, nn.Module] = OrderedDict(
            conv0=nn.Conv2d(in_channels, planes, *kernel, bias=False),
            norm0=nn.BatchNorm2d(planes),
            relu0=nn.ReLU(inplace=True),
            pool0=nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity(),
        )
        for i, count in enumerate(layers, 1):
            parts[f"denseblock{i}"] = DenseBlock(count, planes, growth, bottleneck)
            planes += count * growth
            if i < len(layers):
                parts[f"transition{i}"] = Transition(planes, planes // 2)
                planes //= 2
        parts["norm5"] = nn.BatchNorm2d(planes)
        self.features = nn.Sequential(parts)
        self.classifier = nn.Linear(planes, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init_kaiming_normal(module.weight, mode="fan_in")
            elif isinstance(module, nn.Linear):
                nn.init_constant(module.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.features(x))
        return self.classifier(F.adaptive_avg_pool2d(x, 1).flatten(1))


@checked
def densenet121(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> DenseNet:
    """Blocks of 6, 12, 24, 16 layers, growth 32."""
    return DenseNet(32, (6, 12, 24, 16), 64, num_classes, stem, in_channels)


@checked
def densenet161(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> DenseNet:
    """Blocks of 6, 12, 36, 24 layers, growth 48."""
    return DenseNet(48, (6, 12, 36, 24), 96, num_classes, stem, in_channels)


@checked
def densenet169(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> DenseNet:
    """Blocks of 6, 12, 32, 32 layers, growth 32."""
    return DenseNet(32, (6, 12, 32, 32), 64, num_classes, stem, in_channels)


@checked
def densenet201(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> DenseNet:
    """Blocks of 6, 12, 48, 32 layers, growth 32."""
    return DenseNet(32, (6, 12, 48, 32), 64, num_classes, stem, in_channels)
