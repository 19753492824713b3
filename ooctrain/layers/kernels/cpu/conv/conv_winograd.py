"""Winograd convolution F(2x2, 3x3) and F(4x4, 3x3): 3x3 filters with fewer multiplications.

From NHWC activations, KRSC weights and a blocking of `winograd_blocking.py` the kernels compute y,
dx or dW. They transform a group of tiles into (m+2)^2 planes, multiply each plane by the same plane
of the transformed weights with the micro-kernel of `brgemm.py`, and transform back, all while the
group lies in the cache. The gradient of the weights uses the transposed transforms: dW = G^T [sum
over tiles of (B^T d B) (outer) (A e A^T)] G. Rounding: F2 is about as accurate as direct (exact on
whole numbers of moderate size), F4 has errors of a few 1e-6 of the result's own deviation (root
mean square). Cost: 9 m^2 / (m+2)^2 times fewer multiplications than direct: 2.25 and 4. Source:
Lavin & Gray (CVPR 2016). Read next: `winograd_transforms.py`.
"""

from __future__ import annotations

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cpu.blocking import PANEL
from ooctrain.layers.kernels.cpu.conv.brgemm import (
    COLUMNS,
    MR,
    OUTER_MR,
    multiply_outer,
    multiply_rows,
)
from ooctrain.layers.kernels.cpu.conv.conv2d import views, write_bias, write_table
from ooctrain.layers.kernels.cpu.conv.winograd_blocking import (
    WinogradCorrelation,
    WinogradWeightGradient,
    correlation_blocking,
    grad_weight_blocking,
)
from ooctrain.layers.kernels.cpu.conv.winograd_transforms import (
    transform_error,
    transform_gradient,
    transform_input,
    transform_output,
    transform_panel,
)
from ooctrain.layers.kernels.cpu.partials import add_parts
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner, kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import VL
from ooctrain.layers.kernels.signature import F4s, I8s

# --- forward and gradient of the input ---


@inner
def _tile_place(p, tile):
    """(image, first output row, first output column) of a tile's number."""
    image, rest = (
        tile // (p.tile.tiles_h * p.tile.tiles_w),
        tile % (p.tile.tiles_h * p.tile.tiles_w),
    )
    return image, rest // p.tile.tiles_w * p.tile.m, rest % p.tile.tiles_w * p.tile.m


@inner
def _transform_tiles(x, space, p, lo, hi, first, place, scratch):
    """Transforms input tiles [lo, hi) into planes at `place`, whose row 0 is tile `first`."""
    for tile in range(lo, hi):
        image, y, z = _tile_place(p, tile)
        row = place + (tile - first) * p.image.in_c
        transform_input(
            x,
            image,
            y - p.tile.top,
            z - p.tile.left,
            p,
            0,
            p.image.in_c,
            space,
            row,
            p.place.tiles_plane,
            scratch,
        )


@inner
def _list_rows(tables, rows, p, count):
    """Writes where each row of a product starts, in the transformed tiles and in the products.

    With fewer tiles (`count`) than rows of a register tile the last one is repeated.
    """
    for i in range(max(count, MR)):
        tables[rows + i] = min(i, count - 1) * p.image.in_c
        tables[rows + p.place.rows_capacity + i] = min(i, count - 1) * PANEL


@inner
def _multiply_panel(y, space, tables, p, panel, lo, hi, tiles_at, weights_at, thread):
    """Output channels of one panel for the tiles [lo, hi), whose planes start at `tiles_at`."""
    rows = p.place.rows_at + thread * 2 * p.place.rows_capacity
    # There is one tap, at offset 0; the first entry of `rows`, where row 0 starts, is that 0.
    outs, zero = rows + p.place.rows_capacity, rows
    products = p.place.products_at + thread * p.place.products_stride
    scratch = p.place.transform_at + thread * p.place.transform_stride
    count = hi - lo
    for point in range(p.tile.planes):
        a0, b0 = tiles_at + point * p.place.tiles_plane, weights_at + point * p.place.weights_plane
        c0 = products + point * p.place.products_plane
        for part in range(0, PANEL, COLUMNS):
            tile = 0
            while tile < count:
                start = max(0, min(tile, count - MR))
                multiply_rows(
                    space, a0, tables, rows + start, zero, 1, space, b0 + part, p.image.in_c,
                    space, p.place.bias_at + p.image.out_c, space, c0 + part, outs + start, COLUMNS,
                )  # fmt: skip
                tile += MR
    channel = panel * PANEL
    for tile in range(lo, hi):
        image, row, column = _tile_place(p, tile)
        place = products + (tile - lo) * PANEL
        transform_output(
            space, place, p.place.products_plane, scratch, p, image, row, column,
            channel, min(PANEL, p.image.out_c - channel), p.place.bias_at, y,
        )  # fmt: skip


