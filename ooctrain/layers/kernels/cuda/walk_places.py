"""Where the items of a walk lie, and tiles for walks whose neighbours lie apart.

A walk (`../walks.py`) visits a result in its memory order and reads operands with other steps. The
number of an item, an element or four neighbours, gives its place along each axis and so where the
operands' items lie. The host knows the extents, so each division is a product and a shift
(`chunks.divisor`). Where neighbours in the result are none in the operand, a block reads a tile
along the operand's own neighbours, and writes it along the result's: both in whole sectors, by way
of shared memory. Read next: `strided.py`, `layout.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.chunks import QUAD, THREADS, divisor
from ooctrain.layers.kernels.cuda.columns import at
from ooctrain.layers.kernels.cuda.quads import parted
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import (
    cuda,
    device,
    float32,
    int64,
    kernel,
    uint32,
    uint64,
)
from ooctrain.layers.kernels.signature import F4, U4, F4s, I8x2, I8x7, U4x2, U4x6, U4x15
from ooctrain.layers.kernels.walks import Steps, StridedWalk

Array = Any
ONE = np.uint32(1)
#: Items of a launch are counted with 31 bits.
MOST_ITEMS = (1 << 31) - 1
#: A tile is TILE_SIDE squared; its rows lie one word further apart, so that a column, too, is read
#: from all banks of shared memory at once.
TILE_SIDE = 32
TILE_PITCH = TILE_SIDE + 1
TILE_WORDS = TILE_SIDE * TILE_PITCH
TILE_STEP = THREADS // TILE_SIDE


@device
def further_along(e, by, step_a, step_b, a, b):
    """Takes one axis off the number of an item: (what is left of it, where two operands lie).

    Most axes of a walk have one element, and cost a comparison.
    """
    if by[0] == ONE:
        return e, a, b
    outer, place = parted(e, by)
    return outer, a + int64(place) * step_a, b + int64(place) * step_b


@device
def offsets_of(e, axes, steps_a, steps_b):
    """Where two operands have the e-th item of a result.

    Args:
        axes: for the last five axes what `chunks.divisor` gives.
        steps: steps of six axes, then where the first item lies.
    """
    a, b = steps_a[6], steps_b[6]
    e, a, b = further_along(e, axes[12:15], steps_a[5], steps_b[5], a, b)
    e, a, b = further_along(e, axes[9:12], steps_a[4], steps_b[4], a, b)
    e, a, b = further_along(e, axes[6:9], steps_a[3], steps_b[3], a, b)
    e, a, b = further_along(e, axes[3:6], steps_a[2], steps_b[2], a, b)
    e, a, b = further_along(e, axes[0:3], steps_a[1], steps_b[1], a, b)
    return a + int64(e) * steps_a[0], b + int64(e) * steps_b[0]


@kernel(threads=THREADS)
def _read_tile(
    x: F4s, y: F4s, factor: F4, extents: U4x2, apart: I8x2, tiles: U4x6, axes: U4x15, steps_x: I8x7,
    steps_y: I8x7,
):  # fmt: skip
    """y = factor * x along the walk, for a tile of two of its axes: the i-th is the last of the
    result and `apart[0]` elements apart in x, the j-th the last of x and `apart[1]` apart in y.
    """
    tile = cuda.shared.array(TILE_WORDS, float32)
    rows, columns = extents
    lane = uint32(uint32(cuda.threadIdx.x) % uint32(TILE_SIDE))
    line = uint32(uint32(cuda.threadIdx.x) // uint32(TILE_SIDE))
    rest, j0 = parted(uint32(cuda.blockIdx.x), tiles[3:6])
    outer, i0 = parted(rest, tiles[0:3])
    i0, j0 = uint32(i0 * uint32(TILE_SIDE)), uint32(j0 * uint32(TILE_SIDE))
    from_x, to_y = offsets_of(outer, axes, steps_x, steps_y)
    i, j = uint32(i0 + line), uint32(j0 + lane)
    from_x += int64(i) * apart[0] + int64(j)
    further = apart[0] * int64(TILE_STEP)
    place = uint32(line * uint32(TILE_PITCH) + lane)
    if j < columns:
        for _ in range(0, TILE_SIDE, TILE_STEP):
            if i < rows:
                tile[place] = at(x, from_x)
            i, from_x = uint32(i + uint32(TILE_STEP)), from_x + further
            place = uint32(place + uint32(TILE_STEP * TILE_PITCH))
    cuda.syncthreads()
    i, j = uint32(i0 + lane), uint32(j0 + line)
    to_y += int64(j) * apart[1] + int64(i)
    further = apart[1] * int64(TILE_STEP)
    place = uint32(lane * uint32(TILE_PITCH) + line)
    if i < rows:
        for _ in range(0, TILE_SIDE, TILE_STEP):
            if j < columns:
                y[uint64(to_y)] = factor * tile[place]
            j, to_y = uint32(j + uint32(TILE_STEP)), to_y + further
            place = uint32(place + uint32(TILE_STEP))


@kernel(threads=THREADS)
def _transpose(x: F4s, y: F4s, rows: U4, columns: U4, column_tiles: U4):
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


def parts(
    way: StridedWalk, quads: bool, begin: int = 0
) -> Iterator[tuple[int, int, Steps, list[Steps]]]:
    """(items, where the result begins, axes, steps of the operands) of the launches of a walk.

    An item is an element or a quad. Kernels count items with 31 bits, so that a walk of more is cut
    along its first axis.

    Args:
        begin: where operands begin.
    """
    size = QUAD if quads else 1
    extents = [*way.extents[:-1], way.extents[-1] // size]
    axis = next((i for i, extent in enumerate(extents) if extent > 1), len(extents) - 1)
    of_one = math.prod(extents[axis + 1 :])
    most = max(1, MOST_ITEMS // of_one)
    axes = tuple(number for extent in extents[1:] for number in divisor(extent))
    for start in range(0, extents[axis], most):
        count = min(most, extents[axis] - start)
        steps = []
        for of_operand in way.steps:
            *outer, last = of_operand
            along = *outer, last * size
            steps.append((*along, begin + start * along[axis]))
        yield count * of_one, start * of_one * size, axes, steps


def read_tiles(
    launcher: Launcher, x: Array, y: Array, factor: float, way: StridedWalk, begin: int = 0
) -> None:
    """y = factor * x along a walk of one operand whose last step is not 1, from `begin` on."""
    extents, (steps,), last = way.extents, way.steps, len(way.extents) - 1
    of_result = [math.prod(extents[axis + 1 :]) for axis in range(len(extents))]
    column = next((a for a in range(last) if steps[a] == 1 and extents[a] > 1), None)
    if column is None:  # nothing of x lies side by side in y, either
        extents, column = (*extents[1:], 1), last
        steps, of_result = (*steps[1:], 1), [*of_result[1:], 1]
        last -= 1
    tiled = column, last
    others = [1 if axis in tiled else extent for axis, extent in enumerate(extents)]
    sides = [blocks_for(extents[axis], TILE_SIDE) for axis in (last, column)]
    axes = tuple(number for extent in others[1:] for number in divisor(extent))
    blocks = math.prod(others) * math.prod(sides)
    launcher.launch(
        _read_tile, blocks, x, y, factor, (extents[last], extents[column]),
        (steps[last], of_result[column]), divisor(sides[0]) + divisor(sides[1]), axes,
        (*steps, begin), (*of_result, 0),
    )  # fmt: skip


def transpose_batch(launcher: Launcher, x: Array, y: Array, *sizes: int) -> None:
    """y[b, j, i] = x[b, i, j], to the bit; `sizes`: (batch, rows, columns) of x."""
    batch, rows, columns = sizes
    row_tiles, column_tiles = blocks_for(rows, TILE_SIDE), blocks_for(columns, TILE_SIDE)
    blocks = row_tiles * column_tiles, batch
    launcher.launch(_transpose, blocks, x, y, rows, columns, column_tiles)
