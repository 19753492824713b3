"""Convolution kernels against a float64 reference: every algorithm, part and awkward shape."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ooctrain.errors import ConfigError, ShapeError
from ooctrain.layers.conv2d import CPU_ALGORITHMS, ConvShape, choose_algorithm
from ooctrain.layers.kernels.cpu import blocking, matmul
from ooctrain.layers.kernels.cpu.conv import conv2d, conv_workspace
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool

PARTS = ("forward", "grad_input", "grad_weight")


def aligned_workspace(size_bytes: int) -> np.ndarray:
    """Exactly `size_bytes` on a cache line, full of NaN."""
    raw = np.full(size_bytes + 64, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size_bytes]


def arrays(shape: ConvShape, *, integers: bool, seed: int = 0):
    """x, w, bias, dy in memory layout; small whole numbers make every sum exact in float32."""
    random = np.random.default_rng(seed)

    def draw(*extents):
        values = random.integers(-4, 5, extents) if integers else random.standard_normal(extents)
        return values.astype(np.float32)

    return (
        draw(shape.n, shape.h, shape.w, shape.c),
        draw(shape.k, shape.r, shape.s, shape.cg),
        draw(shape.k),
        draw(shape.n, shape.oh, shape.ow, shape.k),
    )


def _taps(shape: ConvShape):
    """For each tap: the output pixels' slice of the zero-bordered input."""
    (sh, sw), (dh, dw) = shape.stride, shape.dilation
    for r in range(shape.r):
        for s in range(shape.s):
            rows = slice(r * dh, r * dh + (shape.oh - 1) * sh + 1, sh)
            columns = slice(s * dw, s * dw + (shape.ow - 1) * sw + 1, sw)
            yield r, s, rows, columns


def reference(shape: ConvShape, x, w, bias, dy):
    """y, dx, dw in float64, tap by tap."""
    top, bottom, left, right = shape.padding
    x, w, bias, dy = (a.astype(np.float64) for a in (x, w, bias, dy))
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    grouped = (*padded.shape[:3], shape.groups, shape.cg)
    padded = padded.reshape(grouped)
    w = w.reshape(shape.groups, shape.kg, shape.r, shape.s, shape.cg)
    dy = dy.reshape(shape.n, shape.oh, shape.ow, shape.groups, shape.kg)
    y, dx, dw = np.zeros_like(dy), np.zeros_like(padded), np.zeros_like(w)
    for r, s, rows, columns in _taps(shape):
        y += np.einsum("nhwgc,gkc->nhwgk", padded[:, rows, columns], w[:, :, r, s])
        dx[:, rows, columns] += np.einsum("nhwgk,gkc->nhwgc", dy, w[:, :, r, s])
        dw[:, :, r, s] = np.einsum("nhwgk,nhwgc->gkc", dy, padded[:, rows, columns])
    y = y.reshape(shape.n, shape.oh, shape.ow, shape.k) + bias
    dx = dx.reshape(shape.n, *padded.shape[1:3], shape.c)[
        :, top : top + shape.h, left : left + shape.w
    ]
    return y, dx, dw.reshape(shape.k, shape.r, shape.s, shape.cg)


def run(pool: ThreadPool, shape: ConvShape, algorithm: str, data, *, use_bias: bool = True):
    """y, dx, dw of one algorithm; results and workspaces start as NaN."""
    x, w, bias, dy = data
    y, dx, dw = (np.full_like(a, np.nan) for a in (dy, x, w))
    spaces = [
        aligned_workspace(conv_workspace.workspace_bytes(shape, algorithm, part, pool.threads))
        for part in PARTS
    ]
    conv2d.forward(pool, shape, algorithm, x, w, bias if use_bias else None, y, spaces[0])
    conv2d.grad_input(pool, shape, algorithm, dy, w, dx, spaces[1])
    conv2d.grad_weight(pool, shape, algorithm, x, dy, dw, spaces[2])
    return y, dx, dw


