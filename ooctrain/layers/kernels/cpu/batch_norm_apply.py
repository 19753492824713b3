"""Batch normalisation with statistics that are known: y = (x - mean) * (gamma * inv_std) + beta.

x is (P, C), the parameters are vectors of C; the same pass can add a residual and apply ReLU. If x
is in a cache, loading the vectors of C costs more than loading x. They are then loaded for four
machine vectors of channels and kept in registers over some rows. If x is in memory, loading x costs
more, and whole rows are read one after the other. Every product-and-sum has one fixed order, so
both ways and the separate kernels give the same bits. Source: Ioffe and Szegedy 2015. Read next:
`pooling.py`.
"""

from __future__ import annotations

import math

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import past_caches, row_chunk
from ooctrain.layers.kernels.cpu.runtime.jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import vfma, vmax, vsplat
from ooctrain.layers.kernels.cpu.simd.simd_memory import (
    AHEAD_ELEMENTS,
    prefetch,
    vload,
    vload_upto,
    vscan_upto,
    vstore4,
)
from ooctrain.layers.kernels.cpu.simd.simd_stream import store_fence, vput_upto
from ooctrain.layers.kernels.cpu.simd.vector import VL

Array = np.ndarray
#: Rows for which `apply` keeps a group of channels in registers.
ROWS_IN_FOURS = 16
#: Most bytes read and written for which it does so. More come from memory, which is faster row
#: after row, even where a row is four vectors (measured with 32 MiB of cache: 64 x 64 x 32 x 32
#: takes two thirds of the time).
IN_FOURS_BYTES = 20 << 20


@kernel(
    "void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], b1, f4, b1, i8, i8, i8)"
)
def _apply(x, mean, inv_std, gamma, beta, residual, y, add, floor, past, lo, hi, thread):
    """y = max((x - mean) * (gamma * inv_std) + beta [+ residual], floor)."""
    channels, floors = mean.size, vsplat(floor)
    for row in range(lo, hi):
        for c in range(0, channels, VL):
            i, n = row * channels + c, channels - c
            slope = vload_upto(gamma, c, n) * vload_upto(inv_std, c, n)
            v = vscan_upto(x, i, n) - vload_upto(mean, c, n)
            v = vfma(v, slope, vload_upto(beta, c, n))
            if add:
                v = v + vscan_upto(residual, i, n)
            if not past:
                prefetch(y, i + AHEAD_ELEMENTS)
            vput_upto(y, i, vmax(floors, v), n, past)
    if past:
        store_fence()


@kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], b1, f4, i8, i8, i8)")
def _apply_in_fours(x, mean, inv_std, gamma, beta, residual, y, add, floor, lo, hi, thread):
    """As `_apply`; the vectors of C for four machine vectors stay in registers over some rows."""
    channels, floors = mean.size, vsplat(floor)
    for first in range(lo, hi, ROWS_IN_FOURS):
        last = min(hi, first + ROWS_IN_FOURS)
        for c in range(0, channels, 4 * VL):
            c1, c2, c3 = c + VL, c + 2 * VL, c + 3 * VL
            m0, m1, m2, m3 = vload(mean, c), vload(mean, c1), vload(mean, c2), vload(mean, c3)
            b0, b1, b2, b3 = vload(beta, c), vload(beta, c1), vload(beta, c2), vload(beta, c3)
            s0, s1 = vload(gamma, c) * vload(inv_std, c), vload(gamma, c1) * vload(inv_std, c1)
            s2, s3 = vload(gamma, c2) * vload(inv_std, c2), vload(gamma, c3) * vload(inv_std, c3)
            for row in range(first, last):
                i = row * channels + c
                i1, i2, i3 = i + VL, i + 2 * VL, i + 3 * VL
                v0, v1 = vfma(vload(x, i) - m0, s0, b0), vfma(vload(x, i1) - m1, s1, b1)
                v2, v3 = vfma(vload(x, i2) - m2, s2, b2), vfma(vload(x, i3) - m3, s3, b3)
                if add:
                    v0, v1 = v0 + vload(residual, i), v1 + vload(residual, i1)
                    v2, v3 = v2 + vload(residual, i2), v3 + vload(residual, i3)
                v0, v1 = vmax(floors, v0), vmax(floors, v1)
                vstore4(y, i, v0, v1, vmax(floors, v2), vmax(floors, v3))


def apply(
    pool: ThreadPool, x, mean, inv_std, gamma, beta, y, residual=None, relu: bool = False
) -> None:
    """y = (x - mean) * (gamma * inv_std) + beta [+ residual] [then ReLU].

    `y` may be `x` or `residual`.
    """
    channels, rows = mean.size, x.size // mean.size
    chunk = row_chunk(rows, channels)
    # Without ReLU the floor is minus infinity: one kernel serves both.
    floor = 0.0 if relu else -math.inf
    others = (y if residual is None else residual), y, residual is not None, floor
    past = channels % VL == 0 and past_caches(y, x)
    moved_bytes = y.nbytes * (2 + (residual is not None))
    if channels % (4 * VL) == 0 and moved_bytes <= IN_FOURS_BYTES:
        pool.run(_apply_in_fours, rows, chunk, x, mean, inv_std, gamma, beta, *others)
        return
    pool.run(_apply, rows, chunk, x, mean, inv_std, gamma, beta, *others, past)
