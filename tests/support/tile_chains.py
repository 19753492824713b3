"""Random chains of layers for the law of tiling, with data on which it holds to the bit.

Layers whose arithmetic is exact on small whole numbers (products, sums, maxima, halves) give the
same bits in any order of summation, as long as no sum leaves the 24 bits of a float32;
`stays_exact` runs the chain on absolute values to check that. Hypothesis draws models, images and
grids. Read next: `check_tile.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
from support.check_tile import SCALARS, chain_trace, random_values

from ooctrain import nn
from ooctrain.engine.incore import run_trace
from ooctrain.errors import ShapeError
from ooctrain.step.trace import Trace

#: Whole numbers are exact in float32 up to here; transforms of winograd2 (16 times the values, in
#: quarters) and windows of pools that overlap (4 times) stay below it with 64 to spare.
EXACT_BELOW = 2**24 // 64
MOST_PIXELS = 26
CHANNELS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Chain:
    """An example of the law.

    Args:
        model: the layers.
        image: (N, C, H, W).
        grid: tiles in H and W.
        image_gradient: whether the image has a gradient too.
    """

    model: nn.Sequential
    image: tuple[int, int, int, int]
    grid: tuple[int, int]
    image_gradient: bool = True

    def trace(self, conv_algorithm: str = "auto", threads: int = 2) -> Trace | None:
        """Forward and backward; None where an image becomes smaller than a window."""
        try:
            return chain_trace(
                self.model, self.image, conv_algorithm=conv_algorithm, threads=threads,
                image_gradient=self.image_gradient,
            )  # fmt: skip
        except ShapeError:
            return None

    def __repr__(self) -> str:
        layers = ", ".join(map(repr, self.model.children()))
        return f"Chain([{layers}], image={self.image}, grid={self.grid})"


def stays_exact(trace: Trace, values: dict[str, np.ndarray]) -> bool:
    """Whether no sum of the trace leaves the whole numbers that float32 holds."""
    absolute = {name: np.abs(value) for name, value in values.items()}
    results = run_trace(trace, absolute, SCALARS, "reference")
    return all(np.max(value, initial=0.0) < EXACT_BELOW for value in results.values())


@st.composite
def chains(draw: Callable[[Any], Any], *, linear: bool = False) -> Chain:
    """Chains of one to five layers over odd and even images, with grids up to one row per tile.

    Args:
        linear: convolutions, average pools and paddings alone.
    """
    layers: list[nn.Module] = []
    image_channels = current = draw(st.sampled_from(CHANNELS))
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(_LINEAR if linear else _LINEAR + _POINTWISE + ("max",)))
        if kind == "conv":
            layers.append(_convolution(draw, current))
            current = layers[-1].weight.shape[0]
        else:
            layers.append(_OTHERS[kind](draw))
    height, width = draw(st.integers(5, MOST_PIXELS)), draw(st.integers(5, MOST_PIXELS))
    image = (draw(st.integers(1, 2)), image_channels, height, width)
    grid = (draw(st.integers(1, MOST_PIXELS)), draw(st.integers(1, MOST_PIXELS)))
    most = draw(st.sampled_from([2, 3, MOST_PIXELS]))
    grid = (min(grid[0], most), min(grid[1], most))
    return Chain(nn.Sequential(*layers), image, grid, draw(st.booleans()))


_LINEAR = ("conv", "conv", "conv", "average", "pad")
_POINTWISE = ("relu", "leaky", "dropout")


def _convolution(draw: Callable[[Any], Any], inputs: int) -> nn.Conv2d:
    kernel = draw(st.sampled_from([1, 2, 3, 3, 5, 7]))
    dilation = draw(st.sampled_from([1, 1, 2])) if kernel < 5 else 1
    outputs = draw(st.sampled_from(CHANNELS))
    groups = draw(st.sampled_from([g for g in (1, 1, inputs) if outputs % g == 0]))
    return nn.Conv2d(
        inputs, outputs, kernel, stride=draw(st.integers(1, 3)),
        padding=draw(st.integers(0, dilation * (kernel - 1) // 2 + 1)), dilation=dilation,
        groups=groups, bias=draw(st.booleans()),
    )  # fmt: skip


def _max_pool(draw: Callable[[Any], Any]) -> nn.Module:
    kernel, stride, padding = draw(st.sampled_from([(2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 1, 0)]))
    return nn.MaxPool2d(kernel, stride, padding)


def _average_pool(draw: Callable[[Any], Any]) -> nn.Module:
    # Windows of 4 and 16 cells: quarters and sixteenths are exact, ninths are not.
    kernel, stride, padding = draw(st.sampled_from([(2, 2, 0), (2, 1, 0), (4, 2, 1), (2, 2, 1)]))
    return nn.AvgPool2d(kernel, stride, padding)


def _padding(draw: Callable[[Any], Any]) -> nn.Module:
    return nn.ZeroPad2d(tuple(draw(st.integers(0, 2)) for _ in range(4)))


_OTHERS: dict[str, Callable[[Callable[[Any], Any]], nn.Module]] = {
    "max": _max_pool,
    "average": _average_pool,
    "pad": _padding,
    "relu": lambda draw: nn.ReLU(),
    "leaky": lambda draw: nn.LeakyReLU(0.5),
    "dropout": lambda draw: nn.Dropout(0.5),
}


def exact_values(trace: Trace, seed: int) -> dict[str, np.ndarray] | None:
    """Values -1, 0, 1 of all initial variables; None where the sums of the trace grow too large."""
    values = random_values(trace, seed, integers=1)
    return values if stays_exact(trace, values) else None
