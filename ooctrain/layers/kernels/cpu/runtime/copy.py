"""Copies of whole uint8 arrays, of any alignment, in one long call without the GIL.

A large variable that is swapped is not read again soon, so its copy bypasses the caches and leaves
the kernels' working set there. A small one is copied through the caches, which is faster.
Read next: `devices/cpu/device.py`, whose copy engines call it.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import element_chunk
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner, kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd_memory import (
    address_of,
    copy_line,
    store_fence,
    stream_line,
)
from ooctrain.layers.kernels.signature import U1s
from ooctrain.step.op import FLOAT_BYTES

LINE = 64
#: Copies below this go through the caches, since they evict little.
SMALL_BYTES = 2 << 20


@inner
def _copy(dst, src):
    """dst[:] = src[:], as much as dst holds."""
    size = dst.size
    head = min(-address_of(dst) % LINE, size)
    for i in range(head):
        dst[i] = src[i]
    end = size - (size - head) % LINE
    if size < SMALL_BYTES:
        for i in range(head, end, LINE):
            copy_line(dst, i, src, i)
    else:
        for i in range(head, end, LINE):
            stream_line(dst, i, src, i)
    for i in range(end, size):
        dst[i] = src[i]
    store_fence()


@kernel
def stream_copy(dst: U1s, src: U1s):
    """dst[:] = src[:], as much as dst holds; `src` is at least as long, and they do not overlap."""
    _copy(dst, src)


@kernel
def _copy_part(dst: U1s, src: U1s, lo, hi, thread):
    _copy(dst[lo:hi], src[lo:hi])


def copy_unless_same(pool: ThreadPool, x: np.ndarray, y: np.ndarray) -> None:
    """y = x, for arrays of one type and size; nothing to do where y lies on the storage of x."""
    if x.ctypes.data != y.ctypes.data:
        dst, src = (array.reshape(-1).view(np.uint8) for array in (y, x))
        chunk = FLOAT_BYTES * element_chunk(dst.size // FLOAT_BYTES)
        pool.run(_copy_part, dst.size, chunk, dst, src)
