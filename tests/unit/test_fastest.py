"""The fastest of some lists is found without simulating all of them."""

from __future__ import annotations

import random

import pytest

import ooctrain as oc
from ooctrain.errors import Infeasible
from ooctrain.sched.budget import trace_minimum_bytes
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.window import SlidingWindow
from ooctrain.sched.planning import fastest as module
from ooctrain.sched.planning.fastest import (
    Candidate,
    busiest_stream_us,
    fastest_list,
    fastest_of,
    least_us,
)
from ooctrain.sched.planning.planner import make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.sched.simulate import simulate
from ooctrain.step.machine import Machine
from ooctrain.testing.random_traces import random_machine, random_trace


@pytest.fixture(scope="module", params=range(30))
def lists(request):
    """A step, a machine, and lists of it that move more and less."""
    rng = random.Random(request.param)
    trace, machine = random_trace(rng), random_machine(rng, interference=rng.random() < 0.3)
    least = trace_minimum_bytes(trace, BYTES)
    found: list[Candidate] = []
    for planner in (Naive(), SlidingWindow(), Belady()):
        for budget in (least, least + 40, least + 400):
            try:
                plan = planner.plan(Question(trace, budget, machine))
            except Infeasible:
                continue
            found.append(Candidate(plan.schedule, {"place": len(found)}))
    return trace, machine, found


def test_it_is_as_fast_as_the_fastest_of_all(lists):
    trace, machine, found = lists
    every = [make_plan(candidate.schedule, trace, machine) for candidate in found]
    plan = fastest_list("test", Question(trace, 0, machine), found)
    assert plan.makespan_us == min(other.makespan_us for other in every)
    assert plan.schedule == found[plan.notes["place"]].schedule


def test_no_list_is_done_before_its_streams_are_and_what_its_calls_read_is_there(lists):
    trace, machine, found = lists
    for candidate in found:
        makespan_us = simulate(candidate.schedule, trace, machine).makespan_us
        busiest_us = busiest_stream_us(candidate.schedule, trace, machine)
        assert 0 < busiest_us <= least_us(candidate.schedule, trace, machine) <= makespan_us


def test_of_equals_the_first_is_taken(lists):
    trace, machine, found = lists
    again = [Candidate(candidate.schedule, {"place": "second"}) for candidate in found]
    plan = fastest_list("test", Question(trace, 0, machine), found + again)
    assert plan.notes["place"] != "second"


def test_the_bound_waits_for_what_calls_read_and_for_the_memory_that_they_release():
    """Naive swapping fetches when the call before has ended: 13 copies in of 8 us and the calls, 15
    us, take turns, though the link carries both directions at once.
    """
    trace = oc.chain([8] * 4, [8] * 4, [2] * 3, [3] * 3, [0] * 3, [0] * 3)
    machine = Machine("duplex", 1, 1, link_bytes_per_us=1, link="duplex")
    plan = Naive().plan(Question(trace, trace_minimum_bytes(trace, BYTES), machine))
    assert busiest_stream_us(plan.schedule, trace, machine) == 13 * 8
    assert least_us(plan.schedule, trace, machine) == 13 * 8 + 15 < plan.makespan_us


def test_only_lists_within_the_host_budget_count(lists):
    trace, machine, found = lists
    every = [make_plan(candidate.schedule, trace, machine) for candidate in found]
    host = sorted(plan.host_peak_bytes for plan in every)[len(every) // 2]
    plan = fastest_list("test", Question(trace, 0, machine, host_budget_bytes=host), found)
    within = [other.makespan_us for other in every if other.host_peak_bytes <= host]
    assert plan.makespan_us == min(within)
    with pytest.raises(Infeasible) as refusal:
        fastest_list("test", Question(trace, 0, machine, host_budget_bytes=-1), found)
    assert (refusal.value.minimum_bytes, refusal.value.needs) == (None, "host")


def test_a_known_plan_beyond_the_host_budget_rules_nothing_out_and_one_just_within_does(lists):
    trace, machine, found = lists
    every = [make_plan(candidate.schedule, trace, machine) for candidate in found]
    least, most = (end(every, key=lambda plan: plan.host_peak_bytes) for end in (min, max))

    def asked(known, host_bytes):
        """How many others are made; they might be as fast as the known one, and no faster."""
        made = []
        ways = [(known.makespan_us, lambda: made.append(1) or least)]
        best = fastest_of("test", [known], ways, host_bytes)
        assert best.host_peak_bytes <= host_bytes
        return len(made)

    assert asked(most, most.host_peak_bytes) == 0
    if least.host_peak_bytes < most.host_peak_bytes:
        assert asked(most, least.host_peak_bytes) == 1


def test_lists_that_cannot_be_the_fastest_are_not_simulated(monkeypatch):
    """Naive swapping keeps this link busy for longer than the step without it takes."""
    trace = oc.chain([8] * 7, [8] * 7, [2] * 6, [3] * 6, [0] * 6, [0] * 6)
    machine = Machine("slow link", 1, 1, link_bytes_per_us=1)
    plans = [planner.plan(Question(trace, 1000, machine)) for planner in (Naive(), KeepAll())]
    simulated = []

    def counted(schedule, *others):
        simulated.append(schedule)
        return make_plan(schedule, *others)

    monkeypatch.setattr(module, "make_plan", counted)
    found = [Candidate(plan.schedule, {}) for plan in plans]
    assert fastest_list("test", Question(trace, 0, machine), found).schedule == plans[1].schedule
    assert simulated == [plans[1].schedule]
