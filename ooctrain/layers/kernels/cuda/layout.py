"""Blocks of an array moved elsewhere on the GPU: slices, inserts, padding, changes of layout.

Arrays are NHWC. Slice and insert are one kernel, which copies a block of runs (contiguous channels)
between two arrays, each with its own strides. Where every run and stride is a multiple of four
elements it moves quads: a thread computes where its first one lies, walks from there, and loads all
of them before it stores any. Else it keeps its place in a run and takes one element of each of some
rows, so that only rows have to be walked. Inserts write only their region and leave the rest of
`dst` unchanged, as tiles require. Read next: `walk_places.py`, `dropout.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ooctrain.errors import ShapeError
from ooctrain.layers.combine import Concat
from ooctrain.layers.kernels.cuda import elementwise
from ooctrain.layers.kernels.cuda.chunks import QUAD, THREADS, divisor
from ooctrain.layers.kernels.cuda.columns import at
from ooctrain.layers.kernels.cuda.functions import named_after
from ooctrain.layers.kernels.cuda.quads import parted
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, st4
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import (
    Kernel,
    cuda,
    device,
    float32,
    int64,
    kernel,
    uint32,
    uint64,
)
from ooctrain.layers.kernels.cuda.walk_places import transpose_batch
from ooctrain.layers.kernels.signature import F4, I8, F4s, I8x4, I8x6, U4x3, U4x4, U4x17
from ooctrain.layers.layout import Reshape, logical_in_memory

Array = Any
Index = tuple[int, int, int, int]
ZERO, U1 = np.float32(0), np.uint32(1)
#: Quads that a thread moves, and has under way at once; and rows of which it takes an element each.
MOVES, ROWS = 4, 8
MOST_ROWS = (1 << 31) - 1
VALUES = MOVES * QUAD


@device
def place_in(box, where):
    """Index of an element of a block in an array where the block lies as `box` says."""
    n, h, w, k = where
    return box[0] + int64(n) * box[1] + int64(h) * box[2] + int64(w) * box[3] + int64(k)


@device
def where_is(e, extent):
    """The index (n, h, w, k) of the e-th element of a block."""
    height, width, run = extent
    row = e // int64(run)
    plane = row // int64(width)
    n = plane // int64(height)
    h, w = uint32(plane - n * int64(height)), uint32(row - plane * int64(width))
    return uint32(n), h, w, uint32(e - row * int64(run))


@device
def further(where, by, extent):
    """The index that lies `by` behind another: a sum with carries, since divisions are dear."""
    height, width, run = extent
    k = uint32(where[3] + by[3])
    w = uint32(where[2] + by[2])
    h = uint32(where[1] + by[1])
    n = uint32(where[0] + by[0])
    if k >= run:
        k, w = uint32(k - run), uint32(w + U1)
    if w >= width:
        w, h = uint32(w - width), uint32(h + U1)
    if h >= height:
        h, n = uint32(h - height), uint32(n + U1)
    return n, h, w, k


@device
def row_of_thread(block, thread, cut):
    """The index (n, h, w, k) of a thread's first element; h is out of range for threads without an
    element.

    Args:
        cut: what `_rows` gives.
    """
    rest, stretch = parted(uint32(block), cut[0:3])
    n, group = parted(rest, cut[3:6])
    line, k = parted(uint32(thread), cut[6:9])
    h, w = parted(uint32(group * uint32(cut[14] * uint32(ROWS)) + line), cut[9:12])
    k = uint32(k + uint32(stretch * uint32(THREADS)))
    return n, h if line < cut[14] and k < cut[13] else cut[12], w, k


@device
def next_row(h, w, cut):
    """(h, w, whether w began anew) of a thread's next row."""
    h, w = uint32(h + cut[15]), uint32(w + cut[16])
    if w < cut[9]:
        return h, w, False
    return uint32(h + U1), uint32(w - cut[9]), True


@device
def within(place, start, extent):
    """start <= place < start + extent: below `start` the difference wraps around."""
    return uint32(place - start) < extent


@device
def item_of(block, thread, move):
    """Number of the quad or element that a thread moves in its `move`-th turn."""
    return (int64(block) * MOVES + move) * THREADS + int64(thread)


@device
def copied(old, new):
    """new."""
    return new


