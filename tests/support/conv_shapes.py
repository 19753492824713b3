"""Awkward convolutions, their three operations, and numbers to try them on.

With small whole numbers every sum is exact, so a wrong index shows as a wrong bit, whichever way a
kernel is run. Read next: `../unit/cuda/test_conv.py`, `../unit/cuda/test_ptx_samples.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ooctrain.layers.conv2d import Conv2d, Conv2dGradInput, Conv2dGradWeight, ConvShape, Geometry
from ooctrain.step.op import Op

SHAPES = {
    "3x3": ConvShape(2, 16, 7, 6, 24, 3, 3, padding=(1, 1, 1, 1)),
    "1x1": ConvShape(3, 12, 5, 5, 20, 1, 1),
    "1x1, stride 2": ConvShape(2, 8, 9, 8, 12, 1, 1, stride=(2, 2)),
    "3x3, stride 2": ConvShape(2, 8, 9, 8, 40, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1)),
    "stem": ConvShape(2, 3, 15, 14, 16, 7, 7, stride=(2, 2), padding=(3, 3, 3, 3)),
    "two channels": ConvShape(1, 2, 13, 12, 70, 2, 3, (1, 1), (1, 0, 1, 2), (1, 2)),
    "odd channels": ConvShape(2, 19, 5, 4, 37, 3, 3, padding=(1, 1, 1, 1)),
    "one filter": ConvShape(2, 21, 6, 6, 1, 3, 3, padding=(1, 1, 1, 1)),
    "more filters than a tile": ConvShape(1, 4, 4, 5, 132, 2, 2),
    "more pixels than a tile": ConvShape(3, 4, 9, 8, 8, 2, 1),
    "dilated, strided": ConvShape(1, 8, 15, 14, 4, 3, 2, (3, 2), (2, 1, 0, 2), (2, 3)),
    "two groups": ConvShape(2, 16, 5, 5, 24, 3, 3, padding=(1, 1, 1, 1), groups=2),
    "odd groups": ConvShape(2, 27, 5, 5, 33, 3, 3, (2, 1), (1, 0, 1, 2), groups=3),
    "depthwise": ConvShape(2, 40, 6, 7, 40, 3, 3, padding=(1, 1, 1, 1), groups=40),
    "depthwise, stride 2": ConvShape(2, 12, 7, 6, 24, 3, 3, (2, 2), (1, 1, 1, 1), groups=12),
    "much padding": ConvShape(1, 8, 2, 3, 8, 3, 3, padding=(5, 3, 4, 6)),
    "stride over the filter": ConvShape(2, 8, 8, 8, 8, 2, 2, stride=(3, 3)),
    "several splits": ConvShape(2, 4, 33, 32, 8, 1, 2, padding=(0, 0, 1, 0)),
    "more terms than a table": ConvShape(1, 116, 3, 2, 4, 3, 3, padding=(1, 1, 1, 1)),
    "single everything": ConvShape(1, 1, 1, 1, 1, 1, 1),
}


def geometry_of(shape: ConvShape) -> Geometry:
    return Geometry(shape.stride, shape.padding, shape.dilation, shape.groups)


def parts(shape: ConvShape, algorithm: str, data) -> Iterator[tuple[Op, tuple[np.ndarray, ...]]]:
    """The three operations with their inputs."""
    x, w, bias, dy = data
    geometry, kernel = geometry_of(shape), (shape.r, shape.s)
    yield Conv2d(geometry, kernel, algorithm), (x, w, bias)
    yield Conv2dGradInput(geometry, (shape.h, shape.w), algorithm), (dy, w)
    yield Conv2dGradWeight(geometry, kernel, algorithm), (x, dy)


def draw(shape: ConvShape, *, integers: bool = True, seed: int = 0) -> list[np.ndarray]:
    """x, w, bias, dy; small whole numbers make every sum exact, also in TF32."""
    random = np.random.default_rng(seed)
    extents = (
        (shape.n, shape.c, shape.h, shape.w), (shape.k, shape.cg, shape.r, shape.s), (shape.k,),
        (shape.n, shape.k, shape.oh, shape.ow),
    )  # fmt: skip
    numbers = [
        random.integers(-4, 5, e) if integers else random.standard_normal(e) for e in extents
    ]
    return [number.astype(np.float32) for number in numbers]
