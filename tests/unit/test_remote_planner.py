"""A planner in another process: what it is asked, and which of its answers are plans.

Its answers are given by hand here. Read next: `../properties/test_graded_from_afar.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import ooctrain as oc
from ooctrain.course.cage.step_data import machine_data, trace_data
from ooctrain.course.remote import MOST_LETTERS, RemotePlanner, name_in_answer, plan_in_answer
from ooctrain.errors import ConfigError
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.units import MAX_BYTES, Granule

MACHINE = oc.toy_machine()


class Answers:
    """An interview that gives one answer, and notes what it is asked."""

    def __init__(self, reply):
        self.reply, self.asked, self.processes = reply, [], 1

    def ask(self, asked):
        self.asked.append(asked)
        return {"name": "mine"} if asked["ask"] == "name" else self.reply


def question(**other):
    settings = {"granule": Granule(8, ranges=True, fixed_bytes=3), "host_budget_bytes": 9000}
    return Question(oc.equal_stages(3), 700, MACHINE, **{**settings, "seed": 5, **other})


def planned(asked):
    return get_planner("naive").plan(asked)


def test_a_question_goes_out_whole_and_the_trace_once_for_each_process():
    asked = question()
    interview = Answers({"plan": planned(asked).to_json()})
    planner = RemotePlanner(interview)
    assert planner.name == "mine"
    for _ in range(2):
        assert planner.plan(asked).schedule == planned(asked).schedule
    planner.plan(replace(asked, trace=oc.equal_stages(3)))  # equal, but another
    interview.processes = 2
    planner.plan(asked)
    planner.plan(asked)
    whole = {
        "ask": "plan", "trace": trace_data(asked.trace), "machine": machine_data(MACHINE),
        "budget_bytes": 700, "granule": [8, True, 3], "host_budget_bytes": 9000, "seed": 5,
    }  # fmt: skip
    known = {**whole, "trace": None}
    assert interview.asked[1:] == [whole, known, whole, whole, known]


def test_after_an_answer_that_fails_the_trace_goes_out_again():
    asked, interview = question(), Answers({"plan": None})
    planner = RemotePlanner(interview)

    def fails(_):
        raise ConfigError("no answer", code="OOC-104")

    asks, interview.ask = interview.ask, fails
    with pytest.raises(ConfigError):
        planner.plan(asked)
    interview.ask = asks
    with pytest.raises(ConfigError):
        planner.plan(asked)
    assert interview.asked[-1]["trace"] is not None


@pytest.mark.parametrize("changed", [True, False])
def test_a_changed_trace_is_changed_here_too(changed):
    asked = question()
    reply = {"plan": planned(asked).to_json(), "changed": changed}
    RemotePlanner(Answers(reply)).plan(asked)
    assert bool(asked.trace.variable_by_name) != changed


@pytest.mark.parametrize("reply", [None, [], "plan", {}, {"plan": []}, {"plan": {}}])
def test_what_is_no_plan_is_refused(reply):
    with pytest.raises(ConfigError) as caught:
        RemotePlanner(Answers(reply)).plan(question())
    assert caught.value.code == "OOC-104"


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("peak_bytes", [0, 700], [-1, True, 1.0, MAX_BYTES, None]),
        ("host_peak_bytes", [0, 9000], [-1, True, 1.0, MAX_BYTES, None]),
        ("makespan_us", [0, 1.5], [True, None, float("nan"), MAX_BYTES, -MAX_BYTES, float("inf")]),
        ("rewrites", [[]], [["tile"], None, ()]),
        ("notes", [{}], [None, []]),
        ("schedule", [], [None, []]),
    ],
)
def test_each_claim_of_a_plan_is_of_its_kind(key, right, wrong):
    asked = question()
    data = planned(asked).to_json()
    for value in right:
        plan_in_answer({**data, key: value}, asked.trace)
    for value in wrong:
        with pytest.raises(ConfigError) as caught:
            plan_in_answer({**data, key: value}, asked.trace)
        assert caught.value.code == "OOC-104"


def test_a_claim_is_read_as_it_stands_but_for_its_bound():
    asked = question()
    data = planned(asked).to_json() | {"makespan_us": 7, "peak_bytes": 5, "host_peak_bytes": 6}
    found = plan_in_answer({**data, "lower_bound": [1]}, asked.trace)
    assert (found.makespan_us, found.peak_bytes, found.host_peak_bytes) == (7, 5, 6)
    assert found.lower_bound is None


@pytest.mark.parametrize(
    ("reply", "name"),
    [({"name": "mine"}, "mine"), ({"name": "x" * 99}, "x" * MOST_LETTERS), ({"name": 3}, None),
     ({}, None), (None, None), ([], None)],
)  # fmt: skip
def test_a_name_is_short_or_there_is_none(reply, name):
    class Named:
        def ask(self, asked):
            assert asked == {"ask": "name"}
            return reply

    assert name_in_answer(Named()) == (name or "nameless")