@device
def added(old, new):
    """old + new."""
    return old + new


@device
def cleared(old, new):
    """0."""
    return ZERO


def _moving(combine: Any) -> tuple[Kernel, Kernel]:
    """Kernels dst = combine(dst, src) over a block, by elements and by quads."""

    def by_rows(src: F4s, dst: F4s, cut: U4x17, source: I8x6, target: I8x6):
        places = cuda.local.array(ROWS, int64)
        values = cuda.local.array(ROWS, float32)
        n, h, w, k = row_of_thread(cuda.blockIdx.x, cuda.threadIdx.x, cut)
        if h >= cut[12]:
            return
        here, there = place_in(source, (n, h, w, k)), place_in(target, (n, h, w, k))
        count = uint32(0)
        for move in range(ROWS):
            if h < cut[12]:
                places[move] = there
                values[move] = combine(at(dst, there), at(src, here))
                count = uint32(move + 1)
            h, w, wraps = next_row(h, w, cut)
            here, there = here + source[4], there + target[4]
            if wraps:
                here, there = here + source[5], there + target[5]
        for move in range(ROWS):
            if uint32(move) < count:
                dst[uint64(places[move])] = values[move]

    def by_quads(
        src: F4s, dst: F4s, elements: I8, extent: U4x3, by: U4x4, source: I8x4, target: I8x4
    ):
        places = cuda.local.array(MOVES, int64)
        values = cuda.local.array(VALUES, float32)
        where = where_is(item_of(cuda.blockIdx.x, cuda.threadIdx.x, 0) * QUAD, extent)
        for move in range(MOVES):
            if item_of(cuda.blockIdx.x, cuda.threadIdx.x, move) * QUAD < elements:
                places[move] = place_in(target, where)
                a, b = ld4(dst, places[move]), ld4(src, place_in(source, where))
                first = move * QUAD
                values[first], values[first + 1] = combine(a[0], b[0]), combine(a[1], b[1])
                values[first + 2], values[first + 3] = combine(a[2], b[2]), combine(a[3], b[3])
            where = further(where, by, extent)
        for move in range(MOVES):
            if item_of(cuda.blockIdx.x, cuda.threadIdx.x, move) * QUAD < elements:
                first = move * QUAD
                st4(dst, places[move], (
                    values[first], values[first + 1], values[first + 2], values[first + 3],
                ))  # fmt: skip

    return (
        kernel(threads=THREADS)(named_after(combine, by_rows, "_elements")),
        kernel(threads=THREADS)(named_after(combine, by_quads, "_quads")),
    )


_copy_elements, _copy_quads = _moving(copied)
_add_elements, _add_quads = _moving(added)
_clear_elements, _clear_quads = _moving(cleared)


@device
def place_in_part(where, start, part):
    """Where an element of a whole lies in a part of it at `start`; -1 outside."""
    n, h = int64(where[0]) - start[0], int64(where[1]) - start[1]
    w, c = int64(where[2]) - start[2], int64(where[3]) - start[3]
    inside = 0 <= c < part[3] and 0 <= w < part[2] and 0 <= h < part[1] and 0 <= n < part[0]
    return ((n * part[1] + h) * part[2] + w) * part[3] + c if inside else int64(-1)


@kernel(threads=THREADS)
def _embed_elements(
    x: F4s, y: F4s, cut: U4x17, source: I8x6, target: I8x6, start: U4x4, part: U4x4, value: F4,
):  # fmt: skip
    """`start`, `part`: where x begins in y, and its extents, each along n, h, w and k."""
    values = cuda.local.array(ROWS, float32)
    n, h, w, k = row_of_thread(cuda.blockIdx.x, cuda.threadIdx.x, cut)
    if h >= cut[12]:
        return
    here, there = place_in(source, (n, h, w, k)), place_in(target, (n, h, w, k))
    inside, count = within(n, start[0], part[0]) and within(k, start[3], part[3]), uint32(0)
    for move in range(ROWS):
        values[move] = value
        if inside and within(h, start[1], part[1]) and within(w, start[2], part[2]):
            values[move] = at(x, here)
        if h < cut[12]:
            count = uint32(move + 1)
        h, w, wraps = next_row(h, w, cut)
        here += source[4]
        if wraps:
            here += source[5]
    for move in range(ROWS):
        if uint32(move) < count:
            y[uint64(there)] = values[move]
        there += target[4]  # rows of the whole lie one behind the other


