"""Who holds what: at every moment the holdings add up to the curve that the ledger gives."""

from __future__ import annotations

import random

import pytest

import ooctrain as oc
from ooctrain.report.holdings import GROUPS, Holding, group_curves, held_at, holdings
from ooctrain.report.waits import peak_of, waits_of
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.simulate import simulate
from ooctrain.sched.timeline import Timeline, TimelineEvent
from ooctrain.step.machine import Machine
from ooctrain.testing.check_planner import random_case

PLANNERS = ("naive", "belady", "chen-sqrt", "window", "prefix")


def held_bytes(found, time_us):
    return sum(one.size_bytes for one in held_at(found, time_us))


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("seed", range(25))
def test_holdings_add_up_to_the_memory_curve_at_every_moment(planner, seed):
    case = random_case(random.Random(seed))
    least = 0
    try:
        get_planner(planner).plan(Question(case.trace, 0, case.machine, granule=case.granule))
    except oc.Infeasible as refusal:
        least = refusal.minimum_bytes
    plan = get_planner(planner).plan(
        Question(case.trace, least, case.machine, granule=case.granule)
    )
    timeline = simulate(plan.schedule, plan.trace, case.machine)
    found = holdings(plan.trace, plan.schedule, timeline)
    for time_us, size_bytes in timeline.ledger:
        if time_us < timeline.makespan_us:
            assert held_bytes(found, time_us) == size_bytes, time_us


def test_a_real_network_with_a_region_of_small_objects_adds_up_too():
    trace = oc.trace(oc.models.build("lenet"), (8, 3, 32, 32), threads=1)
    plan = oc.plan(trace, "30%", planner="belady", granule=oc.Granule(64 << 10, True))
    timeline = oc.simulate(plan, plan.trace)
    found = holdings(plan.trace, plan.schedule, timeline)
    assert any(one.name == "small objects" for one in found) == bool(
        plan.schedule.granule.fixed_bytes
    )
    assert [held_bytes(found, time) for time, _ in timeline.ledger[:-1]] == [
        size for _, size in timeline.ledger[:-1]
    ]


def test_groups_are_a_partition_of_what_is_held():
    found = [
        Holding("w", "parameters", 5, 0.0, 10.0),
        Holding("x", "activations", 7, 2.0, 6.0),
        Holding("f", "workspace", 1, 2.0, 3.0),
    ]
    times, curves = group_curves(found)
    assert times == [0.0, 2.0, 3.0, 6.0, 10.0]
    assert curves["activations"] == [0, 7, 7, 0, 0]
    assert curves["workspace"] == [0, 1, 0, 0, 0]
    assert [sum(curves[group][k] for group in GROUPS) for k in range(5)] == [5, 13, 12, 5, 0]
    assert [one.name for one in held_at(found, 2.5)] == ["x", "w", "f"]


def timeline_of(events, makespan_us, ledger=((0.0, 1),)):
    made = tuple(TimelineEvent(*event, index) for index, event in enumerate(events))
    return Timeline(makespan_us, 9, 0, 0, 0, 0.0, 0.0, 0.0, made, tuple(ledger))


def test_a_wait_names_the_call_behind_it_and_the_last_copy_in_it():
    timeline = timeline_of(
        [("C", "a", 0.0, 4.0), ("D", "v", 1.0, 5.0), ("H", "x", 5.0, 9.0), ("C", "b", 9.0, 11.0),
         ("D", "w", 11.0, 12.0)], 12.0,
    )  # fmt: skip
    longest, last = waits_of(timeline)
    assert (longest.from_us, longest.until_us) == (4.0, 9.0)
    assert (longest.call, longest.reason) == ("b", "swap in of x")
    assert (last.length_us, last.call, last.reason) == (1.0, "", "swap out of w")


def test_a_wait_without_a_copy_in_it_has_no_reason():
    (wait,) = waits_of(
        timeline_of([("D", "v", 0.0, 1.0), ("C", "a", 2.0, 3.0), ("C", "b", 5.0, 6.0)], 6.0)
    )[:1]
    assert (wait.from_us, wait.call, wait.reason) == (0.0, "a", "swap out of v")
    waits = waits_of(timeline_of([("C", "a", 0.0, 3.0), ("C", "b", 5.0, 6.0)], 6.0))
    assert [wait.reason for wait in waits] == [""]


def test_the_peak_names_the_call_that_runs_at_it_or_next():
    events = [("C", "a", 0.0, 4.0), ("C", "b", 6.0, 9.0)]
    running = peak_of(timeline_of(events, 9.0, [(0.0, 1), (2.0, 5), (7.0, 5)]))
    assert (running.time_us, running.size_bytes, running.call) == (2.0, 5, "a")
    assert peak_of(timeline_of(events, 9.0, [(0.0, 1), (5.0, 5)])).call == "b"


def test_a_machine_that_copies_beside_calls_adds_up_too():
    case = random_case(random.Random(3))
    slow = Machine("slow", 1, 1, 1, interference=1.5)
    plan = get_planner("belady").plan(Question(case.trace, 10**6, slow))
    timeline = simulate(plan.schedule, plan.trace, slow)
    found = holdings(plan.trace, plan.schedule, timeline)
    for time_us, size_bytes in timeline.ledger:
        if time_us < timeline.makespan_us:
            assert held_bytes(found, time_us) == size_bytes
