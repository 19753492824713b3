"""Each law of a split, as a test.

A test passes, or fails with the report of `check_split` on the fixture `split`. Read next:
`../testing/check_split.py`, where the laws are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ooctrain.laws.plugin import repeat_command
from ooctrain.testing.check_split import SPLIT_LAWS, SplitFailure, check_split


@pytest.mark.parametrize("law", SPLIT_LAWS, ids=lambda name: name.replace(" ", "_"))
def test_split(
    law: str, split: Callable[..., Any], request: pytest.FixtureRequest
) -> None:  # fmt: skip
    """The split keeps the law on small random networks."""
    options = request.config.getoption
    failure = _failure_of(split, law, options("law_examples"), options("law_seed"))
    # Outside of any `except`: pytest would print a failure within one twice.
    if failure is not None:
        pytest.fail(f"{failure}\n  {repeat_command(request, 'split')}", pytrace=False)


def _failure_of(
    split: Callable[..., Any], law: str, examples: int, seed: int
) -> SplitFailure | None:  # fmt: skip
    try:
        check_split(split, examples=examples, seed=seed, laws=(law,))
    except SplitFailure as failure:
        return failure
    return None
