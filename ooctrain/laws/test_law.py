"""Each law of a law, as a test: a law stops no right arena, and says the same when asked twice.

A test passes, or fails with the report of `check_law` on the fixture `law`. Read next:
`../testing/law_by_hand.py`.
"""

from __future__ import annotations

import pytest

from ooctrain.testing.law_by_hand import LAW_LAWS, LawByHand, LawFailure, check_law


@pytest.mark.parametrize("promise", LAW_LAWS, ids=lambda name: name.replace(" ", "_"))
def test_law(promise: str, law: LawByHand, request: pytest.FixtureRequest) -> None:
    """The law keeps its promise on right arenas."""
    options = request.config.getoption
    failure = _failure_of(law, promise, options("law_examples"), options("law_seed"))
    # Outside of any `except`: pytest would print a failure within one twice.
    if failure is not None:
        pytest.fail(str(failure), pytrace=False)


def _failure_of(law: LawByHand, promise: str, examples: int, seed: int) -> LawFailure | None:
    try:
        check_law(law, examples=examples, seed=seed, law_of_laws=promise)
    except LawFailure as failure:
        return failure
    return None
