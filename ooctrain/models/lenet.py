"""LeNet-5 with ReLU and max pooling: the smallest convolutional network worth training.

The input is (N, C, 32, 32), or (N, C, 28, 28) with the padding that the original gave such images;
the output is logits. Source: LeCun et al. 1998, with today's activations. Read next: `vgg.py`.
"""

from __future__ import annotations

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.tensor import Tensor
from ooctrain.step.arguments import checked


class LeNet(nn.Module):
    """Two convolutions, three linear layers.

    Args:
        stem: "cifar" for 32 x 32 images; "imagenet" averages larger ones down to the same 5 x 5
            maps.
    """

    def __init__(self, num_classes: int = 10, stem: str = "cifar", in_channels: int = 3):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.avgpool = nn.Identity() if stem == "cifar" else nn.AdaptiveAvgPool2d(5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2:] == (28, 28):
            x = F.pad(x, (2, 2, 2, 2))
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.flatten(self.avgpool(x), 1)
        x = F.relu(self.fc1(x))
        return self.fc3(F.relu(self.fc2(x)))


@checked
def lenet(num_classes: int = 10, stem: str = "cifar", in_channels: int = 3) -> LeNet:
    """LeNet-5."""
    return LeNet(num_classes, stem, in_channels)
