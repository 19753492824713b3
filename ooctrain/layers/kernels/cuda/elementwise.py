"""The simplest CUDA kernels, elementwise: ReLU and its gradient, sums, scaling, the bias gradient.

Device arrays are C-contiguous float32 of equal size. They are written in place, and an output may
be the same array as an input. A kernel is one function of numbers in a template (`functions.py`),
and a driver, which is a public function, names the arrays. Names, arguments and bits are those of
`../cpu/elementwise.py`. All run at memory speed. `channel_sum` is the smallest reduction: read it
before the larger ones. Rarely used functions are in `functions.py`. Read next: `columns.py`,
`batch_norm.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda import chunks, columns
from ooctrain.layers.kernels.cuda.functions import apply, binary, ternary, unary
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import device

Array = Any
ZERO = np.float32(0)


@device
def relu_of(x, floor):
    """max(x, floor); NaN stays NaN."""
    return floor if x < floor else x


@device
def masked_by(dy, y, parameter):
    """dy where y > 0, else 0."""
    return dy if y > ZERO else ZERO


@device
def floored_sum(a, b, floor):
    """max(a + b, floor); NaN stays NaN."""
    return relu_of(a + b, floor)


@device
def sum_with_masked(a, dy, y, parameter):
    """a + (dy where y > 0, else 0)."""
    return a + masked_by(dy, y, parameter)


@device
def product(x, factor):
    """factor * x."""
    return factor * x


@device
def same(x, parameter):
    """x."""
    return x


@device
def constant(x, value):
    """value, whatever x is."""
    return value


_relu = unary(relu_of)
_relu_grad = binary(masked_by)
_add = binary(floored_sum)
_add_masked = ternary(sum_with_masked)
_scale = unary(product)
_copy = unary(same)
_fill = unary(constant)


def relu(launcher: Launcher, x: Array, y: Array) -> None:
    """y = max(x, 0); NaN stays NaN. `y` may be `x`."""
    apply(launcher, _relu, x, y)


def relu_grad(launcher: Launcher, dy: Array, y: Array, dx: Array) -> None:
    """dx = dy where the ReLU's output y > 0, else 0. `dx` may be `dy` or `y`."""
    apply(launcher, _relu_grad, dy, y, dx)


def add(launcher: Launcher, a: Array, b: Array, y: Array, relu: bool = False) -> None:
    """y = a + b, or max(a + b, 0) in one pass, with the bits of two. `y` may be `a` or `b`."""
    apply(launcher, _add, a, b, y, parameter=0.0 if relu else -math.inf)


def add_masked(launcher: Launcher, a: Array, dy: Array, y: Array, out: Array) -> None:
    """out = a + (dy where y > 0, else 0): the bits of `relu_grad` and then `add`.

    `out` may be any of the inputs.
    """
    apply(launcher, _add_masked, a, dy, y, out)


def scale(launcher: Launcher, x: Array, y: Array, factor: float) -> None:
    """y = factor * x. `y` may be `x`."""
    apply(launcher, _scale, x, y, parameter=factor)


def copy(launcher: Launcher, x: Array, y: Array) -> None:
    """y = x, bit for bit."""
    apply(launcher, _copy, x, y)


def fill(launcher: Launcher, y: Array, value: float) -> None:
    """y = value everywhere."""
    apply(launcher, _fill, y, y, parameter=value)


def channel_sum(launcher: Launcher, dy: Array, db: Array, workspace: Array) -> None:
    """db[c] = sum of dy over all rows: the gradient of a bias.

    The error is at most `columns.SUM_ROUNDINGS` roundings of the sum of absolute values (the cpu
    kernel, which adds blocks in float64, has about as many for its blocks, and one more).

    Args:
        dy: (rows, C), or any array whose last axis is C.
        db: (C,).
        workspace: uint8, `channel_sum_workspace_bytes(rows, C)`.
    """
    cut = chunks.image_columns(dy.shape)
    partials = launcher.part(workspace, 0, cut.partials, "float32")
    columns.sum_chunks(launcher, cut, dy, partials)
    columns.finish_sums(launcher, cut, partials, db)
