"""Optimizer updates, each one fused pass: SGD with momentum, Adam and AdamW.

In: a parameter, its gradient, its slots. Out: their next values, which may lie on the same storage.
The one idea: as on the cpu, an update reads and writes each array once, with the same products and
sums in the same order, and gets its step scalars as arguments. With three or four loads under way a
thread need not load its second quad early. Source: torch.optim (whose order of operations is kept);
Kingma and Ba 2015; Loshchilov and Hutter 2019. Read next: `clipping.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.chunks import STRIDE, THREADS, tiles
from ooctrain.layers.kernels.cuda.quads import first_quads, load_quad, store_quad
from ooctrain.layers.kernels.cuda.runtime.intrinsics import fma
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, device, kernel
from ooctrain.layers.kernels.update_factors import AdamFactors, SgdFactors

Array = Any
ONE = np.float32(1)


@device
def descended(w, g, lr, decay):
    """w - lr * (g + decay * w)."""
    return fma(-lr, fma(decay, w, g), w)


@device
def next_velocity(w, g, m, momentum, undamped, decay):
    """momentum * m + undamped * (g + decay * w)."""
    return fma(momentum, m, undamped * fma(decay, w, g))


@device
def moved_along(w, g, velocity, lr, momentum, decay, nesterov):
    """w - lr * velocity; with Nesterov's look ahead, one more step of the velocity."""
    ahead = fma(momentum, velocity, fma(decay, w, g)) if nesterov else velocity
    return fma(-lr, ahead, w)


@kernel("void(f4[::1], f4[::1], f4[::1], f4, f4)", threads=THREADS)
def _sgd_plain(w, g, w_out, lr, decay):
    first, _ = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
    for half in range(2):
        i = first + half * STRIDE
        v, d = load_quad(w, i), load_quad(g, i)
        store_quad(w_out, i, (
            descended(v[0], d[0], lr, decay), descended(v[1], d[1], lr, decay),
            descended(v[2], d[2], lr, decay), descended(v[3], d[3], lr, decay),
        ))  # fmt: skip


@kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4, f4, f4, f4, b1)", threads=THREADS)
def _sgd(w, g, m, w_out, m_out, lr, momentum, undamped, decay, nesterov):
    first, _ = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
    for half in range(2):
        i = first + half * STRIDE
        v, d, s = load_quad(w, i), load_quad(g, i), load_quad(m, i)
        n = (
            next_velocity(v[0], d[0], s[0], momentum, undamped, decay),
            next_velocity(v[1], d[1], s[1], momentum, undamped, decay),
            next_velocity(v[2], d[2], s[2], momentum, undamped, decay),
            next_velocity(v[3], d[3], s[3], momentum, undamped, decay),
        )
        store_quad(m_out, i, n)
        store_quad(w_out, i, (
            moved_along(v[0], d[0], n[0], lr, momentum, decay, nesterov),
            moved_along(v[1], d[1], n[1], lr, momentum, decay, nesterov),
            moved_along(v[2], d[2], n[2], lr, momentum, decay, nesterov),
            moved_along(v[3], d[3], n[3], lr, momentum, decay, nesterov),
        ))  # fmt: skip


@device
def next_moments(w, g, m, v, beta1, beta2, decay):
    """First and second moment after this gradient."""
    d = fma(decay, w, g)
    return fma(ONE - beta1, d - m, m), fma(beta2, v, (ONE - beta2) * (d * d))


@device
def adapted(w, m, v, step_size, eps, root_correction, shrink):
    """shrink * w - step_size * m / (sqrt(v) * root_correction + eps)."""
    root = fma(math.sqrt(v), root_correction, eps)
    return fma(shrink, w, -(step_size * m / root))


@kernel(
    "void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], UniTuple(f4, 7))",
    threads=THREADS,
)
def _adam(w, g, m, v, w_out, m_out, v_out, factors):
    step_size, beta1, beta2, eps, root_correction, decay, shrink = factors
    first, _ = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
    for half in range(2):
        i = first + half * STRIDE
        x, d, a, b = load_quad(w, i), load_quad(g, i), load_quad(m, i), load_quad(v, i)
        m0, v0 = next_moments(x[0], d[0], a[0], b[0], beta1, beta2, decay)
        m1, v1 = next_moments(x[1], d[1], a[1], b[1], beta1, beta2, decay)
        m2, v2 = next_moments(x[2], d[2], a[2], b[2], beta1, beta2, decay)
        m3, v3 = next_moments(x[3], d[3], a[3], b[3], beta1, beta2, decay)
        store_quad(m_out, i, (m0, m1, m2, m3))
        store_quad(v_out, i, (v0, v1, v2, v3))
        store_quad(w_out, i, (
            adapted(x[0], m0, v0, step_size, eps, root_correction, shrink),
            adapted(x[1], m1, v1, step_size, eps, root_correction, shrink),
            adapted(x[2], m2, v2, step_size, eps, root_correction, shrink),
            adapted(x[3], m3, v3, step_size, eps, root_correction, shrink),
        ))  # fmt: skip


def sgd(launcher: Launcher, w, g, m, w_out, m_out, factors: SgdFactors) -> None:
    """One step of torch's SGD.

    Args:
        w, g: parameter and gradient.
        m: momentum buffer, zeros before the first step; None with momentum 0.
        w_out, m_out: next values; may be `w` and `m`.
    """
    if m is None or m_out is None:
        launcher.launch(_sgd_plain, tiles(w.size), w, g, w_out, factors.lr, factors.decay)
    else:
        launcher.launch(_sgd, tiles(w.size), w, g, m, w_out, m_out, *factors)


def adam(launcher: Launcher, w, g, m, v, w_out, m_out, v_out, factors: AdamFactors) -> None:
    """One step of torch's Adam, or of AdamW.

    Args:
        w, g: parameter and gradient.
        m, v: first and second moment, zeros before the first step.
        w_out, m_out, v_out: next values; may be the inputs.
    """
    arrays = w, g, m, v, w_out, m_out, v_out
    launcher.launch(_adam, tiles(w.size), *arrays, factors)
