"""Schedules and plans survive a round trip through text, and nothing else passes for one."""

from __future__ import annotations

import json
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import Case, cases
from support.worked_example import worked_schedule, worked_trace

from ooctrain.errors import ConfigError, PlanMismatch
from ooctrain.sched.plan_schema import rows_of_file
from ooctrain.sched.schedule import LowerBound, Plan, Schedule

BOUNDS = st.none() | st.builds(LowerBound, st.floats(0, 1e9), st.sampled_from(["compute", "lp"]))


@given(cases())
def test_a_schedule_round_trips(case: Case):
    text = json.dumps(case.schedule.to_json())
    assert Schedule.from_json(json.loads(text)) == case.schedule


@given(cases(), BOUNDS, st.floats(0, 1e9), st.integers(0, 1 << 40))
def test_a_plan_round_trips(case: Case, bound: LowerBound | None, makespan_us: float, peak: int):
    notes = {"planner": "none", "evaluations": 3, "exact": True}
    plan = Plan(case.trace, ("fuse",), case.schedule, makespan_us, peak, 7, bound, notes)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json())), case.trace) == plan


REWRITES = ("fuse", "mine.py:halve", "share_storage", "theirs/own.py:twice")


@given(cases(), st.lists(st.sampled_from(REWRITES)), st.sets(st.sampled_from(REWRITES)))
def test_a_plan_file_names_its_rewrites_and_runs_no_file_that_was_not_allowed(
    case: Case, names: list[str], allowed: set[str]
):
    plan = Plan(case.trace, tuple(names), case.schedule, 1.5, 2, 3)
    with TemporaryDirectory() as folder:
        path = f"{folder}/plan.json"
        plan.save(path)
        foreign = [name for name in names if ".py:" in name and name not in allowed]
        if foreign:
            with pytest.raises(ConfigError, match="would run the file") as caught:
                rows_of_file(path, sorted(allowed))
            assert foreign[0] in str(caught.value)
        else:
            assert rows_of_file(path, sorted(allowed)) == (plan.to_json(), names)


@given(cases())
def test_a_plan_belongs_to_its_trace(case: Case):
    plan = Plan(case.trace, (), case.schedule, 0.0, 0, 0)
    with pytest.raises(PlanMismatch):
        Plan.from_json(plan.to_json(), worked_trace())


def _paths(data: Any, at: tuple = ()) -> list[tuple]:
    """Every key of nested dicts."""
    if not isinstance(data, dict):
        return []
    return [p for key, value in data.items() for p in [(*at, key), *_paths(value, (*at, key))]]


def _damaged(data: dict[str, Any], path: tuple, value: object) -> dict[str, Any]:
    copy = json.loads(json.dumps(data))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy


SCHEDULE = worked_schedule(worked_trace()).to_json()


@pytest.mark.parametrize("path", _paths(SCHEDULE))
@pytest.mark.parametrize("value", [None, "nonsense", [["dance", 1, 2]], [[1]]])
def test_what_is_no_schedule_is_refused(path: tuple, value: object):
    if path == ("granule", "ranges") and value is not None:
        return  # anything is true or false
    if path == ("granule", "fixed_bytes") and value is None:
        return  # lists written before there was a region have none
    with pytest.raises(ConfigError):
        Schedule.from_json(_damaged(SCHEDULE, path, value))


@pytest.mark.parametrize(
    "path",
    _paths(Plan(worked_trace(), (), worked_schedule(worked_trace()), 1.0, 2, 3).to_json())[:6],
)
def test_a_plan_with_a_missing_part_is_refused(path: tuple):
    plan = Plan(worked_trace(), (), worked_schedule(worked_trace()), 1.0, 2, 3)
    with pytest.raises((ConfigError, PlanMismatch)):
        Plan.from_json(_damaged(plan.to_json(), path, None), worked_trace())


@pytest.mark.parametrize("data", [[], None, {}, {"version": 99}, "plan"])
def test_other_files_are_no_plans(data: object):
    with pytest.raises(ConfigError):
        Plan.from_json(data, worked_trace())  # type: ignore[arg-type]
