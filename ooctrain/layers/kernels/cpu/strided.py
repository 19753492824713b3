"""Arithmetic with repeated operands, permutations, repetitions, steps: walks with strides.

Arrays have any shape, and a walk goes through them (`../walks.py`); the result is in the order of
its own memory. A result is cut into runs along its innermost axis. Along a run an operand is
contiguous, constant, or read element by element. Read next: `reduction.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numba
import numpy as np

from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.kernels.cpu import elementwise
from ooctrain.layers.kernels.cpu.chunks import THREE_ARRAYS, element_chunk
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner, kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import VL, vmax, vmin, vselect_eq, vselect_gt, vsplat
from ooctrain.layers.kernels.cpu.simd.simd_memory import vload_upto, vstore_upto
from ooctrain.layers.kernels.signature import F4, I8, F4s, I8x6
from ooctrain.layers.kernels.walks import logical_shape, permuted, repeated, strided, walk
from ooctrain.layers.permute import Permute
from ooctrain.layers.reduction import Spread
from ooctrain.layers.regions import StridedEmbed, StridedSlice

Array = np.ndarray
Arrays = Sequence[Array]
ADD, SUBTRACT, MULTIPLY, DIVIDE, MAXIMUM, MINIMUM, KEEP, DROP = range(8)
GREATER, GREATER_EQUAL, EQUAL, SHARE = range(8, 12)
NUMBERS: Mapping[str, int] = {
    "add": ADD, "subtract": SUBTRACT, "multiply": MULTIPLY, "divide": DIVIDE, "maximum": MAXIMUM,
    "minimum": MINIMUM, "keep": KEEP, "drop": DROP, "greater": GREATER,
    "greater_equal": GREATER_EQUAL, "equal": EQUAL, "share": SHARE,
}  # fmt: skip
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)


@inner
def _offset(row, extents, steps):
    """Where the run number `row` of a walk begins in an operand."""
    rest, offset = row, 0
    for axis in range(len(extents) - 2, -1, -1):
        offset += rest % extents[axis] * steps[axis]
        rest //= extents[axis]
    return offset


@numba.njit(inline="always")
def _load(x, at, step, count):
    """The next elements of an operand along a run: side by side, or one that is repeated."""
    return vload_upto(x, at, count) if step == 1 else vsplat(x[at])


@numba.njit(inline="always")
def _combine(a, b, which):
    if which == ADD:
        return a + b
    if which == SUBTRACT:
        return a - b
    if which == MULTIPLY:
        return a * b
    if which == DIVIDE:
        return a / b
    zero, one = vsplat(ZERO), vsplat(ONE)
    if which == MAXIMUM:
        return vselect_eq(a, a, vmax(a, b), a)
    if which == MINIMUM:
        return vselect_eq(a, a, vmin(a, b), a)
    if which == KEEP:
        return vselect_eq(b, zero, zero, a)
    if which == DROP:
        return vselect_eq(b, zero, a, zero)
    if which == EQUAL:
        return vselect_eq(a, b, one, zero)
    ties = zero if which == GREATER else one if which == GREATER_EQUAL else vsplat(HALF)
    return vselect_gt(a, b, one, vselect_eq(a, b, ties, zero))


@kernel
def _arithmetic(
    a: F4s, b: F4s, y: F4s, which: I8, extents: I8x6, steps_a: I8x6, steps_b: I8x6, lo, hi, thread,
):  # fmt: skip
    """Items are elements of the result."""
    run, step_a, step_b = extents[-1], steps_a[-1], steps_b[-1]
    i = lo
    while i < hi:
        row = i // run
        first = i - row * run
        count = min(run - first, hi - i)
        at_a = _offset(row, extents, steps_a) + first * step_a
        at_b = _offset(row, extents, steps_b) + first * step_b
        if step_a <= 1 and step_b <= 1:
            for k in range(0, count, VL):
                u = _load(a, at_a + k * step_a, step_a, count - k)
                v = _load(b, at_b + k * step_b, step_b, count - k)
                vstore_upto(y, i + k, _combine(u, v, which), count - k)
        else:
            for k in range(count):
                u, v = vsplat(a[at_a + k * step_a]), vsplat(b[at_b + k * step_b])
                vstore_upto(y, i + k, _combine(u, v, which), 1)
        i += count


@kernel
def _read(x: F4s, y: F4s, factor: F4, start: I8, extents: I8x6, steps: I8x6, lo, hi, thread):
    """y = factor * x along the walk from `start`. Items are elements of the result."""
    run, step = extents[-1], steps[-1]
    i = lo
    while i < hi:
        row = i // run
        first = i - row * run
        count = min(run - first, hi - i)
        at = start + _offset(row, extents, steps) + first * step
        if 0 <= step <= 1:
            for k in range(0, count, VL):
                v = _load(x, at + k * step, step, count - k)
                vstore_upto(y, i + k, factor * v, count - k)
        else:
            for k in range(count):
                y[i + k] = factor * x[at + k * step]
        i += count


@kernel
def _write(x: F4s, y: F4s, start: I8, extents: I8x6, steps: I8x6, lo, hi, thread):
    """y along the walk from `start` = x. Items are elements of x."""
    run, step = extents[-1], steps[-1]
    i = lo
    while i < hi:
        row = i // run
        first = i - row * run
        count = min(run - first, hi - i)
        at = start + _offset(row, extents, steps) + first * step
        for k in range(count):
            y[at + k * step] = x[i + k]
        i += count


def arithmetic(pool: ThreadPool, op: Arithmetic, ins: Arrays, outs: Arrays) -> None:
    """y = a + b, a - b, a * b, a / b, or another function of two numbers."""
    shape = logical_shape(outs[0])
    shapes = [logical_shape(array) for array in ins]
    way = walk(shape, *(repeated(own, shape) for own in shapes))
    numbers = NUMBERS[op.function], way.extents, *way.steps
    chunk = element_chunk(outs[0].size, THREE_ARRAYS)
    pool.run(_arithmetic, outs[0].size, chunk, *ins, outs[0], *numbers)


def spread(pool: ThreadPool, op: Spread, ins: Arrays, outs: Arrays) -> None:
    """y = factor * x, repeated."""
    steps = repeated(logical_shape(ins[0]), op.shape)
    _walk_through(pool, ins[0], outs[0], op.factor, op.shape, steps)


def permute(pool: ThreadPool, op: Permute, ins: Arrays, outs: Arrays) -> None:
    """y = x with its axes in another order."""
    steps = permuted(logical_shape(ins[0]), op.axes)
    _walk_through(pool, ins[0], outs[0], 1.0, logical_shape(outs[0]), steps)


def strided_slice(pool: ThreadPool, op: StridedSlice, ins: Arrays, outs: Arrays) -> None:
    """y = elements of x at equal distances."""
    first, steps = strided(op.full, op.start, op.steps)
    _walk_through(pool, ins[0], outs[0], 1.0, op.shape, steps, first)


def strided_embed(pool: ThreadPool, op: StridedEmbed, ins: Arrays, outs: Arrays) -> None:
    """y = 0, but x at equal distances."""
    (x,), (y,) = ins, outs
    elementwise.fill(pool, y, 0.0)
    first, steps = strided(op.full, op.start, op.steps)
    way = walk(logical_shape(x), steps)
    pool.run(_write, x.size, element_chunk(x.size), x, y, first, way.extents, *way.steps)


def _walk_through(
    pool: ThreadPool, x: Array, y: Array, factor: float, shape, steps, start: int = 0
) -> None:
    way = walk(shape, steps)
    chunk = element_chunk(y.size)
    pool.run(_read, y.size, chunk, x, y, factor, start, way.extents, *way.steps)
