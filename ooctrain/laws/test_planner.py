"""Each law of a planner, as a test.

A test passes, or fails with the report of `check_planner` on the fixture `planner`. Read next:
`../testing/planner_laws.py`, where the laws are.
"""

from __future__ import annotations

from functools import partial

import pytest

from ooctrain.laws.plugin import expect_kept
from ooctrain.sched.planning.planner import Planner
from ooctrain.testing.check_planner import LAWS, PlannerFailure, check_planner


@pytest.mark.parametrize("law", LAWS, ids=lambda name: name.replace(" ", "_"))
def test_planner(law: str, planner: Planner, request: pytest.FixtureRequest) -> None:
    """The planner keeps the law on random traces."""
    seconds = request.config.getoption("law_seconds")
    check = partial(check_planner, planner, laws=(law,), time_limit_s=seconds)
    expect_kept(request, "planner", PlannerFailure, check)
