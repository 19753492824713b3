"""Optimizer updates, each one fused pass: SGD with momentum, Adam and AdamW, and gradient clipping.

In: a parameter, its gradient, its slots. Out: their next values, which may lie on the same storage.
The one idea: an update reads and writes each array once, and gets the step's numbers as arguments,
so that a changed learning rate needs no new trace. Source: torch.optim (whose order of operations
is kept); Kingma and Ba 2015; Loshchilov and Hutter 2019. Read next: `layout.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ooctrain.layers.kernels.adam_factors import adam_factors
from ooctrain.layers.kernels.cpu.chunks import chunk_count, element_chunk, reduction_chunk
from ooctrain.layers.kernels.cpu.runtime.jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import vfma, vsplat, vsqrt, vsum
from ooctrain.layers.kernels.cpu.simd.simd_memory import vload_upto, vscan_upto, vstore_upto
from ooctrain.layers.kernels.cpu.simd.vector import VL
from ooctrain.layers.kernels.cpu.workspace import BLOCK_ELEMENTS

Array = np.ndarray
ZERO, ONE = np.float32(0), np.float32(1)


@kernel("void(f4[::1], f4[::1], f4[::1], f4, f4, i8, i8, i8)")
def _sgd_plain(w, g, w_out, lr, weight_decay, lo, hi, thread):
    """w_out = w - lr (g + decay w)."""
    decay, negative_lr = vsplat(weight_decay), vsplat(-lr)
    for i in range(lo, hi, VL):
        n = hi - i
        value = vscan_upto(w, i, n)
        d = vfma(decay, value, vscan_upto(g, i, n))
        vstore_upto(w_out, i, vfma(negative_lr, d, value), n)


@kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4, f4, f4, f4, b1, i8, i8, i8)")
def _sgd(w, g, m, w_out, m_out, lr, momentum, undamped, weight_decay, nesterov, lo, hi, thread):
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


@kernel(
    "void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], "
    "f4, f4, f4, f4, f4, f4, f4, i8, i8, i8)"
)
def _adam(
    w, g, m, v, w_out, m_out, v_out,
    step_size, beta1, beta2, eps, root_correction, decay, shrink, lo, hi, thread,
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


@kernel("void(f4[::1], f8[::1], i8, i8, i8, i8)")
def _squares(g, partials, chunk, lo, hi, thread):
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


@kernel("f8(f8[::1], i8)")
def _sum_partials(partials, chunks):
    total = 0.0
    for chunk in range(chunks):
        total += partials[chunk]
    return total


def sgd(
    pool: ThreadPool,
    w: Array,
    g: Array,
    m: Array | None,
    w_out: Array,
    m_out: Array | None,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> None:
    """One step of torch's SGD: d = g + weight_decay * w; m = momentum * m + (1 - dampening) * d;
    w -= lr * m (Nesterov: lr * (d + momentum * m)).

    Args:
        w, g: parameter and gradient.
        m: momentum buffer, zeros before the first step (torch then takes m = d, which is the same
            for dampening 0); None with momentum 0.
        w_out, m_out: next values; may be `w` and `m`.
    """
    chunk = element_chunk(w.size)
    if m is None or m_out is None:
        pool.run(_sgd_plain, w.size, chunk, w, g, w_out, lr, weight_decay)
        return
    factors = lr, momentum, 1.0 - dampening, weight_decay, nesterov
    pool.run(_sgd, w.size, chunk, w, g, m, w_out, m_out, *factors)


def adam(
    pool: ThreadPool,
    w: Array,
    g: Array,
    m: Array,
    v: Array,
    w_out: Array,
    m_out: Array,
    v_out: Array,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    step: int = 1,
    decoupled: bool = False,
) -> None:
    """One step of torch's Adam, or of AdamW where `decoupled`.

    Args:
        w, g: parameter and gradient.
        m, v: first and second moment, zeros before step 1.
        w_out, m_out, v_out: next values; may be the inputs.
        step: 1 for the first step.
        decoupled: weight decay shrinks w by lr * weight_decay instead of joining the gradient.
    """
    factors = adam_factors(lr, beta1, beta2, eps, weight_decay, step, decoupled)
    slots = m, v, w_out, m_out, v_out
    pool.run(_adam, w.size, element_chunk(w.size), w, g, *slots, *factors)


def sum_of_squares(pool: ThreadPool, g: Array, workspace: Array) -> float:
    """Sum of g^2 in float64, in fixed order.

    Args:
        workspace: uint8, `reduction_workspace_bytes(g.size)`.
    """
    chunk, partials = reduction_chunk(g.size), workspace[: workspace.size // 8 * 8].view(np.float64)
    pool.run(_squares, g.size, chunk, g, partials, chunk)
    return _sum_partials(partials, chunk_count(g.size, chunk))


def clip_scale(squares: Sequence[float], max_norm: float) -> float:
    """Factor for all gradients that brings their common norm to at most `max_norm`, as in torch.

    Args:
        squares: `sum_of_squares` of each gradient, in the order of the parameters.
    """
    norm = math.sqrt(math.fsum(squares))
    return min(1.0, max_norm / (norm + 1e-6))
