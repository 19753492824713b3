"""How a direct convolution is cut into work items, and where everything lies in its workspace.

For a `ConvShape` and a number of threads a blocking is tuples of integers. The kernels of
`conv_direct.py` read them, and `conv_workspace.workspace_bytes` takes the size from them. Forward
and the gradient of the input are the same gather. On a grid of positions q an output pixel is q *
out_step + shift, and its tap t reads the source pixel q * in_step + t. Forward has one phase
(out_step 1, in_step = stride). The gradient of the input has stride x stride phases (out_step =
stride, in_step 1), one for each remainder of the output row and column: phase a uses the filter
rows r with (r * dilation) mod stride = a. Pure Python, so that tracing and planning need no Numba.
Source: Dumoulin & Visin, "A guide to convolution arithmetic for deep learning" (2016), chapter 4.
Read next: `conv_direct.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
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

# The record of one phase in the tables: shifts of its output pixels, the number of its first tap,
# how many it has, where its packed weights begin; and one integer unused.
SHIFT_H, SHIFT_W, FIRST_TAP, TAP_COUNT, WEIGHTS_AT = range(5)
PHASE_FIELDS = 6
MIN_ITEMS = 32  # work items wanted, so that many threads share them evenly
PRIVATE_PIXELS = 1024  # up to this many pixels, each item may pack its own weights
PACK_FLOPS = 20  # packing an element takes as long as so many flops of the multiplying loop
FEW_WEIGHTS = 4096  # floats: half of a first-level cache of 32 KiB


class Gather(NamedTuple):
    """Where the positions q lie, and what they read and write."""

    q_h0: int  # first grid row
    q_h: int  # grid rows
    q_w0: int
    q_w: int
    in_step_h: int
    in_step_w: int
    out_step_h: int
    out_step_w: int
    low_h: int  # smallest tap: the window of q begins at source row q * in_step + low
    low_w: int


class GatherTaps(NamedTuple):
    """What is multiplied at each position."""

    phases: int
    taps: int  # of all phases
    run: int  # elements read one after another at each tap
    weight_row: int  # R * S * C / groups: elements of one filter
    backward: int  # 1: weights are read for the gradient of the input


class GatherCut(NamedTuple):
    """Blocks of pixels, and the panels of filters that one item multiplies them with."""

    panels: int  # of one group
    copied: int  # 1: source pixels are copied into a zero-bordered window first
    private: int  # 1: each item packs its own panel of weights; 0: all are packed beforehand
    by_tiles: int  # 1: the inner loop is over panels: all weights fit the first-level cache
    block_images: int
    block_rows: int
    row_blocks: int
    blocks: int
    item_panels: int  # panels (of all groups together) that one item computes
    items: int


class GatherPlaces(NamedTuple):
    """Where everything lies in the workspace, and the size of a window."""

    window_h: int
    window_w: int
    rows_capacity: int
    tap_table: int  # this and the next two: positions in the int64 view
    source_table: int
    rows_at: int
    bias_at: int  # this and what follows: positions in the float32 view
    packed_at: int
    packed_stride: int  # from one thread's private panel to the next
    window_at: int
    window_stride: int


class DirectCorrelation(NamedTuple):
    """Integers of a gather (forward or gradient of the input). Sizes in elements."""

    image: ImagePair
    grid: Gather
    taps: GatherTaps
    cut: GatherCut
    place: GatherPlaces


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


def _tap_range(axis: _Grid) -> tuple[int, int]:
    """(smallest, largest) tap of all phases."""
    taps = [tap for _, taps in axis.phases for tap, _ in taps] or [0]
    return min(taps), max(taps)


def _inside(axis: _Grid, extent: int) -> bool:
    """Whether every tap of every grid position lies in the source."""
    low, high = _tap_range(axis)
    last = (axis.first + axis.count - 1) * axis.in_step
    return axis.first * axis.in_step + low >= 0 and last + high < extent


@dataclass(frozen=True, slots=True)
class _Taps:
    """All phases, and how many elements lie side by side at each of their taps."""

    phases: tuple[_Phase, ...]
    run: int
    copied: bool  # some tap reads outside the source

    @property
    def count(self) -> int:
        return sum(len(phase.taps) for phase in self.phases)


def _taps_of(shape: ConvShape, rows: _Grid, columns: _Grid, *, backward: bool) -> _Taps:
    """The phases of both axes combined, each with the taps that its pixels read."""
    (in_h, in_w, in_c), _ = shape.ends(backward=backward)
    # Forward: in an image row the S taps and their channels lie side by side, so they are read as
    # one run.
    merged = not backward and shape.groups == 1 and shape.dilation[1] == 1
    phases = tuple(
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
    )
    copied = not (_inside(rows, in_h) and _inside(columns, in_w))
    return _Taps(phases, shape.s * shape.c if merged else in_c // shape.groups, copied)


def _cut(shape: ConvShape, image: ImagePair, rows: _Grid, columns: _Grid, taps: _Taps) -> GatherCut:
    """Work items large enough to reuse what they load, and enough of them for all threads."""
    panels = ceil_div(image.out_cg, PANEL)
    all_panels = panels * image.groups
    panel_floats = taps.count * taps.run * PANEL
    pixels = shape.n * rows.count * columns.count
    large = all_panels * panel_floats > shape.n * image.in_h * image.in_w * image.in_c
    private = large and not taps.copied and pixels <= PRIVATE_PIXELS
    # Source pixels of a block should stay in the second-level cache with a panel of weights.
    target = PRIVATE_PIXELS if private else max(48, min(256, 98304 // image.in_c))
    block_images, block_rows = cut_blocks(shape.n, rows.count, columns.count, target)
    row_blocks = ceil_div(rows.count, block_rows)
    blocks = ceil_div(shape.n, block_images) * row_blocks
    if private:
        item_panels, items = 1, all_panels
    else:
        most = 4 if taps.copied else all_panels
        item_panels = ceil_div(all_panels, min(all_panels, ceil_div(MIN_ITEMS, blocks), most))
        items = blocks * ceil_div(all_panels, item_panels)
    by_tiles = item_panels * panel_floats <= FEW_WEIGHTS
    return GatherCut(
        panels, int(taps.copied), int(private), int(by_tiles), block_images, block_rows,
        row_blocks, blocks, item_panels, items,
    )  # fmt: skip


def _correlation_blocking(
    shape: ConvShape, rows: _Grid, columns: _Grid, *, backward: bool, threads: int
) -> KernelBlocking[DirectCorrelation]:
    image = images_of(shape, backward=backward)
    taps = _taps_of(shape, rows, columns, backward=backward)
    cut = _cut(shape, image, rows, columns, taps)
    all_panels = cut.panels * image.groups
    (low_h, high_h), (low_w, high_w) = _tap_range(rows), _tap_range(columns)
    window_h, window_w, window_floats = image.in_h, image.in_w, 0
    if taps.copied:
        window_h = (cut.block_rows - 1) * rows.in_step + high_h - low_h + 1
        window_w = (columns.count - 1) * columns.in_step + high_w - low_w + 1
        window_floats = aligned(cut.block_images * window_h * window_w * image.in_c)
    capacity = cut.block_images * cut.block_rows * columns.count + ROWS
    weight_floats = taps.count * taps.run * PANEL  # of a panel
    shared = 1 if cut.private else all_panels
    tables = _phase_tables(taps, low_h, low_w, window_w, image.in_c, shape.cg, shared)
    # The tables lie at 0. Positions and sizes are in floats, an int64 being two of them.
    rows_at, bias_at, packed_at, window_at, size_floats = place(
        2 * len(tables),
        2 * 2 * capacity * threads,
        image.out_c + PANEL,
        aligned(weight_floats) * threads if cut.private else all_panels * weight_floats,
        window_floats * threads,
    )[1:]
    tap_table = PHASE_FIELDS * len(taps.phases)
    weight_row = shape.r * shape.s * shape.cg
    numbers = DirectCorrelation(
        image,
        Gather(rows.first, rows.count, columns.first, columns.count, rows.in_step, columns.in_step,
               rows.out_step, columns.out_step, low_h, low_w),
        GatherTaps(len(taps.phases), taps.count, taps.run, weight_row, int(backward)),
        cut,
        GatherPlaces(window_h, window_w, capacity, tap_table, tap_table + taps.count, rows_at // 2,
               bias_at, packed_at, aligned(weight_floats), window_at, window_floats),
    )  # fmt: skip
    early_chunk = chunk_items(all_panels * len(taps.phases), PACK_FLOPS * shape.k * weight_row)
    chunk = chunk_items(cut.items, shape.flops)
    return KernelBlocking(numbers, size_floats, chunk, early_chunk, tables)


def _phase_tables(
    taps: _Taps, low_h: int, low_w: int, window_w: int, in_c: int, filter_channels: int, shared: int
) -> tuple[int, ...]:
    """Phase records, then for each tap its offset in the window, then its offset in a filter.

    Args:
        shared: panels whose weights of one phase lie together: all, or 1 where each item packs its
            own panel, which then holds its phases one after another.
    """
    records: list[int] = []
    offsets: list[int] = []
    sources: list[int] = []
    for phase in taps.phases:
        first = len(offsets)
        weights = first * taps.run * PANEL * shared
        records += [phase.shift_h, phase.shift_w, first, len(phase.taps), weights]
        records += [0] * (PHASE_FIELDS - 5)
        offsets += [((y - low_h) * window_w + x - low_w) * in_c for y, x, _ in phase.taps]
        sources += [position * filter_channels for _, _, position in phase.taps]
    return tuple(records + offsets + sources)


@lru_cache(maxsize=1024)
def forward_blocking(shape: ConvShape, threads: int) -> KernelBlocking[DirectCorrelation]:
    """The gather that computes y from x."""
    top, _, left, _ = shape.padding
    rows = forward_axis(shape.oh, shape.r, shape.stride[0], shape.dilation[0], top)
    columns = forward_axis(shape.ow, shape.s, shape.stride[1], shape.dilation[1], left)
    return _correlation_blocking(shape, rows, columns, backward=False, threads=threads)


@lru_cache(maxsize=1024)
def grad_input_blocking(shape: ConvShape, threads: int) -> KernelBlocking[DirectCorrelation]:
    """The gather that computes dx from dy."""
    top, _, left, _ = shape.padding
    rows = backward_axis(shape.h, shape.r, shape.stride[0], shape.dilation[0], top)
    columns = backward_axis(shape.w, shape.s, shape.stride[1], shape.dilation[1], left)
    return _correlation_blocking(shape, rows, columns, backward=True, threads=threads)
