"""The public tests of the assignment.

They try the bands of `--bands`, else of `adapters.py` in this folder. Read next: README.md.
"""

import pytest

from ooctrain.testing.tiled.bands_by_hand import BandedChain, footprint_of

CONV = (3, 1, 1)
POOL = (2, 2, 0)


def computed(bands, layers, cuts):
    """For each tensor, the input first, where its rows end after each band."""
    answer = bands.rows(layers, cuts)
    return [[band[i][1] for band in answer] for i in range(len(layers) + 1)]


def ends(bands, layers, cuts, wanted):
    """After each band the rows of each tensor end where they should."""
    found = computed(bands, layers, cuts)
    for number, (own, right) in enumerate(zip(found, wanted, strict=True)):
        tensor = f"the output of layer {number}" if number else "the input"
        assert own == right, (
            f"bands that end at rows {list(cuts[1:])}: the rows of {tensor} end at {right}, "
            f"by yours at {own}"
        )


def footprint(bands, layers, cuts):
    """Work and peak; every tensor's row has one byte."""
    chain = BandedChain(tuple(layers), tuple(cuts), (1,) * (len(layers) + 1))
    return footprint_of(chain, bands.rows(layers, cuts))


def test_one_band_is_the_untiled_chain(bands):
    ends(bands, [CONV, POOL], (0, 8), [[8], [8], [4]])


def test_a_border_recedes_by_the_halo(bands):
    """Row 7 of a 3 x 3 convolution reads row 8, which is not there yet."""
    wanted = [[8, 16, 24], [7, 15, 24], [6, 14, 24], [5, 13, 24]]
    ends(bands, [CONV, CONV, CONV], (0, 8, 16, 24), wanted)


def test_at_the_bottom_all_rows_are_there(bands):
    """Below the last row there is padding; below row 7 there is row 8."""
    ends(bands, [(5, 1, 2)], (0, 8, 16), [[8, 16], [6, 16]])
    ends(bands, [(3, 2, 1)], (0, 8, 9), [[8, 9], [4, 5]])


def test_strides_and_poolings(bands):
    ends(bands, [CONV, POOL, CONV], (0, 8, 16), [[8, 16], [7, 16], [3, 8], [2, 8]])
    ends(bands, [(3, 2, 1), (3, 2, 1)], (0, 8, 16), [[8, 16], [4, 8], [2, 4]])


@pytest.mark.parametrize(("layer", "stay"), [(CONV, 2), (POOL, 0), ((5, 1, 2), 4), ((3, 2, 1), 1)])
def test_only_rows_that_are_read_again_stay(bands, layer, stay):
    first = bands.rows([layer], (0, 8, 16))[0]
    kept = 8 - first[0][2]
    assert kept == stay, f"layer {layer} reads {stay} of the 8 rows again; yours keeps {kept}"


def test_a_row_that_two_layers_wait_for(bands):
    """Bands of one row: each layer is a row behind the one before."""
    found = computed(bands, [CONV, CONV], (0, 1, 2, 3, 4))
    first, second = found[1][1:], found[2][2:]
    assert first == [1, 2, 4], f"the first layer's rows end at [1, 2, 4], by yours at {first}"
    assert second == [1, 4], f"the second layer's rows end at [1, 4], by yours at {second}"
    peak = footprint(bands, [CONV, CONV], (0, 1, 2, 3, 4)).peak_bytes
    assert peak <= 3 + 4 + 2, f"9 rows are the most that are held at a time; yours holds {peak}"


@pytest.mark.parametrize("cuts", [(0, 12, 24), (0, 1, 2, 3, 23, 24), tuple(range(25))], ids=str)
def test_no_row_is_computed_twice(bands, cuts):
    work = footprint(bands, [CONV, POOL, (5, 1, 2), (3, 2, 1)], cuts).work
    assert work == 1, f"each row is computed once; yours does {work:.2f} times that work"
