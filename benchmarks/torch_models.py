"""The networks of the benchmarks in torch, by hand, with the names of our own `state_dict`.

They map (N, 3, H, W) to logits, with the same layers under the same names, so one set of weights
starts both sides. Only imported where torch is installed. Read next: `bench_steps.py`.
"""

from __future__ import annotations

import torch
from torch import nn

VGGS = {
    "vgg11": (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    "vgg19": (64, 64, 0, 128, 128, 0, *(256,) * 4, 0, *(512,) * 4, 0, *(512,) * 4, 0),
}
RESNETS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and the input added."""

    expansion = 1

    def __init__(self, before: int, planes: int, stride: int, downsample: nn.Module | None):
        super().__init__()
        self.conv1 = nn.Conv2d(before, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions and the input added; strides in the 3 x 3."""

    expansion = 4

    def __init__(self, before: int, planes: int, stride: int, downsample: nn.Module | None):
        super().__init__()
        self.conv1 = nn.Conv2d(before, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """torchvision's, with either stem."""

    def __init__(self, block, layers, stem: str, classes: int):
        super().__init__()
        imagenet = stem == "imagenet"
        self.conv1 = nn.Conv2d(
            3, 64, 7 if imagenet else 3, 2 if imagenet else 1, 3 if imagenet else 1, bias=False
        )
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if imagenet else nn.Identity()
        before = 64
        for index, count in enumerate(layers):
            stage, planes = [], 64 << index
            for number in range(count):
                stride = 2 if index and not number else 1
                after, down = planes * block.expansion, None
                if stride != 1 or before != after:
                    down = nn.Sequential(
                        nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
                    )
                stage.append(block(before, planes, stride, down))
                before = after
            setattr(self, f"layer{index + 1}", nn.Sequential(*stage))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


class Vgg(nn.Module):
    """torchvision's features; its classifier or that for small images, dropout left out."""

    def __init__(self, table, stem: str, classes: int):
        super().__init__()
        layers, before = [], 3
        for channels in table:
            if channels:
                layers += [nn.Conv2d(before, channels, 3, 1, 1), nn.ReLU(inplace=True)]
                before = channels
            else:
                layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        side, width = (7, 4096) if stem == "imagenet" else (1, 512)
        self.avgpool = nn.AdaptiveAvgPool2d(side)
        head = [nn.Linear(512 * side * side, width), nn.ReLU(inplace=True), nn.Identity()]
        if stem == "imagenet":
            head += [nn.Linear(width, width), nn.ReLU(inplace=True), nn.Identity()]
        self.classifier = nn.Sequential(*head, nn.Linear(width, classes))

    def forward(self, x):
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


class DoubleConv(nn.Module):
    """Twice: 3 x 3 convolution, batch norm, ReLU."""

    def __init__(self, before: int, planes: int):
        super().__init__()
        layers = []
        for first in (before, planes):
            layers += [nn.Conv2d(first, planes, 3, 1, 1, bias=False), nn.BatchNorm2d(planes)]
            layers.append(nn.ReLU(inplace=True))
        self.double_conv = nn.Sequential(*layers)

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    """Half the size."""

    def __init__(self, before: int, planes: int):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(before, planes))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    """Twice the size, joined with what had this size on the way down."""

    def __init__(self, before: int, planes: int):
        super().__init__()
        self.up = nn.ConvTranspose2d(before, before // 2, 2, 2)
        self.conv = DoubleConv(before, planes)

    def forward(self, x, skip):
        return self.conv(torch.cat([skip, self.up(x)], 1))


class UNet(nn.Module):
    """That of Pytorch-UNet, four steps down from 64 channels."""

    def __init__(self, classes: int):
        super().__init__()
        self.inc = DoubleConv(3, 64)
        for n in range(4):
            setattr(self, f"down{n + 1}", Down(64 << n, 128 << n))
            setattr(self, f"up{n + 1}", Up(1024 >> n, 512 >> n))
        self.outc = nn.Sequential()
        self.outc.add_module("conv", nn.Conv2d(64, classes, 1))

    def forward(self, x):
        skips = [self.inc(x)]
        for n in range(1, 5):
            skips.append(getattr(self, f"down{n}")(skips[-1]))
        x = skips.pop()
        for n in range(1, 5):
            x = getattr(self, f"up{n}")(x, skips.pop())
        return self.outc(x)


def build(name: str, stem: str, classes: int) -> nn.Module:
    """A network by our name for it."""
    if name in VGGS:
        return Vgg(VGGS[name], stem, classes)
    if name == "unet":
        return UNet(classes)
    block = Bottleneck if name == "resnet50" else BasicBlock
    return ResNet(block, RESNETS[name], stem, classes)


class TorchStep:
    """Training steps of one network, in one memory layout and element type.

    Args:
        state: weights by name, as `Module.state_dict` of ours gives them.
        x, y: the batch, logical layout; held ready in the wanted layout, which ours converts.
    """

    def __init__(
        self, name: str, stem: str, state, x, y, classes: int, lr: float,
        layout=torch.contiguous_format, dtype=torch.float32,
    ):  # fmt: skip
        self.net = build(name, stem, classes)
        self.net.load_state_dict({key: torch.from_numpy(value) for key, value in state.items()})
        self.net = self.net.to(dtype).to(memory_format=layout).train()
        self.x = torch.from_numpy(x).to(dtype).contiguous(memory_format=layout)
        self.y = torch.from_numpy(y)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=lr, momentum=0.9, fused=True)

    def step(self) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(self.net(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def gradients(self):
        """Gradients of the last step by name, float64."""
        return {
            name: parameter.grad.detach().double().contiguous().numpy()
            for name, parameter in self.net.named_parameters()
        }
