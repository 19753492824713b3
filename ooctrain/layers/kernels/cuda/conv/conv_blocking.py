"""The numbers that the kernels of a convolution take on a GPU, and how much scratch they need.

A `ConvShape` gives the bytes of scratch and the extents of the products, as tuples of whole
numbers. The gradient of the input is itself a correlation, of dy with the weights turned around.
With stride 2 an input pixel meets only the taps of its own parity, so the input falls into stride x
stride phases, each an ordinary correlation of stride 1. So two kernels do everything: `Correlation`
(forward, gradient of the input) and the gradient of the weight. All numbers depend on shapes alone.
No Numba here. Read next: `conv_address.py`, then `conv_naive.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cuda.chunks import FLOAT_BYTES, parts_of_sum

#: Fewest pixels of one split: shorter ones cost more in partial results than they save.
SPLIT_PIXELS = 512
#: One tile of the gradient of a weight: filters x taps and channels.
TILE_ROWS = TILE_COLUMNS = 128


class Source(NamedTuple):
    """What output pixels read: the image, and where the first tap of pixel (i, j) lies.

    Row i reads row i * step_h + origin_h + tap * spacing_h.
    """

    h: int
    w: int
    c: int
    step_h: int
    step_w: int
    origin_h: int
    origin_w: int
    spacing_h: int
    spacing_w: int


class Taps(NamedTuple):
    """The taps of a phase, and where each lies in the filter: row t is filter row first + t step.

    `inner` channels of a group are summed for every tap.
    """

    count: int  # type: ignore[assignment]  # tuples have a method of this name
    columns: int
    first_h: int
    first_w: int
    step_h: int
    step_w: int
    filter_w: int
    filter_size: int
    inner: int


class Target(NamedTuple):
    """The pixels that are written: (i, j) is pixel (first_h + i step_h, first_w + j step_w).

    `outer` channels of a group are written; `pixels` counts all images.
    """

    rows: int
    columns: int
    pixels: int
    h: int
    w: int
    c: int
    first_h: int
    first_w: int
    step_h: int
    step_w: int
    outer: int

    @property
    def groups(self) -> int:
        """Channel groups."""
        return self.c // self.outer


class Correlation(NamedTuple):
    """One product: y[pixel, o] = sum over taps and inner channels of source times filter."""

    source: Source
    taps: Taps
    target: Target

    @property
    def depth(self) -> int:
        """Terms of each sum."""
        return self.taps.count * self.taps.inner


def _places(kind: type[tuple], *names: str) -> tuple[int, ...]:
    return tuple(kind._fields.index(name) for name in names)  # type: ignore[attr-defined]


# Kernels get plain tuples. Places of the fields that they read one at a time:
SOURCE_H, SOURCE_W, SOURCE_C = _places(Source, "h", "w", "c")
SPACING_H, SPACING_W = _places(Source, "spacing_h", "spacing_w")
TAP_COUNT, FILTER_SIZE, INNER = _places(Taps, "count", "filter_size", "inner")
ROWS, COLUMNS, PIXELS = _places(Target, "rows", "columns", "pixels")
TARGET_C, OUTER = _places(Target, "c", "outer")


class Pixels(NamedTuple):
    """How the gradient of a weight sums over output pixels, in splits of whole steps."""

    total: int
    rows: int
    columns: int
    filters: int
    per_split: int


def workspace_bytes(shape: ConvShape, algorithm: str, part: str, threads: int = 1) -> int:
    """Scratch of one call: turned weights (gradient of the input), partial sums (of the weight).

    Args:
        shape: the convolution.
        algorithm: as `layers/conv2d.py` chose it; all of them need the same.
        part: "forward", "grad_input" or "grad_weight".
    """
    weights = shape.k * shape.cg * shape.r * shape.s
    if part == "grad_input":
        return weights * FLOAT_BYTES
    if part == "grad_weight":
        return weights * splits(shape) * FLOAT_BYTES
    return 0


def forward(shape: ConvShape) -> Correlation:
    """The forward pass: x with w."""
    pixels = shape.n * shape.oh * shape.ow
    return Correlation(
        Source(
            shape.h, shape.w, shape.c, *shape.stride, -shape.padding[0], -shape.padding[2],
            *shape.dilation,
        ),
        Taps(shape.r * shape.s, shape.s, 0, 0, 1, 1, shape.s, shape.r * shape.s, shape.cg),
        Target(
            shape.oh, shape.ow, pixels, shape.oh, shape.ow, shape.k, 0, 0, 1, 1, shape.kg
        ),
    )  # fmt: skip


def grad_input(shape: ConvShape) -> Iterator[Correlation]:
    """The gradient of the input: dy with the turned weights, one correlation for each phase."""
    for phase_h in range(min(shape.stride[0], shape.h)):
        rows = _phase(phase_h, shape.h, shape.r, shape.stride[0], shape.dilation[0],
                      shape.padding[0])  # fmt: skip
        for phase_w in range(min(shape.stride[1], shape.w)):
            columns = _phase(phase_w, shape.w, shape.s, shape.stride[1], shape.dilation[1],
                             shape.padding[2])  # fmt: skip
            yield _phase_correlation(shape, (phase_h, phase_w), rows, columns)


class _Phase(NamedTuple):
    """Pixels of one phase along one axis, and the taps that reach them."""

    extent: int
    taps: int
    first_tap: int
    tap_step: int
    origin: int
    spacing: int


def _phase(phase: int, size: int, kernel: int, stride: int, dilation: int, pad: int) -> _Phase:
    """Pixel h = phase + i stride gets dy at (h + pad - r dilation) / stride where that is whole."""
    reaching = [r for r in range(kernel) if (phase + pad - r * dilation) % stride == 0]
    step = stride // math.gcd(stride, dilation)
    first = reaching[0] if reaching else 0
    return _Phase(
        extent=-(-(size - phase) // stride),
        taps=len(reaching),
        first_tap=first,
        tap_step=step,
        origin=(phase + pad - first * dilation) // stride,
        spacing=-(step * dilation // stride),
    )


def _phase_correlation(
    shape: ConvShape, phase: tuple[int, int], rows: _Phase, columns: _Phase
) -> Correlation:
    return Correlation(
        Source(
            shape.oh, shape.ow, shape.k, 1, 1, rows.origin, columns.origin,
            rows.spacing, columns.spacing,
        ),
        Taps(
            rows.taps * columns.taps, max(columns.taps, 1), rows.first_tap, columns.first_tap,
            rows.tap_step, columns.tap_step, shape.s, shape.r * shape.s, shape.kg,
        ),
        Target(
            rows.extent, columns.extent, shape.n * rows.extent * columns.extent,
            shape.h, shape.w, shape.c, *phase, *shape.stride, shape.cg,
        ),
    )  # fmt: skip


def grad_weight(shape: ConvShape) -> tuple[Source, Taps, Pixels]:
    """The gradient of the weight: taps and source of the forward pass, and the splits."""
    source, taps, target = forward(shape)
    per_split = -(-target.pixels // splits(shape))
    return source, taps, Pixels(target.pixels, shape.oh, shape.ow, shape.k, per_split)


@cache
def splits(shape: ConvShape) -> int:
    """Parts into which the pixels are cut, not too short, and none of them empty."""
    pixels = shape.n * shape.oh * shape.ow
    tiles = -(-shape.kg // TILE_ROWS) * -(-(shape.cg * shape.r * shape.s) // TILE_COLUMNS)
    parts = parts_of_sum(tiles * shape.groups, pixels, SPLIT_PIXELS)
    return -(-pixels // -(-pixels // parts))
