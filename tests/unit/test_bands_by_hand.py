"""Bands by hand: the library's own frontiers keep the laws; slips in an answer are named."""

from __future__ import annotations

import random

import pytest

from ooctrain.errors import ConfigError
from ooctrain.testing.tiled.bands_by_hand import (
    BANDS_LAWS,
    BandedChain,
    BandsFailure,
    check_bands,
    footprint_of,
    par_rows,
    random_chain,
)

CHAIN = BandedChain(((3, 1, 1), (2, 2, 0)), (0, 4, 8), (1, 1, 1))


class Frontiers:
    """The library's."""

    name = "frontiers"

    def rows(self, layers, cuts):
        return par_rows(layers, cuts)


def test_the_library_s_frontiers_keep_all_laws() -> None:
    assert check_bands(Frontiers(), examples=60) is None
    for number in range(60):
        chain = random_chain(random.Random(number))
        assert footprint_of(chain, par_rows(chain.layers, chain.cuts)).work == 1


def test_par_by_hand() -> None:
    """Two rows of the image stay for row 3 of the convolution; row 2 of it for its pooling."""
    assert par_rows(CHAIN.layers, CHAIN.cuts) == [
        [[0, 4, 2], [0, 3, 2], [0, 1, 1]],
        [[4, 8, 8], [3, 8, 8], [1, 4, 4]],
    ]
    # Second band: 6 rows of the image, 1 + 5 of the convolution: before the pooling runs.
    assert footprint_of(CHAIN, par_rows(CHAIN.layers, CHAIN.cuts)).peak_bytes == 12


#: {what is wrong: (band, tensor, answer, what is said)}
SLIPS = {
    "from the next band": (0, 0, [0, 5, 2], "comes after the cut 4"),
    "not there": (1, 1, [3, 8, 8], "reads? row 2"),
    "a row too many": (0, 1, [0, 4, 2], "read row 4 of tensor 0, and rows 0:4 are there"),
    "a gap": (1, 1, [4, 8, 8], "leave a gap"),
    "kept of what is not there": (0, 1, [0, 3, 5], "is to keep rows from 5 on"),
    "left out": (1, 2, [2, 4, 4], "row 1 of the output is left out"),
    "never computed": (1, 2, [1, 3, 3], "row 3 of the output is never computed"),
    "no rows": (0, 1, [3, 0, 0], r"\[3, 0, 0\] is not \[lo, hi, keep\]"),
    "words": (0, 1, ["0", 3, 0], r"is not \[lo, hi, keep\]"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_are_named(slip: str) -> None:
    band, tensor, wrong, said = SLIPS[slip]
    answer = par_rows(CHAIN.layers, CHAIN.cuts)
    answer[band][tensor] = wrong
    if slip == "not there":
        answer[0][0][2] = 3
    with pytest.raises(ValueError, match=said):
        footprint_of(CHAIN, answer)


def test_a_law_that_is_none_and_one_that_is_broken() -> None:
    with pytest.raises(ConfigError, match="no law of bands"):
        check_bands(Frontiers(), laws=("gravity",))

    class Short(Frontiers):
        def rows(self, layers, cuts):
            return [
                [[lo, hi, min(keep + 1, hi)] for lo, hi, keep in band]
                for band in par_rows(layers, cuts)
            ]

    with pytest.raises(BandsFailure, match="read row") as broken:
        check_bands(Short(), laws=(next(iter(BANDS_LAWS)),))
    assert "cuts" in broken.value.numbers
