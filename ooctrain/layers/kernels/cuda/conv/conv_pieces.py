"""What all algorithms of convolution share: turned weights, sums of partials, launches by tiles.

One kernel exchanges the inner and outer channels of the weights. The gradient of the input sums
over filters, so it needs them contiguous, as the forward pass needs channels. The exchange costs
little and makes both the same product. The other kernel adds partial results, which are stored one
after the other, in their order, so that the bits never change. Read next: `conv_naive.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cuda.conv.conv_blocking import Correlation
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, cuda, kernel, uint32
from ooctrain.layers.kernels.signature import U4, F4s

THREADS = 256
ZERO = np.float32(0)


@kernel(threads=THREADS)
def _turn(w: F4s, turned: F4s, taps: U4, inner: U4, outer: U4, count: U4):
    """Thread: one weight w[g, o, tap, i], in the order of the result [g, i, tap, o]."""
    i = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
    if i < count:
        rest = uint32(i // outer)
        o = uint32(i - rest * outer)
        line = uint32(rest // taps)
        tap = uint32(rest - line * taps)
        group = uint32(line // inner)
        channel = uint32(line - group * inner)
        row = uint32(group * outer + o)
        turned[i] = w[uint32(uint32(row * taps + tap) * inner + channel)]


@kernel(threads=THREADS)
def _add_partials(partials: F4s, total: F4s, parts: U4, count: U4):
    i = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
    if i < count:
        sum_of_parts = ZERO
        for part in range(parts):
            sum_of_parts += partials[part * count + i]
        total[i] = sum_of_parts


def turn_weights(launcher: Launcher, shape: ConvShape, w: Any, workspace: Any) -> Any:
    """The weights (K, R, S, C / groups) as (C, R, S, K / groups), in the workspace."""
    turned = launcher.part(workspace, 0, w.size, "float32")
    blocks = blocks_for(w.size, THREADS)
    launcher.launch(_turn, blocks, w, turned, shape.r * shape.s, shape.cg, shape.kg, w.size)
    return turned


def add_partials(launcher: Launcher, partials: Any, parts: int, total: Any) -> None:
    """total = the sum of `parts` arrays that lie one behind the other; one part is in place."""
    if parts > 1:
        blocks = blocks_for(total.size, THREADS)
        launcher.launch(_add_partials, blocks, partials, total, parts, total.size)


def correlate_by_tiles(
    launcher: Launcher, kernel: Kernel, tile: tuple[int, int], correlation: Correlation, *arrays
) -> None:
    """y[pixel, o] = sum over terms of x times w [+ bias].

    Args:
        kernel: takes x, w, bias, whether there is one, y; and the numbers of
            `conv_blocking.Source`, `Taps` and `Target`.
        tile: pixels and filters of a block.
        arrays: x, w, bias or None, y.
    """
    (x, w, bias, y), (source, taps, target) = arrays, correlation
    pixels, filters = tile
    blocks = blocks_for(target.pixels, pixels), blocks_for(target.outer, filters), target.groups
    launcher.launch(
        kernel, blocks, x, w, w if bias is None else bias, bias is not None, y,
        source, taps, target,
    )  # fmt: skip
