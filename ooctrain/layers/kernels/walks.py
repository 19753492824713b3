"""How kernels walk through arrays whose axes are in another order, or are repeated.

Shapes give a `StridedWalk`: the extents of the result in the order of its memory, and the step of
each operand along each of them. A permuted, a repeated and a plain operand differ in these numbers
alone, so one kernel serves all three. Axes that every operand can step through as one are merged,
so that runs are long. Read next: `cpu/strided.py`, `cuda/strided.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ooctrain.layers.permute import MOST_AXES
from ooctrain.layers.reduction import memory_order

Steps = tuple[int, ...]


class StridedWalk(NamedTuple):
    """Always MOST_AXES axes, the first ones of extent 1 where there are fewer.

    Args:
        extents: extents of the result, the last axis being the innermost in memory.
        steps: steps of each operand, in elements; 0 where it is repeated.
    """

    extents: Steps
    steps: tuple[Steps, ...]


def walk(shape: Sequence[int], *operands: Sequence[int]) -> StridedWalk:
    """The walk over a result of a logical shape.

    Args:
        operands: for each the steps along the logical axes of the result.
    """
    merged: list[list[int]] = []
    for axis in memory_order(shape):
        if shape[axis] == 1:
            continue
        extent, steps = shape[axis], [operand[axis] for operand in operands]
        if merged and all(
            before == step * extent for before, step in zip(merged[-1][1:], steps, strict=True)
        ):
            merged[-1] = [merged[-1][0] * extent, *steps]
        else:
            merged.append([extent, *steps])
    empty = [[1, *(0 for _ in operands)]] * (MOST_AXES - len(merged))
    extents, *found = zip(*empty, *merged, strict=True)
    return StridedWalk(extents, tuple(found))


def steps_of(shape: Sequence[int]) -> Steps:
    """How far apart neighbours along each logical axis lie in memory."""
    steps, step = [0] * len(shape), 1
    for axis in reversed(memory_order(shape)):
        steps[axis], step = step, step * shape[axis]
    return tuple(steps)


def repeated(shape: Sequence[int], to: Sequence[int]) -> Steps:
    """The steps of an operand of `shape` along the axes of a result of shape `to`."""
    own = steps_of(shape)
    more = len(to) - len(shape)
    return tuple(
        0 if axis < more or shape[axis - more] == 1 else own[axis - more] for axis in range(len(to))
    )


def strided(shape: Sequence[int], start: Sequence[int], steps: Sequence[int]) -> tuple[int, Steps]:
    """Where a strided slice of an operand begins, and its steps along the axes of the slice."""
    own = steps_of(shape)
    first = sum(a * step for a, step in zip(start, own, strict=True))
    return first, tuple(step * one for step, one in zip(steps, own, strict=True))


def permuted(shape: Sequence[int], axes: Sequence[int]) -> Steps:
    """The steps of an operand of `shape` along the axes of its permutation."""
    own = steps_of(shape)
    return tuple(own[axis] for axis in axes)


def logical_shape(array: Any) -> Steps:
    """The logical shape of a physical array of any device."""
    shape = tuple(array.shape)
    return (shape[0], shape[3], *shape[1:3]) if len(shape) == 4 else shape
