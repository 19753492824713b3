"""Direct convolution: gather pixels, multiply by panels of weights, no column buffer.

From NHWC activations, KRSC weights and a blocking of `direct_blocking.py` the kernels compute y, dx
or dW. A block of output pixels reads a window of the source. If any tap of the convolution reads
outside the source, each block's window is first copied together with the zeros around it; otherwise
the source is read in place. Tables give the micro-kernel the places where the channels of each
pixel start. The pixels of a register tile may thus lie in different image rows or images, so that
small images fill the registers as well as large ones. Weights are packed in panels of PANEL
filters. Cost: 2 N K OH OW R S C/groups flops for each part. Source: Georganas et al., "Anatomy of
High-Performance Deep Learning Convolutions on SIMD Architectures" (SC 2018); `brgemm.py`. Read
next: `direct_weights.py`, then `conv_winograd.py`.
"""

from __future__ import annotations

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cpu.blocking import PANEL
from ooctrain.layers.kernels.cpu.conv.brgemm import (
    COLUMNS,
    MR,
    multiply_rows,
)
from ooctrain.layers.kernels.cpu.conv.conv2d import views, write_bias, write_table
from ooctrain.layers.kernels.cpu.conv.direct_blocking import (
    FIRST_TAP,
    PHASE_FIELDS,
    SHIFT_H,
    SHIFT_W,
    TAP_COUNT,
    WEIGHTS_AT,
    DirectCorrelation,
    forward_blocking,
    grad_input_blocking,
)
from ooctrain.layers.kernels.cpu.conv.direct_weights import add_outer_products
from ooctrain.layers.kernels.cpu.conv.direct_weights_blocking import grad_weight_blocking
from ooctrain.layers.kernels.cpu.padded_windows import (
    copy_run,
    copy_window,
    pack_columns,
    pack_transposed,
)
from ooctrain.layers.kernels.cpu.partials import add_parts
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner, kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.signature import F4s, I8s

STRIPS = PANEL // COLUMNS  # register tiles that lie side by side in a panel


# --- forward and gradient of the input ---


@inner
def _pack_panel(w, panel, phase, tables, p, target, place):
    """The weights of one panel and phase to target[place:], as [tap][run][PANEL]."""
    group, first = panel // p.cut.panels, panel % p.cut.panels * PANEL
    columns = min(PANEL, p.image.out_cg - first)
    if p.taps.backward == 0:
        # The one phase uses all taps in the order of a filter's elements, so a filter is read
        # whole.
        pack_transposed(
            w,
            (group * p.image.out_cg + first) * p.taps.weight_row,
            columns,
            p.taps.weight_row,
            target,
            place,
        )
        return
    record = phase * PHASE_FIELDS
    first_tap, count = tables[record + FIRST_TAP], tables[record + TAP_COUNT]
    for tap in range(first_tap, first_tap + count):
        # The filters of this group are rows; their input channels at this tap are the columns.
        start = (
            group * p.image.in_cg * p.taps.weight_row + tables[p.place.source_table + tap] + first
        )
        pack_columns(w, start, p.image.in_cg, p.taps.weight_row, columns, target, place)
        place += p.taps.run * PANEL


@kernel
def _pack_weights(w: F4s, space: F4s, tables: I8s, p: DirectCorrelation, lo, hi, thread):
    """Items: (phase, panel). All weights into the shared packed region."""
    all_panels = p.cut.panels * p.image.groups
    for item in range(lo, hi):
        phase, panel = item // all_panels, item % all_panels
        record = phase * PHASE_FIELDS
        size = tables[record + TAP_COUNT] * p.taps.run * PANEL
        place = p.place.packed_at + tables[record + WEIGHTS_AT] + panel * size
        _pack_panel(w, panel, phase, tables, p, space, place)


