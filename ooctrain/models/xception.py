"""Xception-65 as DeepLab uses it: separable convolutions all the way, strides in place of pooling.

The input is (N, 3, H, W); DeepLab gets the last maps and those of a quarter of the size. A
separable convolution is a 3 x 3 convolution of each channel alone, followed by a 1 x 1 convolution
across channels. It replaces one 3 x 3 convolution for about a ninth of the work, so nearly all
bytes are activations. Source: Chollet 2017; "modified aligned Xception", Chen et al. 2018, figure
4, and the layer names, strides and skips of its published code. Read next: `deeplab.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.tensor import Tensor

MIDDLE_BLOCKS = 16


class SeparableConv2d(nn.Module):
    """Each channel alone, then across channels; batch norm after both.

    Args:
        relu: after both norms; else there is one before the first convolution.
    """

    def __init__(
        self, in_planes: int, planes: int, stride: int = 1, dilation: int = 1, relu: bool = False
    ):
        super().__init__()
        self.relu = relu
        self.depthwise = nn.Conv2d(
            in_planes, in_planes, 3, stride, dilation, dilation, in_planes, bias=False
        )
        self.bn1 = nn.BatchNorm2d(in_planes)
        self.pointwise = nn.Conv2d(in_planes, planes, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)

    def forward(self, x: Tensor) -> Tensor:
        if self.relu:
            return F.relu(self.bn2(self.pointwise(F.relu(self.bn1(self.depthwise(x))))))
        return self.bn2(self.pointwise(self.bn1(self.depthwise(F.relu(x)))))


class XceptionBlock(nn.Module):
    """Three separable convolutions and a way round them.

    Args:
        planes: channels after each of the three.
        stride: stride of the third, and of the way round.
        skip: "conv": the way round is a 1 x 1 convolution with norm; "sum": the input itself;
            "none": there is none, and ReLU comes after each norm.
    """

    def __init__(
        self, in_planes: int, planes: Sequence[int], stride: int = 1, dilation: int = 1,
        skip: str = "conv",
    ):  # fmt: skip
        super().__init__()
        widths = (in_planes, *planes)
        for i in range(3):
            conv = SeparableConv2d(
                widths[i], widths[i + 1], stride if i == 2 else 1, dilation, skip == "none"
            )
            self.add_module(f"separable_conv{i + 1}", conv)
        self.skip = skip
        if skip == "conv":
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes[-1], 1, stride, bias=False), nn.BatchNorm2d(planes[-1])
            )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The block's output, and that of its second convolution."""
        second = self.separable_conv2(self.separable_conv1(x))
        out = self.separable_conv3(second)
        if self.skip == "none":
            return out, second
        return out + (self.shortcut(x) if self.skip == "conv" else x), second


class Xception65(nn.Module):
    """Entry, middle and exit flow, at output stride 16.

    Args:
        small: for small images: the first two strides are left out.
    """

    planes, low_planes = 2048, 256

    def __init__(self, in_channels: int = 3, small: bool = False):
        super().__init__()
        step = 1 if small else 2
        self.conv1 = nn.Conv2d(in_channels, 32, 3, step, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(64)
        self.entry1 = XceptionBlock(64, (128,) * 3, step)
        self.entry2 = XceptionBlock(128, (256,) * 3, 2)
        self.entry3 = XceptionBlock(256, (728,) * 3, 2)
        self.middle = nn.ModuleList(
            XceptionBlock(728, (728,) * 3, skip="sum") for _ in range(MIDDLE_BLOCKS)
        )
        self.exit1 = XceptionBlock(728, (728, 1024, 1024))
        self.exit2 = XceptionBlock(1024, (1536, 1536, 2048), dilation=2, skip="none")
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init_kaiming_normal(module.weight)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The last maps, and those of `low_planes` channels at stride 4."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x, low = self.entry2(self.entry1(x)[0])
        x = self.entry3(x)[0]
        for block in self.middle:
            x = block(x)[0]
        return self.exit2(self.exit1(x)[0])[0], low
