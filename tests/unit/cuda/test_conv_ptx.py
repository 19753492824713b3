"""The convolution kernels as the GPU's assembler gets them: no doubles, no spills, wide loads."""

from __future__ import annotations

import pytest
from support.ptx_facts import assemble, check_ptx, why_no_assembler
from support.quick import quick

from ooctrain.layers.kernels.cuda.conv import (
    conv_gemm,
    conv_naive,
    conv_pieces,
    conv_tf32,
    conv_tf32_few,
    conv_tf32_weights,
    conv_tiled,
    conv_weights,
)
from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx

pytestmark = pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
LOWEST, AMPERE, HOPPER = (7, 5), (8, 0), (9, 0)
OTHERS = ((8, 0), (8, 6), (8, 9), (10, 0), (12, 0))
#: 65,536 registers and 256 threads: with so many, two blocks share a processor.
TWO_BLOCKS = 128

SIMPLE = (
    conv_naive._correlate, conv_naive._grad_weight, conv_tiled._correlate, conv_tiled._grad_weight,
    conv_pieces._turn, conv_pieces._add_partials,
)  # fmt: skip


def check_resources(facts, most_registers=TWO_BLOCKS):
    """Registers within bounds, nothing spilled. Skipped where there is no assembler."""
    if not why_no_assembler():
        resources = assemble(facts)
        assert resources.spill_bytes == resources.stack_bytes == 0
        assert resources.registers <= most_registers
        assert resources.shared_bytes <= 48 * 1024


def check_product(kernel, capability):
    """A kernel blocked in registers: eight unrolled steps, all loads of 16 bytes, two blocks."""
    facts = check_ptx(kernel, capability)
    assert facts.count("fma.rn.f32") == 8 * 64
    assert facts.count("ld.shared.v4") == 8 * 4
    assert facts.count("ld.global.v4") == 4
    check_resources(facts)


def check_tensor_cores(capability):
    facts = check_ptx(conv_tf32._correlate, capability)
    products = facts.count("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
    steps = products // 16  # of 8 channels, of which a tile has two; newer compilers leave the loop
    assert steps in (1, 2)
    assert products == 16 * steps
    assert facts.count("ldmatrix.sync.aligned.m8n8.x4") == 6 * steps
    assert facts.count("cp.async.cg.shared.global") == 12
    rounding = "cvt.rn.tf32" if capability >= HOPPER else "cvt.rna.tf32"
    assert facts.count("cvt.r") == facts.count(rounding) == 24 * steps
    check_resources(facts)


@pytest.mark.parametrize("kernel", quick(SIMPLE, 0), ids=lambda k: k.name)
def test_simple_kernels(kernel):
    facts = check_ptx(kernel, LOWEST)
    check_resources(facts, 64)
    is_tiled = kernel.name.startswith("conv_tiled")
    assert facts.count("bar.sync") == (2 if is_tiled else 0)


def test_the_implicit_product_at_the_lowest_capability():
    kernel = conv_gemm._correlation_kernel(True, conv_gemm.WIDE)
    check_product(kernel, LOWEST)


def test_the_implicit_product_on_hopper():
    check_product(conv_weights._weight_kernel(True, conv_gemm.WIDE), HOPPER)


@pytest.mark.parametrize("capability", quick([AMPERE, HOPPER], 1))
def test_tensor_cores(capability):
    check_tensor_cores(capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [AMPERE, HOPPER, *OTHERS[1:]])
def test_few_channels_read_nothing_but_their_channels(capability):
    """Three words for each tap, before the loop and in it; four of the bias, or of filters."""
    for kernel, rows in ((conv_tf32_few._correlate, 3), (conv_tf32_weights._multiply_few, 1)):
        facts = check_ptx(kernel, capability)
        filters = 4 if rows == 3 else 2 * 4
        assert facts.count("ld.global") == 2 * 3 * rows + filters
        assert facts.count("ld.global.v") == 0
        assert facts.count("st.shared.v4") == (3 if rows == 3 else 2)
        assert facts.count("mma.sync") in (8, 16)  # newer compilers leave the loop over halves
        check_resources(facts)


@pytest.mark.slow
@pytest.mark.parametrize("capability", OTHERS)
@pytest.mark.parametrize("in_fours", [True, False])
@pytest.mark.parametrize("columns", [conv_gemm.WIDE, conv_gemm.NARROW])
def test_every_product_for_every_capability(capability, in_fours, columns):
    kernels = {conv_gemm._correlation_kernel(in_fours, columns): 512}
    if in_fours or columns == conv_gemm.NARROW:
        kernels[conv_weights._weight_kernel(in_fours, columns)] = 512
    for kernel, products in kernels.items():
        facts = check_ptx(kernel, capability)
        assert facts.count("fma.rn.f32") == products
        check_resources(facts)
    if in_fours and columns == conv_gemm.WIDE:
        check_tensor_cores(capability)
