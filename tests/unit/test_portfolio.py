"""A portfolio: which plan stays, when it is over, and what becomes of refusals and failures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import ooctrain as oc
from ooctrain.errors import Infeasible, PartFailed, Withheld
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.portfolio import Portfolio, Turn
from ooctrain.sched.planning.effort import Deadline, Effort
from ooctrain.sched.planning.planner import host_too_small, infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine

MACHINE = Machine("m", 1, 1, 1.0, link="duplex", latency_us=0.0, call_overhead_us=0.0)
CHAIN = oc.chain([12] * 4, [12] * 4, [20] * 3, [30] * 3, [0] * 3, [0] * 3)
OTHER = oc.chain([12] * 3, [12] * 3, [20] * 2, [30] * 2, [0] * 2, [0] * 2)
BUDGET = 1000
QUESTION = Question(CHAIN, BUDGET, MACHINE, forms={"shorter": OTHER})
OVER = Effort(deadline=Deadline.after(0.0))


class Takes:
    """A planner whose plans take a given time, or which raises; it notes its questions."""

    def __init__(self, us, name="some"):
        self.name, self.us, self.asked = name, us, []

    def plan(self, question):
        self.asked.append(question)
        if isinstance(self.us, Exception):
            raise self.us
        return replace(KeepAll().plan(question), makespan_us=self.us)


def outcome(*turns, question=QUESTION):
    portfolio = Portfolio(question)
    for turn in turns:
        portfolio.run(turn)
    return portfolio.outcome("all")


def refused(*turns, question=QUESTION):
    with pytest.raises(Infeasible) as caught:
        outcome(*turns, question=question)
    return caught.value


def needs(least):
    return Takes(infeasible("one", BUDGET, least, "F1"))


# Which plan stays


def test_the_plan_of_the_least_cost_stays_and_the_first_of_equals():
    portfolio = Portfolio(QUESTION)
    for us, name in ((3, "slow"), (2, "first"), (2, "second"), (4, "z")):
        portfolio.run(Turn(Takes(us, name)))
    assert (portfolio.best_us, portfolio.chosen) == (2, "first")
    assert portfolio.outcome("all").makespan_us == 2


def test_the_question_says_what_a_plan_costs():
    backwards = replace(QUESTION, cost=lambda plan: -plan.makespan_us)
    assert outcome(*map(Turn, map(Takes, (3, 4, 2))), question=backwards).makespan_us == 4


@pytest.mark.parametrize(("us", "stays"), [(9.6, 10), (9.5, 9.5)])
def test_a_turn_may_have_to_gain_more_than_nothing(us, stays):
    turns = Turn(Takes(10)), Turn(Takes(us), gain=1.05)
    assert outcome(*turns).makespan_us == stays
    assert outcome(Turn(Takes(us), gain=1.05)).makespan_us == us, "there is nothing to gain on"


def test_each_run_returns_its_plan_whether_it_stays_or_not():
    portfolio = Portfolio(QUESTION)
    found = [portfolio.run(Turn(planner)) for planner in (Takes(2), Takes(3), needs(2000))]
    assert [plan and plan.makespan_us for plan in found] == [2, 3, None]


# Time


def test_without_a_plan_time_ends_nothing_and_with_one_it_does():
    planners = needs(2000), Takes(2), Takes(1)
    plan = outcome(*map(Turn, planners), question=replace(QUESTION, effort=OVER))
    assert [len(planner.asked) for planner in planners] == [1, 1, 0]
    assert plan.makespan_us == 2
    assert plan.notes.get("cut_short")


def test_what_ends_in_time_does_not_say_that_it_was_cut_short():
    assert "cut_short" not in outcome(Turn(Takes(2)), Turn(Takes(1))).notes
    late = replace(QUESTION, effort=OVER)
    assert "cut_short" not in outcome(Turn(Takes(2)), question=late).notes, "nothing was left out"


@pytest.mark.parametrize("earlier", ["its own", "the portfolio's"])
def test_a_planner_gets_the_earlier_of_two_deadlines(earlier):
    near, far, planner = Deadline.after(1e3), Deadline.after(1e6), Takes(1)
    own, whole = (near, far) if earlier == "its own" else (far, near)
    portfolio = Portfolio(replace(QUESTION, effort=Effort(70, far)))
    portfolio.deadline = whole
    portfolio.run(Turn(planner, replace(QUESTION, effort=Effort(7, own))))
    assert planner.asked[0].effort == Effort(7, near)


# Refusals and failures


def test_a_refusal_names_the_least_of_all_and_its_call():
    error = refused(Turn(needs(3000)), Turn(needs(2000)), Turn(needs(4000)))
    assert (error.minimum_bytes, error.needs, error.witness_call) == (2000, "device", "F1")
    assert "'all'" in error.what


def test_where_the_host_is_too_small_for_one_no_budget_of_the_device_is_named():
    error = refused(Turn(needs(3000)), Turn(Takes(host_too_small("one", "9 bytes"))))
    assert (error.minimum_bytes, error.needs, error.numbers) == (None, "host", "9 bytes")


def test_a_stricter_question_s_plan_counts_and_its_refusal_does_not():
    """Its least is that of whole chunks; the portfolio's question may have less."""
    stricter = replace(QUESTION, granule=Granule(64))
    plan = outcome(Turn(KeepAll(), stricter))
    assert plan.schedule.granule == QUESTION.granule
    in_bytes, in_chunks = map(KeepAll().plan, (QUESTION, stricter))
    assert plan.peak_bytes == in_bytes.peak_bytes < in_chunks.peak_bytes
    verify(plan, CHAIN, BUDGET, MACHINE)
    assert refused(Turn(needs(3000)), Turn(needs(2000), stricter)).minimum_bytes == 3000


