"""The three products of a linear layer on the CPU, and of many pairs of matrices.

Arrays are C-contiguous float32: x (N, I), w (O, I), bias (O,) or None; the workspace has exactly
`conv_workspace.linear_workspace_bytes`. Every element of y (N, O), dx (N, I) or dw (O, I) is
written. A linear layer is a 1x1 convolution on N images of one pixel, with the same memory layout,
so the direct kernels serve it. They read x in place and, with few rows, pack each panel of weights
just before its use. Read next: `conv/conv_direct.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooctrain.layers.kernels.cpu.conv import conv_direct
from ooctrain.layers.kernels.cpu.conv.conv_workspace import linear_shape
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.linear import MatMul


def forward(pool: ThreadPool, x, w, bias, y, workspace) -> None:
    """y = x w^T + bias."""
    shape = linear_shape(*x.shape, w.shape[0])
    conv_direct.forward(pool, shape, x, w, bias, y, workspace)


def grad_input(
    pool: ThreadPool, dy: np.ndarray, w: np.ndarray, dx: np.ndarray, workspace: np.ndarray
) -> None:
    """dx = dy w."""
    shape = linear_shape(*dx.shape, w.shape[0])
    conv_direct.grad_input(pool, shape, dy, w, dx, workspace)


def grad_weight(
    pool: ThreadPool, x: np.ndarray, dy: np.ndarray, dw: np.ndarray, workspace: np.ndarray
) -> None:
    """dw = dy^T x."""
    shape = linear_shape(*x.shape, dw.shape[0])
    conv_direct.grad_weight(pool, shape, x, dy, dw, workspace)


def matmul(
    pool: ThreadPool, op: MatMul, ins: Sequence[np.ndarray], outs: Sequence[np.ndarray],
    workspace: np.ndarray,
) -> None:  # fmt: skip
    """y = a b, a b^T or a^T b, one pair of matrices after the other."""
    matrices = [array.reshape(-1, *array.shape[-2:]) for array in (*ins, *outs)]
    for a, b, y in zip(*matrices, strict=True):
        match op.form:
            case "nt":
                forward(pool, a, b, None, y, workspace)
            case "nn":
                grad_input(pool, a, b, y, workspace)
            case _:
                grad_weight(pool, b, a, y, workspace)
