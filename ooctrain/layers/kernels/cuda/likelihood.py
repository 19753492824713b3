"""Negative log-likelihood: one element of each row, and its gradient.

An array (rows, classes), labels and a weight for each class give a loss for each row, or a
gradient. A thread takes one row of the loss, or one element of the gradient. Read next:
`weighted_losses.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.chunks import THREADS
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, int64, kernel, uint64

Array = Any
ZERO = np.float32(0)


@kernel("void(f4[::1], i8[::1], f4[::1], f4[::1], i8)", threads=THREADS)
def _likelihood(x, labels, weights, y, ignore_index):
    row = int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)
    if row < labels.size:
        label, loss = labels[uint64(row)], ZERO
        if label != ignore_index:
            loss = -weights[uint64(label)] * x[uint64(row * weights.size + label)]
        y[uint64(row)] = loss


@kernel("void(i8[::1], f4[::1], f4[::1], f4[::1], i8)", threads=THREADS)
def _likelihood_grad(labels, weights, dy, dx, ignore_index):
    e = int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)
    if e < dx.size:
        row = e // weights.size
        label, slope = labels[uint64(row)], ZERO
        if label != ignore_index and label == e - row * weights.size:
            slope = -weights[uint64(label)] * dy[uint64(row)]
        dx[uint64(e)] = slope


def likelihood(
    launcher: Launcher, x: Array, labels: Array, weights: Array, y: Array, ignore_index: int
) -> None:
    """y = -weights[label] x[label] for each row, 0 where it is ignored."""
    blocks = blocks_for(labels.size, THREADS)
    launcher.launch(_likelihood, blocks, x, labels, weights, y, ignore_index)


def likelihood_grad(
    launcher: Launcher, labels: Array, weights: Array, dy: Array, dx: Array, ignore_index: int
) -> None:
    """dx = -weights[label] dy at the label, else 0."""
    blocks = blocks_for(dx.size, THREADS)
    launcher.launch(_likelihood_grad, blocks, labels, weights, dy, dx, ignore_index)
