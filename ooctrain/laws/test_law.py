"""Each law of a law, as a test: a law stops no right arena, and says the same when asked twice.

A test passes, or fails with the report of `check_law` on the fixture `law`. Read next:
`../testing/law_by_hand.py`.
"""

from __future__ import annotations

from functools import partial

import pytest

from ooctrain.laws.plugin import expect_kept
from ooctrain.testing.law_by_hand import LAW_LAWS, LawByHand, LawFailure, check_law


@pytest.mark.parametrize("promise", LAW_LAWS, ids=lambda name: name.replace(" ", "_"))
def test_law(promise: str, law: LawByHand, request: pytest.FixtureRequest) -> None:
    """The law keeps its promise on right arenas."""
    expect_kept(request, "law", LawFailure, partial(check_law, law, law_of_laws=promise))
