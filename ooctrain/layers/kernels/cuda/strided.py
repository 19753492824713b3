"""Arithmetic with repeated operands, permutations, repetitions, steps: walks with strides.

Arrays of any shape and a walk through them (`../walks.py`) give the result, in its own memory
order. A thread takes one element of the result, or four neighbours where the last axis allows it,
and computes where the operands' elements lie (`walk_places.py`). A vector with a number for each
channel, the commonest operand of all, is loaded once for two quads, whatever the number of
channels. Operands of one shape go through `functions.py`. Read next: `walk_places.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.kernels.cuda.chunks import QUAD, THREADS, same_channels
from ooctrain.layers.kernels.cuda.columns import at
from ooctrain.layers.kernels.cuda.elementwise import fill
from ooctrain.layers.kernels.cuda.functions import apply, binary, named_after
from ooctrain.layers.kernels.cuda.quads import (
    load_channels,
    load_quad,
    quads_of_channels,
    store_quad,
)
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, st4
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import (
    Kernel,
    cuda,
    device,
    int64,
    kernel,
    uint32,
    uint64,
)
from ooctrain.layers.kernels.cuda.walk_places import (
    offsets_of,
    parts,
    read_tiles,
)
from ooctrain.layers.kernels.signature import F4, I8, U4, F4s, I8x7, U4x15
from ooctrain.layers.kernels.walks import (
    StridedWalk,
    logical_shape,
    permuted,
    repeated,
    strided,
    walk,
)
from ooctrain.layers.permute import Permute
from ooctrain.layers.reduction import Spread
from ooctrain.layers.regions import StridedEmbed, StridedSlice

Array = Any
Arrays = Sequence[Array]
ZERO, HALF, ONE, TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
THREE, FOUR, FIVE, SIX, SEVEN = (np.float32(number) for number in range(3, 8))


@device
def total_of(a, b, parameter):
    """a + b."""
    return a + b


@device
def difference_of(a, b, parameter):
    """a - b."""
    return a - b


@device
def product_of(a, b, parameter):
    """a b."""
    return a * b


@device
def quotient_of(a, b, parameter):
    """a / b."""
    return a / b


@device
def chosen_of(a, b, parameter):
    """One of the functions that compare, by its number in `CHOICES`; NaN stays."""
    if parameter < TWO:
        if parameter < ONE:
            return a if a > b or a != a else b
        return a if a < b or a != a else b
    if parameter < FOUR:
        return a if (b != ZERO) == (parameter < THREE) else ZERO
    if a == b:
        return ZERO if parameter < FIVE else ONE if parameter < SEVEN else HALF
    return ONE if a > b and parameter != SIX else ZERO


@device
def quad_at(x, i, step):
    """Four elements along the last axis of a walk: neighbours, or one that is repeated."""
    if step:
        return ld4(x, i)
    value = at(x, i)
    return value, value, value, value


def _repeating(function: Any) -> tuple[Kernel, Kernel]:
    """Kernels y = function(a, b), each operand along its own steps: by elements and by quads."""

    def over_walks(
        a: F4s, b: F4s, y: F4s, items: U4, begin: I8, axes: U4x15, steps_a: I8x7, steps_b: I8x7,
        p: F4,
    ):  # fmt: skip
        e = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        if e < items:
            i, j = offsets_of(e, axes, steps_a, steps_b)
            y[uint64(begin + int64(e))] = function(at(a, i), at(b, j), p)

    def over_quads(
        a: F4s, b: F4s, y: F4s, items: U4, begin: I8, axes: U4x15, steps_a: I8x7, steps_b: I8x7,
        p: F4,
    ):  # fmt: skip
        e = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        if e < items:
            i, j = offsets_of(e, axes, steps_a, steps_b)
            u, v = quad_at(a, i, steps_a[5]), quad_at(b, j, steps_b[5])
            st4(y, begin + int64(e) * int64(QUAD), (
                function(u[0], v[0], p), function(u[1], v[1], p),
                function(u[2], v[2], p), function(u[3], v[3], p),
            ))  # fmt: skip

    as_kernel = kernel(threads=THREADS)
    return (
        as_kernel(named_after(function, over_walks, "_repeated")),
        as_kernel(named_after(function, over_quads, "_repeated_quads")),
    )


def _with_vector(function: Any, first: bool) -> Kernel:
    """The kernel y = function(a, b) where one of both has a number for each channel.

    Args:
        first: whether that is a.
    """

    @device
    def of_quads(u, v, p):
        return (
            function(u[0], v[0], p), function(u[1], v[1], p),
            function(u[2], v[2], p), function(u[3], v[3], p),
        )  # fmt: skip

    def over_channels(x: F4s, vector: F4s, y: F4s, channels: U4, apart: U4, p: F4):
        x_block, y_block, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
        i, j, c = quads_of_channels(x_block, y_block, thread, apart, channels)
        u, v = load_quad(x, i), load_quad(x, j)
        numbers = load_channels(vector, c, channels)
        store_quad(y, i, of_quads(numbers, u, p) if first else of_quads(u, numbers, p))
        store_quad(y, j, of_quads(numbers, v, p) if first else of_quads(v, numbers, p))

    name = "_with_channels_first" if first else "_with_channels"
    return kernel(threads=THREADS)(named_after(function, over_channels, name))


@kernel(threads=THREADS)
def _read(x: F4s, y: F4s, factor: F4, items: U4, begin: I8, axes: U4x15, steps: I8x7):
    """y = factor * x along the walk."""
    e = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
    if e < items:
        i, _ = offsets_of(e, axes, steps, steps)
        y[uint64(begin + int64(e))] = factor * at(x, i)


@kernel(threads=THREADS)
def _read_quads(x: F4s, y: F4s, factor: F4, items: U4, begin: I8, axes: U4x15, steps: I8x7):
    """y = factor * x along the walk, four elements of its last axis at a time."""
    e = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
    if e < items:
        i, _ = offsets_of(e, axes, steps, steps)
        v = quad_at(x, i, steps[5])
        quad = factor * v[0], factor * v[1], factor * v[2], factor * v[3]
        st4(y, begin + int64(e) * int64(QUAD), quad)


#: Functions that share a kernel, and what it takes as its parameter.
CHOICES: Mapping[str, float] = {
    "maximum": 0.0, "minimum": 1.0, "keep": 2.0, "drop": 3.0, "greater": 4.0, "greater_equal": 5.0,
    "equal": 6.0, "share": 7.0,
}  # fmt: skip
_FUNCTIONS = {
    "add": total_of, "subtract": difference_of, "multiply": product_of, "divide": quotient_of,
    "choose": chosen_of,
}  # fmt: skip


@kernel(threads=THREADS)
def _write(x: F4s, y: F4s, items: U4, begin: I8, axes: U4x15, steps: I8x7):
    """y along the walk = x."""
    e = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
    if e < items:
        i, _ = offsets_of(e, axes, steps, steps)
        y[uint64(i)] = at(x, begin + int64(e))


FLAT: Mapping[str, Kernel] = {name: binary(function) for name, function in _FUNCTIONS.items()}
_REPEATING = {name: _repeating(function) for name, function in _FUNCTIONS.items()}
BY_ELEMENTS: Mapping[str, Kernel] = {name: pair[0] for name, pair in _REPEATING.items()}
BY_QUADS: Mapping[str, Kernel] = {name: pair[1] for name, pair in _REPEATING.items()}
#: {(operation, whether the first operand has a number for each channel): kernel}
OF_CHANNELS: Mapping[tuple[str, bool], Kernel] = {
    (name, first): _with_vector(function, first)
    for name, function in _FUNCTIONS.items()
    for first in (False, True)
}


def by_quads(extents: Sequence[int], steps: Sequence[Sequence[int]]) -> bool:
    """Whether four elements of a walk's last axis are one access, or one repeated element."""
    return extents[-1] % QUAD == 0 and all(
        last == 0 or (last == 1 and not any(step % QUAD for step in others))
        for *others, last in steps
    )


