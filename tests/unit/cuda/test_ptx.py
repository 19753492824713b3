"""The reader of PTX: it counts instructions, and finds what makes a kernel slow."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_facts import assemble, check_ptx, read_ptx, why_no_assembler

from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, st4
from ooctrain.layers.kernels.cuda.runtime.shim import (
    cuda,
    float32,
    int32,
    kernel,
    uint32,
    why_no_ptx,
)

pytestmark = pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
needs_assembler = pytest.mark.skipif(bool(why_no_assembler()), reason=why_no_assembler())
HALF = np.float32(0.5)
CAPABILITIES = pytest.mark.parametrize("capability", [(7, 5), (9, 0)])


@kernel("void(f4[::1], f4[::1])")
def good(x, y):
    i = uint32(uint32(cuda.grid(1)) * uint32(4))
    a = ld4(x, i)
    st4(y, i, (a[0] * HALF, a[1] * HALF, a[2] * HALF, a[3] * HALF))


@kernel("void(f4[::1], f4[::1])")
def in_doubles(x, y):
    i = cuda.grid(1)
    y[i] = x[i] * 0.5 + 1.0


@kernel("void(f4[::1], f4[::1], i4)")
def in_local_memory(x, y, n):
    mine = cuda.local.array(8, float32)
    i = int32(cuda.threadIdx.x)
    for j in range(8):
        mine[j] = x[i * 8 + j]
    y[i] = mine[n]


@CAPABILITIES
def test_a_good_kernel_has_vector_loads_and_single_precision(capability):
    facts = check_ptx(good, capability)
    assert facts.count("ld.global.v4") == facts.count("st.global.v4") == 1
    assert facts.count("mul.f32") == 4
    assert f".target sm_{capability[0]}{capability[1]}" in facts.text


def test_double_precision_and_local_memory_are_found():
    assert read_ptx(in_doubles, (9, 0)).double_precision
    with pytest.raises(AssertionError, match="f64"):
        check_ptx(in_doubles, (9, 0))
    with pytest.raises(AssertionError, match="local memory"):
        check_ptx(in_local_memory, (9, 0))


@needs_assembler
def test_the_assembler_counts_registers():
    resources = assemble(read_ptx(good, (9, 0)))
    assert 4 <= resources.registers <= 32
    assert resources.spill_bytes == 0
