"""The kernel behind the direct gradient of the weights: dW = sum over pixels of dy (outer) x.

From x and dy in NHWC and a blocking of `direct_weights_blocking.py` it computes dW in KRSC, or
partial sums of it. For a block of output pixels, PANEL channels of the source are copied into a
small window, one pixel after another. The window stays in the first-level cache while every tap and
every filter multiplies it. Rows of dW are filters and its columns channels, so products are added
where dW stores them. If images have few channels, all channels are copied and the taps of a filter
row are one run; with whole panels of filters the product is then transposed, so that vectors hold
filters. Source: `brgemm.py`; the blocking as in Goto & van de Geijn, "Anatomy of High-Performance
Matrix Multiplication" (2008). Read next: `layers/kernels/cpu/partials.py`.
"""

from __future__ import annotations

from ooctrain.layers.kernels.cpu.blocking import PANEL
from ooctrain.layers.kernels.cpu.conv.brgemm import (
    COLUMNS,
    MR,
    OUTER_MR,
    multiply_outer,
    multiply_outer_one,
    multiply_outer_wide,
)
from ooctrain.layers.kernels.cpu.conv.direct_weights_blocking import WeightGradient
from ooctrain.layers.kernels.cpu.padded_windows import copy_panel, copy_window
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner, kernel
from ooctrain.layers.kernels.signature import F4s, I8s


@inner
def _list_rows(tables, rows, p, image, images, q0, q1):
    """Writes where each row of a block starts, in dy and in the window.

    Returns (how many rows there are, pixels of one).
    """
    if p.window.flat == 1:
        tables[rows] = (image * p.image.out_h + q0) * p.image.out_w * p.image.out_c
        tables[rows + p.place.rows_capacity] = 0
        return 1, images * (q1 - q0) * p.image.out_w
    count = 0
    for i in range(images):
        for q in range(q0, q1):
            tables[rows + count] = ((image + i) * p.image.out_h + q) * p.image.out_w * p.image.out_c
            row = (i * p.window.window_h + (q - q0) * p.window.step_h) * p.window.window_w
            tables[rows + p.place.rows_capacity + count] = row * p.window.pitch
            count += 1
    return count, p.image.out_w


@inner
def _copy_block(x, space, p, image, images, q0, q1, channel, channels, window):
    """The window of a block: one panel of channels, or all channels where there are few."""
    size = p.window
    height = size.window_h - (p.cut.block_rows - (q1 - q0)) * size.step_h
    top, left = q0 * size.step_h * size.skip_h - size.top, -size.left
    for i in range(images):
        place = window + i * size.window_h * size.window_w * size.pitch
        if size.merged == 1:
            copy_window(x, p.image, image + i, top, left, space, place, height, size.window_w)
        else:
            copy_panel(
                x, p.image, image + i, channel, channels, top, left, size.skip_h, size.skip_w,
                space, place, height, size.window_w,
            )  # fmt: skip


@inner
def _outer_block(dy, space, tables, rows, count, run, p, k0, k1, window, columns, add, dw, place):
    """dW[k0:k1, `columns` at each tap] (+)= sum over a block's pixels of dy (outer) window."""
    a_rows, b_rows, b_step = rows, rows + p.place.rows_capacity, p.window.step_w * p.window.pitch
    for tap in range(p.window.taps):
        for part in range(0, columns, COLUMNS):
            b0 = window + tables[p.place.tap_table + tap] + part
            c0 = place + tap * p.window.tap_columns + part
            k = k0
            while k + OUTER_MR <= k1:
                multiply_outer(
                    dy, k, p.image.out_c, space, b0, b_step, tables, a_rows, b_rows, count, run,
                    dw, c0 + k * p.window.weight_row, p.window.weight_row, add, columns - part,
                )  # fmt: skip
                k += OUTER_MR
            while k < k1:
                multiply_outer_one(
                    dy, k, p.image.out_c, space, b0, b_step, tables, a_rows, b_rows, count, run,
                    dw, c0 + k * p.window.weight_row, p.window.weight_row, add, columns - part,
                )  # fmt: skip
                k += 1


