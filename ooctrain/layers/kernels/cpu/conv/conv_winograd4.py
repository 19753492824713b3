"""The algorithm `winograd4`: F(4x4, 3x3), bound to the kernels of `conv_winograd.py`."""

from __future__ import annotations

from ooctrain.layers.conv_shape import ConvShape
from ooctrain.layers.kernels.cpu.conv import conv_winograd
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool


def forward(pool: ThreadPool, shape: ConvShape, x, w, bias, y, workspace) -> None:
    """See `conv2d.forward`."""
    conv_winograd.forward(pool, shape, 4, x, w, bias, y, workspace)


def grad_input(pool: ThreadPool, shape: ConvShape, dy, w, dx, workspace) -> None:
    """See `conv2d.grad_input`."""
    conv_winograd.grad_input(pool, shape, 4, dy, w, dx, workspace)


def grad_weight(pool: ThreadPool, shape: ConvShape, x, dy, dw, workspace) -> None:
    """See `conv2d.grad_weight`."""
    conv_winograd.grad_weight(pool, shape, 4, x, dy, dw, workspace)
