"""U-Net: down by pooling, up by transposed convolution, and a skip at every size.

U-Net maps images (N, 3, H, W) to logits for each pixel, (N, classes, H, W). Values computed on the
way down are read again on the way up at the same size, so the largest activations live longest:
they are written first and read last. A chain is therefore no model of this network, and swapping
pays most for it. Source: Ronneberger et al. 2015, with today's padding, which keeps the size, and
batch norm; the names are those of the PyTorch version that most people load (Pytorch-UNet by
milesial). Read next: `deeplab.py`.
"""

from __future__ import annotations

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.tensor import Tensor
from ooctrain.step.arguments import checked


class DoubleConv(nn.Module):
    """Twice: 3 x 3 convolution, batch norm, ReLU."""

    def __init__(self, in_planes: int, planes: int):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_planes, planes, 3, padding=1, bias=False),
            nn.BatchNorm2d(planes), nn.ReLU(inplace=True),
            nn.Conv2d(planes, planes, 3, padding=1, bias=False),
            nn.BatchNorm2d(planes), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


class Down(nn.Module):
    """Half the size."""

    def __init__(self, in_planes: int, planes: int):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(in_planes, planes))

    def forward(self, x: Tensor) -> Tensor:
        return self.maxpool_conv(x)


class Up(nn.Module):
    """Twice the size, joined with what had this size on the way down."""

    def __init__(self, in_planes: int, planes: int):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_planes, in_planes // 2, 2, stride=2)
        self.conv = DoubleConv(in_planes, planes)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.up(x)
        rows, columns = (a - b for a, b in zip(skip.shape[2:], x.shape[2:], strict=True))
        if rows or columns:  # an odd size was rounded down by the pooling
            sides = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
            x = F.pad(x, sides)
        return self.conv(F.concat([skip, x], 1))


class UNet(nn.Module):
    """Four sizes down and up again.

    Args:
        base: channels at full size; doubled at each step down.
        depth: steps down.
    """

    def __init__(self, num_classes: int = 2, in_channels: int = 3, base: int = 64, depth: int = 4):
        super().__init__()
        widths = [base << i for i in range(depth + 1)]
        self.inc = DoubleConv(in_channels, base)
        for i in range(depth):
            self.add_module(f"down{i + 1}", Down(widths[i], widths[i + 1]))
        for i in range(depth):
            self.add_module(f"up{i + 1}", Up(widths[depth - i], widths[depth - i - 1]))
        self.outc = nn.Sequential()
        self.outc.add_module("conv", nn.Conv2d(base, num_classes, 1))
        self.depth = depth

    def forward(self, x: Tensor) -> Tensor:
        parts = dict(self.named_children())
        skips = [self.inc(x)]
        for i in range(self.depth):
            skips.append(parts[f"down{i + 1}"](skips[-1]))
        x = skips.pop()
        for i in range(self.depth):
            x = parts[f"up{i + 1}"](x, skips.pop())
        return self.outc(x)


@checked
def unet(num_classes: int = 2, stem: str = "imagenet", in_channels: int = 3) -> UNet:
    """Four steps down from 64 channels; with stem "cifar", for small images, three from 16."""
    base, depth = (64, 4) if stem == "imagenet" else (16, 3)
    return UNet(num_classes, in_channels, base, depth)
