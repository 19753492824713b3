"""Each law of a rewrite, as a test.

A test passes, or fails with the report of `check_rewrite` on the fixture `rewrite`. Read next:
`../testing/check_rewrite.py`, where the laws are.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ooctrain.laws.plugin import repeat_command
from ooctrain.testing.check_rewrite import REWRITE_LAWS, RewriteFailure, check_rewrite


@pytest.mark.parametrize("law", REWRITE_LAWS, ids=lambda name: name.replace(" ", "_"))
def test_rewrite(law: str, rewrite: str | Callable, request: pytest.FixtureRequest) -> None:
    """The rewrite keeps the law on small random steps."""
    options = request.config.getoption
    failure = _failure_of(rewrite, law, options("law_examples"), options("law_seed"))
    # Outside of any `except`: pytest would print a failure within one twice.
    if failure is not None:
        pytest.fail(f"{failure}\n  {repeat_command(request, 'rewrite')}", pytrace=False)


def _failure_of(
    rewrite: str | Callable, law: str, examples: int, seed: int
) -> RewriteFailure | None:
    try:
        check_rewrite(rewrite, examples=examples, seed=seed, laws=(law,))
    except RewriteFailure as failure:
        return failure
    return None
