"""Clipping of gradients: the sum of all squares, the factor that it gives, and its use.

In: gradients. Out: gradients whose common norm, or whose elements, are bounded. The one idea: the
one number for all gradients never comes to the host, which would have to wait for the GPU: sums of
squares, their total and the factor are variables there, float64 as the trace says. The kernels that
touch these single numbers are the only ones with float64; what runs over arrays is float32, with
compensated sums. Source: torch.nn.utils.clip_grad_norm_. Read next: `layout.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import float64

from ooctrain.layers.kernels.cuda.chunks import THREADS, TILE, element_chunk, tiles
from ooctrain.layers.kernels.cuda.columns import add_compensated, at, column_total
from ooctrain.layers.kernels.cuda.launcher import Launcher
from ooctrain.layers.kernels.cuda.pointwise import apply, unary
from ooctrain.layers.kernels.cuda.quads import first_quads, load_quad, store_quad
from ooctrain.layers.kernels.cuda.shim import cuda, device, float32, kernel, uint32
from ooctrain.layers.kernels.cuda.sums import (
    HALFWAY,
    SUM_ROUNDINGS,
    sum_blocks,
    sum_of,
    sum_of_first,
)

Array = Any
ZERO = np.float32(0)
#: Sums of squares that one launch adds to the total.
SQUARES_AT_ONCE = 8
#: The sum of squares is right to this many roundings of itself: the products' and the sums'.
SQUARES_ROUNDINGS = 1 + SUM_ROUNDINGS


@device
def squares(u, v):
    """u^2; what the template loads for v is never used, and so not loaded."""
    return u * u


_squares = sum_of(squares)


@kernel("void(f4[::1], f8[::1])", threads=THREADS)
def _total(partials, total_out):
    """One block adds up all partial sums."""
    totals = cuda.shared.array(THREADS, float32)
    thread, halfway = uint32(cuda.threadIdx.x), uint32(HALFWAY)
    total, lost = ZERO, ZERO
    for i in range(thread, partials.size, THREADS):
        total, lost = add_compensated(total, lost, at(partials, i))
    totals[thread] = total
    cuda.syncthreads()
    if thread < halfway:
        totals[thread] = column_total(totals, thread, halfway)
    cuda.syncthreads()
    if thread == 0:
        total_out[0] = float64(sum_of_first(totals, HALFWAY))


@device
def one_of(values, place, count):
    """values[0], or 0 where fewer than `place` + 1 arrays count."""
    return values[0] if place < count else float64(0)


@kernel("void(f8[::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[::1], "
        "i4, b1, f8[::1])", threads=32)  # fmt: skip
def _add_squares(s0, s1, s2, s3, s4, s5, s6, s7, count, go_on, total):
    """total = [total +] the first `count` of the sums, in their order."""
    if cuda.threadIdx.x == 0:
        before = total[0] if go_on else float64(0)
        before += one_of(s0, 0, count) + one_of(s1, 1, count)
        before += one_of(s2, 2, count) + one_of(s3, 3, count)
        before += one_of(s4, 4, count) + one_of(s5, 5, count)
        total[0] = before + (one_of(s6, 6, count) + one_of(s7, 7, count))


@kernel("void(f8[::1], f8, f8)", threads=32)
def _clip_factor(factor, max_norm, eps):
    """From the sum of all squares to min(1, max_norm / (norm + eps)), in place."""
    if cuda.threadIdx.x == 0:
        wanted = max_norm / (math.sqrt(factor[0]) + eps)
        factor[0] = wanted if wanted < float64(1) else float64(1)


@kernel("void(f4[::1], f8[::1], f4[::1])", threads=THREADS)
def _scale_by(x, factor, y):
    i, j = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
    f, a, b = float32(factor[0]), load_quad(x, i), load_quad(x, j)
    store_quad(y, i, (f * a[0], f * a[1], f * a[2], f * a[3]))
    store_quad(y, j, (f * b[0], f * b[1], f * b[2], f * b[3]))


@device
def clipped(x, limit):
    """x limited to [-limit, limit]; NaN stays NaN."""
    if x > limit:
        return limit
    return -limit if x < -limit else x


_clip_value = unary(clipped)


def sum_of_squares(launcher: Launcher, g: Array, total: Array, workspace: Array) -> None:
    """total = sum of g^2, one float64, in fixed order.

    Added in float32 with compensation: right to about SQUARES_ROUNDINGS * 2^-24 of itself.

    Args:
        workspace: uint8, `reduction_workspace_bytes(g.size)`.
    """
    blocks = sum_blocks(g.size)
    partials = launcher.part(workspace, 0, blocks, "float32")
    launcher.launch(_squares, blocks, g, g, partials, element_chunk(g.size) // TILE)
    launcher.launch(_total, 1, partials, total)


def clip_scale(
    launcher: Launcher, squares: Sequence[Array], factor: Array, max_norm: float, eps: float
) -> None:
    """factor = min(1, max_norm / (norm + eps)): brings the common norm of all gradients to at most
    `max_norm`, as in torch.

    Args:
        squares: `sum_of_squares` of each gradient, in the order of the parameters.
        factor: one float64, written.
    """
    for first in range(0, len(squares), SQUARES_AT_ONCE):
        some = list(squares[first : first + SQUARES_AT_ONCE])
        filled = some + some[:1] * (SQUARES_AT_ONCE - len(some))
        launcher.launch(_add_squares, 1, *filled, len(some), first > 0, factor)
    launcher.launch(_clip_factor, 1, factor, max_norm, eps)


def scale_by(launcher: Launcher, x: Array, factor: Array, y: Array) -> None:
    """y = factor * x, the factor being one float64 on the GPU. `y` may be `x`."""
    launcher.launch(_scale_by, tiles(y.size), x, factor, y)


def clip_value(launcher: Launcher, x: Array, y: Array, limit: float) -> None:
    """y = x limited to [-limit, limit]. `y` may be `x`."""
    apply(launcher, _clip_value, x, y, parameter=limit)
