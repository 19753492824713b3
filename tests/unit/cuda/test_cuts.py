"""How work is cut for kernels bound by memory: every quad, element and row exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.kernels.cuda import layout, walk_places
from ooctrain.layers.kernels.cuda.chunks import QUAD, THREADS, divisor, same_channels
from ooctrain.layers.kernels.cuda.layout import ROWS, place_in, row_of_thread
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, kernel
from ooctrain.layers.permute import Permute
from ooctrain.testing.check_cuda import check_cuda
from ooctrain.testing.emulator import EmulatedLauncher

MOST = (1 << 31) - 1


@given(st.integers(1, MOST), st.integers(0, MOST))
@example(1, MOST)
@example(3, MOST)
@example(MOST, MOST)
@example((1 << 30) + 1, MOST)
def test_a_division_by_a_product_and_a_shift(extent, number):
    """Also around the multiples, where one less or more in the factor would show."""
    same, factor, shift = divisor(extent)
    assert same == extent
    assert factor < 1 << 32
    for n in {number, number // extent * extent, max(0, number // extent * extent - 1)}:
        assert n * factor >> shift == n // extent


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6, 10, 30, 64, 100, 150, 258, 1030, 2048])
@pytest.mark.parametrize("rows", [1, 37])
def test_each_quad_is_of_one_thread_with_its_channel(channels, rows):
    (blocks, stretches), apart = same_channels(rows * channels, channels)
    block, stretch, thread = np.ogrid[:blocks, :stretches, :THREADS]
    place = stretch * THREADS + thread
    first = (block * 2 * apart + place)[
        np.broadcast_to(place < apart, (blocks, stretches, THREADS))
    ]
    quads = np.concatenate([first, first + apart])
    wanted = -(-rows * channels // QUAD)
    assert np.array_equal(np.sort(quads)[:wanted], np.arange(wanted))
    assert np.unique(quads).size == quads.size
    assert np.array_equal(first * QUAD % channels, (first + apart) * QUAD % channels)
    assert apart >= 0.75 * stretches * THREADS or apart < THREADS


@pytest.mark.slow
def test_a_walk_in_several_launches(monkeypatch):
    """As walks of more than 2^31 items are done."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape, np.float32) for shape in ((6, 5, 3, 4), (6, 1, 3, 1)))
    monkeypatch.setattr(walk_places, "MOST_ITEMS", 70)
    launched = EmulatedLauncher()
    for op, arrays in (
        (Arithmetic("subtract"), (x, y)),
        (Arithmetic("divide"), (np.abs(y) + 1, np.abs(x) + 1)),
        (Permute((1, 0, 2, 3)), (x[:, :4],)),
    ):
        check_cuda(op, *arrays, tolerance=1e-6, launchers=[launched])
    assert len(list(walk_places.parts(walk_places.StridedWalk((1, 1, 1, 6, 5, 7), ()), False))) == 3


@pytest.mark.slow
def test_rows_beyond_32_bits():
    """The last element of three channels of an image of 50,000 x 50,000 pixels and 64 channels."""

    @kernel("void(i8[::1], u4, u4, UniTuple(u4, 17), UniTuple(i8, 6), UniTuple(i8, 6))", threads=32)
    def places(found, block, thread, cut, source, target):
        if cuda.grid(1) == 0:
            where = row_of_thread(block, thread, cut)
            found[0], found[1] = place_in(source, where), place_in(target, where)

    extent, side = (1, 50_000, 50_000, 3), 50_000
    source, target = (5, side * side * 64, side * 64, 64), (0, side * side * 3, side * 3, 3)
    ((blocks, cut, *walks),) = layout._rows(extent, source, target)
    groups = blocks // side
    assert blocks % side == 0
    last = side - 1
    line, moves = last % (cut[14] * ROWS), last // (cut[14] * ROWS)
    assert moves == groups - 1
    found = np.zeros(2, np.int64)
    thread = line % cut[14] * 3 + 2
    EmulatedLauncher().launch(places, 1, found, blocks - 1, thread, cut, *walks)
    move = line // cut[14]
    steps = [found[i] + move * walks[i][4] for i in (0, 1)]
    assert steps == [5 + (side * side - 1) * 64 + 2, side * side * 3 - 1]
