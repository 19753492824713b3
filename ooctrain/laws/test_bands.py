"""Each law of bands by hand, as a test.

A test passes, or fails with the report of `check_bands` on the fixture `bands`. Read next:
`../testing/tiled/bands_by_hand.py`, where the laws are.
"""

from __future__ import annotations

import pytest

from ooctrain.laws.plugin import repeat_command
from ooctrain.testing.tiled.bands_by_hand import BANDS_LAWS, BandsByHand, BandsFailure, check_bands


@pytest.mark.parametrize("law", BANDS_LAWS, ids=lambda name: name.replace(" ", "_"))
def test_bands(law: str, bands: BandsByHand, request: pytest.FixtureRequest) -> None:
    """The bands keep the law on random chains."""
    options = request.config.getoption
    failure = _failure_of(bands, law, options("law_examples"), options("law_seed"))
    # Outside of any `except`: pytest would print a failure within one twice.
    if failure is not None:
        pytest.fail(f"{failure}\n  {repeat_command(request, 'bands')}", pytrace=False)


def _failure_of(bands: BandsByHand, law: str, examples: int, seed: int) -> BandsFailure | None:
    try:
        check_bands(bands, examples=examples, seed=seed, laws=(law,))
    except BandsFailure as failure:
        return failure
    return None