def test_a_planner_that_fails_ends_itself_alone():
    bug = Takes(KeyError("x"), "buggy")
    plan = outcome(Turn(bug), Turn(Takes(2)), Turn(bug))
    assert plan.makespan_us == 2
    (remark,) = plan.notes.get("remarks", ())
    assert "buggy" in remark


def test_where_all_fail_the_failure_is_raised_and_beside_refusals_it_is_their_cause():
    bug = Takes(KeyError("x"))
    with pytest.raises(PartFailed) as failed:
        outcome(Turn(bug), Turn(Takes(ValueError())))
    assert isinstance(failed.value.__cause__, KeyError)
    error = refused(Turn(bug), Turn(needs(2000)))
    assert error.minimum_bytes == 2000
    assert isinstance(error.__cause__, PartFailed)


def test_a_planner_that_a_course_withholds_is_no_failure():
    plan = outcome(Turn(Takes(Withheld("it is an assignment"))), Turn(Takes(2)))
    assert "remarks" not in plan.notes
    with pytest.raises(Withheld, match="first"):
        outcome(Turn(Takes(Withheld("first"))), Turn(Takes(Withheld("second"))))
    assert refused(Turn(Takes(Withheld("it"))), Turn(needs(2000))).minimum_bytes == 2000


# Forms


def test_a_turn_may_plan_another_form_and_its_plan_says_so():
    planner = Takes(2)
    plan = outcome(Turn(Takes(3)), Turn(planner, form="shorter"))
    assert plan.trace is OTHER
    assert plan.rewrites == ("shorter",)
    (asked,) = planner.asked
    assert (asked.trace, asked.forms) == (OTHER, {})
    assert asked.minimum_bytes == Question(OTHER, BUDGET, MACHINE).minimum_bytes


def test_a_refusal_of_another_form_counts():
    assert refused(Turn(needs(3000)), Turn(needs(2000), form="shorter")).minimum_bytes == 2000


def test_before_there_is_a_plan_its_cost_is_infinite():
    portfolio = Portfolio(QUESTION)
    assert (portfolio.best, portfolio.best_us, portfolio.chosen) == (None, math.inf, "")
    assert not portfolio.is_over()