@inner
def _list_pixels(tables, rows, p, phase, images, q0, q1):
    """Writes where each pixel of a block starts, in the source and in the output, both counted
    from the block's own start; returns how many there are.

    Grid positions whose output pixel in this phase lies outside the image are left out.
    """
    record = phase * PHASE_FIELDS
    shift_h, shift_w = tables[record + SHIFT_H], tables[record + SHIFT_W]
    outs, count = rows + p.place.rows_capacity, 0
    for i in range(images):
        for q in range(q0, q1):
            y = q * p.grid.out_step_h + shift_h
            if y < 0 or y >= p.image.out_h:
                continue
            row = (i * p.place.window_h + (q - q0) * p.grid.in_step_h) * p.place.window_w
            out = (i * p.image.out_h + y - q0 * p.grid.out_step_h) * p.image.out_w
            for column in range(p.grid.q_w):
                x = (p.grid.q_w0 + column) * p.grid.out_step_w + shift_w
                if x >= 0 and x < p.image.out_w:
                    tables[rows + count] = (row + column * p.grid.in_step_w) * p.image.in_c
                    tables[outs + count] = (out + x) * p.image.out_c
                    count += 1
    # A block smaller than a register tile repeats its last pixel: it is computed and written again.
    for extra in range(count, MR if count > 0 else 0):
        tables[rows + extra] = tables[rows + count - 1]
        tables[outs + extra] = tables[outs + count - 1]
    return count


@inner
def _multiply_block(
    source, start_of, space, weights_at, size, tables, rows, p, phase, panels, pixels, y
):
    """All pixels of a block times the panels [panels[0], panels[1]), whose weights start at
    weights_at, `size` elements apart. The block starts at start_of[0] in the source, at start_of[1]
    in the output.

    The inner loop goes over panels if their weights fit the first-level cache together: these are
    then reused for every tile of pixels, and the output is written in order. Else it goes over
    pixels, so that the weights of one strip are reused.
    """
    strips = (panels[1] - panels[0]) * STRIPS
    tiles = (pixels + MR - 1) // MR
    outside, inside = (tiles, strips) if p.cut.by_tiles == 1 else (strips, tiles)
    for i in range(outside):
        for j in range(inside):
            tile, strip = (i, j) if p.cut.by_tiles == 1 else (j, i)
            panel, part = panels[0] + strip // STRIPS, strip % STRIPS * COLUMNS
            group, first = panel // p.cut.panels, panel % p.cut.panels * PANEL + part
            if first >= p.image.out_cg:
                continue
            # The last tile overlaps its neighbour rather than being cut: the same values are
            # written twice.
            start = max(0, min(tile * MR, pixels - MR))
            channel, record = group * p.image.out_cg + first, phase * PHASE_FIELDS
            multiply_rows(
                source, start_of[0] + group * p.image.in_cg, tables, rows + start,
                p.place.tap_table + tables[record + FIRST_TAP], tables[record + TAP_COUNT],
                space, weights_at + strip // STRIPS * size + part, p.taps.run,
                space, p.place.bias_at + channel,
                y, start_of[1] + channel, rows + p.place.rows_capacity + start,
                p.image.out_cg - first,
            )  # fmt: skip


@inner
def _first_channel(p, panel):
    """The first output channel of a panel; panels are numbered group by group."""
    return panel // p.cut.panels * p.image.out_cg + panel % p.cut.panels * PANEL


@inner
def _write_bias(space, tables, outs, start, p, panel_lo, panel_hi, pixels, y):
    """Writes the bias to pixels that no tap reaches (a 1x1 filter with stride 2 leaves some)."""
    first = _first_channel(p, panel_lo)
    end = (
        p.image.out_c if panel_hi == p.cut.panels * p.image.groups else _first_channel(p, panel_hi)
    )
    for pixel in range(pixels):
        copy_run(
            space, p.place.bias_at + first, y, start + tables[outs + pixel] + first, end - first
        )


@inner
def _fill_window(x, space, p, image, images, q0, base):
    """Copies the source pixels that a block reads, with zeros for those outside the image."""
    top, left = q0 * p.grid.in_step_h + p.grid.low_h, p.grid.q_w0 * p.grid.in_step_w + p.grid.low_w
    for i in range(images):
        place = base + i * p.place.window_h * p.place.window_w * p.image.in_c
        copy_window(
            x, p.image, image + i, top, left, space, place, p.place.window_h, p.place.window_w
        )


