"""Sums and largest elements over axes, and softmax along one.

An array is seen as (outer, rows, inner). A sum gives (outer, inner), softmax an array of the same
size as its input. Chunks of rows follow from the shape alone. Each chunk has its own sums, added in
their order, so any number of threads gives the same bits. Vectors run along `inner`, or along the
rows where that is 1. Blocks of float32 sums are added with compensation. Source: Kahan 1965.
Read next: `losses.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooctrain.layers.extremes import MaxAlong, MaxAlongGrad
from ooctrain.layers.kernels.cpu import elementwise
from ooctrain.layers.kernels.cpu.chunks import chunk_count, element_chunk, row_chunk
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner, kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import (
    VL,
    vmax,
    vmax_lanes,
    vselect_eq,
    vselect_gt,
    vsplat,
    vsum,
)
from ooctrain.layers.kernels.cpu.simd.simd_memory import vload_upto, vstore_upto
from ooctrain.layers.kernels.signature import B1, F8, I8, F4s, I8s
from ooctrain.layers.kernels.walks import logical_shape
from ooctrain.layers.reduction import Sum
from ooctrain.layers.softmax import SoftmaxAlong, SoftmaxGrad

Array = np.ndarray
Arrays = Sequence[Array]
ZERO, ONE, LOWEST = np.float32(0), np.float32(1), np.float32(-np.inf)
#: Vectors that are summed in float32 before the sum is added with compensation: a sum of any length
#: is right to about so many roundings.
AT_ONCE = 16
#: Time of softmax for an element relative to that of a copy.
SOFTMAX_WORK = 8
#: Neighbours whose largest elements are looked for one after the other, and how many are worth it.
NEIGHBOURS, FEW_NEIGHBOURS = 64, 4
#: Whole numbers up to here are exact in float32.
MOST_COUNTED = 1 << 24


@kernel
def _sum_rows(
    x: F4s, partials: F4s, rows: I8, width: I8, rows_per_chunk: I8, chunks: I8, lo, hi, thread,
):  # fmt: skip
    """partials[outer, chunk] = the sums over the rows of a chunk. Items are (outer, chunk)."""
    zero = vsplat(ZERO)
    for item in range(lo, hi):
        outer, first = item // chunks, item % chunks * rows_per_chunk
        last = min(rows, first + rows_per_chunk)
        base = outer * rows * width
        if width == 1:
            total, lost = zero, zero
            for block in range(first, last, AT_ONCE * VL):
                end, sums = min(last, block + AT_ONCE * VL), zero
                for i in range(block, end, VL):
                    sums = sums + vload_upto(x, base + i, end - i)
                kept = sums - lost
                new = total + kept
                total, lost = new, (new - total) - kept
            partials[item] = vsum(total)
        else:
            for c in range(0, width, VL):
                total, lost = zero, zero
                for block in range(first, last, AT_ONCE):
                    sums = zero
                    for row in range(block, min(last, block + AT_ONCE)):
                        sums = sums + vload_upto(x, base + row * width + c, width - c)
                    kept = sums - lost
                    new = total + kept
                    total, lost = new, (new - total) - kept
                vstore_upto(partials, item * width + c, total, width - c)


@kernel
def _sum_chunks(partials: F4s, y: F4s, width: I8, chunks: I8, factor: F8, lo, hi, thread):
    """y[outer, c] = factor * the sum over the chunks. Items are elements of y."""
    for item in range(lo, hi):
        at = item // width * chunks * width + item % width
        total = np.float64(partials[at])
        for chunk in range(1, chunks):
            total += partials[at + chunk * width]
        y[item] = total * factor


@kernel
def _softmax(x: F4s, y: F4s, classes: I8, width: I8, log: B1, lo, hi, thread):
    """Items are (outer, inner)."""
    for item in range(lo, hi):
        at = item // width * classes * width + item % width
        end = at + classes * width
        top = LOWEST
        for i in range(at, end, width):
            top = max(top, x[i])
        total = 0.0
        for i in range(at, end, width):
            total += np.exp(x[i] - top)
        shift, scale = np.float32(np.log(total)), np.float32(1.0 / total)
        for i in range(at, end, width):
            away = x[i] - top
            y[i] = away - shift if log else np.exp(away) * scale


@kernel
def _softmax_grad(dy: F4s, y: F4s, dx: F4s, classes: I8, width: I8, log: B1, lo, hi, thread):
    """Items are (outer, inner)."""
    for item in range(lo, hi):
        at = item // width * classes * width + item % width
        end = at + classes * width
        total = 0.0
        for i in range(at, end, width):
            total += np.float64(dy[i]) if log else np.float64(dy[i]) * y[i]
        share = np.float32(total)
        for i in range(at, end, width):
            dx[i] = dy[i] - np.exp(y[i]) * share if log else y[i] * (dy[i] - share)


@inner
def _first_largest(x, at, rows, step):
    """(the largest of some elements, its number); NaN is larger than any number."""
    best, place = x[at], 0
    for row in range(1, rows):
        value = x[at + row * step]
        if value > best or (value != value and best == best):
            best, place = value, row
    return best, place


@kernel
def _largest(x: F4s, y: F4s, index: I8s, rows: I8, width: I8, lo, hi, thread):
    """Items are (outer, inner). A row of neighbours is read as vectors: the lanes have the largest
    of each place in them, and the block where it was first."""
    blocks = rows // VL if width == 1 and rows // VL <= MOST_COUNTED else 0
    for item in range(lo, hi):
        outer = item // width
        at = (outer * rows - outer) * width + item
        if blocks < 2:
            y[item], index[item] = _first_largest(x, at, rows, width)
            continue
        best, place = vload_upto(x, at, VL), vsplat(ZERO)
        strange = vselect_eq(best, best, vsplat(ZERO), vsplat(ONE))
        for block in range(1, blocks):
            v = vload_upto(x, at + block * VL, VL)
            place = vselect_gt(v, best, vsplat(np.float32(block)), place)
            best = vmax(v, best)
            strange = vselect_eq(v, v, strange, vsplat(ONE))
        if vsum(strange) > ZERO:  # there is a NaN
            y[item], index[item] = _first_largest(x, at, rows, width)
            continue
        top = vmax_lanes(best)
        first = ZERO - vmax_lanes(vselect_eq(best, vsplat(top), ZERO - place, vsplat(LOWEST)))
        where = np.int64(first) * VL
        while x[at + where] != top:
            where += 1
        rest = blocks * VL
        if rest < rows:
            value, more = _first_largest(x, at + rest, rows - rest, 1)
            if value > top or value != value:
                top, where = value, rest + more
        y[item], index[item] = top, where


@kernel
def _largest_of_neighbours(
    x: F4s, y: F4s, index: I8s, numbers: F4s, rows: I8, width: I8, blocks: I8, lo, hi, thread,
):  # fmt: skip
    """Items are (outer, block of neighbours along inner). Rows are counted in float32; `numbers`
    are the bytes of `index`, whose latter half has the counts until they are whole numbers."""
    for item in range(lo, hi):
        outer, first = item // blocks, item % blocks * NEIGHBOURS
        count, out = min(width - first, NEIGHBOURS), outer * width + first
        for c in range(0, count, VL):
            lanes, at = count - c, outer * rows * width + first + c
            best, place = vload_upto(x, at, lanes), vsplat(ZERO)
            for row in range(1, rows):
                at += width
                v, here = vload_upto(x, at, lanes), vsplat(np.float32(row))
                after_nan = vselect_eq(best, best, here, place)
                place = vselect_eq(v, v, vselect_gt(v, best, here, place), after_nan)
                best = vselect_eq(v, v, vmax(v, best), v)
            vstore_upto(y, out + c, best, lanes)
            vstore_upto(numbers, 2 * out + count + c, place, lanes)
        for c in range(count):
            index[out + c] = np.int64(numbers[2 * out + count + c])


@kernel
def _largest_grad(dy: F4s, index: I8s, dx: F4s, rows: I8, width: I8, lo, hi, thread):
    """Items are (outer, inner); dx is 0."""
    for item in range(lo, hi):
        outer = item // width
        dx[(outer * rows + index[item]) * width + item - outer * width] = dy[item]


def sum_axes(pool: ThreadPool, op: Sum, ins: Arrays, outs: Arrays, workspace: Array) -> None:
    """y = factor * the sum over axes.

    Args:
        workspace: uint8, `axis_sum_bytes(...)`: nothing where there is one chunk.
    """
    (x,), (y,) = ins, outs
    if not x.size:  # the sum of nothing
        y[...] = 0
        return
    _, rows, width = op.extents(logical_shape(x))
    chunk = row_chunk(rows, width)
    chunks = chunk_count(rows, chunk)
    partials = y if chunks == 1 else workspace.view(np.float32)
    items = y.size // width * chunks
    of_pool = row_chunk(items, min(rows, chunk) * width)
    pool.run(_sum_rows, items, of_pool, x, partials, rows, width, chunk, chunks)
    if chunks > 1 or op.factor != 1:
        numbers = width, chunks, op.factor
        pool.run(_sum_chunks, y.size, element_chunk(y.size), partials, y, *numbers)


def largest(pool: ThreadPool, op: MaxAlong, ins: Arrays, outs: Arrays) -> None:
    """y and index = the largest elements over axes, and their places."""
    (x,), (y, index) = ins, outs
    outer, rows, width = op.extents(logical_shape(x))
    if width < FEW_NEIGHBOURS or rows > MOST_COUNTED:
        pool.run(_largest, y.size, row_chunk(y.size, rows), x, y, index, rows, width)
        return
    blocks = chunk_count(width, NEIGHBOURS)
    items, numbers = outer * blocks, index.reshape(-1).view(np.float32)
    chunk = row_chunk(items, rows * min(width, NEIGHBOURS))
    pool.run(_largest_of_neighbours, items, chunk, x, y, index, numbers, rows, width, blocks)


def largest_grad(pool: ThreadPool, op: MaxAlongGrad, ins: Arrays, outs: Arrays) -> None:
    """dx = 0, but dy where the largest elements were."""
    elementwise.fill(pool, outs[0], 0.0)
    _, rows, width = op.extents(op.shape)
    chunk = element_chunk(ins[0].size)
    pool.run(_largest_grad, ins[0].size, chunk, *ins, *outs, rows, width)


def softmax(pool: ThreadPool, op: SoftmaxAlong, ins: Arrays, outs: Arrays) -> None:
    """y = softmax of x along the axis, or its logarithm. `y` may be `x`."""
    _along(pool, _softmax, op, ins, outs)


def softmax_grad(pool: ThreadPool, op: SoftmaxGrad, ins: Arrays, outs: Arrays) -> None:
    """dx from dy and y. `dx` may be `dy`."""
    _along(pool, _softmax_grad, op, ins, outs)


def _along(pool: ThreadPool, function, op, ins: Arrays, outs: Arrays) -> None:
    outer, classes, width = op.extents(logical_shape(outs[0]))
    items = outer * width
    chunk = row_chunk(items, SOFTMAX_WORK * classes)
    pool.run(function, items, chunk, *ins, *outs, classes, width, op.log)
