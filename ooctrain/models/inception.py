"""Inception v3 in torchvision's names and layout, with its auxiliary classifier.

Inception v3 maps images (N, 3, 299, 299) to logits, and in training also to those of the auxiliary
classifier. A block computes up to four parallel branches at several scales and joins them along the
channels; large windows are split into 1 x 7 and 7 x 1. The auxiliary classifier hangs on the middle
of the network and counts 0.4 in the loss, so the step has two losses. Source: Szegedy et al. 2016,
which does not state the weight; 0.4 is what PyTorch's training scripts take. Read next:
`nn/named_losses.py`, `OwnLoss`.
"""

from __future__ import annotations

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.tensor import Tensor
from ooctrain.functional import IntOrPair
from ooctrain.step.arguments import checked
from ooctrain.step.op import Spec

AUX_WEIGHT = 0.4
WEIGHT_STD = 0.1
EPS = 1e-3


class BasicConv2d(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(
        self, in_planes: int, planes: int, kernel_size: IntOrPair, stride: int = 1,
        padding: IntOrPair = 0,
    ):  # fmt: skip
        super().__init__()
        self.conv = nn.Conv2d(in_planes, planes, kernel_size, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(planes, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class InceptionA(nn.Module):
    """1 x 1, 5 x 5, twice 3 x 3, and pooling, side by side."""

    def __init__(self, in_planes: int, pool_features: int):
        super().__init__()
        self.branch1x1 = BasicConv2d(in_planes, 64, 1)
        self.branch5x5_1 = BasicConv2d(in_planes, 48, 1)
        self.branch5x5_2 = BasicConv2d(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = BasicConv2d(in_planes, 64, 1)
        self.branch3x3dbl_2 = BasicConv2d(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = BasicConv2d(96, 96, 3, padding=1)
        self.branch_pool = BasicConv2d(in_planes, pool_features, 1)

    def forward(self, x: Tensor) -> Tensor:
        large = self.branch5x5_2(self.branch5x5_1(x))
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        pooled = self.branch_pool(F.avg_pool2d(x, 3, stride=1, padding=1))
        return F.concat([self.branch1x1(x), large, double, pooled], 1)


class InceptionB(nn.Module):
    """Halves the image: 3 x 3, twice 3 x 3, and max pooling, all of stride 2."""

    def __init__(self, in_planes: int):
        super().__init__()
        self.branch3x3 = BasicConv2d(in_planes, 384, 3, stride=2)
        self.branch3x3dbl_1 = BasicConv2d(in_planes, 64, 1)
        self.branch3x3dbl_2 = BasicConv2d(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = BasicConv2d(96, 96, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return F.concat([self.branch3x3(x), double, F.max_pool2d(x, 3, stride=2)], 1)


class InceptionC(nn.Module):
    """1 x 1, 7 x 7 and twice 7 x 7 (each as 1 x 7 and 7 x 1), and pooling."""

    def __init__(self, in_planes: int, c7: int):
        super().__init__()
        row, column = (0, 3), (3, 0)
        self.branch1x1 = BasicConv2d(in_planes, 192, 1)
        self.branch7x7_1 = BasicConv2d(in_planes, c7, 1)
        self.branch7x7_2 = BasicConv2d(c7, c7, (1, 7), padding=row)
        self.branch7x7_3 = BasicConv2d(c7, 192, (7, 1), padding=column)
        self.branch7x7dbl_1 = BasicConv2d(in_planes, c7, 1)
        self.branch7x7dbl_2 = BasicConv2d(c7, c7, (7, 1), padding=column)
        self.branch7x7dbl_3 = BasicConv2d(c7, c7, (1, 7), padding=row)
        self.branch7x7dbl_4 = BasicConv2d(c7, c7, (7, 1), padding=column)
        self.branch7x7dbl_5 = BasicConv2d(c7, 192, (1, 7), padding=row)
        self.branch_pool = BasicConv2d(in_planes, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        single = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        pooled = self.branch_pool(F.avg_pool2d(x, 3, stride=1, padding=1))
        return F.concat([self.branch1x1(x), single, double, pooled], 1)


class InceptionD(nn.Module):
    """Halves the image once more."""

    def __init__(self, in_planes: int):
        super().__init__()
        self.branch3x3_1 = BasicConv2d(in_planes, 192, 1)
        self.branch3x3_2 = BasicConv2d(192, 320, 3, stride=2)
        self.branch7x7x3_1 = BasicConv2d(in_planes, 192, 1)
        self.branch7x7x3_2 = BasicConv2d(192, 192, (1, 7), padding=(0, 3))
        self.branch7x7x3_3 = BasicConv2d(192, 192, (7, 1), padding=(3, 0))
        self.branch7x7x3_4 = BasicConv2d(192, 192, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        small = self.branch3x3_2(self.branch3x3_1(x))
        large = self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x)))
        return F.concat([small, self.branch7x7x3_4(large), F.max_pool2d(x, 3, stride=2)], 1)


class InceptionE(nn.Module):
    """The widest block: 3 x 3 windows fork into 1 x 3 and 3 x 1."""

    def __init__(self, in_planes: int):
        super().__init__()
        self.branch1x1 = BasicConv2d(in_planes, 320, 1)
        self.branch3x3_1 = BasicConv2d(in_planes, 384, 1)
        self.branch3x3_2a = BasicConv2d(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3_2b = BasicConv2d(384, 384, (3, 1), padding=(1, 0))
        self.branch3x3dbl_1 = BasicConv2d(in_planes, 448, 1)
        self.branch3x3dbl_2 = BasicConv2d(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = BasicConv2d(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3dbl_3b = BasicConv2d(384, 384, (3, 1), padding=(1, 0))
        self.branch_pool = BasicConv2d(in_planes, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        single = self.branch3x3_1(x)
        single = F.concat([self.branch3x3_2a(single), self.branch3x3_2b(single)], 1)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        double = F.concat([self.branch3x3dbl_3a(double), self.branch3x3dbl_3b(double)], 1)
        pooled = self.branch_pool(F.avg_pool2d(x, 3, stride=1, padding=1))
        return F.concat([self.branch1x1(x), single, double, pooled], 1)


class InceptionAux(nn.Module):
    """The auxiliary classifier on 17 x 17 maps.

    Args:
        pool: makes them 5 x 5.
    """

    def __init__(self, in_planes: int, num_classes: int, pool: nn.Module):
        super().__init__()
        self.pool = pool
        self.conv0 = BasicConv2d(in_planes, 128, 1)
        self.conv1 = BasicConv2d(128, 768, 5)
        self.fc = nn.Linear(768, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.conv0(self.pool(x)))
        return self.fc(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


class Inception3(nn.Module):
    """The network of 48 layers.

    Args:
        stem: "imagenet": images of 299 x 299; "cifar": without the strides and poolings before the
            first block, and with an auxiliary classifier for any size.
        aux_logits: with the auxiliary classifier.
        dropout: before the linear layer.
    """

    def __init__(
        self, num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3,
        aux_logits: bool = True, dropout: float = 0.5,
    ):  # fmt: skip
        super().__init__()
        large = stem == "imagenet"
        self.Conv2d_1a_3x3 = BasicConv2d(in_channels, 32, 3, stride=2 if large else 1)
        self.Conv2d_2a_3x3 = BasicConv2d(32, 32, 3)
        self.Conv2d_2b_3x3 = BasicConv2d(32, 64, 3, padding=1)
        self.maxpool1 = nn.MaxPool2d(3, stride=2) if large else nn.Identity()
        self.Conv2d_3b_1x1 = BasicConv2d(64, 80, 1)
        self.Conv2d_4a_3x3 = BasicConv2d(80, 192, 3)
        self.maxpool2 = nn.MaxPool2d(3, stride=2) if large else nn.Identity()
        self.Mixed_5b = InceptionA(192, 32)
        self.Mixed_5c = InceptionA(256, 64)
        self.Mixed_5d = InceptionA(288, 64)
        self.Mixed_6a = InceptionB(288)
        self.Mixed_6b = InceptionC(768, 128)
        self.Mixed_6c = InceptionC(768, 160)
        self.Mixed_6d = InceptionC(768, 160)
        self.Mixed_6e = InceptionC(768, 192)
        self.aux_logits = aux_logits
        if aux_logits:
            pool = nn.AvgPool2d(5, stride=3) if large else nn.AdaptiveAvgPool2d(5)
            self.AuxLogits = InceptionAux(768, num_classes, pool)
        self.Mixed_7a = InceptionD(768)
        self.Mixed_7b = InceptionE(1280)
        self.Mixed_7c = InceptionE(2048)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(2048, num_classes)
        self._first_weights()

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(self.maxpool1(x)))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(self.maxpool2(x))))
        x = self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))
        x = self.Mixed_6e(self.Mixed_6d(x))
        aux = self.AuxLogits(x) if self.aux_logits and self.training else None
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        x = self.fc(self.dropout(self.avgpool(x)).flatten(1))
        return x if aux is None else (x, aux)

    def loss(self, output: Tensor | tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        """Cross-entropy; in training that of the auxiliary classifier is added with weight 0.4."""
        if isinstance(output, Tensor):
            return F.cross_entropy(output, target)
        logits, aux = output
        return F.cross_entropy(logits, target) + AUX_WEIGHT * F.cross_entropy(aux, target)

    def target_spec(self, output: Tensor | tuple[Tensor, Tensor]) -> Spec:
        """One class number for each image."""
        logits = output if isinstance(output, Tensor) else output[0]
        return Spec(logits.shape[:1], "int64")

    def _first_weights(self) -> None:
        """Torchvision's: normal with deviation 0.1, in the auxiliary linear layer 0.001.

        It cuts off at 2, that is 20 deviations, so nothing is ever cut off.
        """
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init_normal(module.weight, 0.001 if name == "AuxLogits.fc" else WEIGHT_STD)


@checked
def inception_v3(
    num_classes: int = 1000, stem: str = "imagenet", in_channels: int = 3
) -> Inception3:
    """48 layers and the auxiliary classifier."""
    return Inception3(num_classes, stem, in_channels)
