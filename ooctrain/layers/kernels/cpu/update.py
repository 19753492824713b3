"""Optimizer updates, each one fused pass: SGD with momentum, Adam and AdamW, RMSprop; and clipping.

An update takes a parameter, its gradient and its slots, and writes their next values, which may lie
on the same storage. It reads and writes each array once. The numbers of the step are arguments, so
a changed learning rate needs no new trace. Source: torch.optim (whose order of operations is kept);
Kingma and Ba 2015; Loshchilov and Hutter 2019. Read next: `layout.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import chunk_count, element_chunk, reduction_chunk
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import VL, vfma, vmax, vsplat, vsqrt, vsum
from ooctrain.layers.kernels.cpu.simd.simd_memory import vload_upto, vscan_upto, vstore_upto
from ooctrain.layers.kernels.cpu.workspace import BLOCK_ELEMENTS
from ooctrain.layers.kernels.signature import B1, F4, I8, F4s, F8s
from ooctrain.layers.update import AdamFactors, ClipFactor, RmspropFactors, SgdFactors

Array = np.ndarray
ZERO, ONE = np.float32(0), np.float32(1)


@kernel
def _sgd_plain(w: F4s, g: F4s, w_out: F4s, lr: F4, weight_decay: F4, lo, hi, thread):
    """w_out = w - lr (g + decay w)."""
    decay, negative_lr = vsplat(weight_decay), vsplat(-lr)
    for i in range(lo, hi, VL):
        n = hi - i
        value = vscan_upto(w, i, n)
        d = vfma(decay, value, vscan_upto(g, i, n))
        vstore_upto(w_out, i, vfma(negative_lr, d, value), n)


@kernel
def _sgd(
    w: F4s, g: F4s, m: F4s, w_out: F4s, m_out: F4s, lr: F4, momentum: F4, undamped: F4,
    weight_decay: F4, nesterov: B1, lo, hi, thread,
):  # fmt: skip
    """m_out = momentum m + undamped (g + decay w); w_out = w - lr m_out (Nesterov: see `sgd`)."""
    decay, mu, negative_lr = vsplat(weight_decay), vsplat(momentum), vsplat(-lr)
    for i in range(lo, hi, VL):
        n = hi - i
        value = vscan_upto(w, i, n)
        d = vfma(decay, value, vscan_upto(g, i, n))
        velocity = vfma(mu, vscan_upto(m, i, n), undamped * d)
        vstore_upto(m_out, i, velocity, n)
        if nesterov:
            velocity = vfma(mu, velocity, d)
        vstore_upto(w_out, i, vfma(negative_lr, velocity, value), n)


@kernel
def _adam(
    w: F4s, g: F4s, m: F4s, v: F4s, w_out: F4s, m_out: F4s, v_out: F4s, step_size: F4, beta1: F4,
    beta2: F4, eps: F4, root_correction: F4, decay: F4, shrink: F4, lo, hi, thread,
):  # fmt: skip
    """Both moments of d = g + decay w, then w_out as `AdamFactors` says."""
    rest1, beta2v, rest2 = vsplat(ONE - beta1), vsplat(beta2), ONE - beta2
    corrections, epsilons, decays = vsplat(root_correction), vsplat(eps), vsplat(decay)
    for i in range(lo, hi, VL):
        n = hi - i
        value, first = vscan_upto(w, i, n), vscan_upto(m, i, n)
        d = vfma(decays, value, vscan_upto(g, i, n))
        first = vfma(rest1, d - first, first)
        second = vfma(beta2v, vscan_upto(v, i, n), rest2 * (d * d))
        root = vfma(vsqrt(second), corrections, epsilons)
        vstore_upto(w_out, i, shrink * value - step_size * first / root, n)
        vstore_upto(m_out, i, first, n)
        vstore_upto(v_out, i, second, n)


@kernel
def _rmsprop(
    w: F4s, g: F4s, v: F4s, a: F4s, b: F4s, w_out: F4s, v_out: F4s, a_out: F4s, b_out: F4s, lr: F4,
    alpha: F4, rest: F4, eps: F4, decay: F4, momentum: F4, centered: B1, moving: B1, lo, hi, thread,
):  # fmt: skip
    """As `RmspropFactors` says; of `a` and `b` only what `centered` and `moving` ask for."""
    decays, alphas, rests, epsilons = vsplat(decay), vsplat(alpha), vsplat(rest), vsplat(eps)
    mu, negative_lr, zero = vsplat(momentum), vsplat(-lr), vsplat(ZERO)
    for i in range(lo, hi, VL):
        n = hi - i
        value = vscan_upto(w, i, n)
        d = vfma(decays, value, vscan_upto(g, i, n))
        spread = vfma(alphas, vscan_upto(v, i, n), rest * (d * d))
        vstore_upto(v_out, i, spread, n)
        if centered:
            mean = vscan_upto(a, i, n)
            mean = vfma(rests, d - mean, mean)
            vstore_upto(a_out, i, mean, n)
            spread = vmax(zero, vfma(-mean, mean, spread))
        step = d / (vsqrt(spread) + epsilons)
        if moving:
            step = vfma(mu, vscan_upto(b, i, n), step)
            vstore_upto(b_out, i, step, n)
        vstore_upto(w_out, i, vfma(negative_lr, step, value), n)


@kernel
def _squares(g: F4s, partials: F8s, chunk: I8, lo, hi, thread):
    """Each chunk's sum of g^2, in float64 over blocks in float32."""
    total = 0.0
    for first in range(lo, hi, BLOCK_ELEMENTS):
        last = min(hi, first + BLOCK_ELEMENTS)
        sums = vsplat(ZERO)
        for i in range(first, last, VL):
            v = vload_upto(g, i, last - i)
            sums = vfma(v, v, sums)
        total += vsum(sums)
    partials[lo // chunk] = total


@kernel
def _sum_partials(partials: F8s, chunks: I8, out: F4s, lo, hi, thread):
    total = 0.0
    for chunk in range(chunks):
        total += partials[chunk]
    out[0] = total


def sgd(pool: ThreadPool, w, g, m, w_out, m_out, factors: SgdFactors) -> None:
    """One step of torch's SGD.

    Args:
        w, g: parameter and gradient.
        m: momentum buffer, zeros before the first step (torch then takes m = d, which is the
            same for dampening 0); None with momentum 0.
        w_out, m_out: next values; may be `w` and `m`.
    """
    chunk = element_chunk(w.size)
    if m is None or m_out is None:
        pool.run(_sgd_plain, w.size, chunk, w, g, w_out, factors.lr, factors.decay)
    else:
        pool.run(_sgd, w.size, chunk, w, g, m, w_out, m_out, *factors)


def adam(pool: ThreadPool, w, g, m, v, w_out, m_out, v_out, factors: AdamFactors) -> None:
    """One step of torch's Adam, or of AdamW.

    Args:
        w, g: parameter and gradient.
        m, v: first and second moment, zeros before the first step.
        w_out, m_out, v_out: next values; may be the inputs.
    """
    slots = m, v, w_out, m_out, v_out
    pool.run(_adam, w.size, element_chunk(w.size), w, g, *slots, *factors)


def rmsprop(
    pool: ThreadPool, before: Sequence[Array], after: Sequence[Array],
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
    pool.run(_rmsprop, w.size, element_chunk(w.size), *before, *after, *factors, *kept)


def sum_of_squares(pool: ThreadPool, g: Array, total: Array, workspace: Array) -> None:
    """total = sum of g^2, added in float64 in fixed order.

    Args:
        workspace: uint8, `reduction_workspace_bytes(g.size)`.
    """
    chunk, partials = reduction_chunk(g.size), workspace[: workspace.size // 8 * 8].view(np.float64)
    pool.run(_squares, g.size, chunk, g, partials, chunk)
    pool.run(_sum_partials, 1, 1, partials, chunk_count(g.size, chunk), total)


def clip_factor(
    pool: ThreadPool, op: ClipFactor, squares: Sequence[Array], outs: Sequence[Array]
) -> None:
    """The factor for all gradients: a few numbers, so its definition computes it."""
    pool.every_time()
    outs[0][...] = op.reference(*squares, scalars={})[0]


def clip_value(pool: ThreadPool, x: Array, y: Array, limit: float) -> None:
    """y = x limited to [-limit, limit]. `y` may be `x`."""
    pool.every_time()
    np.clip(x, np.float32(-limit), np.float32(limit), out=y)
