"""Convolutions on the emulated GPU: every algorithm, part and awkward shape, against float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ooctrain.errors import ConfigError, ShapeError
from ooctrain.layers.conv2d import Conv2d, Conv2dGradInput, Conv2dGradWeight, Geometry
from ooctrain.layers.conv_algorithms import CUDA_ALGORITHMS, choose_algorithm
from ooctrain.layers.conv_shape import ConvShape
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.kernels.cuda.conv import conv_plan
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.step.op import Op, Spec, to_logical, to_physical
from ooctrain.testing.emulator.emulator import EmulatedLauncher

SHAPES = {
    "3x3": ConvShape(2, 16, 7, 6, 24, 3, 3, padding=(1, 1, 1, 1)),
    "1x1": ConvShape(3, 12, 5, 5, 20, 1, 1),
    "1x1, stride 2": ConvShape(2, 8, 9, 8, 12, 1, 1, stride=(2, 2)),
    "3x3, stride 2": ConvShape(2, 8, 9, 8, 40, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1)),
    "stem": ConvShape(2, 3, 15, 14, 16, 7, 7, stride=(2, 2), padding=(3, 3, 3, 3)),
    "odd channels": ConvShape(2, 19, 5, 4, 37, 3, 3, padding=(1, 1, 1, 1)),
    "one filter": ConvShape(2, 21, 6, 6, 1, 3, 3, padding=(1, 1, 1, 1)),
    "more filters than a tile": ConvShape(1, 4, 4, 5, 132, 2, 2),
    "more pixels than a tile": ConvShape(3, 4, 9, 8, 8, 2, 1),
    "dilated, strided": ConvShape(1, 8, 15, 14, 4, 3, 2, (3, 2), (2, 1, 0, 2), (2, 3)),
    "two groups": ConvShape(2, 16, 5, 5, 24, 3, 3, padding=(1, 1, 1, 1), groups=2),
    "odd groups": ConvShape(2, 27, 5, 5, 33, 3, 3, (2, 1), (1, 0, 1, 2), groups=3),
    "depthwise": ConvShape(2, 40, 6, 7, 40, 3, 3, padding=(1, 1, 1, 1), groups=40),
    "depthwise, stride 2": ConvShape(2, 12, 7, 6, 24, 3, 3, (2, 2), (1, 1, 1, 1), groups=12),
    "much padding": ConvShape(1, 8, 2, 3, 8, 3, 3, padding=(5, 3, 4, 6)),
    "stride over the filter": ConvShape(2, 8, 8, 8, 8, 2, 2, stride=(3, 3)),
    "several splits": ConvShape(2, 4, 33, 32, 8, 1, 2, padding=(0, 0, 1, 0)),
    "single everything": ConvShape(1, 1, 1, 1, 1, 1, 1),
}
QUICK = {
    "implicit_gemm": (),
    "tf32": (),
    "tiled": ("odd channels", "odd groups", "several splits", "much padding"),
}  # fmt: skip
ORDERS = pytest.mark.parametrize("order", [1, -1])
ALGORITHMS = pytest.mark.parametrize("algorithm", CUDA_ALGORITHMS)
#: Unit roundoff of what the products are made from.
ROUNDING = {"naive": 2**-24, "tiled": 2**-24, "implicit_gemm": 2**-24, "tf32": 2**-11}


def geometry_of(shape: ConvShape) -> Geometry:
    return Geometry(shape.stride, shape.padding, shape.dilation, shape.groups)


def parts(shape: ConvShape, algorithm: str, data) -> Iterator[tuple[Op, tuple[np.ndarray, ...]]]:
    """The three operations with their inputs."""
    x, w, bias, dy = data
    geometry, kernel = geometry_of(shape), (shape.r, shape.s)
    yield Conv2d(geometry, kernel, algorithm), (x, w, bias)
    yield Conv2dGradInput(geometry, (shape.h, shape.w), algorithm), (dy, w)
    yield Conv2dGradWeight(geometry, kernel, algorithm), (x, dy)


def draw(shape: ConvShape, *, integers: bool = True, seed: int = 0) -> list[np.ndarray]:
    """x, w, bias, dy; small whole numbers make every sum exact, also in TF32."""
    random = np.random.default_rng(seed)
    extents = (
        (shape.n, shape.c, shape.h, shape.w), (shape.k, shape.cg, shape.r, shape.s), (shape.k,),
        (shape.n, shape.k, shape.oh, shape.ow),
    )  # fmt: skip
    numbers = [
        random.integers(-4, 5, e) if integers else random.standard_normal(e) for e in extents
    ]
    return [number.astype(np.float32) for number in numbers]


def run(op: Op, inputs: tuple[np.ndarray, ...], order: int = 1) -> np.ndarray:
    """The operation's result on the emulated GPU; result and workspace start as NaN."""
    specs = [Spec(a.shape) for a in inputs]
    (out_spec,) = op.infer(*specs)
    out = to_physical(np.full(out_spec.shape, np.nan, np.float32))
    workspace = np.full(CUDA.workspace_bytes(op, specs, [out_spec], 1), 0xFF, np.uint8)
    physical = [to_physical(a) for a in inputs]
    CUDA.run(op, EmulatedLauncher(order), physical, [out], workspace, {})
    return to_logical(out)


