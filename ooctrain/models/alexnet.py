"""AlexNet in torchvision's names and layout.

AlexNet maps images (N, 3, H, W) to logits (N, classes). It is the network that made GPUs the tool
for images. Nearly all of its memory is weights (the first linear layer alone holds 151 MB) and
nearly all of its time is convolution, so for a planner it is the opposite of a DenseNet. Source:
Krizhevsky 2014, "One weird trick", the single-tower variant that torchvision has; the original of
2012 splits the filters over two GPUs. Read next: `vgg.py`.
"""

from __future__ import annotations

from ooctrain import nn
from ooctrain.engine.tensor import Tensor
from ooctrain.step.arguments import checked


class AlexNet(nn.Module):
    """Five convolutions, three linear layers, dropout before the first two.

    Args:
        stem: "imagenet": 11 x 11 of stride 4, 6 x 6 maps to the classifier; "cifar": 3 x 3 of
            stride 2, their mean, and 512 instead of 4096 hidden units.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        stem: str = "imagenet",
        in_channels: int = 3,
        dropout: float = 0.5,
    ):
        super().__init__()
        large = stem == "imagenet"
        first = (11, 4, 2) if large else (3, 2, 1)
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 64, *first), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        side, hidden = (6, 4096) if large else (1, 512)
        self.avgpool = nn.AdaptiveAvgPool2d((side, side))
        self.classifier = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(256 * side * side, hidden), nn.ReLU(inplace=True),
            nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU(inplace=True),
            nn.Linear(hidden, num_classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


@checked
def alexnet(num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3) -> AlexNet:
    """5 convolutions and 3 linear layers."""
    return AlexNet(num_classes, stem, in_channels)
