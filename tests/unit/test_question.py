"""A question: its facts are those of its step, and `replace` hands on no others."""

from __future__ import annotations

import random
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooctrain as oc
from ooctrain.execution.planners import get_planner
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planning.decisions import movable_gaps, runs_once
from ooctrain.sched.planning.effort import UNHURRIED, Effort, searches
from ooctrain.sched.planning.question import Question, makespan_us
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import BYTES, Granule
from ooctrain.testing.random_traces import random_machine, random_trace

GRANULES = (BYTES, Granule(8), Granule(4, ranges=True), Granule(1, ranges=False))


def of(seed, calls=None):
    """A question about a random step."""
    rng = random.Random(seed)
    trace = random_trace(rng, calls=calls or rng.randint(2, 9), max_bytes=24)
    return Question(trace, rng.randint(1, 200), random_machine(rng), rng.choice(GRANULES))


def facts_are_computed_afresh(question):
    trace, granule = question.trace, question.granule
    runs, fresh = runs_once(trace), Liveness(trace, granule)
    assert question.liveness.trace is trace
    assert question.liveness.size == fresh.size
    assert question.liveness.least_budget(runs) == fresh.least_budget(runs)
    assert [*question.resident_bytes] == [*fresh.resident_bytes(runs)]
    assert [*question.swap_gaps] == movable_gaps(trace, runs)
    assert question.minimum_bytes == trace_minimum_bytes(trace, granule)
    assert question.peak_bytes == trace_peak_bytes(trace, granule)


def facts_are_those_of_the_step(seed):
    """Whether read before the question was changed or after it."""
    question = of(seed)
    other = of(seed + 1, len(question.trace.calls))
    assert other.trace.fingerprint != question.trace.fingerprint
    for read_before in (False, True):
        if read_before:
            facts_are_computed_afresh(question)
        facts_are_computed_afresh(replace(question, trace=other.trace))
        for granule in GRANULES:
            facts_are_computed_afresh(replace(question, granule=granule))
        facts_are_computed_afresh(replace(question, trace=other.trace, granule=other.granule))
        facts_are_computed_afresh(question)


@given(st.integers(0, 1 << 32))
def test_facts_are_those_of_the_step(seed):
    facts_are_those_of_the_step(seed)


#: What may be replaced while the facts stay.
REPLACED = {
    "budget_bytes": 7, "host_budget_bytes": 3, "seed": 5, "effort": Effort(20),
    "cost": lambda plan: 1.0, "forms": {"f": of(1).trace}, "machine": oc.machine("v100-pcie"),
}  # fmt: skip


@pytest.mark.parametrize("name", REPLACED)
def test_facts_are_computed_once_whatever_else_is_replaced(name):
    question = of(0)
    before = question.liveness, question.resident_bytes, question.swap_gaps
    again = replace(question, **{name: REPLACED[name]})
    assert getattr(again, name) == REPLACED[name]
    after = again.liveness, again.resident_bytes, again.swap_gaps
    assert all(one is other for one, other in zip(before, after, strict=True))
    facts_are_computed_afresh(again)


def test_facts_that_the_second_reads_first_are_the_first_one_s_too():
    question = of(0)
    liveness = replace(question, budget_bytes=question.budget_bytes + 1).liveness
    assert question.liveness is liveness


def test_a_question_is_a_value():
    question = of(0)
    again = replace(question)
    assert again == question
    assert question.peak_bytes == again.peak_bytes
    assert again == question, "facts that have been read make no difference"
    with pytest.raises(FrozenInstanceError):
        question.budget_bytes = 1


def test_what_is_not_given_limits_nothing():
    question = Question(of(0).trace, 10, oc.machine("v100-pcie"))
    assert (question.granule, question.host_budget_bytes) == (BYTES, None)
    assert (question.seed, question.effort, question.forms) == (0, UNHURRIED, {})
    assert question.effort.deadline.left_s() is None
    assert question.cost is makespan_us


def test_an_effort_is_shared_by_number_and_by_time():
    effort = Effort.within(100.0, 10)
    part = effort.share(0.25)
    assert part.evaluations == 2
    assert 24 < part.deadline.left_s() <= 25
    assert Effort().share(0.25) == Effort()
    assert not Effort.within(None).deadline.passed()
    assert Effort.within(0.0).deadline.passed()


def test_what_has_a_number_of_evaluations_searches():
    searching = {name for name in oc.planners() if searches(get_planner(name))}
    assert searching == {"auto", "banded", "combined"}
