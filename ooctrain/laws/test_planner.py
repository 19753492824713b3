"""Each law of a planner, as a test.

A test passes, or fails with the report of `check_planner` on the fixture `planner`. Read next:
`../testing/planner_laws.py`, where the laws are.
"""

from __future__ import annotations

import pytest

from ooctrain.laws.plugin import repeat_command
from ooctrain.sched.planning.planner import Planner
from ooctrain.testing.check_planner import LAWS, PlannerFailure, check_planner


@pytest.mark.parametrize("law", LAWS, ids=lambda name: name.replace(" ", "_"))
def test_planner(law: str, planner: Planner, request: pytest.FixtureRequest) -> None:
    """The planner keeps the law on random traces."""
    options = request.config.getoption
    failure = _failure_of(
        planner, law, (options("law_examples"), options("law_seed"), options("law_seconds"))
    )
    # Outside of any `except`: pytest would print a failure within one twice.
    if failure is not None:
        pytest.fail(f"{failure}\n  {repeat_command(request, 'planner')}", pytrace=False)


def _failure_of(
    planner: Planner, law: str, tried: tuple[int, int, float]
) -> PlannerFailure | None:  # fmt: skip
    examples, seed, seconds = tried
    try:
        check_planner(planner, examples=examples, seed=seed, time_limit_s=seconds, laws=(law,))
    except PlannerFailure as failure:
        return failure
    return None
