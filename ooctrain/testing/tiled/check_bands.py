"""The law-checker for bands by hand: for a course's assignment, and for trying an idea.

It takes an object with `rows(layers, cuts)` and raises a `BandsFailure` with the chain and the band
in which a promise is broken. Read next: `bands_by_hand.py`; `../laws/test_bands.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from ooctrain.errors import OoctrainError, unknown_name
from ooctrain.testing.tiled.bands_by_hand import (
    BandedChain,
    BandsByHand,
    footprint_of,
    random_chain,
)


class BandsFailure(OoctrainError, AssertionError):
    """Bands break a promise."""

    default_code = "OOC-293"


def legal(bands: BandsByHand, chain: BandedChain) -> str:
    """Each layer finds the rows that it reads, and all rows of the output are computed."""
    try:
        footprint_of(chain, bands.rows(chain.layers, chain.cuts))
    except ValueError as error:
        return str(error)
    return ""


def once(bands: BandsByHand, chain: BandedChain) -> str:
    """No row of any layer is computed in two bands."""
    seen = [0] * len(chain.heights)
    for t, band in enumerate(bands.rows(chain.layers, chain.cuts)):
        for i, (lo, hi, _) in enumerate(band):
            if hi > lo and lo < seen[i]:
                return f"band {t}: row {lo} of tensor {i} again"
            seen[i] = max(seen[i], hi)
    return ""


def same_again(bands: BandsByHand, chain: BandedChain) -> str:
    """The same question has the same answer, whatever was asked in between."""
    first = _as_lists(bands.rows(chain.layers, chain.cuts))
    bands.rows(chain.layers[:1], (0, chain.cuts[-1]))
    second = _as_lists(bands.rows(chain.layers, chain.cuts))
    return "" if first == second else "asked twice, it answers differently"


def _as_lists(answer: Sequence) -> list:
    return [[list(rows) for rows in band] for band in answer]


BANDS_LAWS: Mapping[str, Callable[[BandsByHand, BandedChain], str]] = MappingProxyType(
    {"rows are there": legal, "rows are computed once": once, "asked twice": same_again}
)


def check_bands(
    bands: BandsByHand, *, examples: int = 50, seed: int = 0, laws: Sequence[str] = ()
) -> None:
    """Tries the laws on random chains.

    Args:
        examples: for each law; seed: of the chains.
        laws: names of those that are tried, as in `BANDS_LAWS`; none: all.

    Raises:
        BandsFailure: a law is broken.
        ConfigError: no law is named so.
    """
    for name in laws or BANDS_LAWS:
        if name not in BANDS_LAWS:
            raise unknown_name("no law of bands is called", name, BANDS_LAWS, "one of them")
        for number in range(examples):
            chain = random_chain(random.Random(f"{seed}/{number}"))
            problem = BANDS_LAWS[name](bands, chain)
            if problem:
                raise BandsFailure(
                    f"{name}: {problem}",
                    numbers=f"layers (kernel, stride, padding) {list(chain.layers)}, cuts "
                    f"{list(chain.cuts)}; example {number} of seed {seed}",
                    fix="draw the rows of two bands of this chain by hand (tutorial 14)",
                )