def arithmetic(launcher: Launcher, op: Arithmetic, ins: Arrays, outs: Arrays) -> None:
    """y = a + b, a - b, a * b, a / b, or another function of two numbers."""
    (a, b), (y,) = ins, outs
    parameter = CHOICES.get(op.function, 0.0)
    function = "choose" if op.function in CHOICES else op.function
    if tuple(a.shape) == tuple(b.shape):
        apply(launcher, FLAT[function], a, b, y, parameter=parameter)
        return
    shape = logical_shape(y)
    way = walk(shape, repeated(logical_shape(a), shape), repeated(logical_shape(b), shape))
    for vector, x, first in ((a, b, True), (b, a, False)):
        if x.size == y.size and _is_vector(way, way.steps[0 if first else 1]):
            blocks, apart = same_channels(y.size, vector.size)
            chosen = OF_CHANNELS[function, first]
            launcher.launch(chosen, blocks, x, vector, y, vector.size, apart, parameter)
            return
    quads = by_quads(way.extents, way.steps)
    chosen = (BY_QUADS if quads else BY_ELEMENTS)[function]
    for items, begin, axes, steps in parts(way, quads):
        launcher.launch(
            chosen, blocks_for(items, THREADS), a, b, y, items, begin, axes, *steps, parameter
        )


def spread(launcher: Launcher, op: Spread, ins: Arrays, outs: Arrays) -> None:
    """y = factor * x, repeated."""
    steps = repeated(logical_shape(ins[0]), op.shape)
    _walk_through(launcher, ins[0], outs[0], op.factor, op.shape, steps)


def permute(launcher: Launcher, op: Permute, ins: Arrays, outs: Arrays) -> None:
    """y = x with its axes in another order."""
    steps = permuted(logical_shape(ins[0]), op.axes)
    _walk_through(launcher, ins[0], outs[0], 1.0, logical_shape(outs[0]), steps)


def strided_slice(launcher: Launcher, op: StridedSlice, ins: Arrays, outs: Arrays) -> None:
    """y = elements of x at equal distances."""
    first, steps = strided(op.full, op.start, op.steps)
    _walk_through(launcher, ins[0], outs[0], 1.0, op.shape, steps, first)


def strided_embed(launcher: Launcher, op: StridedEmbed, ins: Arrays, outs: Arrays) -> None:
    """y = 0, but x at equal distances."""
    (x,), (y,) = ins, outs
    fill(launcher, y, 0.0)
    first, steps = strided(op.full, op.start, op.steps)
    way = walk(logical_shape(x), steps)
    for items, begin, axes, (each,) in parts(way, False, first):
        launcher.launch(_write, blocks_for(items, THREADS), x, y, items, begin, axes, each)


def _walk_through(
    launcher: Launcher, x: Array, y: Array, factor: float, shape, steps, start: int = 0
) -> None:
    way = walk(shape, steps)
    if way.steps[0][-1] > 1:
        read_tiles(launcher, x, y, factor, way, start)
        return
    quads = start % QUAD == 0 and by_quads(way.extents, way.steps)
    chosen = _read_quads if quads else _read
    for items, begin, axes, (each,) in parts(way, quads, start):
        launcher.launch(chosen, blocks_for(items, THREADS), x, y, factor, items, begin, axes, each)


def _is_vector(way: StridedWalk, steps: Sequence[int]) -> bool:
    """Whether an operand has one number for each place of the last axis."""
    return steps[-1] == 1 and not any(steps[:-1]) and way.extents[-1] > 1
