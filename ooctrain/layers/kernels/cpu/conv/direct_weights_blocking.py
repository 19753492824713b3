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
    KernelBlocking,
    aligned,
    ceil_div,
    chunk_items,
    cut_blocks,
    place,
)

GRADIENT_ITEMS = 8  # work items wanted
GRADIENT_PIXELS = 256  # of a block: its window of PANEL channels fits the first-level cache
MAX_PARTS = 4  # parts of the batch whose partial weight gradients are kept
FILTER_ROWS = 128  # filters of one item


class WeightGradient(NamedTuple):
    """Integers of a gradient of the weights: a row of dW is a filter, columns are its elements."""

    images: int
    in_h: int
    in_w: int
    in_c: int
    out_h: int
    out_w: int
    out_c: int
    groups: int
    in_cg: int
    out_cg: int
    step_h: int  # in the window, from one output row to the next
    step_w: int
    skip_h: int  # in the source, from one window row to the next
    skip_w: int
    top: int
    left: int
    merged: int  # 1: few channels; all taps of a filter row are one run of columns
    flat: int  # 1: the window's pixels are exactly the output's, so a block is one run of pixels
    taps: int
    tap_columns: int  # columns of dW that lie side by side at one tap
    panels: int  # of one group's channels
    item_panels: int
    panel_items: int  # of one group
    weight_row: int
    filter_rows: int  # filters of one item
    filter_items: int  # of one group
    block_images: int
    block_rows: int
    row_blocks: int
    blocks: int
    parts: int
    items: int
    pitch: int  # elements from one window pixel to the next
    window_h: int
    window_w: int
    rows_capacity: int
    tap_table: int
    rows_at: int
    partials_at: int
    partial_stride: int
    window_at: int
    window_stride: int
    turned: int  # 1: filters are the columns of the products, elements of a filter the rows
    sum_rows: int  # rows of the turned sums of one tap
    sums_at: int
    sums_stride: int


class _Window(NamedTuple):
    """The scratch copy of the source pixels that a block of output pixels reads."""

    merged: bool
    single: bool  # a 1x1 filter: only the pixels under its taps are copied
    step_h: int
    step_w: int
    block_images: int
    block_rows: int
    height: int
    width: int
    pitch: int
    taps: tuple[tuple[int, int], ...]


class _Cut(NamedTuple):
    """Work items: parts of the batch x groups x blocks of filters x groups of panels."""

    filter_rows: int
    filter_items: int
    panels: int
    item_panels: int
    panel_items: int
    parts: int
    items: int


def _window(shape: ConvShape) -> _Window:
    """The window of a block of GRADIENT_PIXELS output pixels, or fewer where strides widen it."""
    merged = shape.groups == 1 and shape.dilation[1] == 1 and shape.c < PANEL
    single = (shape.r, shape.s) == (1, 1) and not merged
    step_h, step_w = (1, 1) if single else shape.stride
    images, rows = cut_blocks(shape.n, shape.oh, shape.ow, GRADIENT_PIXELS // step_h)
    return _Window(
        merged=merged, single=single, step_h=step_h, step_w=step_w, block_images=images,
        block_rows=rows, height=(rows - 1) * step_h + shape.filter_h,
        width=(shape.ow - 1) * step_w + shape.filter_w, pitch=shape.c if merged else PANEL,
        taps=tuple(
            (r * shape.dilation[0], s * shape.dilation[1])
            for r in range(shape.r)
            for s in range(1 if merged else shape.s)
        ),
    )  # fmt: skip


def _cut(shape: ConvShape, merged: bool, blocks: int) -> _Cut:
    """Parts of the batch first where dW is small compared with x and y; else panels of dW first."""
    panels = 1 if merged else ceil_div(shape.cg, PANEL)
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
    return _Cut(
        filter_rows, filter_items, panels, item_panels, panel_items, parts, parts * output_items
    )


def _weights(shape: ConvShape) -> int:
    """Floats of one copy of dW."""
    return aligned(shape.k * shape.r * shape.s * shape.cg)


@lru_cache(maxsize=1024)
def grad_weight_blocking(shape: ConvShape, threads: int) -> KernelBlocking[WeightGradient]:
    """dW = sum over pixels of dy (outer product) x, in blocks of dW and at most four parts."""
    window = _window(shape)
    row_blocks = ceil_div(shape.oh, window.block_rows)
    blocks = ceil_div(shape.n, window.block_images) * row_blocks
    cut = _cut(shape, window.merged, blocks)
    tap_columns = shape.s * shape.c if window.merged else shape.cg
    # Vectors of filters are read from dy itself, so they must be whole.
    turned = window.merged and shape.k % PANEL == 0
    sum_rows = tap_columns + ROWS if turned else 0  # the last register tile may stick out
    capacity = window.block_images * window.block_rows
    pixels = window.block_images * window.height * window.width
    window_floats = aligned(pixels * window.pitch + PANEL)
    sums_floats = aligned(len(window.taps) * sum_rows * cut.filter_rows)
    tables = tuple((y * window.width + x) * window.pitch for y, x in window.taps)
    # The table of taps lies at 0. Sizes are in floats, an int64 being two of them.
    rows_at, partials_at, window_at, sums_at, size_floats = place(
        2 * len(tables),
        2 * 2 * capacity * threads,
        _weights(shape) * cut.parts if cut.parts > 1 else 0,
        window_floats * threads,
        sums_floats * threads,
    )[1:]
    numbers = WeightGradient(
        images=shape.n, in_h=shape.h, in_w=shape.w, in_c=shape.c, out_h=shape.oh, out_w=shape.ow,
        out_c=shape.k, groups=shape.groups, in_cg=shape.cg, out_cg=shape.kg, step_h=window.step_h,
        step_w=window.step_w, skip_h=shape.stride[0] // window.step_h,
        skip_w=shape.stride[1] // window.step_w, top=shape.padding[0], left=shape.padding[2],
        merged=int(window.merged), flat=int(window.single), taps=len(tables),
        tap_columns=tap_columns, panels=cut.panels, item_panels=cut.item_panels,
        panel_items=cut.panel_items, weight_row=shape.r * shape.s * shape.cg,
        filter_rows=cut.filter_rows, filter_items=cut.filter_items,
        block_images=window.block_images, block_rows=window.block_rows, row_blocks=row_blocks,
        blocks=blocks, parts=cut.parts, items=cut.items, pitch=window.pitch,
        window_h=window.height, window_w=window.width, rows_capacity=capacity, tap_table=0,
        rows_at=rows_at // 2, partials_at=partials_at, partial_stride=_weights(shape),
        window_at=window_at, window_stride=window_floats, turned=int(turned), sum_rows=sum_rows,
        sums_at=sums_at, sums_stride=sums_floats,
    )  # fmt: skip
    chunk = chunk_items(cut.items, shape.flops)
    return KernelBlocking(numbers, size_floats, chunk, tables=tables)