@kernel
def _transform_weights(w: F4s, space: F4s, p: WinogradCorrelation, lo, hi, thread):
    """Items: panels of output channels, into the shared transformed weights."""
    scratch = p.place.transform_at + thread * p.place.transform_stride
    for panel in range(lo, hi):
        place, first = p.place.weights_at + panel * p.place.weights_stride, panel * PANEL
        transform_panel(w, p, first, min(PANEL, p.image.out_c - first), space, place, scratch)


@kernel
def _by_tiles(x: F4s, y: F4s, space: F4s, tables: I8s, p: WinogradCorrelation, lo, hi, thread):
    """Items: groups of tiles, from input to output."""
    scratch = p.place.transform_at + thread * p.place.transform_stride
    tiles_at = p.place.tiles_at + thread * p.place.tiles_stride
    for group in range(lo, hi):
        first = group * p.cut.group_tiles
        last = min(first + p.cut.group_tiles, p.tile.tiles)
        _transform_tiles(x, space, p, first, last, first, tiles_at, scratch)
        _list_rows(tables, p.place.rows_at + thread * 2 * p.place.rows_capacity, p, last - first)
        for panel in range(p.cut.panels):
            weights_at = p.place.weights_at + panel * p.place.weights_stride
            _multiply_panel(y, space, tables, p, panel, first, last, tiles_at, weights_at, thread)


@kernel
def _transform_inputs(x: F4s, space: F4s, p: WinogradCorrelation, lo, hi, thread):
    """Items: tiles, into the shared planes."""
    scratch = p.place.transform_at + thread * p.place.transform_stride
    _transform_tiles(x, space, p, lo, hi, 0, p.place.tiles_at, scratch)


@kernel
def _by_filters(w: F4s, y: F4s, space: F4s, tables: I8s, p: WinogradCorrelation, lo, hi, thread):
    """Items: panels of output channels, for all tiles; the panel's weights are transformed here."""
    scratch = p.place.transform_at + thread * p.place.transform_stride
    weights_at = p.place.weights_at + thread * p.place.weights_stride
    for panel in range(lo, hi):
        columns = min(PANEL, p.image.out_c - panel * PANEL)
        transform_panel(w, p, panel * PANEL, columns, space, weights_at, scratch)
        for group in range(p.cut.groups):
            first = group * p.cut.group_tiles
            last = min(first + p.cut.group_tiles, p.tile.tiles)
            _list_rows(
                tables, p.place.rows_at + thread * 2 * p.place.rows_capacity, p, last - first
            )
            tiles_at = p.place.tiles_at + first * p.image.in_c
            _multiply_panel(y, space, tables, p, panel, first, last, tiles_at, weights_at, thread)


# --- gradient of the weights ---


@inner
def _add_products(space, tables, p, tiles, filters, channels, add, thread):
    """sums[point, k, c] (+)= sum over tiles t of errors[point, t, k] * inputs[point, t, c]."""
    inputs = p.place.inputs_at + thread * p.place.inputs_stride
    errors = p.place.errors_at + thread * p.place.errors_stride
    sums = p.place.sums_at + thread * p.place.sums_stride
    for point in range(p.tile.planes):
        for c in range(0, channels, COLUMNS):
            b0 = inputs + point * p.place.inputs_plane + c
            for k in range(0, filters, OUTER_MR):
                a0 = errors + point * p.place.errors_plane + k
                c0 = sums + point * p.place.sums_plane + k * p.cut.channel_block + c
                multiply_outer(
                    space, a0, p.cut.filter_block, space, b0, p.cut.channel_block, tables,
                    p.place.table_at, p.place.table_at, 1, tiles, space, c0, p.cut.channel_block,
                    add, channels - c,
                )  # fmt: skip


