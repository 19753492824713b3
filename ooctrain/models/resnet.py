"""ResNet-18, -34, -50, -101 and -152 in torchvision's names and layouts.

A ResNet maps images (N, 3, H, W) to logits (N, classes). A block computes a correction and adds its
input, so a gradient reaches every block directly. The ImageNet stem is a 7 x 7 convolution of
stride 2 and a max pooling; the CIFAR stem is a single 3 x 3 convolution (He et al. 2016, sections
3.3 and 4.2). ResNet-50 strides in the 3 x 3 convolution, as torchvision does ("v1.5"). Read next:
`../tracing.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooctrain import nn
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError
from ooctrain.step.arguments import checked


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and the input added."""

    expansion = 1

    def __init__(
        self, in_planes: int, planes: int, stride: int, downsample: nn.Module | None,
        dilation: int = 1,
    ):  # fmt: skip
        super().__init__()
        if dilation != 1:
            raise ConfigError(
                "a BasicBlock cannot be dilated", code="OOC-106", fix="use Bottleneck"
            )
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample
        self.depth: nn.Module | None = None  # stochastic depth, see `ResNet`

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out = out if self.depth is None else self.depth(out)
        identity = x if self.downsample is None else self.downsample(x)
        return self.relu(out + identity)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions and the input added."""

    expansion = 4

    def __init__(
        self, in_planes: int, planes: int, stride: int, downsample: nn.Module | None,
        dilation: int = 1,
    ):  # fmt: skip
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, dilation, dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample
        self.depth: nn.Module | None = None  # stochastic depth, see `ResNet`

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out = out if self.depth is None else self.depth(out)
        identity = x if self.downsample is None else self.downsample(x)
        return self.relu(out + identity)


Block = type[BasicBlock] | type[Bottleneck]


class ResNet(nn.Module):
    """A stem, four stages of blocks, the mean over all pixels, a linear layer.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        layers: blocks in each of the four stages.
        dilate: for the last three stages, whether dilation stands in for the stride, so that the
            maps stay large (DeepLab; torchvision: `replace_stride_with_dilation`).
        stochastic_depth: with which probability the last block is dropped from a sample in
            training; block l of L with l / L of it (Huang et al. 2016).
    """

    def __init__(
        self, block: Block, layers: Sequence[int], num_classes: int = 1000, stem: str = "imagenet",
        in_channels: int = 3, dilate: tuple[bool, bool, bool] = (False, False, False),
        stochastic_depth: float = 0.0,
    ):  # fmt: skip
        super().__init__()
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        self.layer1 = _stage(block, 64, 64, layers[0], 1)
        planes, dilation = 64, 1
        for i in range(1, 4):
            before, dilation = dilation, dilation * (2 if dilate[i - 1] else 1)
            stride = 1 if dilate[i - 1] else 2
            stage = _stage(
                block, planes * block.expansion, 2 * planes, layers[i], stride, before, dilation
            )
            self.add_module(f"layer{i + 1}", stage)
            planes *= 2
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init_kaiming_normal(module.weight)
        blocks = [module for module in self.modules() if isinstance(module, block)]
        if stochastic_depth:
            for number, part in enumerate(blocks, 1):
                part.depth = nn.StochasticDepth(stochastic_depth * number / len(blocks), "row")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


@checked
def resnet18(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> ResNet:
    """18 layers: stages of 2, 2, 2, 2 basic blocks."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, stem, in_channels)


@checked
def resnet34(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> ResNet:
    """34 layers: stages of 3, 4, 6, 3 basic blocks."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes, stem, in_channels)


@checked
def resnet50(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> ResNet:
    """50 layers: stages of 3, 4, 6, 3 bottlenecks."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, stem, in_channels)


@checked
def resnet101(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> ResNet:
    """101 layers: stages of 3, 4, 23, 3 bottlenecks."""
    return ResNet(Bottleneck, (3, 4, 23, 3), num_classes, stem, in_channels)


@checked
def resnet152(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> ResNet:
    """152 layers: stages of 3, 8, 36, 3 bottlenecks."""
    return ResNet(Bottleneck, (3, 8, 36, 3), num_classes, stem, in_channels)


def _stage(
    block: Block, in_planes: int, planes: int, blocks: int, stride: int, first_dilation: int = 1,
    dilation: int = 1,
) -> nn.Sequential:  # fmt: skip
    out_planes = planes * block.expansion
    downsample = None
    if stride != 1 or in_planes != out_planes:
        downsample = nn.Sequential(
            nn.Conv2d(in_planes, out_planes, 1, stride, bias=False), nn.BatchNorm2d(out_planes)
        )
    first = block(in_planes, planes, stride, downsample, first_dilation)
    others = (block(out_planes, planes, 1, None, dilation) for _ in range(blocks - 1))
    return nn.Sequential(first, *others)
