"""Adding one number per channel to an image, in place.

It adds b (C) to y (..., C). Convolutions add their bias while a result is still in registers.
Operations whose kernels cannot do so add it here, in one pass at memory speed. Read next:
`resampling.py`.
"""

from __future__ import annotations

from typing import Any

from ooctrain.layers.kernels.cuda.chunks import THREADS, same_channels
from ooctrain.layers.kernels.cuda.quads import (
    load_channels,
    load_quad,
    quads_of_channels,
    store_quad,
    sum_quad,
)
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, kernel
from ooctrain.layers.kernels.signature import U4, F4s


@kernel(threads=THREADS)
def _add_bias(y: F4s, bias: F4s, channels: U4, apart: U4):
    x_block, y_block, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    i, j, c = quads_of_channels(x_block, y_block, thread, apart, channels)
    a, b = load_quad(y, i), load_quad(y, j)
    added = load_channels(bias, c, channels)
    store_quad(y, i, sum_quad(a, added))
    store_quad(y, j, sum_quad(b, added))


def add_in_place(launcher: Launcher, y: Any, bias: Any) -> None:
    """y += bias along the last axis."""
    blocks, apart = same_channels(y.size, bias.size)
    launcher.launch(_add_bias, blocks, y, bias, bias.size, apart)
