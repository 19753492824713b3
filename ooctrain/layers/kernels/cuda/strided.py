"""Arithmetic with repeated operands, permutations and repetitions: walks with strides.

In: arrays of any shape, and a walk through them (`../walks.py`). Out: the result, in the order of
its own memory. The one idea: a thread takes an element of the result and works out where the
operands' elements lie; operands of one shape go through `pointwise.py` in fours. Read next:
`reduction.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.kernels.cuda.chunks import THREADS
from ooctrain.layers.kernels.cuda.conv.columns import at
from ooctrain.layers.kernels.cuda.pointwise import apply, binary, named_after
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, cuda, device, int64, kernel, uint64
from ooctrain.layers.kernels.walks import logical_shape, permuted, repeated, walk
from ooctrain.layers.permute import Permute
from ooctrain.layers.reduction import Spread

Array = Any
Arrays = Sequence[Array]
_SIX = "UniTuple(i8, 6)"


@device
def places_of(e, extents):
    """The index of the e-th element of a result along each of its axes."""
    _, b, c, d, f, g = extents
    r5 = e // g
    r4 = r5 // f
    r3 = r4 // d
    r2 = r3 // c
    r1 = r2 // b
    return r1, r2 - r1 * b, r3 - r2 * c, r4 - r3 * d, r5 - r4 * f, e - r5 * g


@device
def offset_of(place, steps):
    """Where an operand's element lies."""
    outer = place[0] * steps[0] + place[1] * steps[1] + place[2] * steps[2]
    return outer + place[3] * steps[3] + place[4] * steps[4] + place[5] * steps[5]


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


def _repeating(function: Any) -> Kernel:
    """Kernel y = function(a, b), each operand along its own steps."""

    def over_walks(a, b, y, extents, steps_a, steps_b, p):
        e = int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)
        if e < y.size:
            place = places_of(e, extents)
            u, v = at(a, offset_of(place, steps_a)), at(b, offset_of(place, steps_b))
            y[uint64(e)] = function(u, v, p)

    signature = f"void(f4[::1], f4[::1], f4[::1], {_SIX}, {_SIX}, {_SIX}, f4)"
    return kernel(signature, threads=THREADS)(named_after(function, over_walks, "_repeated"))


@kernel(f"void(f4[::1], f4[::1], f4, {_SIX}, {_SIX})", threads=THREADS)
def _read(x, y, factor, extents, steps):
    """y = factor * x along the walk."""
    e = int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)
    if e < y.size:
        y[uint64(e)] = factor * at(x, offset_of(places_of(e, extents), steps))


FLAT: Mapping[str, Kernel] = {
    "add": binary(total_of), "subtract": binary(difference_of), "multiply": binary(product_of),
    "divide": binary(quotient_of),
}  # fmt: skip
REPEATED: Mapping[str, Kernel] = {
    "add": _repeating(total_of), "subtract": _repeating(difference_of),
    "multiply": _repeating(product_of), "divide": _repeating(quotient_of),
}  # fmt: skip


def arithmetic(launcher: Launcher, op: Arithmetic, ins: Arrays, outs: Arrays) -> None:
    """y = a + b, a - b, a * b or a / b."""
    (a, b), (y,) = ins, outs
    if tuple(a.shape) == tuple(b.shape):
        apply(launcher, FLAT[op.function], a, b, y)
        return
    shape = logical_shape(y)
    way = walk(shape, repeated(logical_shape(a), shape), repeated(logical_shape(b), shape))
    blocks = blocks_for(y.size, THREADS)
    launcher.launch(REPEATED[op.function], blocks, a, b, y, way.extents, *way.steps, 0.0)


def spread(launcher: Launcher, op: Spread, ins: Arrays, outs: Arrays) -> None:
    """y = factor * x, repeated."""
    steps = repeated(logical_shape(ins[0]), op.shape)
    _walk_through(launcher, ins[0], outs[0], op.factor, op.shape, steps)


def permute(launcher: Launcher, op: Permute, ins: Arrays, outs: Arrays) -> None:
    """y = x with its axes in another order."""
    steps = permuted(logical_shape(ins[0]), op.axes)
    _walk_through(launcher, ins[0], outs[0], 1.0, logical_shape(outs[0]), steps)


def _walk_through(launcher: Launcher, x: Array, y: Array, factor: float, shape, steps) -> None:
    way = walk(shape, steps)
    blocks = blocks_for(y.size, THREADS)
    launcher.launch(_read, blocks, x, y, factor, way.extents, *way.steps)