@kernel(threads=THREADS)
def _embed_quads(x: F4s, y: F4s, whole: U4x3, by: U4x4, start: I8x4, part: I8x4, value: F4):
    values = cuda.local.array(VALUES, float32)
    where = where_is(item_of(cuda.blockIdx.x, cuda.threadIdx.x, 0) * QUAD, whole)
    for move in range(MOVES):
        i, first = place_in_part(where, start, part), move * QUAD
        quad = (value, value, value, value)
        if i >= 0 and item_of(cuda.blockIdx.x, cuda.threadIdx.x, move) * QUAD < y.size:
            quad = ld4(x, i)
        values[first], values[first + 1] = quad[0], quad[1]
        values[first + 2], values[first + 3] = quad[2], quad[3]
        where = further(where, by, whole)
    for move in range(MOVES):
        e, first = item_of(cuda.blockIdx.x, cuda.threadIdx.x, move) * QUAD, move * QUAD
        if e < y.size:
            st4(y, e, (
                values[first], values[first + 1], values[first + 2], values[first + 3],
            ))  # fmt: skip


def slice_nhwc(launcher: Launcher, x: Array, y: Array, n0: int, h0: int, w0: int, c0: int) -> None:
    """y = x[n0:, h0:, w0:, c0:], as much as y holds."""
    _move(launcher, (_copy_elements, _copy_quads), x, (n0, h0, w0, c0), y, (0, 0, 0, 0), y.shape)


def insert_nhwc(
    launcher: Launcher, src: Array, dst: Array, n0: int, h0: int, w0: int, c0: int
) -> None:
    """dst[n0:, h0:, w0:, c0:] = src, in place; a concat is one insert per input."""
    kernels = _copy_elements, _copy_quads
    _move(launcher, kernels, src, (0, 0, 0, 0), dst, (n0, h0, w0, c0), src.shape)


def insert_add_nhwc(
    launcher: Launcher, src: Array, dst: Array, n0: int, h0: int, w0: int, c0: int
) -> None:
    """dst[n0:, h0:, w0:, c0:] += src, in place."""
    kernels = _add_elements, _add_quads
    _move(launcher, kernels, src, (0, 0, 0, 0), dst, (n0, h0, w0, c0), src.shape)


def clear_nhwc(launcher: Launcher, dst: Array, at_index: Index, extent: Index) -> None:
    """dst = 0 in the block of `extent` at `at_index`, in place."""
    _move(launcher, (_clear_elements, _clear_quads), dst, at_index, dst, at_index, extent)


