"""Arithmetic with repeated operands, permutations and repetitions: walks with strides.

Arrays of any shape and a walk through them (`../walks.py`) give the result, in its own memory
order. A thread takes one element of the result, or four neighbours where the last axis allows it,
and computes where the operands' elements lie. Operands of one shape go through `pointwise.py`. Read
next: `reduction.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.kernels.cuda.chunks import QUAD, THREADS
from ooctrain.layers.kernels.cuda.conv.columns import at
from ooctrain.layers.kernels.cuda.pointwise import apply, binary, named_after
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, st4
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, cuda, device, int64, kernel, uint64
from ooctrain.layers.kernels.walks import logical_shape, permuted, repeated, walk
from ooctrain.layers.permute import Permute
from ooctrain.layers.reduction import Spread

Array = Any
Arrays = Sequence[Array]
_SIX = "UniTuple(i8, 6)"


@device
def parted(e, extent):
    """(e // extent, e % extent); most axes of a walk have one element, and cost no division."""
    if extent == 1:
        return e, int64(0)
    outer = e // extent
    return outer, e - outer * extent


@device
def places_of(e, extents):
    """The index of the e-th element of a result along each of its axes."""
    _, b, c, d, f, g = extents
    e, p5 = parted(e, g)
    e, p4 = parted(e, f)
    e, p3 = parted(e, d)
    e, p2 = parted(e, c)
    e, p1 = parted(e, b)
    return e, p1, p2, p3, p4, p5


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


@device
def quad_at(x, i, step):
    """Four elements along the last axis of a walk: neighbours, or one that is repeated."""
    if step == 1:
        return ld4(x, i)
    value = at(x, i)
    return value, value, value, value


def _repeating(function: Any) -> tuple[Kernel, Kernel]:
    """Kernels y = function(a, b), each operand along its own steps: by elements and by quads."""

    def over_walks(a, b, y, extents, steps_a, steps_b, p):
        e = int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)
        if e < y.size:
            place = places_of(e, extents)
            u, v = at(a, offset_of(place, steps_a)), at(b, offset_of(place, steps_b))
            y[uint64(e)] = function(u, v, p)

    def over_quads(a, b, y, extents, steps_a, steps_b, p):
        e = (int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)) * int64(QUAD)
        if e < y.size:
            place = places_of(e, extents)
            u = quad_at(a, offset_of(place, steps_a), steps_a[5])
            v = quad_at(b, offset_of(place, steps_b), steps_b[5])
            st4(y, e, (
                function(u[0], v[0], p), function(u[1], v[1], p),
                function(u[2], v[2], p), function(u[3], v[3], p),
            ))  # fmt: skip

    signature = f"void(f4[::1], f4[::1], f4[::1], {_SIX}, {_SIX}, {_SIX}, f4)"
    as_kernel = kernel(signature, threads=THREADS)
    return (
        as_kernel(named_after(function, over_walks, "_repeated")),
        as_kernel(named_after(function, over_quads, "_repeated_quads")),
    )


@kernel(f"void(f4[::1], f4[::1], f4, {_SIX}, {_SIX})", threads=THREADS)
def _read(x, y, factor, extents, steps):
    """y = factor * x along the walk."""
    e = int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)
    if e < y.size:
        y[uint64(e)] = factor * at(x, offset_of(places_of(e, extents), steps))


@kernel(f"void(f4[::1], f4[::1], f4, {_SIX}, {_SIX})", threads=THREADS)
def _read_quads(x, y, factor, extents, steps):
    """y = factor * x along the walk, four elements of its last axis at a time."""
    e = (int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)) * int64(QUAD)
    if e < y.size:
        v = quad_at(x, offset_of(places_of(e, extents), steps), steps[5])
        st4(y, e, (factor * v[0], factor * v[1], factor * v[2], factor * v[3]))


FLAT: Mapping[str, Kernel] = {
    "add": binary(total_of), "subtract": binary(difference_of), "multiply": binary(product_of),
    "divide": binary(quotient_of),
}  # fmt: skip
_ADD, _SUBTRACT = _repeating(total_of), _repeating(difference_of)
_MULTIPLY, _DIVIDE = _repeating(product_of), _repeating(quotient_of)
BY_ELEMENTS: Mapping[str, Kernel] = {
    "add": _ADD[0], "subtract": _SUBTRACT[0], "multiply": _MULTIPLY[0], "divide": _DIVIDE[0],
}  # fmt: skip
BY_QUADS: Mapping[str, Kernel] = {
    "add": _ADD[1], "subtract": _SUBTRACT[1], "multiply": _MULTIPLY[1], "divide": _DIVIDE[1],
}  # fmt: skip


def by_quads(extents: Sequence[int], steps: Sequence[Sequence[int]]) -> bool:
    """Whether four elements of a walk's last axis are one access, or one repeated element."""
    return extents[-1] % QUAD == 0 and all(
        last == 0 or (last == 1 and not any(step % QUAD for step in others))
        for *others, last in steps
    )


def arithmetic(launcher: Launcher, op: Arithmetic, ins: Arrays, outs: Arrays) -> None:
    """y = a + b, a - b, a * b or a / b."""
    (a, b), (y,) = ins, outs
    if tuple(a.shape) == tuple(b.shape):
        apply(launcher, FLAT[op.function], a, b, y)
        return
    shape = logical_shape(y)
    way = walk(shape, repeated(logical_shape(a), shape), repeated(logical_shape(b), shape))
    quads = by_quads(way.extents, way.steps)
    chosen = (BY_QUADS if quads else BY_ELEMENTS)[op.function]
    blocks = blocks_for(y.size, THREADS * (QUAD if quads else 1))
    launcher.launch(chosen, blocks, a, b, y, way.extents, *way.steps, 0.0)


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
    quads = by_quads(way.extents, way.steps)
    blocks = blocks_for(y.size, THREADS * (QUAD if quads else 1))
    launcher.launch(_read_quads if quads else _read, blocks, x, y, factor, way.extents, *way.steps)
