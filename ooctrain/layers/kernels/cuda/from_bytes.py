"""Bytes to floats: `layers/from_bytes.py` on a GPU.

In: uint8 of any shape. Out: float32 of that shape. The one idea: a thread for each value; the bits
are those of the cpu kernel, since a difference and a quotient cannot be fused into one rounding.
Read next: `elementwise.py`.
"""

from __future__ import annotations

from typing import Any

from ooctrain.layers.kernels.cuda.chunks import THREADS
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, float32, int64, kernel

Array = Any


@kernel("void(u1[::1], f4[::1], f4, f4, i8)", threads=THREADS)
def _from_bytes(x, y, mean, std, count):
    i = int64(cuda.blockIdx.x) * THREADS + int64(cuda.threadIdx.x)
    if i < count:
        y[i] = (float32(x[i]) - mean) / std


def from_bytes(launcher: Launcher, x: Array, y: Array, mean: float, std: float) -> None:
    """y = (x - mean) / std."""
    launcher.launch(_from_bytes, blocks_for(y.size, THREADS), x, y, mean, std, y.size)
