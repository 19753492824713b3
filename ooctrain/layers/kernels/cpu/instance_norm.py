"""Instance normalisation on NHWC: batch norm's kernels, image after image.

x and dy are (N, H, W, C), statistics (N, C), one for each channel of each image; gamma and beta (C)
are optional. To batch norm an image is a batch of H W rows, so no kernel of its own is needed.
Batch norm also needs a variance, and a gamma of 1 and a beta of 0 where instance norm has none;
these lie at the front of the workspace. Source: Ulyanov, Vedaldi and Lempitsky 2016. Read next:
`batch_norm.py`, `../cuda/instance_norm.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ooctrain.layers.kernels.cpu import batch_norm
from ooctrain.layers.kernels.cpu.elementwise import fill
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.workspace import vectors_bytes

Array = np.ndarray


def stats(
    pool: ThreadPool, x: Array, mean: Array, inv_std: Array, eps: float, workspace: Array
) -> None:
    """Mean and 1 / sqrt(var + eps) of each channel of each image."""
    channels = x.shape[3]
    (var,), space = _vectors(workspace, 1, channels), workspace[vectors_bytes(1, channels) :]
    for image, of_image, inv_of_image in zip(x, mean, inv_std, strict=True):
        batch_norm.stats(pool, image, of_image, inv_of_image, var, eps, space)


def apply(
    pool: ThreadPool, x, mean, inv_std, gamma, beta, y, residual, relu: bool, workspace
) -> None:
    """y = (x - mean) * (gamma * inv_std) + beta [+ residual] [then ReLU]; may be x or residual."""
    if gamma is None or beta is None:
        gamma, beta = _vectors(workspace, 2, x.shape[3])
        fill(pool, gamma, 1.0)
        fill(pool, beta, 0.0)
    for image, m, s, other, out in zip(x, mean, inv_std, _each(residual, x), y, strict=True):
        batch_norm.apply(pool, image, m, s, gamma, beta, out, other, relu)


def grad_reduce(
    pool: ThreadPool, dy, x, mean, inv_std, sum_dz_xhat, sum_dz, mask, workspace
) -> None:
    """The sums of dz xhat and of dz, for each channel of each image."""
    values = dy, x, mean, inv_std, sum_dz_xhat, sum_dz, _each(mask, x)
    for of_image in zip(*values, strict=True):
        batch_norm.grad_reduce(pool, *of_image, workspace)


def grad_apply(
    pool: ThreadPool, dy, x, mean, inv_std, gamma, sum_dz_xhat, sum_dz, dx, mask, over, workspace
) -> None:
    """dx = gamma * inv_std * (dz - sum_dz / P - xhat * sum_dz_xhat / P); `dx` may be an input.

    Args:
        over: P, where x is a part of what the sums are over; else 0.
    """
    if gamma is None:
        (gamma,) = _vectors(workspace, 1, x.shape[3])
        fill(pool, gamma, 1.0)
    sums = sum_dz_xhat, sum_dz, dx, _each(mask, x)
    for g, image, m, s, *rest in zip(dy, x, mean, inv_std, *sums, strict=True):
        batch_norm.grad_apply(pool, g, image, m, s, gamma, *rest, over, workspace)


def _each(values: Array | None, images: Array) -> Iterator[Array | None]:
    """For each image its values, or None where there are none."""
    yield from ([None] * len(images) if values is None else values)


def _vectors(workspace: Array, count: int, channels: int) -> Array:
    """(count, channels) float32 at the front of the workspace."""
    floats = workspace[: 4 * count * channels].view(np.float32)
    return floats.reshape(count, channels)
