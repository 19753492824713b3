"""Negative log-likelihood: one element of each row, and its gradient.

Inputs are an array (rows, classes), labels and a weight for each class; the result is a loss for
each row, or a gradient. A row costs one load, so plain loops suffice. Read next:
`weighted_losses.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import row_chunk
from ooctrain.layers.kernels.cpu.runtime.jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool

Array = np.ndarray
ZERO = np.float32(0)


@kernel("void(f4[::1], i8[::1], f4[::1], f4[::1], i8, i8, i8, i8)")
def _likelihood(x, labels, weights, y, ignore_index, lo, hi, thread):
    classes = weights.size
    for row in range(lo, hi):
        label = labels[row]
        y[row] = ZERO if label == ignore_index else -weights[label] * x[row * classes + label]


@kernel("void(i8[::1], f4[::1], f4[::1], f4[::1], i8, i8, i8, i8)")
def _likelihood_grad(labels, weights, dy, dx, ignore_index, lo, hi, thread):
    classes = weights.size
    for row in range(lo, hi):
        label = labels[row]
        for c in range(classes):
            dx[row * classes + c] = ZERO
        if label != ignore_index:
            dx[row * classes + label] = -weights[label] * dy[row]


def likelihood(
    pool: ThreadPool, x: Array, labels: Array, weights: Array, y: Array, ignore_index: int
) -> None:
    """y = -weights[label] x[label] for each row, 0 where it is ignored."""
    chunk = row_chunk(labels.size, 1)
    pool.run(_likelihood, labels.size, chunk, x, labels, weights, y, ignore_index)


def likelihood_grad(
    pool: ThreadPool, labels: Array, weights: Array, dy: Array, dx: Array, ignore_index: int
) -> None:
    """dx = -weights[label] dy at the label, else 0."""
    chunk = row_chunk(labels.size, weights.size)
    pool.run(_likelihood_grad, labels.size, chunk, labels, weights, dy, dx, ignore_index)
