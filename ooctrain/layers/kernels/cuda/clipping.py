"""Clipping of gradients: the sum of all squares, the clipping factor, and its application.

It bounds the common norm of gradients, or their elements. The host never reads the factor, because
it would have to wait for the GPU: sums of squares, their total and the factor are variables on the
GPU. All are float32, in which a GPU is fastest. Sums are compensated (Kahan 1965), also from launch
to launch, so that the factor is accurate to `FACTOR_ROUNDINGS` whatever the number of gradients.
Source: torch.nn.utils.clip_grad_norm_. Read next: `sums.py`, `layout.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.chunks import THREADS, tiles
from ooctrain.layers.kernels.cuda.columns import add_compensated
from ooctrain.layers.kernels.cuda.functions import apply, unary
from ooctrain.layers.kernels.cuda.quads import first_quads, load_quad, store_quad
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, device, kernel, smaller
from ooctrain.layers.kernels.cuda.sums import SUM_ROUNDINGS, sum_into, sum_of
from ooctrain.layers.kernels.signature import B1, F4, I4, F4s
from ooctrain.layers.update import CLIP_EPS, ClipFactor

Array = Any
ZERO, ONE = np.float32(0), np.float32(1)
#: What sums of squares are multiplied by before they are added, exactly, so that a million of them
#: cannot exceed float32; the norm is multiplied by the other.
SMALLER, NORM_LARGER = np.float32(2.0**-20), np.float32(2.0**10)
#: Sums of squares that one launch adds to the total.
SQUARES_AT_ONCE = 8
#: The sum of squares is right to this many roundings of itself: the products' and the sums'.
SQUARES_ROUNDINGS = 1 + SUM_ROUNDINGS
#: So is the factor: the root halves the error of the sum and of its total, which is compensated;
#: root, eps and quotient add one each.
FACTOR_ROUNDINGS = (SQUARES_ROUNDINGS + 2) / 2 + 3


@device
def squares(u, v):
    """u^2. The compiler drops the template's load of v, which is not used."""
    return u * u


_squares = sum_of(squares)


@device
def add_one_of(total, lost, values, place, count):
    """(total + values[0], what its rounding lost), both smaller; unchanged if fewer than
    `place` + 1 count."""
    return add_compensated(total, lost, values[0] * SMALLER) if place < count else (total, lost)


@kernel(threads=32)
def _add_squares(
    s0: F4s, s1: F4s, s2: F4s, s3: F4s, s4: F4s, s5: F4s, s6: F4s, s7: F4s, count: I4, go_on: B1,
    running: F4s,
):  # fmt: skip
    """Running total, and what it lost, = [they +] the first `count` of the sums, in their order."""
    if cuda.threadIdx.x == 0:
        total, lost = running[0] if go_on else ZERO, running[1] if go_on else ZERO
        total, lost = add_one_of(total, lost, s0, 0, count)
        total, lost = add_one_of(total, lost, s1, 1, count)
        total, lost = add_one_of(total, lost, s2, 2, count)
        total, lost = add_one_of(total, lost, s3, 3, count)
        total, lost = add_one_of(total, lost, s4, 4, count)
        total, lost = add_one_of(total, lost, s5, 5, count)
        total, lost = add_one_of(total, lost, s6, 6, count)
        running[0], running[1] = add_one_of(total, lost, s7, 7, count)


@kernel(threads=32)
def _clip_factor(running: F4s, max_norm: F4, eps: F4, factor: F4s):
    """From the sum of all squares to min(1, max_norm / (norm + eps)); not a number stays so."""
    if cuda.threadIdx.x == 0:
        factor[0] = smaller(ONE, max_norm / (math.sqrt(running[0]) * NORM_LARGER + eps))


@kernel(threads=THREADS)
def _scale_by(x: F4s, factor: F4s, y: F4s):
    i, j = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
    f, a, b = factor[0], load_quad(x, i), load_quad(x, j)
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
    """total = sum of g^2, one float32, in fixed order: right to SQUARES_ROUNDINGS * 2^-24 of it.

    As on the cpu, that of a norm of 2^64 or more is infinite.

    Args:
        workspace: uint8, `reduction_workspace_bytes(g.size)`.
    """
    sum_into(launcher, _squares, g, g, total, workspace)


def clip_factor(
    launcher: Launcher, op: ClipFactor, squares: Sequence[Array], outs: Sequence[Array], workspace
) -> None:
    """The factor min(1, max_norm / (norm + eps)), which brings the common norm of all gradients to
    at most `max_norm`, as in torch; right to FACTOR_ROUNDINGS * 2^-24 of itself.

    Args:
        squares: `sum_of_squares` of each gradient, in the order of the parameters.
        outs: the factor, one float32.
        workspace: uint8, `workspace.CLIP_BYTES`.
    """
    running = launcher.part(workspace, 0, 2, "float32")
    for first in range(0, len(squares), SQUARES_AT_ONCE):
        some = list(squares[first : first + SQUARES_AT_ONCE])
        filled = some + some[:1] * (SQUARES_AT_ONCE - len(some))
        launcher.launch(_add_squares, 1, *filled, len(some), first > 0, running)
    launcher.launch(_clip_factor, 1, running, op.max_norm, CLIP_EPS, outs[0])


def scale_by(launcher: Launcher, x: Array, factor: Array, y: Array) -> None:
    """y = factor * x, the factor being one float32 on the GPU. `y` may be `x`."""
    launcher.launch(_scale_by, tiles(y.size), x, factor, y)


def clip_value(launcher: Launcher, x: Array, y: Array, limit: float) -> None:
    """y = x limited to [-limit, limit]. `y` may be `x`."""
    apply(launcher, _clip_value, x, y, parameter=limit)
