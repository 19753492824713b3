"""Slices, inserts, paddings, reshapes for GPUs, in the emulator: the definition, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_facts import assemble, check_ptx, why_no_assembler
from support.quick import quick

from ooctrain.errors import ShapeError
from ooctrain.layers.combine import Concat
from ooctrain.layers.kernels.cuda import layout
from ooctrain.layers.kernels.cuda.chunks import QUAD, THREADS
from ooctrain.layers.kernels.cuda.layout import further, place_in, where_is
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, cuda, kernel, why_no_ptx
from ooctrain.layers.layout import Pad, Reshape
from ooctrain.layers.regions import Clear, Embed, Insert, InsertAdd, Slice
from ooctrain.testing.check_cuda import check_cuda
from ooctrain.testing.emulator import EmulatedLauncher

APART = THREADS * QUAD
# (whole, start, part), logical: quads and elements; all channels and some; whole pixels; one
# element; vectors; planes without channels.
BLOCKS = [
    ((2, 8, 5, 6), (0, 4, 1, 2), (2, 4, 3, 4)),
    ((2, 8, 5, 6), (1, 0, 0, 0), (1, 8, 5, 6)),
    ((2, 5, 4, 7), (0, 1, 1, 1), (2, 3, 2, 5)),
    ((2, 6, 4, 3), (0, 0, 2, 1), (1, 6, 2, 2)),
    ((1, 8, 3, 3), (0, 2, 0, 0), (1, 4, 3, 3)),
    ((3, 4, 30, 41), (1, 0, 3, 4), (2, 4, 20, 30)),
    ((1, 1, 1, 1), (0, 0, 0, 0), (1, 1, 1, 1)),
    ((6, 10), (1, 4), (4, 4)),
    ((9,), (3,), (5,)),
    ((3, 5, 7), (1, 2, 3), (2, 3, 4)),
]


def normal(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("whole", "start", "part"), BLOCKS)
def test_blocks(whole, start, part):
    x, block = normal(*whole), normal(*part, seed=1)
    check_cuda(Slice(whole, start, part), x, tolerance=0)
    check_cuda(Insert(start), x, block, tolerance=0)
    check_cuda(InsertAdd(start), x, block, tolerance=1e-7)
    check_cuda(Clear(start, part), x, tolerance=0)
    check_cuda(Embed(whole, start), block, tolerance=0)


def test_labels_move_too():
    """int64, with values that no float32 holds."""
    labels = np.arange(2 * 5 * 7, dtype=np.int64).reshape(2, 5, 7) * (2**40 + 1)
    check_cuda(Slice((2, 5, 7), (0, 1, 2), (2, 3, 4)), labels, tolerance=0)
    check_cuda(Reshape((2, 5, 7), (70,)), labels, tolerance=0)


def test_more_than_four_axes_are_refused():
    five = np.zeros((1, 2, 3, 4, 5), np.float32)
    with pytest.raises(ShapeError, match="four axes"):
        layout.slice_of(EmulatedLauncher(), five, five, (0,) * 5)


@pytest.mark.parametrize(
    ("axis", "shapes"),
    [
        (1, [(2, 4, 3, 5), (2, 8, 3, 5), (2, 4, 3, 5)]),
        (1, [(2, 3, 2, 3), (2, 4, 2, 3)]),
        (0, [(1, 5, 2, 3), (2, 5, 2, 3)]),
        (1, [(4, 3), (4, 6)]),
        (0, [(4,), (3,)]),
    ],
)
def test_concat(axis, shapes):
    arrays = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    check_cuda(Concat(axis), *arrays, tolerance=0)


@pytest.mark.parametrize(
    ("shape", "padding"),
    quick(
        [((2, 4, 3, 5), (1, 0, 2, 1)), ((1, 3, 4, 4), (3, 3, 3, 3)), ((1, 8, 2, 2), (0, 0, 0, 0))],
        0,
        2,
        names=2,
    ),
)
def test_padding(shape, padding):
    check_cuda(Pad(padding), normal(*shape), tolerance=0)


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        ((2, 35, 6, 7), (2, 35 * 42)),
        ((2, 3 * 4 * 5), (2, 3, 4, 5)),
        ((2, 8, 3, 4), (4, 4, 2, 6)),
        ((2, 5, 1, 1), (2, 5)),
        ((2, 1, 3, 4), (24,)),
        ((2, 3, 4, 5), (2, 3, 4, 5)),
        ((1, 33, 8, 8), (64, 33)),
    ],
)
def test_reshape(source, shape):
    check_cuda(Reshape(source, shape), normal(*source), tolerance=0)


@pytest.mark.parametrize("shape", [(1, 1), (31, 33), (64, 40), (3, 100), (2, 5, 37)])
def test_transpose(shape):
    x = normal(*shape)
    y = np.full((*shape[:-2], shape[-1], shape[-2]), np.nan, np.float32)
    for order in (1, -1):
        layout.transpose(EmulatedLauncher(order), x, y)
        np.testing.assert_array_equal(y, np.swapaxes(x, -1, -2))


def test_places_beyond_32_bits():
    """The last element of a tile of a 20,480 x 20,480 x 64 image, in the tile and in the image."""

    @kernel("void(i8[::1], i8, UniTuple(u4, 3), UniTuple(u4, 4), UniTuple(i8, 4), UniTuple(i8, 4))")
    def last(found, e, extent, by, source, target):
        if cuda.grid(1) == 0:
            found[0] = place_in(source, where_is(e, extent))
            # One turn of a thread before it, and a walk from there.
            found[1] = place_in(target, further(where_is(e - APART, extent), by, extent))

    image, tile = (2, 20_480, 20_480, 64), (2, 4000, 20_000, 64)
    start = (0, 16_000, 480, 0)
    n, h, w, c = (a + extent - 1 for a, extent in zip(start, tile, strict=True))
    in_image = ((n * image[1] + h) * image[2] + w) * image[3] + c
    elements = int(np.prod(tile, dtype=np.int64))
    found = np.zeros(2, np.int64)
    boxes = [_box(image, start), _box(tile, (0, 0, 0, 0))]
    steps = layout._steps(tile[1:])
    EmulatedLauncher().launch(last, 1, found, elements - 1, tile[1:], steps, *boxes)
    assert found.tolist() == [in_image, elements - 1]
    assert in_image > 2**35


def _box(shape, start):
    _, h, w, c = shape
    return ((start[0] * h + start[1]) * w + start[2]) * c + start[3], h * w * c, w * c, c


@pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
@pytest.mark.slow  # all kernels are compiled in `contracts/test_ptx_of_every_kernel.py`
@pytest.mark.parametrize("capability", [(7, 5), (9, 0)])
def test_ptx(capability):
    for compiled in vars(layout).values():
        if isinstance(compiled, Kernel):
            facts = check_ptx(compiled, capability)
            if not why_no_assembler():
                assert assemble(facts).spill_bytes == 0
    copy = check_ptx(layout._copy_quads, capability)
    assert copy.count("ld.global.v4") == copy.count("st.global.v4") >= layout.MOVES
    clear = check_ptx(layout._clear_quads, capability)
    assert clear.count("ld.global") == 0, "what is overwritten is not read"
