"""How a direct gradient of the weights is cut into work items, and where its scratch lies.

For a `ConvShape` and a number of threads a blocking holds the integers that `direct_weights.py`
reads. Work is cut where that costs least. Each part of the batch needs its own copy of dW, and each
block of dW reads the batch again. So the batch is cut (into at most four parts, fixed by the shape)
where dW is small compared with it, and dW is cut otherwise. With few channels all taps of a filter
row are one run of columns. Where the filters then fill whole panels the product is transposed
("turned"), so that vectors hold filters: a run of nine columns would waste most of a panel of 32.
Pure Python. Read next: `direct_weights.py`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cpu.blocking import (
    PANEL,
    ROWS,
    ImagePair,
    KernelBlocking,
    aligned,
    ceil_div,
    chunk_items,
    cut_blocks,
    images_of,
    place,
)

GRADIENT_ITEMS = 8  # work items wanted
GRADIENT_PIXELS = 256  # of a block: its window of PANEL channels fits the first-level cache
MAX_PARTS = 4  # parts of the batch whose partial weight gradients are kept
FILTER_ROWS = 128  # filters of one item


class WeightWindow(NamedTuple):
    """The scratch copy of the source pixels that a block of output pixels reads, and the taps."""

    step_h: int  # in the window, from one output row to the next
    step_w: int
    skip_h: int  # in the source, from one window row to the next
    skip_w: int
    top: int
    left: int
    merged: int  # 1: few channels; all taps of a filter row are one run of columns
    flat: int  # 1: a 1x1 filter: the window's pixels are exactly the output's, one run of pixels
    pitch: int  # elements from one window pixel to the next
    window_h: int
    window_w: int
    taps: int
    tap_columns: int  # columns of dW that lie side by side at one tap
    turned: int  # 1: filters are the columns of the products, elements of a filter the rows
    weight_row: int


class WeightCut(NamedTuple):
    """Work items: parts of the batch x groups x blocks of filters x groups of panels."""

    panels: int  # of one group's channels
    item_panels: int
    panel_items: int  # of one group
    filter_rows: int  # filters of one item
    filter_items: int  # of one group
    block_images: int
    block_rows: int
    row_blocks: int
    blocks: int
    parts: int
    items: int


class WeightPlaces(NamedTuple):
    """Where everything lies in the workspace."""

    rows_capacity: int
    tap_table: int
    rows_at: int
    partials_at: int
    partial_stride: int
    window_at: int
    window_stride: int
    sum_rows: int  # rows of the turned sums of one tap
    sums_at: int
    sums_stride: int


class WeightGradient(NamedTuple):
    """Integers of a gradient of the weights: a row of dW is a filter, columns are its elements."""

    image: ImagePair
    window: WeightWindow
    cut: WeightCut
    place: WeightPlaces


def _window(shape: ConvShape, block_rows: int) -> WeightWindow:
    """The window of a block of so many output rows."""
    merged = _merged(shape)
    step_h, step_w = _steps(shape)
    top, _, left, _ = shape.padding
    # Vectors of filters are read from dy itself, so they must be whole.
    turned = merged and shape.k % PANEL == 0
    return WeightWindow(
        step_h, step_w, shape.stride[0] // step_h, shape.stride[1] // step_w, top, left,
        int(merged), int(_single(shape)), shape.c if merged else PANEL,
        (block_rows - 1) * step_h + shape.filter_h, (shape.ow - 1) * step_w + shape.filter_w,
        shape.r * (1 if merged else shape.s), shape.s * shape.c if merged else shape.cg,
        int(turned), shape.r * shape.s * shape.cg,
    )  # fmt: skip


def _merged(shape: ConvShape) -> bool:
    return shape.groups == 1 and shape.dilation[1] == 1 and shape.c < PANEL


def _single(shape: ConvShape) -> bool:
    """Whether only the pixels under the taps of a 1x1 filter are copied."""
    return (shape.r, shape.s) == (1, 1) and not _merged(shape)


def _steps(shape: ConvShape) -> tuple[int, int]:
    return (1, 1) if _single(shape) else shape.stride


def _cut(shape: ConvShape) -> WeightCut:
    """Blocks of GRADIENT_PIXELS output pixels, or fewer where strides widen their window. Parts of
    the batch first where dW is small compared with x and y; else panels of dW first."""
    block_images, block_rows = cut_blocks(
        shape.n, shape.oh, shape.ow, GRADIENT_PIXELS // _steps(shape)[0]
    )
    row_blocks = ceil_div(shape.oh, block_rows)
    blocks = ceil_div(shape.n, block_images) * row_blocks
    panels = 1 if _merged(shape) else ceil_div(shape.cg, PANEL)
    filter_rows = min(shape.kg, FILTER_ROWS)
    filter_items = ceil_div(shape.kg, filter_rows)
    output_items = shape.groups * filter_items
    activations = shape.n * (shape.h * shape.w * shape.c + shape.oh * shape.ow * shape.k)
    small = 16 * _weights(shape) <= activations
    parts = min(MAX_PARTS, blocks) if small else 1
    item_panels = ceil_div(panels, ceil_div(GRADIENT_ITEMS, output_items * parts))
    panel_items = ceil_div(panels, item_panels)
    output_items *= panel_items
    if parts == 1:
        parts = min(MAX_PARTS, blocks, ceil_div(GRADIENT_ITEMS, output_items))
    return WeightCut(
        panels, item_panels, panel_items, filter_rows, filter_items, block_images, block_rows,
        row_blocks, blocks, parts, parts * output_items,
    )  # fmt: skip


def _weights(shape: ConvShape) -> int:
    """Floats of one copy of dW."""
    return aligned(shape.k * shape.r * shape.s * shape.cg)


@lru_cache(maxsize=1024)
def grad_weight_blocking(shape: ConvShape, threads: int) -> KernelBlocking[WeightGradient]:
    """dW = sum over pixels of dy (outer product) x, in blocks of dW and at most four parts."""
    cut = _cut(shape)
    window = _window(shape, cut.block_rows)
    sum_rows = (
        window.tap_columns + ROWS if window.turned else 0
    )  # the last register tile sticks out
    capacity = cut.block_images * cut.block_rows
    pixels = cut.block_images * window.window_h * window.window_w
    window_floats = aligned(pixels * window.pitch + PANEL)
    sums_floats = aligned(window.taps * sum_rows * cut.filter_rows)
    columns = range(1 if window.merged else shape.s)
    (down, across) = shape.dilation
    tables = tuple(
        (r * down * window.window_w + s * across) * window.pitch
        for r in range(shape.r)
        for s in columns
    )
    # The table of taps lies at 0. Sizes are in floats, an int64 being two of them.
    rows_at, partials_at, window_at, sums_at, size_floats = place(
        2 * len(tables),
        2 * 2 * capacity * threads,
        _weights(shape) * cut.parts if cut.parts > 1 else 0,
        window_floats * threads,
        sums_floats * threads,
    )[1:]
    places = WeightPlaces(
        capacity, 0, rows_at // 2, partials_at, _weights(shape), window_at, window_floats, sum_rows,
        sums_at, sums_floats,
    )  # fmt: skip
    numbers = WeightGradient(images_of(shape), window, cut, places)
    chunk = chunk_items(cut.items, shape.flops)
    return KernelBlocking(numbers, size_floats, chunk, tables=tables)