@inner
def _block(x, y, space, tables, p, block, panel_lo, panel_hi, listed, thread):
    """One block of output pixels times the panels [panel_lo, panel_hi); returns its extent (images
    times grid rows).

    With a single phase, blocks of the same extent have the same list of pixels: `listed` is the
    extent of the block whose list is in the thread's table (0: of none).
    """
    image = block // p.cut.row_blocks * p.cut.block_images
    images = min(p.cut.block_images, p.image.images - image)
    q0 = p.grid.q_h0 + block % p.cut.row_blocks * p.cut.block_rows
    q1 = min(q0 + p.cut.block_rows, p.grid.q_h0 + p.grid.q_h)
    out = (image * p.image.out_h + q0 * p.grid.out_step_h) * p.image.out_w * p.image.out_c
    if p.cut.copied == 1:
        source, start = space, p.place.window_at + thread * p.place.window_stride
        _fill_window(x, space, p, image, images, q0, start)
    else:
        row = (image * p.image.in_h + q0 * p.grid.in_step_h + p.grid.low_h) * p.image.in_w
        source, start = x, (row + p.grid.q_w0 * p.grid.in_step_w + p.grid.low_w) * p.image.in_c
    rows, extent = p.place.rows_at + thread * 2 * p.place.rows_capacity, images * (q1 - q0)
    pixels = extent * p.grid.q_w
    for phase in range(p.taps.phases):
        if p.taps.phases > 1 or listed != extent:
            pixels = _list_pixels(tables, rows, p, phase, images, q0, q1)
        record = phase * PHASE_FIELDS
        size = tables[record + TAP_COUNT] * p.taps.run * PANEL
        if size == 0:
            outs = rows + p.place.rows_capacity
            _write_bias(space, tables, outs, out, p, panel_lo, panel_hi, pixels, y)
            continue
        weights_at = p.place.packed_at + tables[record + WEIGHTS_AT]
        weights_at += thread * p.place.packed_stride if p.cut.private == 1 else panel_lo * size
        panels, start_of = (panel_lo, panel_hi), (start, out)
        _multiply_block(
            source, start_of, space, weights_at, size, tables, rows, p, phase, panels, pixels, y
        )
    return extent


@kernel
def _correlate(
    x: F4s, w: F4s, y: F4s, space: F4s, tables: I8s, p: DirectCorrelation, lo, hi, thread,
):  # fmt: skip
    """Items: (block of pixels, group of panels); or panels, each packed here for all blocks."""
    all_panels = p.cut.panels * p.image.groups
    shares = -(-all_panels // p.cut.item_panels)
    listed = 0
    for item in range(lo, hi):
        if p.cut.private == 1:
            for phase in range(p.taps.phases):
                weights_at = tables[phase * PHASE_FIELDS + WEIGHTS_AT]
                place = p.place.packed_at + thread * p.place.packed_stride + weights_at
                _pack_panel(w, item, phase, tables, p, space, place)
            for block in range(p.cut.blocks):
                listed = _block(x, y, space, tables, p, block, item, item + 1, listed, thread)
        else:
            panel = item % shares * p.cut.item_panels
            end = min(panel + p.cut.item_panels, all_panels)
            listed = _block(x, y, space, tables, p, item // shares, panel, end, listed, thread)


# --- drivers ---


def _run_correlation(pool, blocking, source, w, bias, target, workspace) -> None:
    space, tables = views(workspace)
    p = blocking.numbers
    write_table(pool, tables, blocking.tables)
    write_bias(pool, space, p.place.bias_at, p.image.out_c, bias)
    source, w, target = source.reshape(-1), w.reshape(-1), target.reshape(-1)
    if not p.cut.private:
        panels = p.taps.phases * p.cut.panels * p.image.groups
        pool.run(_pack_weights, panels, blocking.early_chunk, w, space, tables, p)
    pool.run(_correlate, p.cut.items, blocking.chunk, source, w, target, space, tables, p)


def forward(pool: ThreadPool, shape: ConvShape, x, w, bias, y, workspace) -> None:
    """y = x * w + bias. See `conv2d.forward`."""
    _run_correlation(pool, forward_blocking(shape, pool.threads), x, w, bias, y, workspace)


def grad_input(pool: ThreadPool, shape: ConvShape, dy, w, dx, workspace) -> None:
    """dx = dy correlated with the flipped weights. See `conv2d.grad_input`."""
    _run_correlation(pool, grad_input_blocking(shape, pool.threads), dy, w, None, dx, workspace)


def grad_weight(pool: ThreadPool, shape: ConvShape, x, dy, dw, workspace) -> None:
    """dw = sum over pixels of dy (outer) x. See `conv2d.grad_weight`."""
    blocking = grad_weight_blocking(shape, pool.threads)
    space, tables = views(workspace)
    p = blocking.numbers
    write_table(pool, tables, blocking.tables)
    x, dy, flat = x.reshape(-1), dy.reshape(-1), dw.reshape(-1)
    pool.run(add_outer_products, p.cut.items, blocking.chunk, x, dy, flat, space, tables, p)
    add_parts(pool, space, p, flat)
