"""Slices, inserts and reshapes of arrays of any type and up to four axes, by `layout.py`'s kernels.

In: physical arrays, logical starts. Out: a part, or a whole with a part replaced. The one idea: a
copy depends neither on the number of axes nor on the element type: an array of fewer than four axes
is treated as one of four whose first have length 1, and an int64 as two words of a float32's size;
so labels and vectors go through the kernels of `layout.py` too. Read next: `layout.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooctrain.errors import ShapeError
from ooctrain.layers.kernels.cuda import elementwise, layout
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher

Array = Any
Index = tuple[int, ...]
MOST_AXES = 4
WORD = np.dtype(np.float32)


def slice_of(launcher: Launcher, x: Array, y: Array, start: Index) -> None:
    """y = the block of x at logical `start`, as much as y holds."""
    layout.slice_nhwc(launcher, _box(x), _box(y), *_first(x, start))


def insert(launcher: Launcher, part: Array, whole: Array, start: Index) -> None:
    """The block of `whole` at logical `start` = part."""
    layout.insert_nhwc(launcher, _box(part), _box(whole), *_first(whole, start))


def insert_add(launcher: Launcher, part: Array, whole: Array, start: Index) -> None:
    """The block of `whole` at logical `start` += part; float32 only."""
    layout.insert_add_nhwc(launcher, _box(part), _box(whole), *_first(whole, start))


def clear(launcher: Launcher, whole: Array, start: Index, shape: Index) -> None:
    """The block of `whole` of a logical shape at `start` = 0."""
    layout.clear_nhwc(launcher, _box(whole), _first(whole, start), _first(whole, shape, 1))


def embed(launcher: Launcher, part: Array, whole: Array, start: Index) -> None:
    """whole = 0, but for the block at logical `start`, which is `part`."""
    layout.embed_nhwc(launcher, _box(part), _box(whole), _first(whole, start))


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