@kernel
def _grad_weight(
    x: F4s, dy: F4s, dw: F4s, space: F4s, tables: I8s, p: WinogradWeightGradient, lo, hi, thread,
):  # fmt: skip
    """Items: (part of the tiles, block of filters, block of channels)."""
    scratch = p.place.transform_at + thread * p.place.transform_stride
    for item in range(lo, hi):
        channel = item % p.cut.channel_blocks * p.cut.channel_block
        rest = item // p.cut.channel_blocks
        filter_ = rest % p.cut.filter_blocks * p.cut.filter_block
        part = rest // p.cut.filter_blocks
        channels = min(p.cut.channel_block, p.image.in_c - channel)
        filters = min(p.cut.filter_block, p.image.out_c - filter_)
        first, last = part * p.tile.tiles // p.cut.parts, (part + 1) * p.tile.tiles // p.cut.parts
        for start in range(first, last, p.cut.group_tiles):
            end = min(start + p.cut.group_tiles, last)
            for tile in range(start, end):
                image, y, z = _tile_place(p, tile)
                row = (
                    p.place.inputs_at
                    + thread * p.place.inputs_stride
                    + (tile - start) * p.cut.channel_block
                )
                transform_input(
                    x, image, y - p.tile.top, z - p.tile.left, p, channel, channels, space, row,
                    p.place.inputs_plane, scratch,
                )  # fmt: skip
                row = (
                    p.place.errors_at
                    + thread * p.place.errors_stride
                    + (tile - start) * p.cut.filter_block
                )
                transform_error(
                    dy, image, y, z, p, filter_, filters, space, row, p.place.errors_plane, scratch
                )
            _add_products(space, tables, p, end - start, filters, channels, start > first, thread)
        target = dw if p.cut.parts == 1 else space
        base = 0 if p.cut.parts == 1 else p.place.partials_at + part * p.place.partial_stride
        for k in range(filters):
            for c in range(0, channels, VL):
                place = p.place.sums_at + thread * p.place.sums_stride + k * p.cut.channel_block + c
                at = base + (filter_ + k) * 9 * p.image.in_c + channel + c
                transform_gradient(
                    space,
                    place,
                    p.place.sums_plane,
                    scratch,
                    p.tile.m,
                    target,
                    at,
                    3 * p.image.in_c,
                    p.image.in_c,
                )


# --- drivers ---


def _run_correlation(pool, blocking, source, w, bias, target, workspace) -> None:
    space, tables = views(workspace)
    p, chunk, early_chunk = blocking.numbers, blocking.chunk, blocking.early_chunk
    # Products start from the zeros behind the bias, which is added after the last transform.
    write_bias(pool, space, p.place.bias_at, p.image.out_c, bias)
    source, w, target = source.reshape(-1), w.reshape(-1), target.reshape(-1)
    if p.cut.by_filters:
        pool.run(_transform_inputs, p.tile.tiles, early_chunk, source, space, p)
        pool.run(_by_filters, p.cut.items, chunk, w, target, space, tables, p)
    else:
        pool.run(_transform_weights, p.cut.panels, early_chunk, w, space, p)
        pool.run(_by_tiles, p.cut.items, chunk, source, target, space, tables, p)


def forward(pool: ThreadPool, shape: ConvShape, x, w, bias, y, workspace, m: int) -> None:
    """y = x * w + bias with tiles of m x m. See `conv2d.forward`."""
    blocking = correlation_blocking(shape, m, pool.threads, backward=False)
    _run_correlation(pool, blocking, x, w, bias, y, workspace)


def grad_input(pool: ThreadPool, shape: ConvShape, dy, w, dx, workspace, m: int) -> None:
    """dx from dy with tiles of m x m. See `conv2d.grad_input`."""
    blocking = correlation_blocking(shape, m, pool.threads, backward=True)
    _run_correlation(pool, blocking, dy, w, None, dx, workspace)


def grad_weight(pool: ThreadPool, shape: ConvShape, x, dy, dw, workspace, m: int) -> None:
    """dw from x and dy with tiles of m x m. See `conv2d.grad_weight`."""
    blocking = grad_weight_blocking(shape, m, pool.threads)
    space, tables = views(workspace)
    p, flat = blocking.numbers, dw.reshape(-1)
    write_table(pool, tables[p.place.table_at :], (0,))
    x, dy = x.reshape(-1), dy.reshape(-1)
    pool.run(_grad_weight, p.cut.items, blocking.chunk, x, dy, flat, space, tables, p)
    add_parts(pool, space, p, flat)
