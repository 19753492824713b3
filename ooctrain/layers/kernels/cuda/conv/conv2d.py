"""The three parts of a convolution on a GPU, by algorithm.

They take a launcher, a `ConvShape`, an algorithm (`layers/conv2d.py`), device arrays in memory
layout (activations N,H,W,C; weights K,R,S,C/groups; bias K) and a workspace of exactly
`conv_blocking.workspace_bytes`, and write every element of the result. Forward and the gradient of
the input are the same product, a correlation, the latter with the weights turned. So an algorithm
is a module with `correlate` and `grad_weight`, imported when it is first used. The algorithms are a
ladder on which each step explains the next: naive, tiled, implicit_gemm, tf32. Read next:
`conv_blocking.py`, `conv_naive.py`.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any

from ooctrain.errors import ConfigError
from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cuda.channel_bias import add_in_place
from ooctrain.layers.kernels.cuda.conv import conv_blocking
from ooctrain.layers.kernels.cuda.conv.conv_pieces import turn_weights
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher

_MODULES = MappingProxyType({
    "naive": "conv_naive",
    "tiled": "conv_tiled",
    "implicit_gemm": "conv_gemm",
    "tf32": "conv_tf32",
})  # fmt: skip


@cache
def _module(algorithm: str) -> ModuleType:
    if algorithm not in _MODULES:
        raise ConfigError(
            f"the convolution algorithm {algorithm!r} is not one of the cuda device",
            fix='trace the step with device="cuda"',
        )
    return importlib.import_module(f"ooctrain.layers.kernels.cuda.conv.{_MODULES[algorithm]}")


def forward(launcher: Launcher, shape: ConvShape, algorithm: str, x, w, bias, y, workspace) -> None:
    """y[n, p, q, k] = bias[k] + sum of x[n, p * stride + r * dilation - pad, .., c] w[k, r, s, c].

    Cost: `shape.flops`.
    """
    _module(algorithm).correlate(launcher, conv_blocking.forward(shape), x, w, bias, y)


def grad_input(
    launcher: Launcher, shape: ConvShape, algorithm: str, dy: Any, w: Any, dx: Any, workspace: Any
) -> None:
    """dx = d(sum of dy * y) / dx: dy correlated with the turned weights, phase by phase."""
    turned = turn_weights(launcher, shape, w, workspace)
    for correlation in conv_blocking.grad_input(shape):
        _module(algorithm).correlate(launcher, correlation, dy, turned, None, dx)


def grad_weight(
    launcher: Launcher, shape: ConvShape, algorithm: str, x: Any, dy: Any, dw: Any, workspace: Any
) -> None:
    """dw = d(sum of dy * y) / dw; pixels are summed in `conv_blocking.splits` parts, in order."""
    _module(algorithm).grad_weight(launcher, shape, x, dy, dw, workspace)


def transposed(
    launcher: Launcher, shape: ConvShape, algorithm: str, x, w, bias, y, workspace
) -> None:
    """y = bias + what `grad_input` computes of x."""
    grad_input(launcher, shape, algorithm, x, w, y, workspace)
    if bias is not None:
        add_in_place(launcher, y, bias)
