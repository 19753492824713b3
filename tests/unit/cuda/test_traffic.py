"""What kernels bound by memory issue for each byte, and how wide their loads and stores are.

Held at what `python -m benchmarks.bench_traffic` prints (docs/gpu.md has the table), so that a
change that makes one narrower or longer shows.
"""

from __future__ import annotations

import numpy as np
import pytest
from doubles.ptx_text import entries, read_program
from support.ptx_facts import read_ptx
from support.sass import (
    HOPPER,
    LOAD,
    STORE,
    code_length,
    why_no_machine_code,
    widths,
)
from support.traffic import (
    ISSUED_PER_BYTE,
    USED_SLOTS,
    CountingLauncher,
    cost_of,
    share_of_copy,
)

from benchmarks import bench_traffic
from ooctrain.layers.kernels.cuda import batch_norm, dropout, elementwise, layout, update
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, kernel, why_no_ptx

pytestmark = pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())

#: {operation: {kernel: (share of the bytes that goes 16 at a time, most instructions a byte)}}; why
#: the others stay narrow is said in docs/gpu.md.
HELD = {
    "ReLU": {"elementwise.relu_of": (1.0, 0.8)},
    "ReLU, gradient": {"elementwise.masked_by": (1.0, 0.6)},
    "add": {"elementwise.floored_sum": (1.0, 0.7)},
    "scale": {"elementwise.product": (1.0, 0.7)},
    "batch norm": {"batch_norm._apply": (1.0, 2.1)},
    "batch norm, 30 channels": {"batch_norm._apply": (0.49, 3.4)},
    "batch norm, statistics": {"batch_norm._stats": (0.0, 5.4)},
    "batch norm, sums of its gradient": {"batch_norm._grad_sums": (0.0, 3.0)},
    "batch norm, gradient": {"batch_norm._grad_apply": (1.0, 2.1)},
    "max pool": {"pooling._max_pool": (0.9, 3.4)},
    "SGD": {"optimizers._sgd": (1.0, 0.8)},
    "Adam": {"optimizers._adam": (1.0, 1.6)},
    "dropout": {"dropout._dropout": (1.0, 5.3)},
    "dropout, 30 channels": {"dropout._dropout": (1.0, 6.4)},
    "bytes to floats": {"functions._from_bytes": (0.75, 3.5)},
    "slice": {"layout.copied_quads": (1.0, 3.2)},
    "slice, 30 channels": {"layout.copied_elements": (0.0, 5.2)},
    "insert": {"layout.copied_quads": (1.0, 1.9)},
    "padding": {"layout._embed_quads": (1.0, 3.5)},
    "padding, 3 channels": {"layout._embed_elements": (0.0, 6.2)},
    "a number for each channel": {"strided.product_of_with_channels": (1.0, 1.5)},
    "a number for each of 30 channels": {"strided.product_of_with_channels": (0.7, 1.8)},
    "a number for each image and channel": {"strided.product_of_repeated_quads": (1.0, 3.1)},
    "a number for each pixel, 30 channels": {"strided.product_of_repeated": (0.0, 8.9)},
    "permutation": {"walk_places._read_tile": (0.0, 7.6)},
    "softmax": {"reduction.softmax_of_neighbours": (0.0, 5.6)},
    "cross-entropy": {"losses._cross_entropy": (0.0, 5.0)},
    "squared error": {"losses.sum_of_squared_error": (0.95, 1.2)},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HELD)
def test_a_kernel_stays_as_wide_and_as_short(case):
    found = {row.kernel: row for row in bench_traffic.count([case])}
    for name, (wide, per_byte) in HELD[case].items():
        assert found[name].traffic.wide_share >= wide
        assert found[name].per_byte <= per_byte


@pytest.mark.slow
def test_every_case_is_held():
    assert list(HELD) == list(bench_traffic.cases())


def test_what_instructions_allow():
    """Two parts of a model: below a number of instructions a byte, memory decides; above, they."""
    assert 6 < ISSUED_PER_BYTE < 7
    assert share_of_copy(1.0) == share_of_copy(USED_SLOTS * ISSUED_PER_BYTE) == 1
    assert share_of_copy(2 * USED_SLOTS * ISSUED_PER_BYTE) == pytest.approx(0.5)
    assert 0.79 < share_of_copy(ISSUED_PER_BYTE) < 0.81


@pytest.mark.slow
@pytest.mark.parametrize(
    "straight", [elementwise._relu, elementwise._add, dropout._dropout, update._sgd]
)
def test_what_is_counted_is_about_what_the_machine_code_has(straight):
    """In kernels without loops and divisions of 64 bits: as many as nvJitLink makes, to 5 %."""
    if reason := why_no_machine_code(straight, HOPPER):
        pytest.skip(reason)
    text = read_ptx(straight, HOPPER).text
    (entry,) = entries(text)
    counted = sum(cost_of(each) for each in read_program(text, entry).instructions)
    assert counted == pytest.approx(code_length(straight, HOPPER), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [(7, 5), HOPPER])
def test_the_machine_code_is_as_wide_as_the_text(capability):
    """(kernel, loads of 16 bytes, stores): nvJitLink has cut none."""
    for wide, loads, stores in (
        (elementwise._relu, 2, 2), (elementwise._add, 4, 2), (batch_norm._apply, 6, 2),
        (update._sgd, 6, 4), (layout._copy_quads, 4, 4), (dropout._dropout, 1, 1),
    ):  # fmt: skip
        if reason := why_no_machine_code(wide, capability):
            pytest.skip(reason)
        assert widths(wide, capability, LOAD)[16] == loads, wide.name
        assert widths(wide, capability, STORE)[16] == stores, wide.name


def test_what_is_counted():
    """Sixteen blocks of 32 threads, of which eight are run: a load, a store, a division."""

    @kernel("void(f4[::1], f4[::1], u4)", threads=32)
    def divided(x, y, by):
        i = cuda.grid(1)
        y[i] = x[i // by]

    launcher, x, y = CountingLauncher(), np.ones(512, np.float32), np.zeros(512, np.float32)
    launcher.launch(divided, 16, x, y, 3)
    (traffic,) = launcher.found.values()
    assert (traffic.moved_bytes, traffic.wide_share) == (512 * 8, 0.0)
    assert 20 < traffic.issued / 512 < 130
    assert y[:256].all()
    assert not y[256:].any()
