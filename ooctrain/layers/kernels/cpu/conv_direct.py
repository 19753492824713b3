"""Direct convolution: gather pixels, multiply by panels of weights, no column buffer.

In: NHWC activations, KRSC weights, a plan from `direct_plan.py`. Out: y, dx or dW. The one idea: a block of
output pixels needs a window of the source. Where that window touches the border it is copied once, zeros
included; else the source is read where it lies. Tables tell the micro-kernel where the row of each pixel
starts, so rows of a tile may cross image rows and images, and small images fill the registers as well as
large ones. Weights are packed in panels of PANEL filters. Cost: 2 N K OH OW R S C/groups flops for each part.
Source: Georganas et al., "Anatomy of High-Performance Deep Learning Convolutions on SIMD Architectures"
(SC 2018); `brgemm.py`. Read next: `conv_winograd.py`.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import types

from ooctrain.layers.kernels.conv_shape import ConvShape
from ooctrain.layers.kernels.cpu.brgemm import (
    COLUMNS,
    MR,
    OUTER_MR,
    multiply_outer,
    multiply_outer_one,
    multiply_outer_part,
    multiply_rows,
)
from ooctrain.layers.kernels.cpu.direct_plan import (
    PHASE_FIELDS,
    Correlation,
    DirectPlan,
    WeightGradient,
    plan_forward,
    plan_grad_input,
    plan_grad_weight,
)
from ooctrain.layers.kernels.cpu.jit import kernel
from ooctrain.layers.kernels.cpu.partials import sum_partials
from ooctrain.layers.kernels.cpu.pool import ThreadPool
from ooctrain.layers.kernels.cpu.tiling import PANEL
from ooctrain.layers.kernels.cpu.window import copy_run, copy_window, fill_zero, pack_columns, pack_transposed

_floats = types.float32[::1]
_whole = types.int64
_tables = types.int64[::1]


def _numbers_of(plan_class):
    """Numba's type of a plan: a named tuple of int64."""
    return types.NamedUniTuple(_whole, len(plan_class._fields), plan_class)


# --- forward and gradient of the input ----------------------------------------------------------------


@numba.njit
def _pack_panel(w, panel, phase, tables, p, target, place):
    """One panel of one phase: [tap][run][PANEL] floats at target[place]."""
    group, first = panel // p.panels, panel % p.panels * PANEL
    columns = min(PANEL, p.out_cg - first)
    if p.backward == 0:
        # The one phase uses all taps in the order of a filter's elements, so a filter is read whole.
        pack_transposed(w, (group * p.out_cg + first) * p.weight_row, columns, p.weight_row, target, place)
        return
    first_tap, count = tables[phase * PHASE_FIELDS + 2], tables[phase * PHASE_FIELDS + 3]
    for tap in range(first_tap, first_tap + count):
        # The filters of this group are rows; their input channels at this tap are the columns.
        start = group * p.in_cg * p.weight_row + tables[p.source_table + tap] + first
        pack_columns(w, start, p.in_cg, p.weight_row, columns, target, place)
        place += p.run * PANEL


@kernel(types.void(_floats, _floats, _tables, _numbers_of(Correlation), _whole, _whole, _whole))
def _pack_weights(w, space, tables, p, lo, hi, thread):
    """Items: (phase, panel). All weights into the shared packed region."""
    all_panels = p.panels * p.groups
    for item in range(lo, hi):
        phase, panel = item // all_panels, item % all_panels
        record = phase * PHASE_FIELDS
        size = tables[record + 3] * p.run * PANEL
        _pack_panel(w, panel, phase, tables, p, space, p.packed_at + tables[record + 4] + panel * size)


@numba.njit
def _list_pixels(tables, rows, p, phase, image, images, q0, q1, base):
    """Writes for each output pixel of a block where its source row and its output row start; returns how many.

    `base` is the offset of the block's window; pixels that the phase does not have are left out.
    """
    shift_h, shift_w = tables[phase * PHASE_FIELDS], tables[phase * PHASE_FIELDS + 1]
    outs, count = rows + p.rows_capacity, 0
    for i in range(images):
        for q in range(q0, q1):
            y = q * p.out_step_h + shift_h
            if y < 0 or y >= p.out_h:
                continue
            if p.copied == 1:
                row = (i * p.window_h + (q - q0) * p.in_step_h) * p.window_w
            else:
                row = ((image + i) * p.in_h + q * p.in_step_h + p.low_h) * p.in_w
                row += p.q_w0 * p.in_step_w + p.low_w
            for column in range(p.q_w):
                x = (p.q_w0 + column) * p.out_step_w + shift_w
                if x >= 0 and x < p.out_w:
                    tables[rows + count] = base + (row + column * p.in_step_w) * p.in_c
                    tables[outs + count] = (((image + i) * p.out_h + y) * p.out_w + x) * p.out_c
                    count += 1
    # A block smaller than a register tile repeats its last pixel: it is computed and written again.
    for extra in range(count, MR if count > 0 else 0):
        tables[rows + extra] = tables[rows + count - 1]
        tables[outs + extra] = tables[outs + count - 1]
    return count


