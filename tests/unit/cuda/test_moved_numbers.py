"""Kernels that read their changing numbers from memory: the same text but for these loads."""

from __future__ import annotations

import re

import numpy as np
import pytest
from doubles.ptx_lanes import PtxLaunch
from doubles.ptx_machine import run
from doubles.ptx_memory import GlobalMemory
from doubles.ptx_text import entries
from support.ptx_facts import read_ptx

from ooctrain.layers.kernels.cuda import dropout, update
from ooctrain.layers.kernels.cuda.runtime.packing import layout_of, moved, with_numbers_in_memory
from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx

pytestmark = pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
KERNELS = (update._sgd_plain, update._sgd, update._adam, update._rmsprop,
           dropout._dropout)  # fmt: skip


def words_of(array):
    return 0, 0, array.size, array.itemsize, array.ctypes.data, array.size, array.itemsize


def test_a_number_in_memory_gives_the_same_bits():
    """SGD without momentum: a learning rate of 0.3 as an argument, and as a cell of memory."""
    kernel, rng = update._sgd_plain, np.random.default_rng(0)
    w, g = rng.standard_normal((2, 1000)).astype(np.float32)
    out, found = np.zeros((2, 1000), np.float32)
    cell = np.array([0.3, 99.0], np.float32)
    text = read_ptx(kernel, (7, 5)).text
    (entry,) = entries(text)
    for ready, target, lr in (
        (text, out, 0.3), (with_numbers_in_memory(text, kernel), found, cell.ctypes.data),
    ):  # fmt: skip
        layout = layout_of(kernel if target is out else moved(kernel))
        packed = layout.pack(*words_of(w), *words_of(g), *words_of(target), lr, 0.1)
        memory = GlobalMemory.of_arrays([w, g, target, cell])
        run(ready, entry, PtxLaunch((1, 1, 1), (kernel.threads, 1, 1), 0, packed, memory))
    assert (out == found).all()
    assert abs(out - (w - np.float32(0.3) * (g + np.float32(0.1) * w))).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_nothing_but_loads_of_changing_arguments_differs(kernel):
    text = read_ptx(kernel, (9, 0)).text
    made = with_numbers_in_memory(text, kernel)
    before, after = (set(re.findall(r"^\s*\S.*$", t, re.MULTILINE)) for t in (text, made))
    assert all("ld.param" in line or ".param" in line for line in before - after)
    assert all(
        re.search(r"%address_of_number|\.param \.u64|^\{", line.strip()) for line in after - before
    )
