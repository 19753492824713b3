"""Convolutions on the emulated GPU: every algorithm, part and awkward shape, against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.conv_shapes import SHAPES, draw, parts
from support.quick import quick

from ooctrain.errors import ConfigError, ShapeError
from ooctrain.layers.conv2d import CUDA_ALGORITHMS, Conv2d, ConvShape, Geometry, choose_algorithm
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.kernels.cuda.chunks import MOST_BLOCKS, WAVE_BLOCKS
from ooctrain.layers.kernels.cuda.conv import conv_blocking
from ooctrain.layers.kernels.cuda.conv.tensor_core import AMPERE
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.step.op import Op, Spec, to_logical, to_physical
from ooctrain.testing.emulator import EmulatedLauncher

QUICK = {
    "implicit_gemm": (),
    "tf32": (),
    "tiled": (),
}  # fmt: skip
ORDERS = pytest.mark.parametrize("order", [1, -1])
ALGORITHMS = pytest.mark.parametrize("algorithm", CUDA_ALGORITHMS)
#: Unit roundoff of what the products are made from.
ROUNDING = {"naive": 2**-24, "tiled": 2**-24, "implicit_gemm": 2**-24, "tf32": 2**-11}


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
            at_once = algorithm == "naive" or name in QUICK[algorithm]
            yield pytest.param(algorithm, name, marks=() if at_once else pytest.mark.slow)


@pytest.mark.parametrize(("algorithm", "name"), list(cases()))
def test_exact_on_integers(algorithm, name):
    shape, order = SHAPES[name], 1 if len(name) % 2 else -1
    if choose_algorithm(shape, algorithm) != algorithm:
        pytest.skip(f"{algorithm} does not apply")
    for op, inputs in parts(shape, algorithm, draw(shape)):
        (want,) = op.reference(*inputs, scalars={})
        np.testing.assert_array_equal(run(op, inputs, order), want, err_msg=op.name)


def reals() -> Iterator:
    """Every algorithm on a plain shape, and tensor cores on few channels."""
    tried = *((a, "3x3") for a in CUDA_ALGORITHMS), ("tf32", "two channels")
    for algorithm, name in tried:
        marks = () if algorithm == "naive" else pytest.mark.slow
        yield pytest.param(algorithm, name, marks=marks)


@pytest.mark.parametrize(("algorithm", "name"), list(reals()))
def test_error_on_reals_is_within_the_bound(algorithm, name):
    """|error| <= (terms + 3) u sum |a b|, with u = 2^-24, or 2^-11 where factors are TF32."""
    shape = SHAPES[name]
    data = draw(shape, integers=False)
    for op, inputs in parts(shape, algorithm, data):
        exact = [a.astype(np.float64) for a in inputs]
        (want,) = op.reference(*exact, scalars={})
        (size,) = op.reference(*map(np.abs, exact), scalars={})
        terms = shape.n * shape.oh * shape.ow + shape.k * shape.r * shape.s
        bound = (2 * ROUNDING[algorithm] + terms * 2**-24) * size
        assert (np.abs(run(op, inputs) - want) <= bound).all(), op.name


class Listing:
    """A launcher that only notes what it was to launch."""

    def __init__(self):
        self.kernels = []

    def launch(self, kernel, blocks, *arguments):
        self.kernels.append(kernel)

    def part(self, array, start_bytes, count, dtype):
        return np.zeros(count, dtype)


@pytest.mark.parametrize("few", [1, 2, 3])
def test_few_channels_are_left_to_tensor_cores(few):
    """Forward and both gradients of a first layer; of a last layer the gradient of its input."""
    first = ConvShape(2, few, 9, 8, 16, 3, 3, padding=(1, 1, 1, 1))
    last = ConvShape(2, 16, 9, 8, few, 3, 3, padding=(1, 1, 1, 1))
    tried = [*parts(first, "tf32", draw(first)), list(parts(last, "tf32", draw(last)))[1]]
    for op, inputs in tried:
        launcher, specs = Listing(), [Spec(a.shape) for a in inputs]
        outs = [np.zeros(spec.shape, np.float32) for spec in op.infer(*specs)]
        CUDA.run(op, launcher, list(inputs), outs, np.zeros(1 << 20, np.uint8), {})
        products = [k for k in launcher.kernels if not k.name.startswith("conv_pieces")]
        assert [kernel.capability for kernel in products] == [AMPERE], op.name


@pytest.mark.parametrize("algorithm", quick(["implicit_gemm", "naive"], 1))
def test_splits_are_summed_in_order_so_that_bits_repeat(algorithm):
    shape = SHAPES["several splits"]
    assert conv_blocking.splits(shape) > 1
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
        pixels = conv_blocking.grad_weight(shape)[2]
        splits = conv_blocking.splits(shape)
        assert (splits - 1) * pixels.per_split < pixels.total <= splits * pixels.per_split


#: (images, channels, side, filters, kernel)
RESNET_CONVS = (
    (64, 128, 56, 128, 3), (64, 256, 28, 256, 3), (64, 512, 14, 512, 3), (64, 256, 56, 128, 1),
    (64, 64, 112, 64, 3), (67, 512, 7, 512, 3), (67, 2048, 7, 512, 1), (571, 256, 56, 64, 1),
)  # fmt: skip


@pytest.mark.parametrize("conv", RESNET_CONVS, ids=str)
def test_splits_leave_no_wave_of_blocks_half_empty(conv):
    """288 blocks on a GPU that holds 264 take as long as 528: an H200 reached half its speed."""
    n, channels, side, filters, kernel = conv
    shape = ConvShape(n, channels, side, side, filters, kernel, kernel, padding=(kernel // 2,) * 4)
    tiles = -(-filters // conv_blocking.TILE_ROWS) * -(
        -channels * kernel**2 // conv_blocking.TILE_COLUMNS
    )
    waves = conv_blocking.splits(shape) * tiles / WAVE_BLOCKS
    assert waves / math.ceil(waves) > 0.8


@given(st.integers(1, 1 << 15), st.integers(1, 1 << 13), st.integers(1, 1 << 13))
def test_splits_keep_their_scratch_small(images, channels, filters):
    shape = ConvShape(images, channels, 14, 14, filters, 3, 3, padding=(1, 1, 1, 1))
    weights_bytes = filters * channels * 9 * 4
    tile_bytes = 4 * conv_blocking.TILE_ROWS * conv_blocking.TILE_COLUMNS
    least = MOST_BLOCKS * tile_bytes
    assert conv_blocking.splits(shape) * weights_bytes <= max(weights_bytes, least)