@inner
def _turned_block(dy, space, tables, rows, count, run, p, k0, k1, window, add, sums):
    """The same product transposed: sums[tap, column, k0:k1], with vectors of filters read from dy.

    The last register tile may have more rows than columns of a tap are left; what is summed in
    these rows is never read.
    """
    a_rows, a_step = rows + p.place.rows_capacity, p.window.step_w * p.window.pitch
    for tap in range(p.window.taps):
        for k in range(k0, k1, COLUMNS):
            for column in range(0, p.window.tap_columns, MR):
                a0 = window + tables[p.place.tap_table + tap] + column
                c0 = sums + (tap * p.place.sum_rows + column) * p.cut.filter_rows + k - k0
                multiply_outer_wide(
                    space, a0, a_step, dy, k, p.image.out_c, tables, a_rows, rows, count, run,
                    space, c0, p.cut.filter_rows, add, COLUMNS,
                )  # fmt: skip


@inner
def _turn_back(space, p, k0, k1, sums, target, place):
    """dW[k0:k1] = the transposed sums, element by element: there are few."""
    for k in range(k0, k1):
        for tap in range(p.window.taps):
            to = place + k * p.window.weight_row + tap * p.window.tap_columns
            for column in range(p.window.tap_columns):
                at = sums + (tap * p.place.sum_rows + column) * p.cut.filter_rows + k - k0
                target[to + column] = space[at]


@kernel
def add_outer_products(
    x: F4s, dy: F4s, dw: F4s, space: F4s, tables: I8s, p: WeightGradient, lo, hi, thread,
):  # fmt: skip
    """Items: (part of the batch, group, block of filters, group of channel panels)."""
    rows = p.place.rows_at + thread * 2 * p.place.rows_capacity
    window = p.place.window_at + thread * p.place.window_stride
    sums = p.place.sums_at + thread * p.place.sums_stride
    for item in range(lo, hi):
        panel = item % p.cut.panel_items * p.cut.item_panels
        panel_end = min(panel + p.cut.item_panels, p.cut.panels)
        rest = item // p.cut.panel_items
        group = rest // p.cut.filter_items % p.image.groups
        part = rest // p.cut.filter_items // p.image.groups
        k0 = group * p.image.out_cg + rest % p.cut.filter_items * p.cut.filter_rows
        k1 = min(k0 + p.cut.filter_rows, (group + 1) * p.image.out_cg)
        target = dw if p.cut.parts == 1 else space
        place = 0 if p.cut.parts == 1 else p.place.partials_at + part * p.place.partial_stride
        first_block = part * p.cut.blocks // p.cut.parts
        for block in range(first_block, (part + 1) * p.cut.blocks // p.cut.parts):
            image = block // p.cut.row_blocks * p.cut.block_images
            images = min(p.cut.block_images, p.image.images - image)
            q0 = block % p.cut.row_blocks * p.cut.block_rows
            q1 = min(q0 + p.cut.block_rows, p.image.out_h)
            count, run = _list_rows(tables, rows, p, image, images, q0, q1)
            for step in range(panel, panel_end):
                channel = step * PANEL
                columns = (
                    p.window.tap_columns
                    if p.window.merged == 1
                    else min(PANEL, p.window.tap_columns - channel)
                )
                _copy_block(
                    x,
                    space,
                    p,
                    image,
                    images,
                    q0,
                    q1,
                    group * p.image.in_cg + channel,
                    columns,
                    window,
                )
                if p.window.turned == 1:
                    _turned_block(
                        dy, space, tables, rows, count, run, p, k0, k1, window,
                        block > first_block, sums,
                    )  # fmt: skip
                else:
                    _outer_block(
                        dy, space, tables, rows, count, run, p, k0, k1, window, columns,
                        block > first_block, target, place + channel,
                    )  # fmt: skip
        if p.window.turned == 1:
            _turn_back(space, p, k0, k1, sums, target, place)
