"""Convolution and linear kernels against torch: the same numbers, and errors of the same size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ooctrain.layers.conv2d import ConvShape, choose_algorithm
from ooctrain.layers.kernels.cpu.conv import conv2d, conv_workspace
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

SHAPES = [
    ConvShape(4, 64, 16, 16, 64, 3, 3, padding=(1, 1, 1, 1)),
    ConvShape(4, 64, 14, 14, 96, 3, 3, padding=(1, 1, 1, 1)),
    ConvShape(8, 128, 7, 7, 128, 3, 3, padding=(1, 1, 1, 1)),
    ConvShape(2, 3, 64, 64, 64, 7, 7, (2, 2), (3, 3, 3, 3)),
    ConvShape(4, 64, 15, 15, 128, 3, 3, (2, 2), (1, 1, 1, 1)),
    ConvShape(4, 64, 16, 16, 128, 1, 1, (2, 2)),
    ConvShape(4, 256, 14, 14, 64, 1, 1),
    ConvShape(2, 32, 20, 20, 32, 3, 3, padding=(2, 2, 2, 2), dilation=(2, 2)),
    ConvShape(2, 48, 12, 12, 48, 3, 3, padding=(1, 1, 1, 1), groups=48),
    ConvShape(2, 32, 12, 12, 64, 5, 5, padding=(2, 2, 2, 2), groups=4),
]


def torch_results(shape: ConvShape, x, w, bias, dy, dtype):
    """y, dx, dw in our memory layout."""
    x, w = (torch.from_numpy(a.transpose(0, 3, 1, 2)).to(dtype).requires_grad_() for a in (x, w))
    y = torch.nn.functional.conv2d(
        x,
        w,
        torch.from_numpy(bias).to(dtype),
        stride=shape.stride,
        padding=(shape.padding[0], shape.padding[2]),
        dilation=shape.dilation,
        groups=shape.groups,
    )
    y.backward(torch.from_numpy(dy.transpose(0, 3, 1, 2)).to(dtype))
    return [a.detach().numpy().transpose(0, 2, 3, 1) for a in (y, x.grad, w.grad)]


def our_results(shape: ConvShape, algorithm: str, x, w, bias, dy):
    pool = ThreadPool(2)
    y, dx, dw = np.empty_like(dy), np.empty_like(x), np.empty_like(w)

    def workspace(part):
        size = conv_workspace.workspace_bytes(shape, algorithm, part, pool.threads)
        raw = np.empty(size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + size]

    conv2d.forward(pool, shape, algorithm, x, w, bias, y, workspace("forward"))
    conv2d.grad_input(pool, shape, algorithm, dy, w, dx, workspace("grad_input"))
    conv2d.grad_weight(pool, shape, algorithm, x, dy, dw, workspace("grad_weight"))
    pool.close()
    return y, dx, dw


def error(got, exact) -> float:
    return math.sqrt(np.mean((got - exact) ** 2)) / exact.std()


@pytest.mark.parametrize("algorithm", ["direct", "winograd2", "winograd4"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_torch(shape, algorithm):
    """Against torch in float64: direct and F2 as exact as float32 torch (within 4x), F4 to 1e-5."""
    if choose_algorithm(shape, algorithm) != algorithm:
        pytest.skip(f"{algorithm} does not apply")
    random = np.random.default_rng(1)
    x = random.standard_normal((shape.n, shape.h, shape.w, shape.c), dtype=np.float32)
    w = random.standard_normal((shape.k, shape.r, shape.s, shape.cg), dtype=np.float32)
    bias = random.standard_normal(shape.k, dtype=np.float32)
    dy = random.standard_normal((shape.n, shape.oh, shape.ow, shape.k), dtype=np.float32)
    exact = torch_results(shape, x, w, bias, dy, torch.float64)
    single = torch_results(shape, x, w, bias, dy, torch.float32)
    for name, got, theirs, want in zip(
        ("y", "dx", "dw"), our_results(shape, algorithm, x, w, bias, dy), single, exact, strict=True
    ):
        limit = 1e-5 if algorithm == "winograd4" else max(1e-6, 4 * error(theirs, want))
        assert error(got, want) < limit, name
