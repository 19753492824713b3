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
    ImagePair,
    KernelBlocking,
    aligned,
    ceil_div,
    chunk_items,
    images_of,
    place,
)

TRANSFORM_FLOATS = 36 * 16 * 16 + 36 * 16  # scratch of one thread: a block of weights, a tile
GROUP_TILES = 24  # tiles transformed together; a multiple of every register tile's rows
TRANSFORM_FLOPS = 40  # a transformed element takes as long as so many flops of the products
FILTER_BLOCK = CHANNEL_BLOCK = 128  # of the gradient of the weights that one item computes
SUM_TILES, SUM_TILES_LARGE = 32, 48  # tiles added at once to a small or a large block


class WinogradTiles(NamedTuple):
    """The tiles of a batch."""

    m: int  # output pixels along one side of a tile
    planes: int  # (m + 2)^2
    top: int
    left: int
    tiles_h: int
    tiles_w: int
    tiles: int
    backward: int  # 1: weights are read turned, for the gradient of the input


class WinogradCut(NamedTuple):
    """Items of a forward convolution or a gradient of the input."""

    group_tiles: int
    groups: int  # of tiles
    by_filters: int  # 1: an item is a panel of filters; 0: a group of tiles
    panels: int
    items: int


class WinogradPlaces(NamedTuple):
    """Where everything lies in its workspace. Sizes in elements."""

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


class WinogradCorrelation(NamedTuple):
    """Integers of a forward convolution or a gradient of the input."""

    image: ImagePair
    tile: WinogradTiles
    cut: WinogradCut
    place: WinogradPlaces


class WinogradGradientCut(NamedTuple):
    """Items of a gradient of the weights: blocks of dW, in parts of the batch."""

    group_tiles: int
    filter_block: int
    channel_block: int
    filter_blocks: int
    channel_blocks: int
    parts: int
    items: int


class WinogradGradientPlaces(NamedTuple):
    """Where everything lies in its workspace."""

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


class WinogradWeightGradient(NamedTuple):
    """Integers of a gradient of the weights."""

    image: ImagePair
    tile: WinogradTiles
    cut: WinogradGradientCut
    place: WinogradGradientPlaces


def _tiles(
    images: ImagePair, m: int, top: int, left: int, *, backward: bool = False
) -> WinogradTiles:
    tiles_h, tiles_w = ceil_div(images.out_h, m), ceil_div(images.out_w, m)
    tiles = images.images * tiles_h * tiles_w
    return WinogradTiles(m, (m + 2) ** 2, top, left, tiles_h, tiles_w, tiles, int(backward))


@lru_cache(maxsize=1024)
def correlation_blocking(
    shape: ConvShape, m: int, threads: int, *, backward: bool
) -> KernelBlocking[WinogradCorrelation]:
    """Forward, or the gradient of the input: a forward convolution of dy with turned weights."""
    image, (top, _, left, _) = images_of(shape, backward=backward), shape.padding
    if backward:
        top, left = 2 - top, 2 - left
    tile = _tiles(image, m, top, left, backward=backward)
    planes, tiles, in_c, out_c = tile.planes, tile.tiles, image.in_c, image.out_c
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
    cut = WinogradCut(
        group_tiles, groups, int(by_filters), panels, panels if by_filters else groups
    )
    places = WinogradPlaces(
        capacity, 0, bias_at, weights_at, panel_floats, weights_plane, tiles_at,
        planes * tiles_plane, tiles_plane, products_at, planes * products_plane, products_plane,
        transform_at, TRANSFORM_FLOATS,
    )  # fmt: skip
    early, elements = (tiles, tiles * in_c) if by_filters else (panels, in_c * out_c)
    return KernelBlocking(
        WinogradCorrelation(image, tile, cut, places), size_floats,
        chunk_items(cut.items, 2 * planes * tiles * in_c * out_c),
        chunk_items(early, TRANSFORM_FLOPS * planes * elements),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def grad_weight_blocking(
    shape: ConvShape, m: int, threads: int
) -> KernelBlocking[WinogradWeightGradient]:
    """dW = G^T [sum over tiles of Z (outer) V] G, in blocks of dW and at most four parts."""
    image = images_of(shape)
    tile = _tiles(image, m, shape.padding[0], shape.padding[2])
    planes, tiles = tile.planes, tile.tiles
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
    cut = WinogradGradientCut(
        group_tiles, filter_block, channel_block, filter_blocks, channel_blocks, parts,
        blocks * parts,
    )  # fmt: skip
    places = WinogradGradientPlaces(
        0, sums_at, planes * sums_plane, sums_plane, inputs_at, planes * inputs_plane, inputs_plane,
        errors_at, planes * errors_plane, errors_plane, transform_at, TRANSFORM_FLOATS, partials_at,
        partial_floats,
    )  # fmt: skip
    chunk = chunk_items(cut.items, 2 * planes * tiles * shape.c * shape.k)
    return KernelBlocking(WinogradWeightGradient(image, tile, cut, places), size_floats, chunk)
