"""Instance normalisation on NHWC: apply, and the gradient of the input.

x and dy are (N, H, W, C), the statistics (N, C), one for each channel of each image, and gamma and
beta (C) or none. The sums over pixels are those of batch norm, which takes one image after the
other (`batch_norm_stats.stats`, `batch_norm.grad_reduce`). Here a thread finds its image from its
row; all other arithmetic is that of batch norm. Source: Ulyanov, Vedaldi and Lempitsky 2016. Read
next: `batch_norm.py`.
"""

from __future__ import annotations

import math

import numpy as np

from ooctrain.layers.kernels.cuda import batch_norm
from ooctrain.layers.kernels.cuda.batch_norm import input_gradient, masked, normalised
from ooctrain.layers.kernels.cuda.elementwise import relu_of
from ooctrain.layers.kernels.cuda.image_rows import (
    LANES,
    THREADS,
    Array,
    lanes_of,
    load,
    place_of,
    row_blocks,
    row_start,
    store,
)
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, device, float32, kernel, uint32
from ooctrain.layers.kernels.signature import B1, F4, U4, F4s, U4x3

ZERO, ONE = np.float32(0), np.float32(1)


@device
def load_or(values, at, lanes, given, otherwise):
    """`load`, or `otherwise` in each lane where there is no such array."""
    if given:
        return load(values, at, lanes)
    return otherwise, otherwise, otherwise, otherwise


@kernel(threads=THREADS)
def _apply(
    x: F4s, mean: F4s, inv_std: F4s, gamma: F4s, beta: F4s, affine: B1, residual: F4s, adds: B1,
    y: F4s, floor: F4, sizes: U4x3, lanes: U4,
):  # fmt: skip
    """y = max((x - mean) * (gamma * inv_std) + beta [+ residual], floor)."""
    height, width, channels = sizes
    results = cuda.local.array(LANES, float32)
    row, groups = uint32(cuda.blockIdx.x), uint32(channels // lanes)
    place = place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    if place < uint32(width * groups):
        c = uint32(uint32(place % groups) * lanes)
        of_image = uint32(uint32(row // height) * channels + c)
        at = row_start(row, width, channels) + uint32(place * lanes)
        v, m, s = load(x, at, lanes), load(mean, of_image, lanes), load(inv_std, of_image, lanes)
        g, b = load_or(gamma, c, lanes, affine, ONE), load_or(beta, c, lanes, affine, ZERO)
        r = load_or(residual, at, lanes, adds, ZERO)
        for lane in range(LANES):
            z = normalised(v[lane], m[lane], s[lane], g[lane], b[lane])
            results[lane] = relu_of(z + r[lane] if adds else z, floor)
        store(y, at, results, lanes)


@kernel(threads=THREADS)
def _grad_apply(
    dy: F4s, y: F4s, has_mask: B1, x: F4s, mean: F4s, inv_std: F4s, gamma: F4s, affine: B1,
    dz_xhat: F4s, dz_sum: F4s, dx: F4s, inv_pixels: F4, sizes: U4x3, lanes: U4,
):  # fmt: skip
    """dx = gamma inv_std (dz - dz_sum / P - xhat dz_xhat / P)."""
    height, width, channels = sizes
    results = cuda.local.array(LANES, float32)
    row, groups = uint32(cuda.blockIdx.x), uint32(channels // lanes)
    place = place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    if place < uint32(width * groups):
        c = uint32(uint32(place % groups) * lanes)
        of_image = uint32(uint32(row // height) * channels + c)
        at = row_start(row, width, channels) + uint32(place * lanes)
        v, d, k = load(x, at, lanes), load(dy, at, lanes), load_or(y, at, lanes, has_mask, ZERO)
        m, s = load(mean, of_image, lanes), load(inv_std, of_image, lanes)
        g = load_or(gamma, c, lanes, affine, ONE)
        p, q = load(dz_xhat, of_image, lanes), load(dz_sum, of_image, lanes)
        for lane in range(LANES):
            dz = masked(d[lane], k[lane], has_mask)
            results[lane] = input_gradient(
                dz, v[lane], m[lane], s[lane], g[lane], p[lane], q[lane], inv_pixels
            )
        store(dx, at, results, lanes)


def stats(
    launcher: Launcher, x: Array, mean: Array, inv_std: Array, eps: float, workspace: Array
) -> None:
    """Mean and 1 / sqrt(var + eps) of each channel of each image; the variance lies in the
    workspace, behind the partial results.
    """
    partials_bytes = workspace.size - mean.nbytes
    var = launcher.part(workspace, partials_bytes, mean.size, "float32")
    space = launcher.part(workspace, 0, partials_bytes, "uint8")
    batch_norm.stats(launcher, x, mean, inv_std, var, eps, space)


def apply(launcher: Launcher, x, mean, inv_std, gamma, beta, y, residual, relu: bool) -> None:
    """y = (x - mean) * (gamma * inv_std) + beta [+ residual] [then ReLU]; may be x or residual.

    Args:
        gamma, beta: (C,), or None for 1 and 0.
    """
    affine = mean if gamma is None else gamma, mean if beta is None else beta, gamma is not None
    # Without ReLU the floor is minus infinity: one kernel serves both.
    floor = 0.0 if relu else -math.inf
    other = x if residual is None else residual
    launcher.launch(
        _apply, row_blocks(y), x, mean, inv_std, *affine, other, residual is not None, y, floor,
        x.shape[1:], lanes_of(x.shape[3]),
    )  # fmt: skip


def grad_apply(
    launcher: Launcher, dy, x, mean, inv_std, gamma, dz_xhat, dz_sum, dx, mask, over
) -> None:
    """dx = gamma * inv_std * (dz - dz_sum / P - xhat * dz_xhat / P); `dx` may be an input.

    Args:
        over: P, where x is a part of what the sums are over; else 0.
    """
    scale = mean if gamma is None else gamma
    launcher.launch(
        _grad_apply, row_blocks(dx), dy, dy if mask is None else mask, mask is not None, x, mean,
        inv_std, scale, gamma is not None, dz_xhat, dz_sum, dx,
        1.0 / (over or x.shape[1] * x.shape[2]), x.shape[1:], lanes_of(x.shape[3]),
    )  # fmt: skip