SHAPES = {
    "3x3": ConvShape(2, 16, 12, 12, 32, 3, 3, padding=(1, 1, 1, 1)),
    "3x3, no padding": ConvShape(2, 32, 9, 11, 32, 3, 3),
    "1x1": ConvShape(3, 48, 7, 7, 64, 1, 1),
    "1x1 on one pixel": ConvShape(5, 40, 1, 1, 72, 1, 1),
    "1x1, stride 2": ConvShape(2, 32, 9, 8, 48, 1, 1, stride=(2, 2)),
    "3x3, stride 2": ConvShape(2, 32, 13, 12, 40, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1)),
    "3x3, stride 2, even": ConvShape(3, 16, 16, 16, 32, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1)),
    "stem": ConvShape(2, 3, 30, 31, 64, 7, 7, stride=(2, 2), padding=(3, 3, 3, 3)),
    "first layer": ConvShape(2, 3, 16, 16, 64, 3, 3, padding=(1, 1, 1, 1)),
    "one channel": ConvShape(4, 1, 14, 14, 6, 5, 5, padding=(2, 2, 2, 2)),
    "odd channels": ConvShape(2, 19, 8, 7, 37, 3, 3, padding=(1, 1, 1, 1)),
    "one filter": ConvShape(2, 21, 6, 6, 1, 3, 3, padding=(1, 1, 1, 1)),
    "dilated": ConvShape(2, 16, 12, 13, 24, 3, 3, padding=(2, 2, 2, 2), dilation=(2, 2)),
    "dilated, strided": ConvShape(1, 16, 15, 14, 16, 3, 2, (3, 2), (2, 1, 0, 2), (2, 3)),
    "two groups": ConvShape(2, 32, 9, 9, 48, 3, 3, padding=(1, 1, 1, 1), groups=2),
    "odd groups": ConvShape(2, 15, 9, 9, 21, 3, 3, (2, 1), (1, 0, 1, 2), groups=3),
    "depthwise": ConvShape(2, 40, 9, 10, 40, 3, 3, padding=(1, 1, 1, 1), groups=40),
    "depthwise, stride 2": ConvShape(2, 24, 11, 10, 48, 3, 3, (2, 2), (1, 1, 1, 1), groups=24),
    "one-sided padding": ConvShape(2, 16, 10, 10, 16, 3, 3, padding=(1, 0, 0, 1)),
    "much padding": ConvShape(1, 16, 4, 4, 16, 3, 3, padding=(5, 3, 4, 6)),
    "stride over the filter": ConvShape(2, 16, 11, 11, 16, 2, 2, stride=(3, 3)),
    "1 x 7": ConvShape(2, 16, 9, 17, 32, 1, 7, padding=(0, 0, 3, 3)),
    "7 x 1": ConvShape(2, 16, 17, 9, 32, 7, 1, padding=(3, 3, 0, 0)),
    "tiny maps, large batch": ConvShape(37, 32, 2, 2, 32, 3, 3, padding=(1, 1, 1, 1)),
    "4x4 maps": ConvShape(9, 32, 4, 4, 64, 3, 3, padding=(1, 1, 1, 1)),
    "tall": ConvShape(1, 16, 37, 3, 16, 3, 3, padding=(1, 1, 1, 1)),
    "wide": ConvShape(1, 16, 3, 41, 16, 3, 3, padding=(1, 1, 1, 1)),
    "large image": ConvShape(1, 16, 40, 40, 16, 3, 3, padding=(1, 1, 1, 1)),
    "few channels, many filters": ConvShape(3, 5, 9, 11, 160, 3, 2, (2, 1), (1, 0, 1, 0), (2, 1)),
    "single everything": ConvShape(1, 1, 1, 1, 1, 1, 1),
}


@pytest.fixture(autouse=True)
def many_chunks(monkeypatch):
    """Shapes this small would run as one chunk; the tests want threads and orders to matter."""
    monkeypatch.setattr(blocking, "CHUNK_FLOPS", 1)


@pytest.fixture(scope="module")
def pool():
    pool = ThreadPool(2)
    yield pool
    pool.close()


