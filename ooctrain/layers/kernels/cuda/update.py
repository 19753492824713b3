"""Optimizer updates, each one fused pass: SGD with momentum, Adam and AdamW, RMSprop.

A parameter, its gradient and its slots give their next values, which may be on the same storage. As
on the cpu, an update reads and writes each array once, with the same products and sums in the same
order, and gets its step scalars as arguments. With three or four loads in flight a thread need not
load its second quad early. Source: torch.optim (whose order of operations is kept); Kingma and Ba
2015; Loshchilov and Hutter 2019. Read next: `clipping.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.chunks import STRIDE, THREADS, tiles
from ooctrain.layers.kernels.cuda.quads import first_quads, load_quad, store_quad
from ooctrain.layers.kernels.cuda.runtime.intrinsics import fma
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, device, kernel
from ooctrain.layers.kernels.signature import B1, F4, F4s, F4x6, F4x7
from ooctrain.layers.update import AdamFactors, RmspropFactors, SgdFactors

Array = Any
ZERO, ONE = np.float32(0), np.float32(1)


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


@kernel(threads=THREADS, changing=(3,))
def _sgd_plain(w: F4s, g: F4s, w_out: F4s, lr: F4, decay: F4):
    first, _ = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
    for half in range(2):
        i = first + half * STRIDE
        v, d = load_quad(w, i), load_quad(g, i)
        store_quad(w_out, i, (
            descended(v[0], d[0], lr, decay), descended(v[1], d[1], lr, decay),
            descended(v[2], d[2], lr, decay), descended(v[3], d[3], lr, decay),
        ))  # fmt: skip


@kernel(threads=THREADS, changing=(5, 6, 7))
def _sgd(
    w: F4s, g: F4s, m: F4s, w_out: F4s, m_out: F4s, lr: F4, momentum: F4, undamped: F4, decay: F4,
    nesterov: B1,
):  # fmt: skip
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


@kernel(threads=THREADS, changing=(7,))
def _adam(w: F4s, g: F4s, m: F4s, v: F4s, w_out: F4s, m_out: F4s, v_out: F4s, factors: F4x7):
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


@device
def next_mean_square(d, v, alpha, rest):
    """alpha * v + rest * d^2."""
    return fma(alpha, v, rest * (d * d))


@device
def about_mean(v, a):
    """v - a^2, which rounding may not make negative."""
    spread = fma(-a, a, v)
    return ZERO if spread < ZERO else spread


@device
def over_root(d, spread, eps):
    """d / (sqrt(spread) + eps)."""
    return d / (math.sqrt(spread) + eps)


@kernel(threads=THREADS, changing=(9,))
def _rmsprop(
    w: F4s, g: F4s, v: F4s, a: F4s, b: F4s, w_out: F4s, v_out: F4s, a_out: F4s, b_out: F4s,
    factors: F4x6, centered: B1, moving: B1,
):  # fmt: skip
    lr, alpha, rest, eps, decay, momentum = factors
    first, _ = first_quads(cuda.blockIdx.x, cuda.threadIdx.x)
    for half in range(2):
        i = first + half * STRIDE
        x, y, s = load_quad(w, i), load_quad(g, i), load_quad(v, i)
        d0, d1 = fma(decay, x[0], y[0]), fma(decay, x[1], y[1])
        d2, d3 = fma(decay, x[2], y[2]), fma(decay, x[3], y[3])
        s0, s1 = next_mean_square(d0, s[0], alpha, rest), next_mean_square(d1, s[1], alpha, rest)
        s2, s3 = next_mean_square(d2, s[2], alpha, rest), next_mean_square(d3, s[3], alpha, rest)
        store_quad(v_out, i, (s0, s1, s2, s3))
        if centered:
            m = load_quad(a, i)
            m0, m1 = fma(rest, d0 - m[0], m[0]), fma(rest, d1 - m[1], m[1])
            m2, m3 = fma(rest, d2 - m[2], m[2]), fma(rest, d3 - m[3], m[3])
            store_quad(a_out, i, (m0, m1, m2, m3))
            s0, s1, s2, s3 = (
                about_mean(s0, m0), about_mean(s1, m1), about_mean(s2, m2), about_mean(s3, m3),
            )  # fmt: skip
        d0, d1, d2, d3 = (
            over_root(d0, s0, eps), over_root(d1, s1, eps),
            over_root(d2, s2, eps), over_root(d3, s3, eps),
        )  # fmt: skip
        if moving:
            u = load_quad(b, i)
            d0, d1 = fma(momentum, u[0], d0), fma(momentum, u[1], d1)
            d2, d3 = fma(momentum, u[2], d2), fma(momentum, u[3], d3)
            store_quad(b_out, i, (d0, d1, d2, d3))
        store_quad(w_out, i, (
            fma(-lr, d0, x[0]), fma(-lr, d1, x[1]), fma(-lr, d2, x[2]), fma(-lr, d3, x[3]),
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


def rmsprop(
    launcher: Launcher, before: Sequence[Array], after: Sequence[Array],
    factors: RmspropFactors, kept: tuple[bool, bool],
) -> None:  # fmt: skip
    """One step of torch's RMSprop.

    Args:
        before: w, g, v, a, b: parameter, gradient, and zeros before the first step: the mean square
            of gradients, their mean, the momentum buffer.
        after: next values of w, v, a, b; may be those of `before`.
        kept: whether there is a mean, and a buffer; else any array stands for it.
    """
    w = before[0]
    launcher.launch(_rmsprop, tiles(w.size), *before, *after, factors, *kept)
