"""Bytes to floats: `BytesToFloat` of `layers/arithmetic.py` on cores.

A uint8 array becomes a float32 array of the same shape in one pass at memory speed, with the two
roundings of the definition. Read next: `elementwise.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import element_chunk
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.signature import F4, F4s, U1s

Array = np.ndarray
Each = float | tuple[float, ...]


@kernel
def _from_bytes(x: U1s, y: F4s, mean: F4, std: F4, lo, hi, thread):
    for i in range(lo, hi):
        y[i] = (np.float32(x[i]) - mean) / std


@kernel
def _from_bytes_by_channel(x: U1s, y: F4s, mean: F4s, std: F4s, lo, hi, thread):
    channel = lo % mean.size
    for i in range(lo, hi):
        y[i] = (np.float32(x[i]) - mean[channel]) / std[channel]
        channel += 1
        if channel == mean.size:
            channel = 0


def from_bytes(pool: ThreadPool, x: Array, y: Array, mean: Each, std: Each) -> None:
    """y = (x - mean) / std; channels lie last."""
    if isinstance(mean, tuple) or isinstance(std, tuple):
        each = np.asarray(mean, np.float32), np.asarray(std, np.float32)
        pool.run(_from_bytes_by_channel, y.size, element_chunk(y.size), x, y, *each)
        return
    pool.run(_from_bytes, y.size, element_chunk(y.size), x, y, np.float32(mean), np.float32(std))
