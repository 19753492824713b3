"""What NVVM makes of the kernels of pooling, resizing, norms, losses and linear layers."""

from __future__ import annotations

import pytest
from support.ptx_facts import assemble, check_ptx, why_no_assembler

from ooctrain.layers.kernels.cuda import (
    dropout,
    instance_norm,
    losses,
    matmul,
    pooling,
    resampling,
    sums,
)
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, why_no_ptx

pytestmark = pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
#: of images, whose threads take four channels at a time
IMAGES = (pooling, instance_norm, pooling, resampling, resampling)
ALL = (*IMAGES, dropout, losses, sums, losses)
CAPABILITIES = pytest.mark.parametrize(
    "capability", [pytest.param((7, 5), marks=pytest.mark.slow), (9, 0)]
)
#: 65,536 registers serve 1024 threads of a multiprocessor, half of what it can hold
MOST_REGISTERS = 64


def kernels_of(modules):
    return [k for module in modules for k in vars(module).values() if isinstance(k, Kernel)]


@CAPABILITIES
@pytest.mark.slow
@pytest.mark.parametrize("kernel", kernels_of(ALL), ids=lambda kernel: kernel.name)
def test_no_double_precision_and_nothing_spills(kernel, capability):
    facts = check_ptx(kernel, capability)
    assert facts.count("atom") == facts.count("red") == 0
    if kernel in kernels_of(IMAGES):
        assert facts.count("ld.global.v4") >= 1
        assert facts.count("st.global.v4") == 1
    if not why_no_assembler():
        resources = assemble(facts)
        assert resources.spill_bytes == 0
        assert resources.registers <= MOST_REGISTERS


@pytest.mark.slow
def test_where_maxima_sat_is_one_access_for_four_channels():
    """The bytes beside it are those of a single channel."""
    facts = check_ptx(pooling._max_pool, (9, 0))
    assert facts.count("st.global.u32") == facts.count("st.global.u8") == 1
    facts = check_ptx(pooling._max_pool_grad, (9, 0))
    words, bytes_ = facts.count("ld.global.u32"), facts.count("ld.global.u8")
    assert words == bytes_ == facts.count("ld.global.v4")


@CAPABILITIES
@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_product_reads_memory_in_fours(capability, number):
    """Three quads of a step from shared memory, and three from each thread; or twelve elements."""
    facts = check_ptx(matmul.every_product()[number], capability)
    assert facts.count("fma.rn.f32") == 16 * matmul.RESULTS
    assert facts.count("ld.shared") == facts.count("ld.shared.v4") == 16 * 3
    assert facts.count("ld.global.v4") == (2 * 3 if number else 0)
    if not why_no_assembler():
        assert assemble(facts).registers <= matmul.TWO_BLOCKS
