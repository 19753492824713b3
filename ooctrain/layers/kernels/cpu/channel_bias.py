"""Adding one number per channel to an image, in place.

b (C) is added to an image (..., C). Convolutions add their bias while a result is still in
registers. Operations whose kernels cannot do so add it here, in one pass at memory speed.
Read next: `resampling.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import row_chunk
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import VL
from ooctrain.layers.kernels.cpu.simd.simd_memory import vload_upto, vstore_upto
from ooctrain.layers.kernels.signature import F4s


@kernel
def _add_bias(y: F4s, bias: F4s, lo, hi, thread):
    """Items are pixels."""
    channels = bias.size
    for pixel in range(lo, hi):
        for c in range(0, channels, VL):
            i, n = pixel * channels + c, channels - c
            vstore_upto(y, i, vload_upto(y, i, n) + vload_upto(bias, c, n), n)


def add_in_place(pool: ThreadPool, y: np.ndarray, bias: np.ndarray) -> None:
    """y += bias along the last axis."""
    pixels = y.size // bias.size
    pool.run(_add_bias, pixels, row_chunk(pixels, bias.size), y, bias)
