"""Slices, inserts, concatenation and reshapes of arrays of any type and number of axes.

From physical arrays and logical starts these functions make a part, or a whole with a part
replaced. The kernels of `layout.py` take (N, H, W, C) float32, and an (N, C) array is a special
case of that. All other arrays, such as labels, are small, so NumPy's own copy suffices. Read next:
`layout.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooctrain.layers.combine import Concat
from ooctrain.layers.kernels.cpu import elementwise, layout
from ooctrain.layers.kernels.cpu.runtime.copy import copy_unless_same
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.layout import Reshape, logical_in_memory
from ooctrain.step.op import to_logical

Array = np.ndarray
Arrays = Sequence[Array]
Index = tuple[int, ...]


def slice_of(pool: ThreadPool, x: Array, y: Array, start: Index) -> None:
    """y = the block of x at logical `start`, as much as y holds."""
    if _has_kernel(x):
        layout.slice_nhwc(pool, _nhwc(x), _nhwc(y), *_first(start))
    else:
        np.copyto(to_logical(y), _block(x, start, y))


def insert_into(pool: ThreadPool, part: Array, whole: Array, start: Index) -> None:
    """The block of `whole` at logical `start` = part."""
    if _has_kernel(part):
        layout.insert_nhwc(pool, _nhwc(part), _nhwc(whole), *_first(start))
    else:
        np.copyto(_block(whole, start, part), to_logical(part))


def embed(pool: ThreadPool, part: Array, whole: Array, start: Index) -> None:
    """whole = 0, but for the block at logical `start`, which is `part`."""
    elementwise.fill(pool, whole, 0.0)
    insert_into(pool, part, whole, start)


def insert(pool: ThreadPool, x: Array, part: Array, y: Array, start: Index) -> None:
    """y = x with the block at logical `start` = part. `y` may be `x`."""
    copy_unless_same(x, y)
    insert_into(pool, part, y, start)


def insert_add(pool: ThreadPool, x: Array, part: Array, y: Array, start: Index) -> None:
    """y = x with the block at logical `start` += part. `y` may be `x`."""
    copy_unless_same(x, y)
    if _has_kernel(part):
        layout.insert_add_nhwc(pool, _nhwc(part), _nhwc(y), *_first(start))
    else:
        block = _block(y, start, part)
        np.add(block, to_logical(part), out=block)


def clear(pool: ThreadPool, x: Array, y: Array, start: Index, shape: Index) -> None:
    """y = x with the block of a logical shape at `start` = 0. `y` may be `x`."""
    copy_unless_same(x, y)
    to_logical(y)[_region(start, shape)] = 0


def concat(pool: ThreadPool, op: Concat, ins: Arrays, outs: Arrays) -> None:
    """The inputs one after the other; channels of images are interleaved pixel by pixel."""
    y = outs[0]
    if y.ndim == 4 and op.axis == 1:
        layout.concat_nhwc(pool, ins, y)
        return
    starts = op.starts([to_logical(x).shape[op.axis] for x in ins])
    for x, start in zip(ins, starts, strict=True):
        insert_into(pool, x, y, op.at(x.ndim, start))


def reshape(pool: ThreadPool, op: Reshape, ins: Arrays, outs: Arrays, workspace: Array) -> None:
    """The same elements in the same logical order; from image to image by way of the workspace."""
    x, y = ins[0], outs[0]
    if op.keeps_memory_order:
        copy_unless_same(x, y)
    elif x.dtype != np.float32:
        # The kernels know float32 only; images of whole numbers are rare: NumPy copies them.
        to_logical(y)[...] = to_logical(x).reshape(op.shape)
    elif logical_in_memory(op.source):
        layout.nchw_to_nhwc(pool, x.reshape(op.shape), y)
    elif logical_in_memory(op.shape):
        layout.nhwc_to_nchw(pool, x, y.reshape(op.source))
    else:
        logical = workspace[: x.nbytes].view(x.dtype)
        layout.nhwc_to_nchw(pool, x, logical.reshape(op.source))
        layout.nchw_to_nhwc(pool, logical.reshape(op.shape), y)


def _has_kernel(array: Array) -> bool:
    return array.dtype == np.float32 and array.ndim in (2, 4)


def _nhwc(physical: Array) -> Array:
    """A (N, C) array seen as (N, 1, 1, C); 4-d ones as they are."""
    return physical if physical.ndim == 4 else physical.reshape(physical.shape[0], 1, 1, -1)


def _first(start: Index) -> tuple[int, int, int, int]:
    """A logical index as one of `_nhwc`."""
    n, c, h, w = (*start, 0, 0)[:4]
    return n, h, w, c


def _block(whole: Array, start: Index, part: Array) -> Array:
    """The block of `whole`, a logical view, that has the shape of `part`."""
    return to_logical(whole)[_region(start, to_logical(part).shape)]


def _region(start: Index, shape: Index) -> tuple[slice, ...]:
    return tuple(slice(a, a + extent) for a, extent in zip(start, shape, strict=True))
