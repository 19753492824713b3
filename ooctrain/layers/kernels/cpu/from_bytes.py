"""Bytes to floats: `BytesToFloat` of `layers/arithmetic.py` on cores.

A uint8 array becomes a float32 array of the same shape in one pass at memory speed, with the two
roundings of the definition. Read next: `elementwise.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import element_chunk
from ooctrain.layers.kernels.cpu.runtime.jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool

Array = np.ndarray


@kernel("void(u1[::1], f4[::1], f4, f4, i8, i8, i8)")
def _from_bytes(x, y, mean, std, lo, hi, thread):
    for i in range(lo, hi):
        y[i] = (np.float32(x[i]) - mean) / std


def from_bytes(pool: ThreadPool, x: Array, y: Array, mean: float, std: float) -> None:
    """y = (x - mean) / std."""
    pool.run(_from_bytes, y.size, element_chunk(y.size), x, y, np.float32(mean), np.float32(std))
