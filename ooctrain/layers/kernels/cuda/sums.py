"""Sums over all elements of arrays, in a fixed order: by blocks, then over the blocks.

A device function of two elements is summed over two arrays. The sum is one number on the GPU, times
a factor and, on request, divided by another number on the GPU, which the host need not know. A
block adds up its tiles (`chunks.element_chunk`), each thread with compensation (Kahan 1965), then
its threads in two steps over shared memory; one block adds up the blocks. The borders follow from
shapes, so the bits do not depend on the GPU. Read next: `losses.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.chunks import THREADS, TILE, element_chunk
from ooctrain.layers.kernels.cuda.columns import add_compensated, column_total
from ooctrain.layers.kernels.cuda.quads import first_quads, load_quad
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import (
    Kernel,
    cuda,
    device,
    float32,
    int64,
    kernel,
    uint32,
)
from ooctrain.layers.kernels.signature import B1, F4, I8, F4s

Array = Any
ZERO = np.float32(0)
#: Rows of threads whose sums are added first when a block adds up all it has.
HALFWAY = 16
#: A sum is right to this many roundings of the sum of absolute values, the function's own apart:
#: seven in a thread's two quads, two in each of six compensated sums (threads, two steps; twice).
SUM_ROUNDINGS = 7 + 6 * 2


@device
def sum_of_first(sums, count):
    """sums[0] + sums[1] + ..., in this order."""
    total, lost = ZERO, ZERO
    for i in range(count):
        total, lost = add_compensated(total, lost, sums[i])
    return total


def sum_of(function: Any) -> Kernel:
    """The kernel partials[block] = sum of function(u, v) over a block's tiles.

    Args:
        function: a device function of two elements. It must be 0 for two zeros, which stand for the
            elements beyond the end.
    """

    @device
    def of_quads(a, b):
        first = function(a[0], b[0]) + function(a[1], b[1])
        return first + (function(a[2], b[2]) + function(a[3], b[3]))

    def over_tiles(u: F4s, v: F4s, partials: F4s, tiles_per_block: I8):
        totals = cuda.shared.array(THREADS, float32)
        thread, halfway = uint32(cuda.threadIdx.x), uint32(HALFWAY)
        total, lost = ZERO, ZERO
        for tile in range(tiles_per_block):
            i, j = first_quads(int64(cuda.blockIdx.x) * tiles_per_block + tile, thread)
            ui, uj, vi, vj = load_quad(u, i), load_quad(u, j), load_quad(v, i), load_quad(v, j)
            total, lost = add_compensated(total, lost, of_quads(ui, vi) + of_quads(uj, vj))
        totals[thread] = total
        cuda.syncthreads()
        if thread < halfway:
            totals[thread] = column_total(totals, thread, halfway)
        cuda.syncthreads()
        if thread == 0:
            partials[cuda.blockIdx.x] = sum_of_first(totals, HALFWAY)

    original = function.py_func
    over_tiles.__name__ = over_tiles.__qualname__ = f"sum_of_{original.__name__}"
    over_tiles.__module__ = original.__module__
    return kernel(threads=THREADS)(over_tiles)


@kernel(threads=THREADS)
def _finish(partials: F4s, factor: F4, divisor: F4s, divides: B1, out: F4s):
    """One block: out = factor * sum of the partial sums [/ divisor]."""
    totals = cuda.shared.array(THREADS, float32)
    thread, halfway = uint32(cuda.threadIdx.x), uint32(HALFWAY)
    total, lost = ZERO, ZERO
    for i in range(thread, partials.size, THREADS):
        total, lost = add_compensated(total, lost, partials[i])
    totals[thread] = total
    cuda.syncthreads()
    if thread < halfway:
        totals[thread] = column_total(totals, thread, halfway)
    cuda.syncthreads()
    if thread == 0:
        whole = factor * sum_of_first(totals, HALFWAY)
        out[0] = whole / divisor[0] if divides else whole


def sum_into(
    launcher: Launcher, kernel: Kernel, u, v, out, workspace, factor: float = 1.0, divisor=None
) -> None:
    """out[0] = factor * (sum of the kernel's function over all elements) [/ divisor[0]].

    Args:
        kernel: made by `sum_of`.
        u, v: of equal size; the same array where the function needs one.
        workspace: uint8, `reduction_workspace_bytes(u.size)`.
        divisor: one float32 on the GPU, or None for 1.
    """
    blocks = sum_blocks(u.size)
    partials = launcher.part(workspace, 0, blocks, "float32")
    launcher.launch(kernel, blocks, u, v, partials, element_chunk(u.size) // TILE)
    finish(launcher, partials, out, factor, divisor)


def finish(launcher: Launcher, partials, out, factor: float = 1.0, divisor=None) -> None:
    """out[0] = factor * (sum of the partial sums) [/ divisor[0]]."""
    divides = divisor is not None
    launcher.launch(_finish, 1, partials, factor, divisor if divides else partials, divides, out)


def sum_blocks(elements: int) -> int:
    """Blocks, and partial sums, of a sum over so many elements."""
    return blocks_for(elements, element_chunk(elements))
