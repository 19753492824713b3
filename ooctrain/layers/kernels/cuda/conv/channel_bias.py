"""Adding one number per channel to an image, in place.

It adds b (C) to y (..., C). Convolutions add their bias while a result is still in registers.
Operations whose kernels cannot do so add it here, in one pass at memory speed. Read next:
`reflect.py`.
"""

from __future__ import annotations

from typing import Any

from ooctrain.layers.kernels.cuda.chunks import THREADS, tiles
from ooctrain.layers.kernels.cuda.quads import (
    channels_of,
    first_quads,
    load_channels,
    load_quad,
    store_quad,
    sum_quad,
)
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, kernel


@kernel("void(f4[::1], f4[::1], u4)", threads=THREADS)
def _add_bias(y, bias, channels):
    i, j = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
    a, b = load_quad(y, i), load_quad(y, j)
    ci, cj = channels_of(i, j, channels)
    store_quad(y, i, sum_quad(a, load_channels(bias, ci, channels)))
    store_quad(y, j, sum_quad(b, load_channels(bias, cj, channels)))


def add_in_place(launcher: Launcher, y: Any, bias: Any) -> None:
    """y += bias along the last axis."""
    launcher.launch(_add_bias, tiles(y.size), y, bias, bias.size)