@numba.njit
def _multiply_block(source, space, weights_at, tables, rows, p, phase, panel, pixels, y):
    """All pixels of a block times one panel."""
    record = phase * PHASE_FIELDS
    group, first = panel // p.panels, panel % p.panels * PANEL
    columns, channel = p.out_cg - first, group * p.out_cg + first
    for part in range(0, min(PANEL, columns), COLUMNS):
        tile = 0
        while tile < pixels:
            # The last tile overlaps its neighbour rather than being cut: the same values are written twice.
            start = max(0, min(tile, pixels - MR))
            multiply_rows(
                source, group * p.in_cg, tables, rows + start,
                p.tap_table + tables[record + 2], tables[record + 3],
                space, weights_at + part, p.run, space, p.bias_at + channel + part,
                y, channel + part, rows + p.rows_capacity + start, columns - part,
            )  # fmt: skip
            tile += MR


@numba.njit
def _write_bias(space, tables, outs, p, panel, pixels, y):
    """Output pixels that no tap reaches (a 1x1 filter with stride 2) are the bias alone."""
    group, first = panel // p.panels, panel % p.panels * PANEL
    channel = group * p.out_cg + first
    for pixel in range(pixels):
        copy_run(space, p.bias_at + channel, y, tables[outs + pixel] + channel, min(PANEL, p.out_cg - first))


@numba.njit
def _block(x, w, y, space, tables, p, block, panel_lo, panel_hi, thread):
    """One block of output pixels times the panels [panel_lo, panel_hi)."""
    image = block // p.row_blocks * p.block_images
    images = min(p.block_images, p.images - image)
    q0 = p.q_h0 + block % p.row_blocks * p.block_rows
    q1 = min(q0 + p.block_rows, p.q_h0 + p.q_h)
    source, base = x, 0
    if p.copied == 1:
        source, base = space, p.window_at + thread * p.window_stride
        top, left = q0 * p.in_step_h + p.low_h, p.q_w0 * p.in_step_w + p.low_w
        for i in range(images):
            place = base + i * p.window_h * p.window_w * p.in_c
            copy_window(
                x, image + i, p.in_h, p.in_w, p.in_c, top, left, space, place, p.window_h, p.window_w
            )
    rows = p.rows_at + thread * 2 * p.rows_capacity
    for phase in range(p.phases):
        pixels = _list_pixels(tables, rows, p, phase, image, images, q0, q1, base)
        record = phase * PHASE_FIELDS
        size = tables[record + 3] * p.run * PANEL
        for panel in range(panel_lo, panel_hi):
            if size == 0:
                _write_bias(space, tables, rows + p.rows_capacity, p, panel, pixels, y)
                continue
            weights_at = p.packed_at + tables[record + 4]
            weights_at += thread * p.packed_stride if p.private == 1 else panel * size
            _multiply_block(source, space, weights_at, tables, rows, p, phase, panel, pixels, y)


