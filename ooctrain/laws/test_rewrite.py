"""Each law of a rewrite, as a test.

A test passes, or fails with the report of `check_rewrite` on the fixture `rewrite`. Read next:
`../testing/check_rewrite.py`, where the laws are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from ooctrain.laws.plugin import expect_kept
from ooctrain.testing.check_rewrite import REWRITE_LAWS, RewriteFailure, check_rewrite


@pytest.mark.parametrize("law", REWRITE_LAWS, ids=lambda name: name.replace(" ", "_"))
def test_rewrite(law: str, rewrite: str | Callable, request: pytest.FixtureRequest) -> None:
    """The rewrite keeps the law on small random steps."""
    expect_kept(request, "rewrite", RewriteFailure, partial(check_rewrite, rewrite, laws=(law,)))
