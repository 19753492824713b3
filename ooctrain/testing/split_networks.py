"""Small random networks for the laws of splits.

A `SplitNetwork` is a model, images and a grid, drawn at random from the given kinds. Each kind
exercises one feature: "windows" all kernels, strides and paddings with k >= s, "tiling" those with
k = s, "counted" a norm among such windows, "residual" a block whose shortcut skips rows, "norm"
statistics of parts, "chain" and "wide" plain 3 x 3 convolutions, "wide" with room for many
boundaries. Read next: `check_split.py`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ooctrain import nn
from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tensor

LARGEST_KERNEL = 5


@dataclass(frozen=True, slots=True)
class SplitNetwork:
    """A model, the images it is given, and the patches it is tried in."""

    model: Module
    shape: tuple[int, int, int, int]
    grid: tuple[int, int]

    def __str__(self) -> str:
        layers = " ".join(repr(self.model).split())
        return f"{layers} on {self.shape} in {self.grid[0]} x {self.grid[1]}"


class Shortcut(nn.Module):
    """A residual block that halves the image: 3 x 3, stride 2, and beside it 1 x 1, stride 2."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, 2, 3, 2, 1)
        self.second = nn.Conv2d(2, 2, 3, padding=1)
        self.beside, self.relu = nn.Conv2d(channels, 2, 1, 2), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.second(self.first(x)) + self.beside(x))


def sum_of_squares(output: Tensor, target: Tensor) -> Tensor:
    """A loss that is exact on whole numbers."""
    return (output * output).sum()


def random_network(rng: random.Random, *kinds: str) -> SplitNetwork:
    """A network of one of the kinds."""
    kind = rng.choice(kinds)
    channels, grid = rng.randint(1, 2), (rng.randint(2, 3), rng.randint(1, 2))
    if kind == "tiling":
        return _tiling(rng, channels, grid)
    if kind == "counted":
        return _counted(rng, channels, grid)
    height = rng.randint(24, 31) if kind in ("wide", "residual") else rng.randint(20, 30)
    if kind == "windows":
        layers = [_window(rng, channels), *(_window(rng, 2, 0.3) for _ in range(rng.randint(0, 1)))]
    elif kind == "residual":
        layers = [nn.Conv2d(channels, 2, 3, padding=1), Shortcut(2)]
    elif kind == "norm":
        layers = [nn.Conv2d(channels, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(),
                  nn.MaxPool2d(3, 2, 1)]  # fmt: skip
    elif kind == "wide":
        layers, grid = [nn.Conv2d(channels, 2, 3, padding=1), nn.ReLU()], (3, 1)
    else:
        count = rng.randint(2, 5)
        layers = [nn.Conv2d(channels if i == 0 else 2, 2, 3, padding=1) for i in range(count)]
    return SplitNetwork(nn.Sequential(*layers), (1, channels, height, rng.randint(16, 20)), grid)


def _window(rng: random.Random, channels: int, poolings: float = 0.0) -> Module:
    """A convolution, or a pooling in some of the cases, with k >= s and any padding below k."""
    stride = rng.randint(1, 2)
    kernel = rng.randint(stride, LARGEST_KERNEL if stride == 1 else 3)
    padding = rng.randint(0, kernel - 1) if kernel > 1 else 0
    if rng.random() < poolings:
        return nn.AvgPool2d(kernel, stride, min(padding, kernel // 2))
    return nn.Conv2d(channels, 2, kernel, stride, padding)


def _tiling(rng: random.Random, channels: int, grid: tuple[int, int]) -> SplitNetwork:
    """Windows side by side: k = s."""
    first, second = rng.randint(1, 3), 2
    layers = [nn.Conv2d(channels, 2, first, first), nn.Dropout(), nn.MaxPool2d(second)]
    layers += [nn.Conv2d(2, 2, 1)]
    side = first * second * rng.randint(3, 4)
    return SplitNetwork(nn.Sequential(*layers), (2, channels, side, side), grid)


def _counted(rng: random.Random, channels: int, grid: tuple[int, int]) -> SplitNetwork:
    """A norm among windows side by side, on images that can only be cut into equal patches."""
    size = rng.randint(1, 3)
    layers = [nn.Conv2d(channels, 2, size, size), nn.BatchNorm2d(2), nn.MaxPool2d(2)]
    rows, columns = (2 * 2 * size * parts for parts in grid)
    return SplitNetwork(nn.Sequential(*layers), (2, channels, rows, columns), grid)
