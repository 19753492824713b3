"""Copies of whole uint8 arrays, of any alignment, in one long call without the GIL.

A large variable that is swapped is not read again soon, so its copy bypasses the caches and leaves
the kernels' working set there. A small one is copied through the caches, which is faster.
Read next: `devices/cpu/device.py`, whose copy engines call it.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.runtime.kernel_jit import kernel
from ooctrain.layers.kernels.cpu.simd.simd_memory import (
    address_of,
    copy_line,
    store_fence,
    stream_line,
)

LINE = 64
#: Copies below this go through the caches, since they evict little.
SMALL_BYTES = 2 << 20


@kernel("void(u1[::1], u1[::1])")
def stream_copy(dst, src):
    """dst[:] = src[:], as much as dst holds; `src` is at least as long, and they do not overlap."""
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


def copy_unless_same(x: np.ndarray, y: np.ndarray) -> None:
    """y = x, for arrays of equal size; nothing to do where y lies on the storage of x."""
    if x.ctypes.data != y.ctypes.data:
        np.copyto(y.reshape(-1), x.reshape(-1))