@pytest.mark.parametrize("algorithm", CPU_ALGORITHMS)
@pytest.mark.parametrize("name", SHAPES)
def test_exact_on_integers(pool, name, algorithm):
    """Whole numbers have exact sums: all but winograd4 equal the reference to the bit."""
    shape = SHAPES[name]
    if choose_algorithm(shape, algorithm) != algorithm:
        pytest.skip(f"{algorithm} does not apply")
    data = arrays(shape, integers=True)
    for part, got, want in zip(
        PARTS, run(pool, shape, algorithm, data), reference(shape, *data), strict=True
    ):
        if algorithm == "winograd4":
            bound = 64 * np.finfo(np.float32).eps * np.abs(want).max()
            np.testing.assert_allclose(got, want, rtol=0, atol=max(bound, 1e-3), err_msg=part)
        else:
            np.testing.assert_array_equal(got, want.astype(np.float32), err_msg=part)


@st.composite
def small_shapes(draw):
    """Any stride, padding, dilation and groups on small images that leave an output."""
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    channels, filters = (groups * draw(st.sampled_from((1, 3, 8, 16, 17, 33))) for _ in range(2))
    r, s = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    padding = tuple(draw(st.integers(0, 3)) for _ in range(4))
    height = draw(st.integers(max(1, (r - 1) * dilation[0] + 1 - padding[0] - padding[1]), 14))
    width = draw(st.integers(max(1, (s - 1) * dilation[1] + 1 - padding[2] - padding[3]), 14))
    stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    images = draw(st.integers(1, 5))
    extents = (images, channels, height, width, filters, r, s)
    return ConvShape(*extents, stride, padding, dilation, groups)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(small_shapes())
def test_any_shape_is_exact(pool, shape):
    data = arrays(shape, integers=True)
    want = reference(shape, *data)
    for part, got, exact in zip(PARTS, run(pool, shape, "direct", data), want, strict=True):
        np.testing.assert_array_equal(got, exact.astype(np.float32), err_msg=part)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 6),
    st.sampled_from((16, 32, 48)),
    st.integers(1, 19),
    st.integers(1, 19),
    st.sampled_from((16, 48, 64)),
    st.tuples(*[st.integers(0, 3)] * 4),
)
def test_winograd_covers_any_image(pool, n, c, h, w, k, padding):
    """Tiles that hang over the border, tiny images, one-sided padding."""
    assume(h + padding[0] + padding[1] >= 3)
    assume(w + padding[2] + padding[3] >= 3)
    shape = ConvShape(n, c, h, w, k, 3, 3, padding=padding)
    data = arrays(shape, integers=True)
    want = reference(shape, *data)
    for part, got, exact in zip(PARTS, run(pool, shape, "winograd2", data), want, strict=True):
        np.testing.assert_array_equal(got, exact.astype(np.float32), err_msg=part)
    for part, got, exact in zip(PARTS, run(pool, shape, "winograd4", data), want, strict=True):
        limit = 256 * np.finfo(np.float32).eps * max(np.abs(exact).max(), 16.0)
        np.testing.assert_allclose(got, exact, rtol=0, atol=limit, err_msg=part)


