"""Elementwise kernels for GPUs, in the emulator: against the definition in float64 and the cpu's
bits; what their PTX says.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_facts import assemble, check_ptx, read_ptx, why_no_assembler
from support.quick import quick

from ooctrain.layers.combine import Add, AddMasked, Constant, Scale
from ooctrain.layers.function import Sigmoid, SigmoidGrad, Tanh, TanhGrad
from ooctrain.layers.kernels.cuda import channel_bias, chunks, columns, elementwise
from ooctrain.layers.kernels.cuda.quads import first_quads, load_channels
from ooctrain.layers.kernels.cuda.runtime import workspace
from ooctrain.layers.kernels.cuda.runtime.shim import (
    Kernel,
    cuda,
    int64,
    kernel,
    uint32,
    why_no_ptx,
)
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.relu import LeakyReLU, LeakyReLUGrad, ReLU, ReLUGrad
from ooctrain.layers.update import ClipValue, ScaleBy
from ooctrain.testing.check_cuda import check_cuda, cpu_bits
from ooctrain.testing.check_op import SCALARS
from ooctrain.testing.emulator import EmulatedLauncher

EPS = float(np.finfo(np.float32).eps)
# One element; no whole quad; quads and a rest; one tile and one element; three tiles.
SHAPES = [(1,), (3,), (5, 7), (1, 3, 2, 5), (2049,), (2, 17, 11, 14)]
#: Operations without a sum: the float32 result is the rounded exact one, and the cpu's.
EXACT = [
    (ReLU(), 1), (ReLUGrad(), 2), (LeakyReLU(0.125), 1), (LeakyReLUGrad(0.125), 2),
    (Add(), 2), (Add(relu=True), 2), (AddMasked(), 3), (Scale(0.3), 1), (ClipValue(0.5), 1),
]  # fmt: skip


def normal(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("op", "count"),
    quick(EXACT, 0, 1, 4, 5, 8, names=2),
    ids=lambda value: getattr(value, "name", None),
)
def test_one_rounding_and_the_bits_of_the_cpu(op, count, shape):
    inputs = [normal(*shape, seed=i) for i in range(count)]
    (found,) = check_cuda(op, *inputs, tolerance=EPS)
    assert found.tobytes() == cpu_bits(op, *inputs)[0].tobytes()


@pytest.mark.parametrize("shape", [(3,), (2, 17, 11, 14)])
@pytest.mark.parametrize(
    ("op", "roundings"),
    quick([(Tanh(), 4), (Sigmoid(), 4), (TanhGrad(), 2), (SigmoidGrad(), 3)], 0, names=2),
    ids=lambda value: getattr(value, "name", None),
)
def test_smooth_activations(op, roundings, shape):
    """A few roundings each; the gradients read outputs, which lie in (-1, 1)."""
    forward = op.name in ("tanh", "sigmoid")
    inputs = [4 * normal(*shape)] if forward else [normal(*shape), np.tanh(normal(*shape, seed=1))]
    check_cuda(op, *inputs, tolerance=roundings * EPS)


def test_values_at_the_edges():
    """NaN stays, infinity is cut or kept, saturation is exact, -0 keeps its sign as on the cpu."""
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -90.0, 90.0], np.float32)
    launcher = EmulatedLauncher()
    for op in (ReLU(), ClipValue(1.0), LeakyReLU(0.1), Tanh(), Sigmoid(), Add(relu=True)):
        inputs = [x, x] if isinstance(op, Add) else [x]
        found = np.full_like(x, 7)
        CUDA.run(op, launcher, inputs, [found], None, SCALARS)
        wanted = op.reference(*inputs, scalars=SCALARS)[0]
        np.testing.assert_allclose(found, wanted, rtol=4 * EPS, atol=1e-37, err_msg=op.name)
        if op.name == "relu":
            np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


def test_masks_of_nan_and_zero_pass_nothing():
    dy, y = np.full(5, 3, np.float32), np.array([np.nan, 0, -0.0, -1, 1e-40], np.float32)
    dx = np.full_like(y, 7)
    elementwise.relu_grad(EmulatedLauncher(), dy, y, dx)
    np.testing.assert_array_equal(dx, [0, 0, 0, 0, 3])


def test_constant_and_copy():
    check_cuda(Constant(0.25, (2, 3, 5, 7)), tolerance=0)
    payload = np.arange(0x7FC00000, 0x7FC00000 + 2050, dtype=np.uint32).view(np.float32)
    copy = np.zeros_like(payload)
    elementwise.copy(EmulatedLauncher(), payload, copy)
    assert copy.tobytes() == payload.tobytes(), "a copy must keep the bits of a NaN"


def test_scale_by_a_variable():
    check_cuda(ScaleBy(), normal(2, 3, 5, 7), np.float32(0.7), tolerance=EPS)


@pytest.mark.slow
@pytest.mark.parametrize("shape", quick([(1, 1), (7, 3), (600, 4), (5, 33), (130, 40)], 4))
def test_channel_sum(shape):
    """The stated bound; both orders of threads."""
    rows, channels = shape
    dy = normal(*shape) + 1
    wanted, sizes = dy.sum(0, dtype=np.float64), np.abs(dy).sum(0, dtype=np.float64)
    seen = set()
    for order in (1, -1):
        db = np.full(channels, np.nan, np.float32)
        space = np.full(workspace.channel_sum_bytes((rows, channels)), 255, np.uint8)
        elementwise.channel_sum(EmulatedLauncher(order), dy, db, space)
        assert (np.abs(db - wanted) <= columns.SUM_ROUNDINGS * EPS / 2 * sizes).all()
        seen.add(db.tobytes())
    assert len(seen) == 1


@pytest.mark.slow
def test_the_error_of_a_sum_does_not_grow_with_its_rows():
    """Float32 sums of 0.1 over many rows lose digits unless they are compensated."""
    dy = np.full((100_000, 1), 0.1, np.float32)
    db, space = (
        np.empty(1, np.float32),
        np.empty(workspace.channel_sum_bytes(dy.shape), np.uint8),
    )
    elementwise.channel_sum(EmulatedLauncher(), dy, db, space)
    wanted = float(np.float32(0.1)) * dy.size
    assert abs(db[0] - wanted) <= columns.SUM_ROUNDINGS * EPS / 2 * wanted


@pytest.mark.parametrize("channels", quick([1, 2, 3, 4, 5, 12, 2049], 5))
def test_channel_bias(channels):
    y, bias = normal(3, 2, channels), normal(channels)
    wanted = y + bias
    channel_bias.add_in_place(EmulatedLauncher(), y, bias)
    np.testing.assert_array_equal(y, wanted)


def test_places_beyond_32_bits():
    """Indices of the last tile of a 20,480 x 20,480 x 64 tensor, and their channels."""

    @kernel("void(i8[::1], f4[::1], f4[::1], u4, u4)")
    def places(found, vector, values, number, channels):
        i, j = first_quads(int64(number), cuda.threadIdx.x)
        quad = load_channels(vector, uint32(j % int64(channels)), channels)
        if cuda.threadIdx.x == 255:
            found[0], found[1] = i, j
            values[0], values[1], values[2], values[3] = quad[0], quad[1], quad[2], quad[3]

    elements, channels = 20_480 * 20_480 * 64, 67
    found, values = np.zeros(2, np.int64), np.zeros(4, np.float32)
    vector = np.arange(channels, dtype=np.float32)
    block = chunks.tiles(elements) - 1
    EmulatedLauncher().launch(places, 1, found, vector, values, block, channels)
    first = elements - chunks.TILE + 255 * 4
    assert found.tolist() == [first, first + chunks.STRIDE]
    assert found[1] + 4 == elements
    assert values.tolist() == [(first + chunks.STRIDE + k) % channels for k in range(4)]


def test_where_a_reduction_is_cut_depends_on_its_shape_alone():
    for rows, channels in [(1, 1), (64, 64), (10**7, 3), (20_480**2, 64), (10, 4096)]:
        cut = chunks.columns(rows, channels)
        assert (cut.chunks - 1) * cut.rows_per_chunk < rows <= cut.chunks * cut.rows_per_chunk
        assert cut.blocks[1] * cut.lanes >= channels
        assert cut.blocks[1] <= 65535
        assert cut.rows_per_chunk * channels < 2**32


def kernels_of(module):
    return [value for value in vars(module).values() if isinstance(value, Kernel)]


@pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
@pytest.mark.slow  # all kernels are compiled in `contracts/test_ptx_of_every_kernel.py`
@pytest.mark.parametrize("capability", [(7, 5), (9, 0)])
def test_ptx(capability):
    """No float64, no local memory, 128-bit access, registers for a full house."""
    for pointwise in kernels_of(elementwise):
        facts = check_ptx(pointwise, capability)
        assert facts.count("st.global.v4") == 2, facts.name
        # Two quads of each input; what a constant overwrites is not read.
        inputs = pointwise.signature.count("[::1]") - 1
        reads = 0 if facts.name.endswith("constant") else 2 * inputs
        assert facts.count("ld.global.v4") == reads, facts.name
        if not why_no_assembler():
            made = assemble(facts)
            assert made.spill_bytes == 0
            assert made.registers <= 42, "six blocks of 256 threads fit a multiprocessor"
    for other in (*kernels_of(columns), *kernels_of(channel_bias)):
        check_ptx(other, capability)
    # A batch of rows without a test for the last one, and one with it.
    loads = read_ptx(columns._sum_chunks, capability).count("ld.global.f32")
    assert loads == 2 * chunks.BATCH_ROWS
