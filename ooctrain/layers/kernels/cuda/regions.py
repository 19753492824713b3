"""Slices, inserts, concatenation and reshapes of arrays of any type, by the kernels of `layout.py`.

Physical arrays of up to four axes and logical starts give a part, or a whole with a part replaced.
A copy depends neither on the number of axes nor on the element type. An array of fewer than four
axes is treated as one of four whose first axes have length 1, and an int64 as two words of a
float32's size. So labels and vectors go through the kernels of `layout.py` too. Read next:
`layout.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ooctrain.errors import ShapeError
from ooctrain.layers.combine import Concat
from ooctrain.layers.kernels.cuda import elementwise, layout
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.layout import Reshape, logical_in_memory

Array = Any
Arrays = Sequence[Array]
Index = tuple[int, ...]
MOST_AXES = 4
#: Where a logical axis of an image lies in memory.
PHYSICAL_AXES = (0, 3, 1, 2)
WORD = np.dtype(np.float32)


def slice_of(launcher: Launcher, x: Array, y: Array, start: Index) -> None:
    """y = the block of x at logical `start`, as much as y holds."""
    layout.slice_nhwc(launcher, _box(x), _box(y), *_first(x, start))


def insert_into(launcher: Launcher, part: Array, whole: Array, start: Index) -> None:
    """The block of `whole` at logical `start` = part."""
    layout.insert_nhwc(launcher, _box(part), _box(whole), *_first(whole, start))


def insert(launcher: Launcher, x: Array, part: Array, y: Array, start: Index) -> None:
    """y = x with the block at logical `start` = part. `y` may be `x`."""
    copy_unless_same(launcher, x, y)
    insert_into(launcher, part, y, start)


def insert_add(launcher: Launcher, x: Array, part: Array, y: Array, start: Index) -> None:
    """y = x with the block at logical `start` += part; float32 only. `y` may be `x`."""
    copy_unless_same(launcher, x, y)
    layout.insert_add_nhwc(launcher, _box(part), _box(y), *_first(y, start))


def clear(launcher: Launcher, x: Array, y: Array, start: Index, shape: Index) -> None:
    """y = x with the block of a logical shape at `start` = 0. `y` may be `x`."""
    copy_unless_same(launcher, x, y)
    layout.clear_nhwc(launcher, _box(y), _first(y, start), _first(y, shape, 1))


def embed(launcher: Launcher, part: Array, whole: Array, start: Index) -> None:
    """whole = 0, but for the block at logical `start`, which is `part`."""
    layout.embed_nhwc(launcher, _box(part), _box(whole), _first(whole, start))


def concat(launcher: Launcher, op: Concat, ins: Arrays, outs: Arrays) -> None:
    """The inputs one after the other along an axis."""
    axis = PHYSICAL_AXES[op.axis] if outs[0].ndim == MOST_AXES else op.axis
    for x, start in zip(ins, op.starts([x.shape[axis] for x in ins]), strict=True):
        insert_into(launcher, x, outs[0], op.at(x.ndim, start))


def reshape(launcher: Launcher, op: Reshape, ins: Arrays, outs: Arrays, workspace: Array) -> None:
    """The same elements in the same logical order; from image to image by way of the workspace."""
    x, y = ins[0], outs[0]
    if op.keeps_memory_order:
        copy_unless_same(launcher, x, y)
    elif logical_in_memory(op.source):
        layout.nchw_to_nhwc(launcher, x, y)
    elif logical_in_memory(op.shape):
        layout.nhwc_to_nchw(launcher, x, y)
    else:
        logical = launcher.part(workspace, 0, x.size, "float32")
        layout.nhwc_to_nchw(launcher, x, logical)
        layout.nchw_to_nhwc(launcher, logical, y)


def copy_unless_same(launcher: Launcher, x: Array, y: Array) -> None:
    """y = x, for arrays of equal size; nothing is done if both have the same storage."""
    if _address(x) != _address(y):
        elementwise.copy(launcher, _words(x), _words(y))


def _words(array: Array) -> Array:
    """The flat array, as words of four bytes."""
    return array.ravel() if array.dtype == WORD else array.ravel().view(WORD)


def _box(array: Array) -> Array:
    """The same memory with four axes."""
    if array.ndim > MOST_AXES:
        raise ShapeError("a region on a GPU has at most four axes", numbers=f"got {array.shape}")
    *outer, last = array.shape
    ones = (1,) * (MOST_AXES - array.ndim)
    return _words(array).reshape((*ones, *outer, last * array.dtype.itemsize // WORD.itemsize))


def _first(array: Array, index: Index, outer: int = 0) -> tuple[int, int, int, int]:
    """A logical index of an array as one of its `_box`.

    Args:
        outer: what the added axes get: 0 for an index, 1 for a shape.
    """
    if len(index) == MOST_AXES:
        n, c, h, w = index
        index = n, h, w, c
    *rest, last = index
    words = array.dtype.itemsize // WORD.itemsize
    first, second, third, fourth = (*(outer,) * (MOST_AXES - len(index)), *rest, last * words)
    return first, second, third, fourth


def _address(array: Array) -> int:
    described = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return described["data"][0]
