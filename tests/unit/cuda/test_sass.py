"""What share of the instructions in a kernel's loop does its work, read from machine code."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from support.sass import FFMA, HMMA, HOPPER, hot_loop, why_no_machine_code

from ooctrain.layers.kernels.cuda import matmul
from ooctrain.layers.kernels.cuda.conv import (
    conv_gemm,
    conv_tf32,
    conv_tf32_few,
    conv_tf32_weights,
    conv_weights,
)
from ooctrain.layers.kernels.cuda.conv.tile_product import NARROW, WIDE
from ooctrain.layers.kernels.cuda.runtime.cubins import CubinStore
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, kernel, uint32, why_no_ptx

pytestmark = pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
LOWEST, AMPERE = (7, 5), (8, 0)
QUADS, SINGLES = True, False


def loop_of(kernel, capability, kind=FFMA):
    reason = why_no_machine_code(kernel, capability)
    if reason:
        pytest.skip(reason)
    return hot_loop(kernel, capability, kind)


# Each version of Python has a bytecode of its own; the compiler makes other machine code of it, by
# up to one instruction in ten. Limits hold for 3.11 to 3.14, figures in `docs/gpu.md` are by 3.11.
#: (capability, four channels in one load, columns, multiply-adds, least percent of them)
SHARES = [
    (HOPPER, QUADS, WIDE, 512, 85),
    (HOPPER, QUADS, NARROW, 512, 80),
    (HOPPER, SINGLES, WIDE, 512, 79),
    (HOPPER, SINGLES, NARROW, 512, 70),
    (AMPERE, QUADS, WIDE, 512, 85),
    (LOWEST, QUADS, WIDE, 512, 85),
    (LOWEST, SINGLES, NARROW, 512, 69),
]


def slow_but_first(cases):
    first, *others = cases
    return [first, *(pytest.param(*case, marks=pytest.mark.slow) for case in others)]


@pytest.mark.parametrize(
    ("capability", "fours", "columns", "products", "percent"), slow_but_first(SHARES)
)
def test_the_implicit_product_is_mostly_multiply_adds(
    capability, fours, columns, products, percent
):
    loop = loop_of(conv_gemm._correlation_kernel(fours, columns), capability)
    assert loop.kinds[FFMA] == products
    assert loop.share(FFMA) >= percent / 100, f"{loop.kinds[FFMA]} of {loop.length}"


#: the same of the gradient of a weight
WEIGHT_SHARES = [
    (HOPPER, QUADS, WIDE, 83), (HOPPER, QUADS, NARROW, 79), (HOPPER, SINGLES, NARROW, 68),
    (AMPERE, QUADS, WIDE, 85), (LOWEST, QUADS, WIDE, 86), (LOWEST, QUADS, NARROW, 81),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "fours", "columns", "percent"), WEIGHT_SHARES)
def test_the_gradient_of_a_weight_is_mostly_multiply_adds(capability, fours, columns, percent):
    loop = loop_of(conv_weights._weight_kernel(fours, columns), capability)
    assert loop.kinds[FFMA] == 512
    assert loop.share(FFMA) >= percent / 100, f"{loop.kinds[FFMA]} of {loop.length}"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "percent"), [(0, 73), (1, 82), (2, 82), (3, 82)])
def test_a_linear_layer_is_the_same_product(number, percent):
    loop = loop_of(matmul.every_product()[number], HOPPER)
    assert loop.kinds[FFMA] == 512
    assert loop.share(FFMA) >= percent / 100, f"{loop.kinds[FFMA]} of {loop.length}"


#: (kernel, capability, products of the loop, most instructions)
TENSOR_CORES = [
    (conv_tf32._correlate, HOPPER, 32, 200),
    (conv_tf32._correlate, AMPERE, 32, 240),
    (conv_tf32_few._correlate, HOPPER, 16, 162),
    (conv_tf32_weights._multiply_pixels, HOPPER, 16, 127),
    (conv_tf32_weights._multiply_few, HOPPER, 16, 190),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "capability", "products", "length"), TENSOR_CORES)
def test_few_instructions_stand_around_the_products_of_tensor_cores(
    kernel, capability, products, length
):
    loop = loop_of(kernel, capability, HMMA)
    assert loop.kinds[HMMA] == products
    assert loop.length <= length


@kernel("void(f4[::1], u4)", threads=32)
def simple(x, count):
    i = uint32(cuda.threadIdx.x)
    for _ in range(count):
        x[i] = x[i] * x[i] + x[i]


def test_loops_are_those_that_the_disassembler_shows(tmp_path):
    if shutil.which("nvdisasm") is None:
        pytest.skip("nvdisasm is not on the path")
    for capability in (LOWEST, AMPERE, HOPPER):
        loop = loop_of(simple, capability)
        path = tmp_path / "simple.cubin"
        path.write_bytes(CubinStore().get(simple, capability).image)
        said = subprocess.run(["nvdisasm", "-c", path], text=True, capture_output=True, check=True)
        lengths = set(lengths_of_loops(said.stdout.splitlines()))
        assert loop.length in lengths
        assert 1 <= loop.kinds[FFMA] <= loop.length


def lengths_of_loops(lines):
    """Instructions from each label to a branch back to it."""
    labels, count = {}, 0
    for line in (line.strip() for line in lines):
        if line.startswith(".L_") and line.endswith(":"):
            labels[line[:-1]] = count
        elif line.startswith("/*"):
            count += 1
            target = line.partition("`(")[2].partition(")")[0]
            if "BRA" in line and target in labels:
                yield count - labels[target]
