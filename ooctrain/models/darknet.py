"""DarkNet-19: nineteen convolutions with batch norm and leaky ReLU.

DarkNet-19 maps images (N, 3, H, W) to logits (N, classes). Its 3 x 3 convolutions double the
channels after each pooling, and 1 x 1 convolutions squeeze them in between. The classes are a last
1 x 1 convolution under the mean over all pixels. So the network is made of local windows up to that
mean, which is why paper 003 tiles it. Source: Redmon and Farhadi 2017 (YOLO9000), table 6.
torchvision does not have it; the names are those of VGG with batch norm. Read next: `densenet.py`.
"""

from __future__ import annotations

from ooctrain import nn
from ooctrain.engine.tensor import Tensor
from ooctrain.step.arguments import checked

#: filters of each convolution by stage; 3 x 3 and 1 x 1 take turns, 3 x 3 first
STAGES = (
    (32,), (64,), (128, 64, 128), (256, 128, 256), (512, 256, 512, 256, 512),
    (1024, 512, 1024, 512, 1024),
)  # fmt: skip
SLOPE = 0.1


class DarkNet19(nn.Module):
    """Six stages with a pooling between, then one filter for each class.

    Args:
        stem: "cifar" leaves out the first two poolings, so that 32 x 32 images keep some pixels.
    """

    def __init__(self, num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3):
        super().__init__()
        self.features = _features(in_channels, 0 if stem == "imagenet" else 2)
        self.classifier = nn.Conv2d(STAGES[-1][-1], num_classes, 1)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init_kaiming_normal(module.weight)
        nn.init_normal(self.classifier.weight, 0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.avgpool(self.classifier(self.features(x))).flatten(1)


def _features(in_channels: int, skipped_pools: int) -> nn.Sequential:
    modules: list[nn.Module] = []
    for stage, filters in enumerate(STAGES):
        if stage > skipped_pools:
            modules.append(nn.MaxPool2d(2, 2))
        for i, channels in enumerate(filters):
            kernel = 1 if i % 2 else 3
            conv = nn.Conv2d(in_channels, channels, kernel, padding=kernel // 2, bias=False)
            modules += [conv, nn.BatchNorm2d(channels), nn.LeakyReLU(SLOPE, inplace=True)]
            in_channels = channels
    return nn.Sequential(*modules)


@checked
def darknet19(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> DarkNet19:
    """18 convolutions and a last one for the classes."""
    return DarkNet19(num_classes, stem, in_channels)
