"""Moving blocks of NHWC arrays: slices, inserts, zero padding, layout changes.

Slice and insert are one kernel, which copies a block of runs (contiguous channels) between two
arrays, each with its own strides. Where every run and stride is a multiple of four elements it
moves quads, else elements. A thread computes where its first quad or element lies, walks from
there, and loads all of them before it stores any. Inserts write only their region and leave the
rest of `dst` unchanged, as tiles require. A transposition goes through a tile of shared memory, so
that reads and writes are both contiguous. Read next: `dropout.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.chunks import QUAD, THREADS
from ooctrain.layers.kernels.cuda.conv.columns import at
from ooctrain.layers.kernels.cuda.pointwise import named_after
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

Array = Any
Index = tuple[int, int, int, int]
ZERO, U1 = np.float32(0), np.uint32(1)
#: Quads or elements that a thread moves, and has under way at once.
MOVES = 4
VALUES = MOVES * QUAD
#: A tile of a transposition is TILE_SIDE squared; its rows lie one word further apart, so that a
#: column, too, is read from all banks of shared memory at once.
TILE_SIDE = 32
TILE_PITCH = TILE_SIDE + 1
TILE_WORDS = TILE_SIDE * TILE_PITCH
TILE_STEP = THREADS // TILE_SIDE

_BOX = "UniTuple(i8, 4)"
_MOVE = f"void(f4[::1], f4[::1], i8, UniTuple(u4, 3), UniTuple(u4, 4), {_BOX}, {_BOX})"
_EMBED = f"void(f4[::1], f4[::1], UniTuple(u4, 3), UniTuple(u4, 4), {_BOX}, {_BOX}, f4)"


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

    def by_elements(src, dst, elements, extent, by, source, target):
        places = cuda.local.array(MOVES, int64)
        values = cuda.local.array(MOVES, float32)
        where = where_is(item_of(cuda.blockIdx.x, cuda.threadIdx.x, 0), extent)
        for move in range(MOVES):
            if item_of(cuda.blockIdx.x, cuda.threadIdx.x, move) < elements:
                places[move] = place_in(target, where)
                old, new = at(dst, places[move]), at(src, place_in(source, where))
                values[move] = combine(old, new)
            where = further(where, by, extent)
        for move in range(MOVES):
            if item_of(cuda.blockIdx.x, cuda.threadIdx.x, move) < elements:
                dst[uint64(places[move])] = values[move]

    def by_quads(src, dst, elements, extent, by, source, target):
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

    as_kernel = kernel(_MOVE, threads=THREADS)
    return (
        as_kernel(named_after(combine, by_elements, "_elements")),
        as_kernel(named_after(combine, by_quads, "_quads")),
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


@kernel(_EMBED, threads=THREADS)
def _embed_elements(x, y, whole, by, start, part, value):
    values = cuda.local.array(MOVES, float32)
    where = where_is(item_of(cuda.blockIdx.x, cuda.threadIdx.x, 0), whole)
    for move in range(MOVES):
        i = place_in_part(where, start, part)
        inside = i >= 0 and item_of(cuda.blockIdx.x, cuda.threadIdx.x, move) < y.size
        values[move] = at(x, i) if inside else value
        where = further(where, by, whole)
    for move in range(MOVES):
        e = item_of(cuda.blockIdx.x, cuda.threadIdx.x, move)
        if e < y.size:
            y[uint64(e)] = values[move]


@kernel(_EMBED, threads=THREADS)
def _embed_quads(x, y, whole, by, start, part, value):
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


@kernel("void(f4[::1], f4[::1], u4, u4, u4)", threads=THREADS)
def _transpose(x, y, rows, columns, column_tiles):
    """y[b, j, i] = x[b, i, j]; a block takes one tile of one matrix."""
    tile = cuda.shared.array(TILE_WORDS, float32)
    lane, line = uint32(cuda.threadIdx.x % TILE_SIDE), uint32(cuda.threadIdx.x // TILE_SIDE)
    block = uint32(cuda.blockIdx.x)
    i0 = uint32(uint32(block // column_tiles) * uint32(TILE_SIDE))
    j0 = uint32(uint32(block % column_tiles) * uint32(TILE_SIDE))
    base = int64(cuda.blockIdx.y) * int64(rows) * int64(columns)
    for k in range(0, TILE_SIDE, TILE_STEP):
        i, j = uint32(i0 + line + uint32(k)), uint32(j0 + lane)
        if i < rows and j < columns:
            value = at(x, base + int64(i) * int64(columns) + int64(j))
            tile[(line + uint32(k)) * uint32(TILE_PITCH) + lane] = value
    cuda.syncthreads()
    for k in range(0, TILE_SIDE, TILE_STEP):
        i, j = uint32(i0 + lane), uint32(j0 + line + uint32(k))
        if i < rows and j < columns:
            value = tile[lane * uint32(TILE_PITCH) + line + uint32(k)]
            y[uint64(base + int64(j) * int64(rows) + int64(i))] = value


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
    quads = not any(extent % QUAD for extent in (x.shape[3], y.shape[3], start[3]))
    items, whole = y.size // QUAD if quads else y.size, y.shape[1:]
    launcher.launch(
        _embed_quads if quads else _embed_elements, blocks_for(items, MOVES * THREADS),
        x, y, whole, _steps(whole, quads), start, x.shape, value,
    )  # fmt: skip


def pad_nhwc(launcher: Launcher, x: Array, y: Array, sides: Index, value: float = 0.0) -> None:
    """y = x with a border of `value`, of `sides` (top, bottom, left, right)."""
    embed_nhwc(launcher, x, y, (0, sides[0], sides[2], 0), value)


def nchw_to_nhwc(launcher: Launcher, x: Array, y: Array) -> None:
    """y[n, h, w, c] = x[n, c, h, w]; x may be flat."""
    n, h, w, c = y.shape
    _transpose_batch(launcher, x, y, n, c, h * w)


def nhwc_to_nchw(launcher: Launcher, x: Array, y: Array) -> None:
    """y[n, c, h, w] = x[n, h, w, c]; y may be flat."""
    n, h, w, c = x.shape
    _transpose_batch(launcher, x, y, n, h * w, c)


def transpose(launcher: Launcher, x: Array, y: Array) -> None:
    """y = x with its last two axes exchanged; 2-d, or 3-d for a batch of matrices."""
    rows, columns = x.shape[-2:]
    _transpose_batch(launcher, x, y, x.size // (rows * columns), rows, columns)


def _transpose_batch(launcher, x, y, batch, rows, columns) -> None:
    row_tiles, column_tiles = blocks_for(rows, TILE_SIDE), blocks_for(columns, TILE_SIDE)
    blocks = row_tiles * column_tiles, batch
    launcher.launch(_transpose, blocks, x, y, rows, columns, column_tiles)


def _move(launcher, kernels, src, src_at, dst, dst_at, extent) -> None:
    """Starts a kernel over a block; whole pixels are merged into longer runs."""
    batch, height, width, run = extent
    source, target = _offset_and_strides(src, src_at), _offset_and_strides(dst, dst_at)
    if src.shape[3] == run == dst.shape[3]:
        width, run = 1, width * run
    quads = not any(number % QUAD for number in (run, *source, *target))
    elements = batch * height * width * run
    blocks = blocks_for(elements, MOVES * THREADS * (QUAD if quads else 1))
    inner = height, width, run
    launcher.launch(
        kernels[quads], blocks, src, dst, elements, inner, _steps(inner, quads), source, target
    )


def _steps(extent: tuple[int, ...], quads: bool) -> Index:
    """How far the next element of a thread lies behind one, as an index of a block."""
    height, width, run = extent
    rows, k = divmod(THREADS * (QUAD if quads else 1), run)
    planes, w = divmod(rows, width)
    n, h = divmod(planes, height)
    return n, h, w, k


def _offset_and_strides(array: Array, at_index: Index) -> Index:
    """Element offset of an index, and the strides of n, h and w in elements."""
    _, h, w, c = array.shape
    offset = ((at_index[0] * h + at_index[1]) * w + at_index[2]) * c + at_index[3]
    return offset, h * w * c, w * c, c
