"""The three parts of a convolution on the CPU, by algorithm.

A call takes a pool, a `ConvShape`, an algorithm (`layers/conv2d.py`), C-contiguous float32 arrays
in memory layout (activations N,H,W,C; weights K,R,S,C/groups; bias K) and a workspace of exactly
`conv_workspace.workspace_bytes` (1-d uint8, 64-byte aligned). It writes every element of the
result, whatever the result and the workspace held before. An algorithm is a module with `forward`,
`grad_input` and `grad_weight`, imported when it is first used; what their calls begin with stands
here. The bits are the same for any number of threads and any order of chunks. Read next:
`conv_im2col.py` (the reference), then `conv_direct.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache, partial

import numpy as np

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cpu.blocking import PANEL
from ooctrain.layers.kernels.cpu.channel_bias import add_in_place
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.signature import B1, I8, F4s, I8s

Array = np.ndarray

#: {algorithm: (module, further arguments)}; Winograd's tiles are m x m.
_ALGORITHMS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "depthwise": ("conv_depthwise", {}),
    "direct": ("conv_direct", {}),
    "im2col": ("conv_im2col", {}),
    "winograd2": ("conv_winograd", {"m": 2}),
    "winograd4": ("conv_winograd", {"m": 4}),
}


@cache
def function_of(algorithm: str, part: str) -> Callable[..., None]:
    """What computes a part of a convolution: "forward", "grad_input" or "grad_weight"."""
    name, further = _ALGORITHMS[algorithm]
    found = importlib.import_module(f"ooctrain.layers.kernels.cpu.conv.{name}")
    return partial(getattr(found, part), **further)


def is_known(algorithm: str) -> bool:
    """Whether a name is one of these algorithms; an operation of a user may have its own."""
    return algorithm in _ALGORITHMS


def forward(pool: ThreadPool, shape: ConvShape, algorithm: str, x, w, bias, y, workspace) -> None:
    """y[n, p, q, k] = bias[k] + sum of x[n, p * stride + r * dilation - pad, .., c] w[k, r, s, c].

    Cost: `shape.flops` (direct, im2col); about 4/9 (winograd2) or 1/4 (winograd4) of its
    multiplications.
    """
    function_of(algorithm, "forward")(pool, shape, x, w, bias, y, workspace)


def grad_input(pool: ThreadPool, shape: ConvShape, algorithm: str, dy, w, dx, workspace) -> None:
    """dx = d(sum of dy * y) / dx."""
    function_of(algorithm, "grad_input")(pool, shape, dy, w, dx, workspace)


def grad_weight(pool: ThreadPool, shape: ConvShape, algorithm: str, x, dy, dw, workspace) -> None:
    """dw = d(sum of dy * y) / dw. The batch is summed in at most four parts, in a fixed order."""
    function_of(algorithm, "grad_weight")(pool, shape, x, dy, dw, workspace)


def transposed(
    pool: ThreadPool, shape: ConvShape, algorithm: str, x, w, bias, y, workspace
) -> None:
    """y = bias + what `grad_input` computes of x."""
    grad_input(pool, shape, algorithm, x, w, y, workspace)
    if bias is not None:
        add_in_place(pool, y, bias)


# What a call of an algorithm begins with: tables and biases lie in its workspace. Kernels write
# them, so that a call consists of nothing but kernels and can be kept (`../runtime/kept.py`).


def views(workspace: Array) -> tuple[Array, Array]:
    """The workspace as float32 and as int64."""
    return workspace.view(np.float32), workspace.view(np.int64)


@kernel
def _write_table(values: I8s, tables: I8s, lo, hi, thread):
    for i in range(lo, hi):
        tables[i] = values[i]


@kernel
def _write_bias(bias: F4s, given: B1, space: F4s, at: I8, lo, hi, thread):
    for c in range(lo, hi):
        space[at + c] = bias[c] if given and c < bias.size else np.float32(0)


def write_table(pool: ThreadPool, tables: Array, values: tuple[int, ...]) -> None:
    """tables[:] = values, as many as there are."""
    if values:
        pool.run(_write_table, len(values), len(values), np.array(values, np.int64), tables)


def write_bias(pool: ThreadPool, space: Array, at: int, channels: int, bias: Array | None) -> None:
    """space[at :] = bias or zeros, then PANEL zeros, for kernels that read whole panels."""
    numbers = space if bias is None else bias
    count = channels + PANEL
    pool.run(_write_bias, count, count, numbers, bias is not None, space, at)