def embed_nhwc(launcher: Launcher, x: Array, y: Array, start: Index, value: float = 0.0) -> None:
    """y = value, but for the block at `start`, which is x."""
    if not any(extent % QUAD for extent in (x.shape[3], y.shape[3], start[3])):
        whole, blocks = y.shape[1:], blocks_for(y.size // QUAD, MOVES * THREADS)
        launcher.launch(_embed_quads, blocks, x, y, whole, _steps(whole), start, x.shape, value)
        return
    part, whole = x.shape, y.shape
    if part[3] == whole[3]:  # whole pixels: rows of an image are runs
        part, whole, start = (
            (n, h, 1, w * c) for (n, h, w, _), c in
            ((part, whole[3]), (whole, whole[3]), ((*start[:2], start[2], 0), whole[3]))
        )  # fmt: skip
        start = *start[:2], 0, start[3]
    strides = [(h * w * c, w * c, c) for _, h, w, c in (part, whole)]
    first = -sum(a * b for a, b in zip(start, (*strides[0], 1), strict=True))
    boxes = (first, *strides[0]), (0, *strides[1])
    for blocks, cut, source, target in _rows(whole, *boxes):
        launcher.launch(_embed_elements, blocks, x, y, cut, source, target, start, part, value)


def pad_nhwc(launcher: Launcher, x: Array, y: Array, sides: Index, value: float = 0.0) -> None:
    """y = x with a border of `value`, of `sides` (top, bottom, left, right)."""
    embed_nhwc(launcher, x, y, (0, sides[0], sides[2], 0), value)


def nchw_to_nhwc(launcher: Launcher, x: Array, y: Array) -> None:
    """y[n, h, w, c] = x[n, c, h, w]; x may be flat."""
    n, h, w, c = y.shape
    transpose_batch(launcher, x, y, n, c, h * w)


def nhwc_to_nchw(launcher: Launcher, x: Array, y: Array) -> None:
    """y[n, c, h, w] = x[n, h, w, c]; y may be flat."""
    n, h, w, c = x.shape
    transpose_batch(launcher, x, y, n, h * w, c)


def transpose(launcher: Launcher, x: Array, y: Array) -> None:
    """y = x with its last two axes exchanged; 2-d, or 3-d for a batch of matrices."""
    rows, columns = x.shape[-2:]
    transpose_batch(launcher, x, y, x.size // (rows * columns), rows, columns)


def _move(launcher, kernels, src, src_at, dst, dst_at, extent) -> None:
    """Starts a kernel over a block; whole pixels are merged into longer runs."""
    batch, height, width, run = extent
    source, target = _offset_and_strides(src, src_at), _offset_and_strides(dst, dst_at)
    if src.shape[3] == run == dst.shape[3]:
        width, run = 1, width * run
    if any(number % QUAD for number in (run, *source, *target)):
        for blocks, cut, *walks in _rows((batch, height, width, run), source, target):
            launcher.launch(kernels[False], blocks, src, dst, cut, *walks)
        return
    elements, inner = batch * height * width * run, (height, width, run)
    blocks = blocks_for(elements, MOVES * THREADS * QUAD)
    launcher.launch(kernels[True], blocks, src, dst, elements, inner, _steps(inner), source, target)


def _rows(extent: Index, source: Index, target: Index) -> Iterator[tuple[int, Index, Index, Index]]:
    """(blocks, cut, source, target) of the launches over a block, some rows of which a thread
    takes, each at the same place.

    Threads side by side take neighbours of `side` rows. A cut is, for kernels: stretches of a row
    and groups of rows, both of which blocks count; run and width, all four as `divisor` says;
    height, run, side; how far the next rows of a thread lie behind, (h, w). The walks of source and
    target are offset and strides, and what a step adds: to the next rows, and where w begins anew.
    """
    batch, height, width, run = extent
    if height * width == 1:  # images are rows
        batch, height = 1, batch
        source, target = ((a, 0, n, w) for a, n, _, w in (source, target))
    if height * width > MOST_ROWS:  # rows are images
        for image in range(batch):
            boxes = ((a + image * n, h, 0, w) for a, n, h, w in (source, target))
            yield from _rows((height, 1, width, run), *boxes)
        return
    side = max(1, THREADS // run)
    stretches, groups = blocks_for(run, THREADS), blocks_for(height * width, side * ROWS)
    down, across = divmod(side, width)
    cut = (
        *divisor(stretches), *divisor(groups), *divisor(min(run, THREADS)), *divisor(width),
        height, run, side, down, across,
    )  # fmt: skip
    walks = ((a, n, h, w, down * h + across * w, h - width * w) for a, n, h, w in (source, target))
    yield batch * groups * stretches, cut, *walks


def _steps(extent: tuple[int, ...]) -> Index:
    """How far the next quad of a thread lies behind one, as an index of a block."""
    height, width, run = extent
    rows, k = divmod(THREADS * QUAD, run)
    planes, w = divmod(rows, width)
    n, h = divmod(planes, height)
    return n, h, w, k


def _offset_and_strides(array: Array, at_index: Index) -> Index:
    """Element offset of an index, and the strides of n, h and w in elements."""
    _, h, w, c = array.shape
    offset = ((at_index[0] * h + at_index[1]) * w + at_index[2]) * c + at_index[3]
    return offset, h * w * c, w * c, c


# The same for arrays of any type of up to four axes, from physical arrays and logical starts. A
# copy depends neither on the number of axes nor on the element type: an array of fewer axes is
# treated as one of four whose first axes have length 1, and an int64 as two words of a float32's
# size. So labels and vectors go through the kernels above too.

Arrays = Sequence[Array]
Offsets = tuple[int, ...]
MOST_AXES = 4
#: Where a logical axis of an image lies in memory.
PHYSICAL_AXES = (0, 3, 1, 2)
WORD = np.dtype(np.float32)


def slice_of(launcher: Launcher, x: Array, y: Array, start: Offsets) -> None:
    """y = the block of x at logical `start`, as much as y holds."""
    slice_nhwc(launcher, _box(x), _box(y), *_first(x, start))


def insert_into(launcher: Launcher, part: Array, whole: Array, start: Offsets) -> None:
    """The block of `whole` at logical `start` = part."""
    insert_nhwc(launcher, _box(part), _box(whole), *_first(whole, start))


def insert(launcher: Launcher, x: Array, part: Array, y: Array, start: Offsets) -> None:
    """y = x with the block at logical `start` = part. `y` may be `x`."""
    copy_unless_same(launcher, x, y)
    insert_into(launcher, part, y, start)


def insert_add(launcher: Launcher, x: Array, part: Array, y: Array, start: Offsets) -> None:
    """y = x with the block at logical `start` += part; float32 only. `y` may be `x`."""
    copy_unless_same(launcher, x, y)
    insert_add_nhwc(launcher, _box(part), _box(y), *_first(y, start))


def clear(launcher: Launcher, x: Array, y: Array, start: Offsets, shape: Offsets) -> None:
    """y = x with the block of a logical shape at `start` = 0. `y` may be `x`."""
    copy_unless_same(launcher, x, y)
    clear_nhwc(launcher, _box(y), _first(y, start), _first(y, shape, 1))


def embed(launcher: Launcher, part: Array, whole: Array, start: Offsets) -> None:
    """whole = 0, but for the block at logical `start`, which is `part`."""
    embed_nhwc(launcher, _box(part), _box(whole), _first(whole, start))


def concat(launcher: Launcher, op: Concat, ins: Arrays, outs: Arrays) -> None:
    """The inputs one after the other along an axis."""
    axis = PHYSICAL_AXES[op.axis] if outs[0].ndim == MOST_AXES else op.axis
    for x, start in zip(ins, op.starts([x.shape[axis] for x in ins]), strict=True):
        insert_into(launcher, x, outs[0], op.at(x.ndim, start))


def reshape(launcher: Launcher, op: Reshape, ins: Arrays, outs: Arrays, workspace: Array) -> None:
    """The same elements in the same logical order; from image to image by way of the workspace."""
    x, y = ins[0], outs[0]
    if op.keeps_memory_order:
        copy_unless_same(launcher, x, y)
    elif logical_in_memory(op.source):
        nchw_to_nhwc(launcher, x, y)
    elif logical_in_memory(op.shape):
        nhwc_to_nchw(launcher, x, y)
    else:
        logical = launcher.part(workspace, 0, x.size, "float32")
        nhwc_to_nchw(launcher, x, logical)
        nchw_to_nhwc(launcher, logical, y)


def copy_unless_same(launcher: Launcher, x: Array, y: Array) -> None:
    """y = x, for arrays of equal size; nothing is done if both have the same storage."""
    if _address(x) != _address(y):
        elementwise.copy(launcher, _words(x), _words(y))


def _words(array: Array) -> Array:
    """The flat array, as words of four bytes."""
    return array.ravel() if array.dtype == WORD else array.ravel().view(WORD)


def _box(array: Array) -> Array:
    """The same memory with four axes."""
    if array.ndim > MOST_AXES:
        raise ShapeError("a region on a GPU has at most four axes", numbers=f"got {array.shape}")
    *outer, last = array.shape
    ones = (1,) * (MOST_AXES - array.ndim)
    return _words(array).reshape((*ones, *outer, last * array.dtype.itemsize // WORD.itemsize))


def _first(array: Array, index: Offsets, outer: int = 0) -> tuple[int, int, int, int]:
    """A logical index of an array as one of its `_box`.

    Args:
        outer: what the added axes get: 0 for an index, 1 for a shape.
    """
    if len(index) == MOST_AXES:
        n, c, h, w = index
        index = n, h, w, c
    *rest, last = index
    words = array.dtype.itemsize // WORD.itemsize
    first, second, third, fourth = (*(outer,) * (MOST_AXES - len(index)), *rest, last * words)
    return first, second, third, fourth


def _address(array: Array) -> int:
    described = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return described["data"][0]
