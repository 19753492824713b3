"""How a direct convolution is cut into work items, and where everything lies in its workspace.

In: a `ConvShape` and a number of threads. Out: tuples of integers that the kernels of
`conv_direct.py` read, and from which `conv_plan.workspace_bytes` takes the size. The one idea:
forward and the gradient of the input are the same gather. On a grid of positions q an output
pixel is q * out_step + shift, and tap t of it reads the source pixel q * in_step + t. Forward has
one phase (out_step 1, in_step = stride). The gradient of the input has stride x stride phases
(out_step = stride, in_step 1), one for each remainder of the output row and column: phase a uses
the filter rows r with (r * dilation) mod stride = a. Pure Python, so that tracing and planning
need no Numba. Source: Dumoulin & Visin, "A guide to convolution arithmetic for deep learning"
(2016), chapter 4. Read next: `conv_direct.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from ooctrain.layers.kernels.conv_shape import ConvShape
from ooctrain.layers.kernels.cpu.tiling import PANEL, ROWS, aligned, ceil_div, place

PHASE_FIELDS = 6  # integers of one phase in the tables
MIN_ITEMS = 32  # work items wanted, so that many threads share them evenly
PRIVATE_PIXELS = 1024  # with no more pixels than this, weights are packed where they are used
GRADIENT_ITEMS = 8  # work items wanted of a gradient of the weights
GRADIENT_PIXELS = 256  # of a block: its window of PANEL channels fits the first-level cache
MAX_PARTS = 4  # parts of the batch whose partial weight gradients are kept


class Correlation(NamedTuple):
    """Integers of a gather (forward or gradient of the input). Sizes in elements."""

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
    panels: int  # of one group
    q_h0: int  # first grid row
    q_h: int  # grid rows
    q_w0: int
    q_w: int
    in_step_h: int
    in_step_w: int
    out_step_h: int
    out_step_w: int
    low_h: int  # smallest tap: the source pixel of q is q * in_step + low + (tap - low)
    low_w: int
    phases: int
    taps: int  # of all phases
    run: int  # elements read one after another at each tap
    weight_row: int  # R * S * C / groups: elements of one filter
    backward: int  # 1: weights are read for the gradient of the input
    copied: int  # 1: source pixels are copied into a zero-bordered window first
    private: int  # 1: each item packs its own panel of weights; 0: all are packed beforehand
    block_images: int
    block_rows: int
    row_blocks: int
    blocks: int
    item_panels: int  # panels (of all groups together) that one item computes
    items: int
    window_h: int
    window_w: int
    rows_capacity: int
    tap_table: int  # positions in the int64 view
    source_table: int
    rows_at: int
    bias_at: int  # positions in the float32 view
    packed_at: int
    packed_stride: int  # from one thread's private panel to the next
    window_at: int
    window_stride: int


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


Numbers = TypeVar("Numbers", Correlation, WeightGradient)


@dataclass(frozen=True, slots=True)
class DirectPlan(Generic[Numbers]):
    """A plan's integers, the tables at the front of its workspace, and the whole size.

    Args:
        numbers: what the kernel reads.
        tables: int64 values that the driver writes to the front of the workspace.
        size_floats: size of the workspace.
    """

    numbers: Numbers
    tables: tuple[int, ...]
    size_floats: int


@dataclass(frozen=True, slots=True)
class _Phase:
    """Taps (source row, source column, number in the filter) of one class of output pixels."""

    shift_h: int
    shift_w: int
    taps: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Grid:
    """One axis of the gather: positions, steps, and for each phase (shift, ((tap, r), ...))."""

    first: int
    count: int
    in_step: int
    out_step: int
    phases: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


def forward_axis(out: int, filter_taps: int, stride: int, dilation: int, before: int) -> _Grid:
    """Output y reads source y * stride + r * dilation - before."""
    taps = tuple((r * dilation - before, r) for r in range(filter_taps))
    return _Grid(0, out, stride, 1, ((0, taps),))


def backward_axis(inner: int, filter_taps: int, stride: int, dilation: int, before: int) -> _Grid:
    """Input gradient y = q * stride + a - before reads dy at q - floor(r * dilation / stride)."""
    first, last = before // stride, (inner - 1 + before) // stride
    phases = []
    for a in range(stride):
        taps = tuple(
            (-(r * dilation // stride), r) for r in range(filter_taps) if r * dilation % stride == a
        )
        phases.append((a - before, taps))
    return _Grid(first, last - first + 1, 1, stride, tuple(phases))


def cut_blocks(images: int, rows: int, columns: int, target: int) -> tuple[int, int]:
    """(images, rows) of a block of about `target` pixels: rows of one image, or whole images.

    Of the sizes from half the target up, the one whose register tiles of ROWS pixels are the
    fullest.
    """
    unit, most = (columns, rows) if rows * columns >= target else (rows * columns, images)
    largest = max(1, min(most, target // unit))

    def idle_share(size: int) -> float:
        whole, rest = divmod(most, size)
        tiles = whole * ceil_div(size * unit, ROWS) + ceil_div(rest * unit, ROWS)
        return tiles * ROWS / (most * unit)

    size = min(range(largest, (largest - 1) // 2, -1), key=idle_share)
    return (1, size) if unit == columns and most == rows else (size, rows)


def _tap_range(axis: _Grid) -> tuple[int, int]:
    taps = [tap for _, taps in axis.phases for tap, _ in taps] or [0]
    return min(taps), max(taps)


def _inside(axis: _Grid, extent: int) -> bool:
    """Whether every tap of every grid position lies in the source."""
    low, high = _tap_range(axis)
    last = (axis.first + axis.count - 1) * axis.in_step
    return axis.first * axis.in_step + low >= 0 and last + high < extent


def _plan_correlation(
    shape: ConvShape, rows: _Grid, columns: _Grid, *, backward: bool, threads: int
) -> DirectPlan[Correlation]:
    if backward:
        in_h, in_w, in_c, out_h, out_w, out_c = (
            shape.oh,
            shape.ow,
            shape.k,
            shape.h,
            shape.w,
            shape.c,
        )
    else:
        in_h, in_w, in_c, out_h, out_w, out_c = (
            shape.h,
            shape.w,
            shape.c,
            shape.oh,
            shape.ow,
            shape.k,
        )
    in_cg, out_cg = in_c // shape.groups, out_c // shape.groups
    # Forward: in an image row the S taps and their channels lie side by side, so they are read as
    # one run.
    merged = not backward and shape.groups == 1 and shape.dilation[1] == 1
    run = shape.s * shape.c if merged else in_cg
    low_h, high_h = _tap_range(rows)
    low_w, high_w = _tap_range(columns)
    phases = [
        _Phase(
            shift_h,
            shift_w,
            tuple(
                (y, x, r * shape.s + s)
                for y, r in taps_h
                for x, s in taps_w
                if s == 0 or not merged
            ),
        )
        for shift_h, taps_h in rows.phases
        for shift_w, taps_w in columns.phases
    ]
    taps = sum(len(phase.taps) for phase in phases)

    copied = not (_inside(rows, in_h) and _inside(columns, in_w))
    panels = ceil_div(out_cg, PANEL)
    all_panels = panels * shape.groups
    weight_floats = all_panels * taps * run * PANEL
    pixels = shape.n * rows.count * columns.count
    private = (
        not copied and pixels <= PRIVATE_PIXELS and weight_floats > shape.n * in_h * in_w * in_c
    )
    # Source pixels of a block should stay in the second-level cache beside a panel of weights.
    target = PRIVATE_PIXELS if private else max(48, min(256, 98304 // in_c))
    block_images, block_rows = cut_blocks(shape.n, rows.count, columns.count, target)
    row_blocks = ceil_div(rows.count, block_rows)
    blocks = ceil_div(shape.n, block_images) * row_blocks
    if private:
        item_panels, items = 1, all_panels
    else:
        shares = min(all_panels, ceil_div(MIN_ITEMS, blocks), 4 if copied else all_panels)
        item_panels = ceil_div(all_panels, shares)
        items = blocks * ceil_div(all_panels, item_panels)

    window_h = (block_rows - 1) * rows.in_step + high_h - low_h + 1 if copied else in_h
    window_w = (columns.count - 1) * columns.in_step + high_w - low_w + 1 if copied else in_w
    window_floats = aligned(block_images * window_h * window_w * in_c) if copied else 0
    capacity = block_images * block_rows * columns.count + ROWS
    tables = _phase_tables(phases, low_h, low_w, window_w, in_c, run, shape.cg, all_panels, private)
    panel_floats = aligned(taps * run * PANEL)
    packed_floats = panel_floats * threads if private else weight_floats
    rows_at, bias_at, packed_at, window_at, size_floats = place(
        2 * len(tables),
        2 * 2 * capacity * threads,
        out_c + PANEL,
        packed_floats,
        window_floats * threads,
    )[1:]
    numbers = Correlation(
        images=shape.n, in_h=in_h, in_w=in_w, in_c=in_c, out_h=out_h, out_w=out_w, out_c=out_c,
        groups=shape.groups, in_cg=in_cg, out_cg=out_cg, panels=panels, q_h0=rows.first,
        q_h=rows.count, q_w0=columns.first, q_w=columns.count, in_step_h=rows.in_step,
        in_step_w=columns.in_step, out_step_h=rows.out_step, out_step_w=columns.out_step,
        low_h=low_h, low_w=low_w, phases=len(phases), taps=taps, run=run, weight_row=shape.r *
        shape.s * shape.cg, backward=int(backward), copied=int(copied), private=int(private),
        block_images=block_images, block_rows=block_rows, row_blocks=row_blocks, blocks=blocks,
        item_panels=item_panels, items=items, window_h=window_h, window_w=window_w,
        rows_capacity=capacity, tap_table=PHASE_FIELDS * len(phases), source_table=PHASE_FIELDS *
        len(phases) + taps, rows_at=rows_at // 2, bias_at=bias_at, packed_at=packed_at,
        packed_stride=panel_floats, window_at=window_at, window_stride=window_floats,
    )  # fmt: skip
    return DirectPlan(numbers, tables, size_floats)


def _phase_tables(phases, low_h, low_w, window_w, in_c, run, filter_channels, all_panels, private):
    """Phase records, then for each tap its offset in the window, then its offset in a filter."""
    records, offsets, sources = [], [], []
    for phase in phases:
        first = len(offsets)
        # All panels of a phase lie together; a private panel holds its phases one after another.
        weights = first * run * PANEL * (1 if private else all_panels)
        records += [phase.shift_h, phase.shift_w, first, len(phase.taps), weights]
        records += [0] * (PHASE_FIELDS - 5)
        offsets += [((y - low_h) * window_w + x - low_w) * in_c for y, x, _ in phase.taps]
        sources += [position * filter_channels for _, _, position in phase.taps]
    return tuple(records + offsets + sources)


@lru_cache(maxsize=1024)
def plan_forward(shape: ConvShape, threads: int) -> DirectPlan[Correlation]:
    """The gather that computes y from x."""
    top, _, left, _ = shape.padding
    rows = forward_axis(shape.oh, shape.r, shape.stride[0], shape.dilation[0], top)
    columns = forward_axis(shape.ow, shape.s, shape.stride[1], shape.dilation[1], left)
    return _plan_correlation(shape, rows, columns, backward=False, threads=threads)


@lru_cache(maxsize=1024)
def plan_grad_input(shape: ConvShape, threads: int) -> DirectPlan[Correlation]:
    """The gather that computes dx from dy."""
    top, _, left, _ = shape.padding
    rows = backward_axis(shape.h, shape.r, shape.stride[0], shape.dilation[0], top)
    columns = backward_axis(shape.w, shape.s, shape.stride[1], shape.dilation[1], left)
    return _plan_correlation(shape, rows, columns, backward=True, threads=threads)


@lru_cache(maxsize=1024)
def plan_grad_weight(shape: ConvShape, threads: int) -> DirectPlan[WeightGradient]:
    """dW = sum over pixels of dy (outer product) x, in blocks of dW and at most four parts."""
    merged = shape.groups == 1 and shape.dilation[1] == 1 and shape.c < PANEL
    taps = [
        (r * shape.dilation[0], s * shape.dilation[1])
        for r in range(shape.r)
        for s in range(1 if merged else shape.s)
    ]
    # A 1x1 filter needs no more than the pixels under its taps, so its window leaves the others
    # out.
    single = (shape.r, shape.s) == (1, 1) and not merged
    step_h, step_w = (1, 1) if single else shape.stride
    block_images, block_rows = cut_blocks(shape.n, shape.oh, shape.ow, GRADIENT_PIXELS // step_h)
    row_blocks = ceil_div(shape.oh, block_rows)
    blocks = ceil_div(shape.n, block_images) * row_blocks
    window_h = (block_rows - 1) * step_h + shape.filter_h
    window_w = (shape.ow - 1) * step_w + shape.filter_w
    pitch = shape.c if merged else PANEL
    window_floats = aligned(block_images * window_h * window_w * pitch + PANEL)

    panels = 1 if merged else ceil_div(shape.cg, PANEL)
    filter_rows = min(shape.kg, 128)
    filter_items = ceil_div(shape.kg, filter_rows)
    weight_row = shape.r * shape.s * shape.cg
    partial_floats = aligned(shape.k * weight_row)
    # Parts of the batch read everything once, blocks of the output read the batch again: so parts
    # come first where partial sums are small beside the activations.
    activations = shape.n * (shape.h * shape.w * shape.c + shape.oh * shape.ow * shape.k)
    output_items = shape.groups * filter_items
    parts = min(MAX_PARTS, blocks) if 16 * partial_floats <= activations else 1
    item_panels = ceil_div(panels, ceil_div(GRADIENT_ITEMS, output_items * parts))
    panel_items = ceil_div(panels, item_panels)
    output_items *= panel_items
    if parts == 1:
        parts = min(MAX_PARTS, blocks, ceil_div(GRADIENT_ITEMS, output_items))
    capacity = block_images * block_rows
    tables = tuple((y * window_w + x) * pitch for y, x in taps)
    rows_at, partials_at, window_at, size_floats = place(
        2 * len(tables),
        2 * 2 * capacity * threads,
        partial_floats * parts if parts > 1 else 0,
        window_floats * threads,
    )[1:]
    numbers = WeightGradient(
        images=shape.n, in_h=shape.h, in_w=shape.w, in_c=shape.c, out_h=shape.oh, out_w=shape.ow,
        out_c=shape.k, groups=shape.groups, in_cg=shape.cg, out_cg=shape.kg, step_h=step_h,
        step_w=step_w, skip_h=shape.stride[0] // step_h, skip_w=shape.stride[1] // step_w,
        top=shape.padding[0], left=shape.padding[2], merged=int(merged), flat=int(single),
        taps=len(taps), tap_columns=shape.s * shape.c if merged else shape.cg, panels=panels,
        item_panels=item_panels, panel_items=panel_items, weight_row=weight_row,
        filter_rows=filter_rows, filter_items=filter_items, block_images=block_images,
        block_rows=block_rows, row_blocks=row_blocks, blocks=blocks, parts=parts, items=parts *
        output_items, pitch=pitch, window_h=window_h, window_w=window_w, rows_capacity=capacity,
        tap_table=0, rows_at=rows_at // 2, partials_at=partials_at, partial_stride=partial_floats,
        window_at=window_at, window_stride=window_floats,
    )  # fmt: skip
    return DirectPlan(numbers, tables, size_floats)
