"""Each law of bands by hand, as a test.

A test passes, or fails with the report of `check_bands` on the fixture `bands`. Read next:
`../testing/tiled/bands_by_hand.py`, where the laws are.
"""

from __future__ import annotations

from functools import partial

import pytest

from ooctrain.laws.plugin import expect_kept
from ooctrain.testing.tiled.bands_by_hand import BANDS_LAWS, BandsByHand, BandsFailure, check_bands


@pytest.mark.parametrize("law", BANDS_LAWS, ids=lambda name: name.replace(" ", "_"))
def test_bands(law: str, bands: BandsByHand, request: pytest.FixtureRequest) -> None:
    """The bands keep the law on random chains."""
    expect_kept(request, "bands", BandsFailure, partial(check_bands, bands, laws=(law,)))
