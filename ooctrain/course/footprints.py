"""How much bands by hand compute and hold on a real network, compared with par.

Each part of the rubric counts the work or the peak memory. The rows are counted here, from the
numbers that the submission answered; an answer that cannot be counted gets a reason. Par is what
the library's own frontiers need for the same cuts, and is computed when it is requested. Read next:
`submitted.py`, which asks; `../testing/tiled/bands_by_hand.py`.
"""

from __future__ import annotations

from functools import lru_cache

from ooctrain.api import step_trace
from ooctrain.course.par import ParComparison, known_par
from ooctrain.course.rubric import BandsPart
from ooctrain.course.submitted import bands_of, why_not
from ooctrain.testing.tiled.bands_by_hand import (
    BandedChain,
    Footprint,
    chain_in,
    footprint_of,
    par_rows,
)


@lru_cache(maxsize=8)
def chain_for(part: BandsPart) -> BandedChain:
    """The network's longest chain, cut into even bands."""
    return chain_in(step_trace(part.model, 1, part.rows), part.bands)


def par_footprint(part: BandsPart) -> Footprint:
    """What the library needs."""
    chain = chain_for(part)
    return footprint_of(chain, par_rows(chain.layers, chain.cuts))


def par_number(part: BandsPart) -> float:
    """What the library needs, of what the part counts."""
    return known_par(part, lambda part: _number(part, par_footprint(part)))


def counted(part: BandsPart, submission: str, limit_s: float) -> ParComparison:
    """Asks a submission for rows, and counts: a share of the untiled work, or bytes."""
    chain, par = chain_for(part), par_number(part)
    try:
        with bands_of(submission, limit_s) as bands:
            answer = bands.rows(chain.layers, chain.cuts)
    except Exception as error:  # untrusted: whatever fails, it is the submission's fault
        return ParComparison(None, par, why_not(error))
    try:
        return ParComparison(_number(part, footprint_of(chain, answer)), par)
    except ValueError as error:
        return ParComparison(None, par, f"its rows are refused: {error}", unsafe=True)


def _number(part: BandsPart, footprint: Footprint) -> float:
    return footprint.work if part.counts == "work" else footprint.peak_bytes
