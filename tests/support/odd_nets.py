"""Random small networks of odd layers: strides above kernels, dilation, groups, ceil-mode pools.

Like `random_nets.py`, a list of (kind of layer, number) makes a module; the number chooses the
earlier value that an addition, a concatenation or a broadcast takes part in. A layer that does not
fit the image is left out. Means over rows, columns, channels or all of them are broadcast, so that
what has no rows is read beside what has. Read next: `../properties/test_any_tiling.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import ooctrain.functional as F
from ooctrain import nn
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import OoctrainError

CHANNELS = C = 4
#: Beyond this many pixels nothing is enlarged.
MOST_PIXELS = 400
LAYERS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType({
    "conv": lambda: nn.Conv2d(C, C, 3, padding=1),
    "1x1": lambda: nn.Conv2d(C, C, 1, bias=False),
    "stride 3": lambda: nn.Conv2d(C, C, 1, stride=3),
    "stride 3 of 2": lambda: nn.Conv2d(C, C, 2, stride=3),
    "dilated": lambda: nn.Conv2d(C, C, 3, padding=2, dilation=2),
    "dilated 3": lambda: nn.Conv2d(C, C, 2, stride=2, padding=2, dilation=3),
    "grouped": lambda: nn.Conv2d(C, C, 3, padding=1, groups=2),
    "wide": lambda: nn.Conv2d(C, C, 5, padding=4),
    "high": lambda: nn.Conv2d(C, C, (3, 1), stride=(2, 1), padding=(0, 2)),
    "pool up": lambda: nn.MaxPool2d(3, 2, padding=1, ceil_mode=True),
    "pool apart": lambda: nn.MaxPool2d(2, 3, ceil_mode=True),
    "mean up": lambda: nn.AvgPool2d(3, 2, padding=1, ceil_mode=True),
    "mean inside": lambda: nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
    "adaptive": lambda: nn.AdaptiveAvgPool2d((3, 2)),
    "global": lambda: nn.AdaptiveAvgPool2d(1),
    "transposed": lambda: nn.ConvTranspose2d(C, C, 3, 2, padding=1, output_padding=1),
    "transposed apart": lambda: nn.ConvTranspose2d(C, C, 2, stride=3),
    "zeros": lambda: nn.ZeroPad2d((1, 0, 2, 1)),
    "reflected": lambda: nn.ReflectionPad2d((1, 1, 1, 0)),
    "constant": lambda: nn.ConstantPad2d(1, 0.5),
    "continued": lambda: nn.ReplicationPad2d((1, 0, 2, 1)),
    "repeated": lambda: nn.CircularPad2d((0, 1, 1, 1)),
    "adaptive largest": lambda: nn.AdaptiveMaxPool2d((3, 2)),
    "shuffled channels": lambda: nn.ChannelShuffle(2),
    "beside": lambda: nn.LocalResponseNorm(3),
    "elu": lambda: nn.ELU(0.7),
    "softplus": lambda: nn.Softplus(2.0),
    "hardtanh": nn.Hardtanh,
    "up": lambda: nn.Upsample(scale_factor=2),
    "shuffled": lambda: nn.Sequential(nn.Conv2d(C, 4 * C, 1), nn.PixelShuffle(2)),
    "batch norm": lambda: nn.BatchNorm2d(C),
    "instance norm": lambda: nn.InstanceNorm2d(C, affine=True),
    "group norm": lambda: nn.GroupNorm(2, C),
    "relu": nn.ReLU,
    "dropout": lambda: nn.Dropout(0.3),
    "dropout2d": lambda: nn.Dropout2d(0.3),
    "stochastic_depth": lambda: nn.StochasticDepth(0.3, "row"),
    "concat": lambda: nn.Conv2d(2 * C, C, 1),
})  # fmt: skip
JOINS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType({
    "add": lambda x, y: x + y,
    "product": lambda x, y: x * y,
    "quotient": lambda x, y: x / (y * y + 1.0),
    "gate": lambda x, y: x * F.hardsigmoid(y.mean((2, 3), keepdim=True)),
    "less mean": lambda x, y: x - y.mean((0, 1, 2, 3), keepdim=True),
    "larger": lambda x, y: F.maximum(x, y),
    "chosen": lambda x, y: F.where(x.gt(y), x, F.elu(y) * 0.5),
    "largest of channels": lambda x, y: x * y.amax((1,), keepdim=True),
    "first largest": lambda x, y: x + y.max(1, keepdim=True).values,
    "deviation": lambda x, y: x * (y.var((2, 3), keepdim=True, unbiased=False) + 1.0).sqrt(),
    "every second": lambda x, y: x + y[:, :, ::2, :].repeat(1, 1, 2, 1)[:, :, : y.shape[2], :],
    "backwards": lambda x, y: x * y.flip(2, 1),
    "attended": lambda x, y: x + F.scaled_dot_product_attention(y, y, y),
    "mean of channels": lambda x, y: x * y.mean((1,), keepdim=True),
    "first row": lambda x, y: x + y[:, :, :1, :],
    "first column": lambda x, y: x * y[:, :, :, :1],
    "no first row": lambda x, y: F.pad(y[:, :, 1:, :], (0, 0, 0, 1)),
})  # fmt: skip
KINDS = (*LAYERS, *JOINS)
GROWING = ("transposed", "transposed apart", "up", "shuffled")


class OddNet(nn.Module):
    """(N, 2, H, W) to an image of three channels."""

    def __init__(self, plan: Sequence[tuple[str, int]]):
        super().__init__()
        self.plan = tuple(plan)
        self.stem = nn.Conv2d(2, CHANNELS, 3, padding=1)
        self.parts = nn.ModuleList([LAYERS.get(kind, nn.Identity)() for kind, _ in self.plan])
        self.head = nn.Conv2d(CHANNELS, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        values = [self.stem(x)]
        for part, (kind, choice) in zip(self.parts, self.plan, strict=True):
            y = values[-1]
            same = [v for v in values if v.shape == y.shape]
            if kind in GROWING and y.shape[2] * y.shape[3] > MOST_PIXELS:
                continue
            try:
                values.append(self._apply(part, kind, y, same[choice % len(same)]))
            except OoctrainError:
                continue  # the image is too small for it
        return self.head(values[-1])

    @staticmethod
    def _apply(part: nn.Module, kind: str, y: Tensor, other: Tensor) -> Tensor:
        if kind in JOINS:
            return JOINS[kind](y, other)
        return part(F.concat([other, y], 1)) if kind == "concat" else part(y)

    def __repr__(self) -> str:
        return f"OddNet({list(self.plan)})"
