"""Sums and largest elements over axes, and softmax along one.

An array is seen as (outer, rows, inner); sums are (outer, inner), and softmax keeps the shape. A
sum is that of `columns.py` for each of the `outer` arrays, cut by shapes alone. Few rows are
summed by one thread for each result. A softmax takes a warp for each row, as cross-entropy does,
and so does a largest element of neighbours; each of others has a thread. Read next: `losses.py`,
`../cpu/reduction.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooctrain.layers.extremes import MaxAlong, MaxAlongGrad
from ooctrain.layers.kernels.cuda.chunks import THREADS, columns
from ooctrain.layers.kernels.cuda.columns import (
    add_compensated,
    at,
    column_of,
    column_total,
    place_of,
    rows_of_chunk,
    thread_total,
)
from ooctrain.layers.kernels.cuda.elementwise import fill
from ooctrain.layers.kernels.cuda.losses import (
    ALL_TURNS,
    AT_ONCE,
    BEFORE_LAST,
    ROWS,
    WARP,
    WHOLE_WARP,
    four_of,
    lane_exponentials,
    lane_maximum,
    lane_of,
    row_of,
)
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import (
    Kernel,
    cuda,
    device,
    float32,
    int32,
    int64,
    kernel,
    larger,
    uint32,
    uint64,
)
from ooctrain.layers.kernels.cuda.runtime.workspace import FEW_ROWS
from ooctrain.layers.kernels.signature import B1, F4, I8, U4, F4s, I8s
from ooctrain.layers.kernels.walks import logical_shape
from ooctrain.layers.reduction import Sum
from ooctrain.layers.softmax import SoftmaxAlong, SoftmaxGrad

Array = Any
Arrays = Sequence[Array]
ZERO, LANES = np.float32(0), np.uint64(WARP)
LOWEST, NOWHERE = np.float32(-np.inf), np.int32(0x7FFFFFFF)


@kernel(threads=THREADS)
def _sum_chunk(
    x: F4s, partials: F4s, rows: I8, width: U4, lanes: U4, rows_per_chunk: U4, chunks: U4,
    groups: U4,
):  # fmt: skip
    """A block: partials[outer, chunk, c] = sum of x over the rows of a chunk, for some c."""
    totals = cuda.shared.array(THREADS, float32)
    thread, block = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
    rest = uint32(block // groups)
    outer, chunk = uint32(rest // chunks), uint32(rest % chunks)
    c = column_of(uint32(block % groups), thread, lanes, width)
    first, left = rows_of_chunk(chunk, rows_per_chunk, rows)
    base = place_of(outer, first, rows, c, width)
    totals[thread] = thread_total(x, base, thread, lanes, left, width)
    cuda.syncthreads()
    if thread < lanes:
        place = place_of(outer, chunk, chunks, c, width)
        partials[uint64(place)] = column_total(totals, thread, lanes)


@kernel(threads=THREADS)
def _sum_few(x: F4s, y: F4s, factor: F4, rows: U4, width: U4):
    """A thread: y[outer, c] = factor * the sum over all rows, one after the other."""
    e = int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)
    if e < y.size:
        outer = e // int64(width)
        first = outer * int64(rows) * int64(width) + (e - outer * int64(width))
        total, lost = ZERO, ZERO
        for row in range(rows):
            value = at(x, first + int64(row) * int64(width))
            total, lost = add_compensated(total, lost, value)
        y[uint64(e)] = factor * total


@device
def first_of(row, lane, classes, width):
    """Where the elements of a lane begin, LANES * width apart, in a row of (outer, inner)."""
    outer = uint32(row // width)
    within = uint64(uint32(row - outer * width))
    return (uint64(outer) * uint64(classes) + uint64(lane)) * uint64(width) + within


@device
def share_of(away, shift, total, log):
    """exp(away) / total, or its logarithm."""
    return away - shift if log else math.exp(away) / total


def _softmax_kernel(neighbours: bool) -> Kernel:
    """A warp: the softmax of one (outer, inner), or its logarithm.

    Args:
        neighbours: whether the elements of a row are neighbours, `width` 1; their distances are
            then numbers that the compiler knows.
    """

    def _softmax(x: F4s, y: F4s, items: I8, classes: U4, width: U4, log: B1):
        lane = lane_of(cuda.threadIdx.x)
        row = row_of(cuda.blockIdx.x, cuda.threadIdx.x)
        if row < items:
            apart = LANES if neighbours else LANES * uint64(width)
            i = first_of(row, lane, classes, uint32(1) if neighbours else width)
            top = lane_maximum(x, i, lane, classes, apart)
            for step in (16, 8, 4, 2, 1):
                top = larger(cuda.shfl_xor_sync(WHOLE_WARP, top, step), top)
            total = lane_exponentials(x, i, lane, classes, apart, top)
            for step in (16, 8, 4, 2, 1):
                total += cuda.shfl_xor_sync(WHOLE_WARP, total, step)
            shift, c = math.log(total), lane
            while uint32(c + BEFORE_LAST) < classes:
                u, v, w, z = four_of(x, i, apart)
                j = i + apart
                k = j + apart
                y[i] = share_of(u - top, shift, total, log)
                y[j] = share_of(v - top, shift, total, log)
                y[k] = share_of(w - top, shift, total, log)
                y[k + apart] = share_of(z - top, shift, total, log)
                i, c = i + ALL_TURNS * apart, uint32(c + AT_ONCE)
            while c < classes:
                y[i] = share_of(at(x, i) - top, shift, total, log)
                i, c = i + apart, uint32(c + uint32(WARP))

    _softmax.__name__ = "softmax_of_neighbours" if neighbours else "softmax_apart"
    _softmax.__qualname__ = _softmax.__name__
    return kernel(threads=THREADS)(_softmax)


#: Of rows whose elements are neighbours, and of others.
_SOFTMAX: Mapping[bool, Kernel] = {each: _softmax_kernel(each) for each in (True, False)}


@kernel(threads=THREADS)
def _softmax_grad(dy: F4s, y: F4s, dx: F4s, items: I8, classes: U4, width: U4, log: B1):
    """A warp: dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy)."""
    lane = lane_of(cuda.threadIdx.x)
    row = row_of(cuda.blockIdx.x, cuda.threadIdx.x)
    if row < items:
        apart = LANES * uint64(width)
        first = first_of(row, lane, classes, width)
        i, c, total = first, lane, ZERO
        while c < classes:
            total += at(dy, i) if log else at(dy, i) * at(y, i)
            i, c = i + apart, uint32(c + uint32(WARP))
        for step in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(WHOLE_WARP, total, step)
        i, c = first, lane
        while c < classes:
            d, z = at(dy, i), at(y, i)
            dx[i] = d - math.exp(z) * total if log else z * (d - total)
            i, c = i + apart, uint32(c + uint32(WARP))


@device
def first_largest(value, place, best, at_place):
    """The larger of two elements with its place, of equal ones the first; NaN is the largest."""
    wins = value > best or (value != value and best == best)
    same = value == best or (value != value and best != best)
    if wins or (same and place < at_place):
        return value, place
    return best, at_place


@kernel(threads=THREADS)
def _largest_of_neighbours(x: F4s, y: F4s, index: I8s, items: I8, rows: U4):
    """A warp: the largest of a row, and its place."""
    lane = lane_of(cuda.threadIdx.x)
    row = row_of(cuda.blockIdx.x, cuda.threadIdx.x)
    if row < items:
        first = uint64(row) * uint64(rows)
        best, place, c = LOWEST, NOWHERE, lane
        while c < rows:
            best, place = first_largest(at(x, first + uint64(c)), int32(c), best, place)
            c = uint32(c + uint32(WARP))
        for step in (16, 8, 4, 2, 1):
            value = cuda.shfl_xor_sync(WHOLE_WARP, best, step)
            other = cuda.shfl_xor_sync(WHOLE_WARP, place, step)
            best, place = first_largest(value, int32(other), best, place)
        if lane == 0:
            y[row] = best
            index[row] = int64(place)


@kernel(threads=THREADS)
def _largest_apart(x: F4s, y: F4s, index: I8s, rows: U4, width: U4):
    """A thread: the largest over all rows, and its place."""
    e = int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)
    if e < y.size:
        outer = e // int64(width)
        i = outer * int64(rows) * int64(width) + (e - outer * int64(width))
        best, place, row = LOWEST, NOWHERE, uint32(0)
        while row < rows:
            best, place = first_largest(at(x, i), int32(row), best, place)
            i, row = i + int64(width), uint32(row + uint32(1))
        y[uint64(e)] = best
        index[uint64(e)] = int64(place)


@kernel(threads=THREADS)
def _largest_grad(dy: F4s, index: I8s, dx: F4s, rows: U4, width: U4):
    """A thread: one dy goes to its place; dx is 0."""
    e = int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)
    if e < dy.size:
        outer = e // int64(width)
        row = outer * int64(rows) + index[uint64(e)]
        dx[uint64(row * int64(width) + (e - outer * int64(width)))] = at(dy, e)


def sum_axes(launcher: Launcher, op: Sum, ins: Arrays, outs: Arrays, workspace: Array) -> None:
    """y = factor * the sum over axes.

    Args:
        workspace: uint8, `axis_sum_bytes(...)`: nothing where there are few rows.
    """
    (x,), (y,) = ins, outs
    outer, rows, width = op.extents(logical_shape(x))
    if rows <= FEW_ROWS:
        launcher.launch(_sum_few, blocks_for(y.size, THREADS), x, y, op.factor, rows, width)
        return
    cut = columns(rows, width, outer)
    partials = launcher.part(workspace, 0, cut.partials, "float32")
    groups = blocks_for(width, cut.lanes)
    sizes = rows, width, cut.lanes, cut.rows_per_chunk, cut.chunks, groups
    launcher.launch(_sum_chunk, outer * cut.chunks * groups, x, partials, *sizes)
    blocks = blocks_for(y.size, THREADS)
    launcher.launch(_sum_few, blocks, partials, y, op.factor, cut.chunks, width)


def largest(launcher: Launcher, op: MaxAlong, ins: Arrays, outs: Arrays) -> None:
    """y and index = the largest elements over axes, and their places."""
    outer, rows, width = op.extents(logical_shape(ins[0]))
    if width == 1:
        blocks = blocks_for(outer, ROWS)
        launcher.launch(_largest_of_neighbours, blocks, *ins, *outs, outer, rows)
        return
    blocks = blocks_for(outer * width, THREADS)
    launcher.launch(_largest_apart, blocks, *ins, *outs, rows, width)


def largest_grad(launcher: Launcher, op: MaxAlongGrad, ins: Arrays, outs: Arrays) -> None:
    """dx = 0, but dy where the largest elements were."""
    fill(launcher, outs[0], 0.0)
    _, rows, width = op.extents(op.shape)
    blocks = blocks_for(ins[0].size, THREADS)
    launcher.launch(_largest_grad, blocks, *ins, *outs, rows, width)


def softmax(launcher: Launcher, op: SoftmaxAlong, ins: Arrays, outs: Arrays) -> None:
    """y = softmax of x along the axis, or its logarithm. `y` may be `x`."""
    _along(launcher, _SOFTMAX[op.extents(logical_shape(outs[0]))[2] == 1], op, ins, outs)


def softmax_grad(launcher: Launcher, op: SoftmaxGrad, ins: Arrays, outs: Arrays) -> None:
    """dx from dy and y. `dx` may be `dy`."""
    _along(launcher, _softmax_grad, op, ins, outs)


def _along(launcher: Launcher, kernel, op, ins: Arrays, outs: Arrays) -> None:
    outer, classes, width = op.extents(logical_shape(outs[0]))
    items = outer * width
    blocks = blocks_for(items, ROWS)
    launcher.launch(kernel, blocks, *ins, *outs, items, classes, width, op.log)