def cases() -> Iterator:
    """Every algorithm on every shape; what costs time and proves little more is left to `slow`."""
    for algorithm in CUDA_ALGORITHMS:
        for name in SHAPES:
            quick = algorithm == "naive" or name in QUICK[algorithm]
            yield pytest.param(algorithm, name, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("algorithm", "name"), list(cases()))
def test_exact_on_integers(algorithm, name):
    shape, order = SHAPES[name], 1 if len(name) % 2 else -1
    if choose_algorithm(shape, algorithm) != algorithm:
        pytest.skip(f"{algorithm} does not apply")
    for op, inputs in parts(shape, algorithm, draw(shape)):
        (want,) = op.reference(*inputs, scalars={})
        np.testing.assert_array_equal(run(op, inputs, order), want, err_msg=op.name)


@ALGORITHMS
def test_error_on_reals_is_within_the_bound(algorithm):
    """|error| <= (terms + 3) u sum |a b|, with u = 2^-24, or 2^-11 where factors are TF32."""
    shape = SHAPES["3x3"]
    data = draw(shape, integers=False)
    for op, inputs in parts(shape, algorithm, data):
        exact = [a.astype(np.float64) for a in inputs]
        (want,) = op.reference(*exact, scalars={})
        (size,) = op.reference(*map(np.abs, exact), scalars={})
        terms = shape.n * shape.oh * shape.ow + shape.k * shape.r * shape.s
        bound = (2 * ROUNDING[algorithm] + terms * 2**-24) * size
        assert (np.abs(run(op, inputs) - want) <= bound).all(), op.name


@pytest.mark.parametrize("algorithm", ["implicit_gemm", "naive"])
def test_splits_are_summed_in_order_so_that_bits_repeat(algorithm):
    shape = SHAPES["several splits"]
    assert conv_plan.splits(shape) > 1
    *_, (op, inputs) = parts(shape, algorithm, draw(shape, integers=False))
    np.testing.assert_array_equal(run(op, inputs, 1), run(op, inputs, -1))


@ORDERS
def test_a_transposed_convolution_is_the_gradient_with_a_bias(order):
    geometry = Geometry((2, 2), (1, 1, 1, 1))
    random = np.random.default_rng(3)
    x, w, b = (random.integers(-4, 5, e).astype(np.float32) for e in
               ((2, 8, 4, 5), (8, 12, 3, 3), (12,)))  # fmt: skip
    op = ConvTranspose2d(geometry, (3, 3), (8, 10), "naive")
    (want,) = op.reference(x, w, b, scalars={})
    np.testing.assert_array_equal(run(op, (x, w, b), order), want)


def test_each_shape_gets_an_algorithm_that_applies():
    depthwise, plain = SHAPES["depthwise"], SHAPES["3x3"]
    for name in CUDA_ALGORITHMS:
        assert choose_algorithm(plain, name) == name
        assert choose_algorithm(depthwise, name) == "naive"


def test_errors_name_what_is_wrong():
    x, w = np.zeros((1, 1, 2, 2), np.float32), np.zeros((1, 1, 1, 1), np.float32)
    with pytest.raises(ConfigError, match="not one of the cuda device"):
        run(Conv2d(Geometry(), (1, 1), "winograd2"), (x, w))
    with pytest.raises(ShapeError, match="output pixels is too large"):
        choose_algorithm(ConvShape(64, 1, 2**13, 2**13, 1, 1, 1), "naive")


def test_no_split_is_empty_and_together_they_cover_the_pixels():
    for shape in (*SHAPES.values(), ConvShape(32, 512, 7, 7, 512, 3, 3, padding=(1, 1, 1, 1))):
        pixels = conv_plan.grad_weight(shape)[2]
        splits = conv_plan.splits(shape)
        assert (splits - 1) * pixels.per_split < pixels.total <= splits * pixels.per_split
