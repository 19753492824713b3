"""Random graphs of layers for the laws of bands: forks, sums, concatenations, changes of scale.

A graph is a list of steps, each of which reads tensors that are there, among them the image and
those before the layer "first". A partner for a sum is any tensor of the same shape, and behind the
layer "last" one more sum may read a tensor from inside. So skips enter and leave.
Hypothesis draws models and images. Read next: `tile_chains.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st

import ooctrain.functional as F
from ooctrain import nn
from ooctrain.engine.tensor import Tensor

Step = tuple[str, int, int]  # what, and which tensors, counted from the newest one
MOST_PIXELS = 26
CONVS = {
    "3x3": (3, 1, 1),
    "1x1": (1, 1, 0),
    "5x5": (5, 1, 2),
    "3x3/2": (3, 2, 1),
    "1x1/2": (1, 2, 0),
}


#: Kernel, stride, padding, output padding of convolutions that enlarge.
TRANSPOSED = {"up 2x2": (2, 2, 0, 0), "up 3x3": (3, 2, 1, 1), "up 4x4": (4, 2, 1, 0)}


#: Mode, corners, and rows y = x * first // second + third, of other sizes.
RESIZED = {
    "bilinear": ("bilinear", False, (2, 1, 0)),
    "corners": ("bilinear", True, (2, 1, 0)),
    "bilinear, odd": ("bilinear", False, (3, 2, 1)),
    "corners, odd": ("bilinear", True, (2, 1, 1)),
    "bilinear, smaller": ("bilinear", False, (3, 7, 1)),
    "nearest, odd": ("nearest", False, (5, 3, 1)),
}


#: Norms of two channels; the last one is one of evaluation.
NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm2d(2),
    "instance norm": lambda: nn.InstanceNorm2d(2, affine=True),
    "plain instance norm": lambda: nn.InstanceNorm2d(2),
    "frozen norm": lambda: nn.BatchNorm2d(2).eval(),
}


#: Of two tensors of one shape, which may be ahead of each other; the divisor is never near zero.
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / (b * b + 1.5),
    "gate": lambda a, b: a * F.sigmoid(b),
}


class Graph(nn.Module):
    """Runs its steps one after the other; "last" reads the newest tensor.

    Args:
        steps: what they do.
        leaving: which tensor of the shape of the result is added to it at the end; None: no one.
    """

    def __init__(self, steps: Sequence[Step], leaving: int | None = None):
        super().__init__()
        self.steps, self.leaving = tuple(steps), leaving
        self.before, self.first = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        for number, (what, _, _) in enumerate(self.steps):
            if what in CONVS:
                kernel, stride, padding = CONVS[what]
                self.add_module(f"conv{number}", nn.Conv2d(2, 2, kernel, stride, padding))
            if what in TRANSPOSED:
                self.add_module(f"conv{number}", nn.ConvTranspose2d(2, 2, *TRANSPOSED[what]))
            if what == "concat":
                self.add_module(f"conv{number}", nn.Conv2d(4, 2, 1))
            if what in NORMS:
                self.add_module(f"norm{number}", NORMS[what]())
        self.last = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        tensors = [x, self.before(x)]
        tensors.append(self.first(tensors[-1]))
        for number, (what, at, other) in enumerate(self.steps):
            read = tensors[-1 - at % len(tensors)]
            tensors.append(self._step(number, what, read, tensors, other))
        y = self.last(tensors[-1])
        partners = [t for t in tensors if t.shape == y.shape]
        if self.leaving is None or not partners:
            return y
        return F.relu(y) + partners[self.leaving % len(partners)]

    def _step(
        self, number: int, what: str, x: Tensor, tensors: Sequence[Tensor], other: int
    ) -> Tensor:
        if what in CONVS:
            return getattr(self, f"conv{number}")(x)
        if what in NORMS:
            return getattr(self, f"norm{number}")(x)
        if what in ("add", "concat", *BINARY):
            partners = [t for t in tensors if t.shape == x.shape]
            partner = partners[-1 - other % len(partners)]
            if what == "add":
                return x + partner
            if what in BINARY:
                return BINARY[what](x, partner)
            return getattr(self, f"conv{number}")(F.concat([x, partner], 1))
        if what == "pool":
            return F.max_pool2d(x, 3, 2, 1) if other % 2 else F.max_pool2d(x, 2)
        small = x.shape[2] <= MOST_PIXELS
        if what in TRANSPOSED and small:
            return getattr(self, f"conv{number}")(x)
        if what in RESIZED and small:
            mode, corners, (up, down, more) = RESIZED[what]
            size = tuple(extent * up // down + more for extent in x.shape[2:])
            if mode == "nearest":
                return F.interpolate(x, size, mode=mode)
            return F.interpolate(x, size, mode=mode, align_corners=corners)
        return F.interpolate(x, scale_factor=2) if what == "up" and small else F.relu(x)

    def __repr__(self) -> str:
        return f"Graph({list(self.steps)}, {self.leaving})"


WHAT = (
    *CONVS,
    *TRANSPOSED,
    "add",
    "add",
    "add",
    "concat",
    "concat",
    "pool",
    "up",
    "relu",
    *BINARY,
    *RESIZED,
)
newest = st.sampled_from([0, 0, 0, 0, 1, 2])


def steps(what: Sequence[str]) -> st.SearchStrategy[list[Step]]:
    """Lists of such steps."""
    return st.lists(st.tuples(st.sampled_from(what), newest, st.integers(0, 3)), max_size=9)


@st.composite
def graphs(
    draw: Callable[[Any], Any], *, norms: bool = False
) -> tuple[Graph, tuple[int, int, int, int]]:
    """A graph and the shape of its image.

    Args:
        norms: normalisation among the steps.
    """
    image = draw(st.integers(1, 2)), 2, draw(st.integers(6, 24)), draw(st.integers(6, 12))
    what = (*WHAT, *NORMS, "batch norm", "batch norm") if norms else WHAT
    return Graph(draw(steps(what)), draw(st.none() | st.integers(0, 5))), image
