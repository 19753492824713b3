"""The three parts of a convolution on the CPU, by algorithm.

In: a pool, a `ConvShape`, an algorithm from `conv_plan.choose_algorithm`, C-contiguous float32
arrays in memory layout (activations N,H,W,C; weights K,R,S,C/groups; bias K) and a workspace of
exactly `conv_plan.workspace_bytes` (1-d uint8, 64-byte aligned). Out: every element of the result
is written, whatever the result and the workspace held before. The one idea: an algorithm is a
module with `forward`, `grad_input` and `grad_weight`, imported (and so compiled) when it is first
used. The same bits for any number of threads and any order of chunks. Read next: `conv_im2col.py`
(the reference), then `conv_direct.py`.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

import numpy as np

from ooctrain.layers.conv_shape import ConvShape
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool

_MODULES = {
    "depthwise": "conv_depthwise",
    "direct": "conv_direct",
    "im2col": "conv_im2col",
    "winograd2": "conv_winograd2",
    "winograd4": "conv_winograd4",
}


@cache
def _module(algorithm: str) -> ModuleType:
    return importlib.import_module(f"ooctrain.layers.kernels.cpu.conv.{_MODULES[algorithm]}")


def forward(
    pool: ThreadPool,
    shape: ConvShape,
    algorithm: str,
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None,
    y: np.ndarray,
    workspace: np.ndarray,
) -> None:
    """y[n, p, q, k] = bias[k] + sum of x[n, p * stride + r * dilation - pad, .., c] w[k, r, s, c].

    Cost: `shape.flops` (direct, im2col); about 4/9 (winograd2) or 1/4 (winograd4) of its
    multiplications.
    """
    _module(algorithm).forward(pool, shape, x, w, bias, y, workspace)


def grad_input(
    pool: ThreadPool,
    shape: ConvShape,
    algorithm: str,
    dy: np.ndarray,
    w: np.ndarray,
    dx: np.ndarray,
    workspace: np.ndarray,
) -> None:
    """dx = d(sum of dy * y) / dx."""
    _module(algorithm).grad_input(pool, shape, dy, w, dx, workspace)


def grad_weight(
    pool: ThreadPool,
    shape: ConvShape,
    algorithm: str,
    x: np.ndarray,
    dy: np.ndarray,
    dw: np.ndarray,
    workspace: np.ndarray,
) -> None:
    """dw = d(sum of dy * y) / dw. The batch is summed in at most four parts, in a fixed order."""
    _module(algorithm).grad_weight(pool, shape, x, dy, dw, workspace)