def test_planning_needs_no_numba():
    """Tracing asks for algorithms and workspaces; it must not pay for the compiler."""
    code = (
        "import sys; from ooctrain.layers.conv2d import choose_algorithm;"
        "from ooctrain.layers.kernels.cpu.conv import conv_workspace as plan;"
        "shape = plan.linear_shape(64, 512, 10); choose_algorithm(shape);"
        "plan.workspace_bytes(shape, 'direct', 'forward', 2); print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_bias(pool):
    shape = SHAPES["3x3"]
    x, w, bias, dy = arrays(shape, integers=True)
    for algorithm in CPU_ALGORITHMS:
        if choose_algorithm(shape, algorithm) == algorithm:
            y, _, _ = run(pool, shape, algorithm, (x, w, bias, dy), use_bias=False)
            want = reference(shape, x, w, np.zeros_like(bias), dy)[0]
            np.testing.assert_allclose(
                y, want, rtol=0, atol=1e-3 if algorithm == "winograd4" else 0
            )


DETERMINISM = (
    "3x3",
    "stem",
    "3x3, stride 2",
    "1x1",
    "two groups",
    "tiny maps, large batch",
    "4x4 maps",
    "large image",
)


@pytest.mark.parametrize("algorithm", CPU_ALGORITHMS)
@pytest.mark.parametrize("name", DETERMINISM)
def test_same_bits_for_threads_and_orders(name, algorithm):
    """1, 2 and 3 threads, and chunks in random order, give identical bits on random data."""
    shape = SHAPES[name]
    if choose_algorithm(shape, algorithm) != algorithm:
        pytest.skip(f"{algorithm} does not apply")
    data = arrays(shape, integers=False)
    results = []
    for threads, seed in ((1, None), (2, None), (3, None), (2, 7), (3, 8)):
        pool = ThreadPool(threads, shuffle_seed=seed)
        results.append(run(pool, shape, algorithm, data))
        pool.close()
    for other in results[1:]:
        for part, a, b in zip(PARTS, results[0], other, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=part)


@pytest.mark.parametrize("channels", [32, 256])
def test_errors_on_random_data_stay_within_the_stated_bounds(pool, channels):
    """Root mean square below `RELATIVE_ERROR`, single elements below ten times that."""
    shape = ConvShape(2, channels, 12, 12, channels, 3, 3, padding=(1, 1, 1, 1))
    data = arrays(shape, integers=False)
    want = reference(shape, *data)
    for algorithm, bound in conv_workspace.RELATIVE_ERROR.items():
        results = zip(PARTS, run(pool, shape, algorithm, data), want, strict=True)
        for part, got, exact in results:
            error = np.abs(got - exact) / exact.std()
            assert math.sqrt(np.mean(error**2)) < bound, (algorithm, part)
            assert error.max() < 10 * bound, (algorithm, part)


def test_workspace_is_exact_and_grows_only_with_threads():
    """Kernels stay inside the workspace: guards around it survive; more threads need no less."""
    shape, pool = SHAPES["3x3, stride 2"], ThreadPool(2)
    x, w, bias, dy = arrays(shape, integers=True)
    y = np.empty_like(dy)
    size = conv_workspace.workspace_bytes(shape, "direct", "forward", 2)
    raw = np.full(size + 128, 0xAB, np.uint8)
    start = -raw.ctypes.data % 64
    conv2d.forward(pool, shape, "direct", x, w, bias, y, raw[start : start + size])
    pool.close()
    assert (raw[start + size :] == 0xAB).all()
    assert (raw[:start] == 0xAB).all()
    for algorithm in CPU_ALGORITHMS:
        chosen = choose_algorithm(shape, algorithm)
        for part in PARTS:
            sizes = [
                conv_workspace.workspace_bytes(shape, chosen, part, threads)
                for threads in (1, 2, 3)
            ]
            assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 1, 1), (7, 33, 10), (64, 512, 100), (13, 100, 37)]
)
def test_linear_products(pool, rows, inputs, outputs):
    random = np.random.default_rng(3)
    x, w, bias, dy = (
        random.integers(-4, 5, extents).astype(np.float32)
        for extents in ((rows, inputs), (outputs, inputs), (outputs,), (rows, outputs))
    )
    y, dx, dw = (np.full_like(a, np.nan) for a in (dy, x, w))
    forward, grad_input, grad_weight = (
        aligned_workspace(conv_workspace.linear_workspace_bytes(rows, inputs, outputs, part, 2))
        for part in PARTS
    )
    matmul.forward(pool, x, w, bias, y, forward)
    matmul.grad_input(pool, dy, w, dx, grad_input)
    matmul.grad_weight(pool, x, dy, dw, grad_weight)
    np.testing.assert_array_equal(y, x @ w.T + bias)
    np.testing.assert_array_equal(dx, dy @ w)
    np.testing.assert_array_equal(dw, dy.T @ x)


def test_shape_knows_its_output_and_work():
    shape = ConvShape(2, 3, 224, 224, 64, 7, 7, stride=(2, 2), padding=(3, 3, 3, 3))
    assert (shape.oh, shape.ow) == (112, 112)
    assert shape.flops == 2 * 2 * 64 * 112 * 112 * 3 * 49


@pytest.mark.parametrize(
    "change",
    [
        {"c": 0},
        {"stride": (0, 1)},
        {"padding": (0, -1, 0, 0)},
        {"groups": 3},
        {"r": 40},
        {"dilation": (20, 1)},
    ],
)
def test_nonsense_shapes_are_refused(change):
    with pytest.raises(ShapeError):
        replace(SHAPES["3x3"], **change)


def test_unknown_algorithm_is_refused():
    with pytest.raises(ConfigError, match="fastest"):
        choose_algorithm(SHAPES["3x3"], "fastest")
