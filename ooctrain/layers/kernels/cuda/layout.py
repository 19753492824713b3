"""Moving blocks: slices, inserts, zero padding, layout changes.

In and out: NHWC arrays. The one idea: slice and insert are one kernel, the copy of a block
of runs (contiguous channels) between two arrays with strides of their own; where every run and
stride is a multiple of four elements it moves quads, else elements. Inserts write only their region
and leave the rest of `dst` as it is, which is what tiles need. A transposition goes through a tile
of shared memory, so that reads and writes are both contiguous. Read next: `dropout.py`.
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
ZERO = np.float32(0)
#: Quads or elements that a thread moves.
MOVES = 2
#: A tile of a transposition is TILE_SIDE squared; its rows lie one word further apart, so that a
#: column, too, is read from all banks of shared memory at once.
TILE_SIDE = 32
TILE_PITCH = TILE_SIDE + 1
TILE_WORDS = TILE_SIDE * TILE_PITCH
TILE_STEP = THREADS // TILE_SIDE

_MOVE = "void(f4[::1], f4[::1], i8, UniTuple(i8, 3), UniTuple(i8, 4), UniTuple(i8, 4))"
_EMBED = "void(f4[::1], f4[::1], UniTuple(i8, 3), UniTuple(i8, 4), UniTuple(i8, 4), f4)"


@device
def place_in(box, n, h, w):
    """Index of the run (n, h, w) of a block that lies in an array as `box` says."""
    return box[0] + n * box[1] + h * box[2] + w * box[3]


@device
def places(e, extent, source, target):
    """Where the e-th element of a block lies in both arrays."""
    height, width, run = extent
    row = e // run
    k, w, plane = e - row * run, row % width, row // width
    n, h = plane // height, plane % height
    return place_in(source, n, h, w) + k, place_in(target, n, h, w) + k


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

    def by_elements(src, dst, elements, extent, source, target):
        for move in range(MOVES):
            e = item_of(cuda.blockIdx.x, cuda.threadIdx.x, move)
            if e < elements:
                i, j = places(e, extent, source, target)
                dst[uint64(j)] = combine(at(dst, j), at(src, i))

    def by_quads(src, dst, elements, extent, source, target):
        for move in range(MOVES):
            e = item_of(cuda.blockIdx.x, cuda.threadIdx.x, move) * QUAD
            if e < elements:
                i, j = places(e, extent, source, target)
                a, b = ld4(dst, j), ld4(src, i)
                st4(dst, j, (
                    combine(a[0], b[0]), combine(a[1], b[1]),
                    combine(a[2], b[2]), combine(a[3], b[3]),
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
def place_in_part(e, whole, start, part):
    """Where the e-th element of a whole (height, width, channels) lies in a part of it at `start`;
    -1 outside.
    """
    row = e // whole[2]
    plane = row // whole[1]
    c, w = e - row * whole[2] - start[3], row % whole[1] - start[2]
    h, n = plane % whole[0] - start[1], plane // whole[0] - start[0]
    inside = 0 <= c < part[3] and 0 <= w < part[2] and 0 <= h < part[1] and 0 <= n < part[0]
    return ((n * part[1] + h) * part[2] + w) * part[3] + c if inside else int64(-1)


@kernel(_EMBED, threads=THREADS)
def _embed_elements(x, y, whole, start, part, value):
    for move in range(MOVES):
        e = item_of(cuda.blockIdx.x, cuda.threadIdx.x, move)
        if e < y.size:
            i = place_in_part(e, whole, start, part)
            y[uint64(e)] = at(x, i) if i >= 0 else value


@kernel(_EMBED, threads=THREADS)
def _embed_quads(x, y, whole, start, part, value):
    for move in range(MOVES):
        e = item_of(cuda.blockIdx.x, cuda.threadIdx.x, move) * QUAD
        if e < y.size:
            i = place_in_part(e, whole, start, part)
            quad = (value, value, value, value)
            if i >= 0:
                quad = ld4(x, i)
            st4(y, e, quad)


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
    items = y.size // QUAD if quads else y.size
    launcher.launch(
        _embed_quads if quads else _embed_elements, blocks_for(items, MOVES * THREADS),
        x, y, y.shape[1:], start, x.shape, value,
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
    launcher.launch(
        kernels[quads], blocks, src, dst, elements, (height, width, run), source, target
    )


def _offset_and_strides(array: Array, at_index: Index) -> Index:
    """Element offset of an index, and the strides of n, h and w in elements."""
    _, h, w, c = array.shape
    offset = ((at_index[0] * h + at_index[1]) * w + at_index[2]) * c + at_index[3]
    return offset, h * w * c, w * c, c
