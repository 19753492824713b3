"""Adding up partial sums: of weight gradients, and of channels.

The sums of the parts of a batch lie one after another in a workspace. The shape fixes the parts,
and they are added in their order, so the total has the same bits whichever thread computed which
part. Read next: `conv/conv_direct.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import SMALL_ELEMENTS
from ooctrain.layers.kernels.cpu.runtime.entry import array_at
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner, kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import VL
from ooctrain.layers.kernels.cpu.simd.simd_memory import address_of, vload, vstore
from ooctrain.layers.kernels.signature import I8, F4s


@kernel
def _sum_partials(space: F4s, partials_at: I8, stride: I8, parts: I8, total: F4s, lo, hi, thread):
    """Items: elements. total = the partial sums added in their order."""
    i = lo
    while i < hi:
        if i + VL <= hi:
            value = vload(space, partials_at + i)
            for part in range(1, parts):
                value = value + vload(space, partials_at + part * stride + i)
            vstore(total, i, value)
            i += VL
        else:
            scalar = space[partials_at + i]
            for part in range(1, parts):
                scalar += space[partials_at + part * stride + i]
            total[i] = scalar
            i += 1


def add_parts(pool: ThreadPool, space: np.ndarray, p: Any, total: np.ndarray) -> None:
    """total = the sum of a weight gradient's parts; a single part already lies in `total`.

    Args:
        space: the workspace as float32.
        p: the numbers of a blocking: `parts` arrays from `partials_at` on, `partial_stride` apart.
        total: float32, flat.
    """
    if p.cut.parts > 1:
        partials = space, p.place.partials_at, p.place.partial_stride, p.cut.parts
        pool.run(_sum_partials, total.size, SMALL_ELEMENTS, *partials, total)


@inner
def channel_partials(workspace, chunks, width):
    """(float64 partials, float32 sums of blocks) in a workspace of `channel_partials_bytes`:
    `width` of each for every chunk.
    """
    start, count = address_of(workspace), chunks * width
    partials = array_at(start, count, np.float64)
    return partials, array_at(start + 8 * count, count, np.float32)


@inner
def channel_total(workspace, chunks, width, c):
    """The sum over all chunks of partial number `c`, in the order of the chunks."""
    partials = array_at(address_of(workspace), chunks * width, np.float64)
    total = partials[c]
    for chunk in range(1, chunks):
        total += partials[chunk * width + c]
    return total


@inner
def first_of_block(block, cut):
    """The first pixel of a block."""
    return block // cut.per_section * cut.section + block % cut.per_section * cut.length


@inner
def pixels_of_block(block, cut):
    """How many pixels a block has."""
    return min(cut.length, cut.section - block % cut.per_section * cut.length)