@kernel(
    types.void(_floats, _floats, _floats, _floats, _tables, _numbers_of(Correlation), _whole, _whole, _whole)
)
def _correlate(x, w, y, space, tables, p, lo, hi, thread):
    """Items: (block of pixels, group of panels); or panels alone, each packed by the item that uses it."""
    all_panels = p.panels * p.groups
    shares = -(-all_panels // p.item_panels)
    for item in range(lo, hi):
        if p.private == 1:
            for phase in range(p.phases):
                place = p.packed_at + thread * p.packed_stride + tables[phase * PHASE_FIELDS + 4]
                _pack_panel(w, item, phase, tables, p, space, place)
            for block in range(p.blocks):
                _block(x, w, y, space, tables, p, block, item, item + 1, thread)
        else:
            panel = item % shares * p.item_panels
            end = min(panel + p.item_panels, all_panels)
            _block(x, w, y, space, tables, p, item // shares, panel, end, thread)


# --- gradient of the weights --------------------------------------------------------------------------


@numba.njit
def _list_rows(tables, rows, p, image, images, q0, q1, base):
    """Writes where each output row of a block starts in dy and in the source; returns how many."""
    count = 0
    for i in range(images):
        for q in range(q0, q1):
            tables[rows + count] = (((image + i) * p.out_h + q) * p.out_w) * p.out_c
            if p.copied == 1:
                row = (i * p.window_h + (q - q0) * p.step_h) * p.window_w
            else:
                row = ((image + i) * p.in_h + q * p.step_h + p.low_h) * p.in_w + p.low_w
            tables[rows + p.rows_capacity + count] = base + row * p.in_c
            count += 1
    return count


@numba.njit
def _outer_panel(source, dy, tables, rows, count, p, panel, group, k0, k1, add, dw, place):
    """dW[k0:k1, one panel of columns] (+)= sum over the block's pixels of dy (outer) source."""
    tap_panels = -(-p.tap_columns // PANEL)
    tap, first = panel // tap_panels, panel % tap_panels * PANEL
    width = min(PANEL, p.tap_columns - first)
    step, row = p.step_w * p.in_c, p.weight_row
    a_rows, b_rows = rows, rows + p.rows_capacity
    for part in range(0, width, COLUMNS):
        b0, columns = tables[p.tap_table + tap] + group * p.in_cg + first + part, width - part
        k = k0
        while k < k1:
            a0 = group * p.out_cg + k
            c0 = place + a0 * row + tap * p.tap_columns + first + part
            if k + OUTER_MR > k1:
                multiply_outer_one(
                    dy, a0, p.out_c, source, b0, step, tables, a_rows, b_rows, count, p.out_w,
                    dw, c0, row, add, columns,
                )  # fmt: skip
                k += 1
                continue
            if columns >= COLUMNS:
                multiply_outer(
                    dy, a0, p.out_c, source, b0, step, tables, a_rows, b_rows, count, p.out_w,
                    dw, c0, row, add, columns,
                )  # fmt: skip
            else:
                multiply_outer_part(
                    dy, a0, p.out_c, source, b0, step, tables, a_rows, b_rows, count, p.out_w,
                    dw, c0, row, add, columns,
                )  # fmt: skip
            k += OUTER_MR


@kernel(
    types.void(
        _floats, _floats, _floats, _floats, _tables, _numbers_of(WeightGradient), _whole, _whole, _whole
    )
)
def _outer(x, dy, dw, space, tables, p, lo, hi, thread):
    """Items: (part of the batch, filters, columns of dW)."""
    for item in range(lo, hi):
        panel = item % p.panel_items * p.item_panels
        panel_end = min(panel + p.item_panels, p.column_panels)
        rest = item // p.panel_items
        k0 = rest % p.filter_items * p.filter_rows
        k1 = min(k0 + p.filter_rows, p.out_cg)
        rest = rest // p.filter_items
        group, part = rest % p.groups, rest // p.groups
        target = dw if p.parts == 1 else space
        place = 0 if p.parts == 1 else p.partials_at + part * p.partial_stride
        first_block = part * p.blocks // p.parts
        rows = p.rows_at + thread * 2 * p.rows_capacity
        for block in range(first_block, (part + 1) * p.blocks // p.parts):
            image = block // p.row_blocks * p.block_images
            images = min(p.block_images, p.images - image)
            q0 = block % p.row_blocks * p.block_rows
            q1 = min(q0 + p.block_rows, p.out_h)
            source, base = x, 0
            if p.copied == 1:
                source, base = space, p.window_at + thread * p.window_stride
                for i in range(images):
                    window = base + i * p.window_h * p.window_w * p.in_c
                    copy_window(
                        x, image + i, p.in_h, p.in_w, p.in_c, q0 * p.step_h + p.low_h, p.low_w,
                        space, window, p.window_h, p.window_w,
                    )  # fmt: skip
            count = _list_rows(tables, rows, p, image, images, q0, q1, base)
            add = block > first_block
            for column in range(panel, panel_end):
                _outer_panel(source, dy, tables, rows, count, p, column, group, k0, k1, add, target, place)


# --- drivers ------------------------------------------------------------------------------------------


def _views(plan: DirectPlan, workspace: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The workspace as float32 and as int64, the plan's tables written to its front."""
    space = workspace[: plan.size_floats * 4]
    tables = space.view(np.int64)
    tables[: len(plan.tables)] = plan.tables
    return space.view(np.float32), tables


def _run_correlation(pool, plan, source, w, bias, target, workspace) -> None:
    space, tables = _views(plan, workspace)
    p = plan.numbers
    end = p.bias_at + p.out_c
    space[p.bias_at : end + PANEL] = 0.0
    if bias is not None:
        space[p.bias_at : end] = bias
    source, w, target = source.reshape(-1), w.reshape(-1), target.reshape(-1)
    if not p.private:
        pool.run(_pack_weights, p.phases * p.panels * p.groups, 1, w, space, tables, p)
    pool.run(_correlate, p.items, 1, source, w, target, space, tables, p)


def forward(pool: ThreadPool, shape: ConvShape, x, w, bias, y, workspace) -> None:
    """y = x * w + bias. See `conv2d.forward`."""
    _run_correlation(pool, plan_forward(shape, pool.threads), x, w, bias, y, workspace)


def grad_input(pool: ThreadPool, shape: ConvShape, dy, w, dx, workspace) -> None:
    """dx = dy correlated with the flipped weights. See `conv2d.grad_input`."""
    _run_correlation(pool, plan_grad_input(shape, pool.threads), dy, w, None, dx, workspace)


def grad_weight(pool: ThreadPool, shape: ConvShape, x, dy, dw, workspace) -> None:
    """dw = sum over pixels of dy (outer) x. See `conv2d.grad_weight`."""
    plan = plan_grad_weight(shape, pool.threads)
    space, tables = _views(plan, workspace)
    p = plan.numbers
    flat = dw.reshape(-1)
    pool.run(_outer, p.items, 1, x.reshape(-1), dy.reshape(-1), flat, space, tables, p)
    if p.parts > 1:
        pool.run(
            sum_partials, flat.size, 65536, space, p.partials_at, p.partial_stride, p.parts, flat
        )
