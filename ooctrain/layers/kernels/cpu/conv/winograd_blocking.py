"""How a Winograd convolution is cut into work items, and where everything lies in its workspace.

For a `ConvShape` (3x3, stride 1) and a number of threads a blocking is tuples of integers for the
kernels of `conv_winograd.py`. The tiles of the whole batch are numbered consecutively, so a group
of tiles fills the registers whatever the size of an image. There are two orders of work. With many
tiles, weights are transformed once, and each item takes a group of tiles from input to output. With
more filters than tiles, all tiles are transformed once, and each item computes a panel of filters,
whose transformed weights never leave its scratch. Pure Python. Read next: `winograd_transforms.py`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cpu.blocking import (
    ALIGNMENT,
    PANEL,
    ROWS,
    KernelBlocking,
    aligned,
    ceil_div,
    chunk_items,
    place,
)

TRANSFORM_FLOATS = 36 * 16 * 16 + 36 * 16  # scratch of one thread: a block of weights, a tile
GROUP_TILES = 24  # tiles transformed together; a multiple of every register tile's rows
TRANSFORM_FLOPS = 40  # a transformed element takes as long as so many flops of the products
FILTER_BLOCK = CHANNEL_BLOCK = 128  # of the gradient of the weights that one item computes
SUM_TILES, SUM_TILES_LARGE = 32, 48  # tiles added at once to a small or a large block


class WinogradCorrelation(NamedTuple):
    """Integers of a forward convolution or a gradient of the input. Sizes in elements."""

    m: int  # output pixels along one side of a tile
    planes: int  # (m + 2)^2
    images: int
    in_h: int
    in_w: int
    in_c: int
    out_h: int
    out_w: int
    out_c: int
    top: int
    left: int
    tiles_h: int
    tiles_w: int
    tiles: int
    group_tiles: int
    groups: int
    backward: int
    by_filters: int  # 1: an item is a panel of filters; 0: a group of tiles
    panels: int
    items: int
    rows_capacity: int
    rows_at: int
    bias_at: int
    weights_at: int
    weights_stride: int  # private weights: from one thread to the next
    weights_plane: int  # from one plane to the next within a panel
    tiles_at: int
    tiles_stride: int
    tiles_plane: int
    products_at: int
    products_stride: int
    products_plane: int
    transform_at: int
    transform_stride: int


class WinogradWeightGradient(NamedTuple):
    """Integers of a gradient of the weights."""

    m: int
    planes: int
    images: int
    in_h: int
    in_w: int
    in_c: int
    out_h: int
    out_w: int
    out_c: int
    top: int
    left: int
    tiles_h: int
    tiles_w: int
    tiles: int
    group_tiles: int
    filter_block: int
    channel_block: int
    filter_blocks: int
    channel_blocks: int
    parts: int
    items: int
    table_at: int
    sums_at: int
    sums_stride: int
    sums_plane: int
    inputs_at: int
    inputs_stride: int
    inputs_plane: int
    errors_at: int
    errors_stride: int
    errors_plane: int
    transform_at: int
    transform_stride: int
    partials_at: int
    partial_stride: int


@lru_cache(maxsize=1024)
def correlation_blocking(
    shape: ConvShape, m: int, threads: int, *, backward: bool
) -> KernelBlocking[WinogradCorrelation]:
    """Forward, or the gradient of the input: a forward convolution of dy with turned weights."""
    top, _, left, _ = shape.padding
    (in_h, in_w, in_c), (out_h, out_w, out_c) = shape.ends(backward=backward)
    if backward:
        top, left = 2 - top, 2 - left
    planes = (m + 2) ** 2
    tiles_h, tiles_w = ceil_div(out_h, m), ceil_div(out_w, m)
    tiles = shape.n * tiles_h * tiles_w
    by_filters = tiles <= out_c
    group_tiles = min(tiles, GROUP_TILES)
    groups = ceil_div(tiles, group_tiles)
    panels = ceil_div(out_c, PANEL)
    # An odd number of cache lines between planes: a power of two would map all planes to one
    # cache set.
    weights_plane = in_c * PANEL + ALIGNMENT
    panel_floats = planes * weights_plane
    tiles_plane = (tiles if by_filters else group_tiles) * in_c + ALIGNMENT
    products_plane = group_tiles * PANEL + ALIGNMENT
    capacity = group_tiles + ROWS
    # The lists of rows lie at 0; sizes are in floats, an int64 being two of them.
    bias_at, weights_at, tiles_at, products_at, transform_at, size_floats = place(
        2 * 2 * capacity * threads,
        out_c + PANEL,
        panel_floats * (threads if by_filters else panels),
        planes * tiles_plane * (1 if by_filters else threads),
        planes * products_plane * threads,
        TRANSFORM_FLOATS * threads,
    )[1:]
    numbers = WinogradCorrelation(
        m=m, planes=planes, images=shape.n, in_h=in_h, in_w=in_w, in_c=in_c, out_h=out_h,
        out_w=out_w, out_c=out_c, top=top, left=left, tiles_h=tiles_h, tiles_w=tiles_w,
        tiles=tiles, group_tiles=group_tiles, groups=groups, backward=int(backward),
        by_filters=int(by_filters), panels=panels, items=panels if by_filters else groups,
        rows_capacity=capacity, rows_at=0, bias_at=bias_at, weights_at=weights_at,
        weights_stride=panel_floats, weights_plane=weights_plane, tiles_at=tiles_at,
        tiles_stride=planes * tiles_plane, tiles_plane=tiles_plane, products_at=products_at,
        products_stride=planes * products_plane, products_plane=products_plane,
        transform_at=transform_at, transform_stride=TRANSFORM_FLOATS,
    )  # fmt: skip
    early, elements = (tiles, tiles * in_c) if by_filters else (panels, in_c * out_c)
    return KernelBlocking(
        numbers, size_floats, chunk_items(numbers.items, 2 * planes * tiles * in_c * out_c),
        chunk_items(early, TRANSFORM_FLOPS * planes * elements),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def grad_weight_blocking(
    shape: ConvShape, m: int, threads: int
) -> KernelBlocking[WinogradWeightGradient]:
    """dW = G^T [sum over tiles of Z (outer) V] G, in blocks of dW and at most four parts."""
    planes = (m + 2) ** 2
    tiles_h, tiles_w = ceil_div(shape.oh, m), ceil_div(shape.ow, m)
    tiles = shape.n * tiles_h * tiles_w
    filter_block, channel_block = min(FILTER_BLOCK, shape.k), min(CHANNEL_BLOCK, shape.c)
    filter_blocks = ceil_div(shape.k, filter_block)
    channel_blocks = ceil_div(shape.c, channel_block)
    blocks = filter_blocks * channel_blocks
    large = filter_block * channel_block > 64 * 64
    group_tiles = min(tiles, SUM_TILES_LARGE if large else SUM_TILES)
    parts = min(4, ceil_div(8, blocks), ceil_div(tiles, group_tiles))
    sums_plane = filter_block * channel_block + ALIGNMENT
    inputs_plane = group_tiles * channel_block + ALIGNMENT
    errors_plane = group_tiles * filter_block + ALIGNMENT
    partial_floats = aligned(shape.k * 9 * shape.c)
    # At 0 lies the table of the product's one run of tiles: an int64 0, two floats.
    sums_at, inputs_at, errors_at, transform_at, partials_at, size_floats = place(
        2,
        planes * sums_plane * threads,
        planes * inputs_plane * threads,
        planes * errors_plane * threads,
        TRANSFORM_FLOATS * threads,
        partial_floats * parts if parts > 1 else 0,
    )[1:]
    numbers = WinogradWeightGradient(
        m=m, planes=planes, images=shape.n, in_h=shape.h, in_w=shape.w, in_c=shape.c,
        out_h=shape.oh, out_w=shape.ow, out_c=shape.k, top=shape.padding[0],
        left=shape.padding[2], tiles_h=tiles_h, tiles_w=tiles_w, tiles=tiles,
        group_tiles=group_tiles, filter_block=filter_block, channel_block=channel_block,
        filter_blocks=filter_blocks, channel_blocks=channel_blocks, parts=parts, items=blocks *
        parts, table_at=0, sums_at=sums_at, sums_stride=planes * sums_plane,
        sums_plane=sums_plane, inputs_at=inputs_at, inputs_stride=planes * inputs_plane,
        inputs_plane=inputs_plane, errors_at=errors_at, errors_stride=planes * errors_plane,
        errors_plane=errors_plane, transform_at=transform_at, transform_stride=TRANSFORM_FLOATS,
        partials_at=partials_at, partial_stride=partial_floats,
    )  # fmt: skip
    chunk = chunk_items(numbers.items, 2 * planes * tiles * shape.c * shape.k)
    return KernelBlocking(numbers, size_floats, chunk)
