"""Each law of a split, as a test.

A test passes, or fails with the report of `check_split` on the fixture `split`. Read next:
`../testing/check_split.py`, where the laws are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ooctrain.laws.plugin import expect_kept
from ooctrain.testing.check_split import SPLIT_LAWS, SplitFailure, check_split


@pytest.mark.parametrize("law", SPLIT_LAWS, ids=lambda name: name.replace(" ", "_"))
def test_split(
    law: str, split: Callable[..., Any], request: pytest.FixtureRequest
) -> None:  # fmt: skip
    """The split keeps the law on small random networks."""
    expect_kept(request, "split", SplitFailure, partial(check_split, split, laws=(law,)))
