"""Depthwise convolution: exact on whole numbers for any shape, accurate on random ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooctrain.layers.conv2d import (
    Conv2d,
    Conv2dGradInput,
    Conv2dGradWeight,
    ConvShape,
    Geometry,
    choose_algorithm,
)
from ooctrain.layers.kernels.cpu.conv import conv_workspace
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.step.op import Spec, to_logical, to_physical

NO_SCALARS = {}


@pytest.fixture(scope="module")
def pool():
    pool = ThreadPool(2)
    yield pool
    pool.close()


def run(pool, op, *arrays):
    """The kernel's result, logical."""
    ins = [np.ascontiguousarray(to_physical(a)) for a in arrays]
    specs = [Spec(a.shape) for a in arrays]
    (out,) = op.infer(*specs)
    result = np.full(to_physical(np.empty(out.shape, "f4")).shape, np.nan, np.float32)
    workspace = np.full(CPU.workspace_bytes(op, specs, [out], pool.threads), 0x55, np.uint8)
    CPU.run(op, pool, ins, [result], workspace, NO_SCALARS)
    return to_logical(result)


def three_parts(geometry, x, w, dy):
    size, kernel = x.shape[2:], w.shape[2:]
    yield Conv2d(geometry, kernel, "depthwise"), (x, w)
    yield Conv2dGradInput(geometry, size, "depthwise"), (dy, w)
    yield Conv2dGradWeight(geometry, kernel, "depthwise"), (x, dy)


@st.composite
def shapes(draw):
    channels = draw(st.sampled_from((2, 3, 16, 31, 64, 130)))
    r, s = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    stride, dilation = ((draw(st.integers(1, 3)), draw(st.integers(1, 3))) for _ in range(2))
    padding = tuple(draw(st.integers(0, 4)) for _ in range(4))
    height = draw(st.integers(max(1, (r - 1) * dilation[0] + 1 - padding[0] - padding[1]), 12))
    width = draw(st.integers(max(1, (s - 1) * dilation[1] + 1 - padding[2] - padding[3]), 12))
    extents = (draw(st.integers(1, 3)), channels, height, width, channels, r, s)
    return ConvShape(*extents, stride, padding, dilation, channels)


def arrays_for(shape, draw):
    x = draw((shape.n, shape.c, shape.h, shape.w))
    return x, draw((shape.k, 1, shape.r, shape.s)), draw((shape.n, shape.k, shape.oh, shape.ow))


@settings(max_examples=50)
@given(shapes())
def test_whole_numbers_are_exact_for_any_shape(pool, shape):
    random = np.random.default_rng(0)
    data = arrays_for(shape, lambda e: random.integers(-4, 5, e).astype(np.float32))
    geometry = Geometry(shape.stride, shape.padding, shape.dilation, shape.groups)
    for op, ins in three_parts(geometry, *data):
        (want,) = op.reference(*ins, scalars=NO_SCALARS)
        np.testing.assert_array_equal(run(pool, op, *ins), want, err_msg=op.name)


def test_large_maps_are_accurate_and_the_same_on_any_number_of_threads():
    """Several chunks; the bound is that of `direct`."""
    shape = ConvShape(2, 96, 40, 44, 96, 3, 3, (1, 1), (1,) * 4, (1, 1), 96)
    random = np.random.default_rng(1)
    data = arrays_for(shape, lambda e: random.standard_normal(e).astype(np.float32))
    geometry = Geometry(shape.stride, shape.padding, shape.dilation, shape.groups)
    for op, ins in three_parts(geometry, *data):
        (want,) = op.reference(*(a.astype(np.float64) for a in ins), scalars=NO_SCALARS)
        results = []
        for threads, seed in ((1, None), (2, None), (3, 5)):
            pool = ThreadPool(threads, shuffle_seed=seed)
            results.append(run(pool, op, *ins))
            pool.close()
        error = np.abs(results[0] - want) / want.std()
        assert np.sqrt(np.mean(error**2)) < conv_workspace.RELATIVE_ERROR["direct"]
        assert all(other.tobytes() == results[0].tobytes() for other in results[1:])


def test_it_is_chosen_where_each_channel_has_its_filter():
    alone = ConvShape(1, 8, 5, 5, 8, 3, 3, groups=8)
    assert choose_algorithm(alone) == "depthwise"
    assert choose_algorithm(alone, "direct") == "direct"
    assert choose_algorithm(ConvShape(1, 8, 5, 5, 16, 3, 3, groups=8)) == "direct"
    assert choose_algorithm(ConvShape(1, 1, 5, 5, 1, 3, 3)) == "direct"
