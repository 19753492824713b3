"""Planners that compute again: their laws, and that they are as good as they say."""

from __future__ import annotations

import pytest

import ooctrain as oc
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planners.prefix import Dropped, Prefix, _Attempts, by_recompute_time
from ooctrain.sched.planners.window import SlidingWindow, WindowCyclic
from ooctrain.sched.planning.effort import Deadline, Effort
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable
from ooctrain.sched.schedule import BYTES, Run
from ooctrain.sched.search.search import compile_search
from ooctrain.sched.verify import verify
from ooctrain.testing.check_planner import check_planner


@pytest.fixture(scope="module")
def resnet():
    model = oc.models.build("resnet18", num_classes=10, stem="cifar")
    return apply_rewrites(oc.trace(model, (256, 3, 32, 32)), ("fuse", "share_storage"))


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """So that no time limit below pays for it."""
    compile_search()


def budget(trace, fraction):
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    return round(least + fraction * (most - least))


@pytest.mark.parametrize(
    "planner", [Prefix(steps=4), pytest.param(Combined(evaluations=300), marks=pytest.mark.slow)]
)
def test_planners_keep_the_laws(planner):
    assert check_planner(planner, examples=6, seed=3, time_limit_s=60) >= 2


def test_prefix_sorts_what_can_be_dropped_by_the_time_to_get_it_back(resnet):
    order = by_recompute_time(resnet, oc.machine("v100-pcie"))
    assert sorted(order) == sorted(droppable(resnet))
    ops = [type(resnet.calls[resnet.producer[var]].op).__name__ for var in order]
    places = {op: [p for p, other in enumerate(ops) if other == op] for op in set(ops)}
    middle = {op: sum(found) / len(found) for op, found in places.items()}
    assert middle["BatchNormApply"] < middle["Conv2d"]


def test_every_fourth_prefix_is_tried_first_from_the_empty_one_on(monkeypatch):
    tried = []
    monkeypatch.setattr(_Attempts, "make", lambda attempts, places: tried.append(list(places)))
    trace = oc.chain([8] * 7, [8] * 7, [2] * 6, [3] * 6, [0] * 6, [0] * 6)
    question = Question(trace, 1, oc.machine("v100-pcie"))
    _Attempts(question, [Dropped(())] * 10, Deadline.after(None)).make_best()
    assert tried == [[0, 4, 8], list(range(10))]  # then all, as none has become a list


@pytest.mark.parametrize("planner", [Prefix(steps=4), Dtr()])
def test_notes_count_the_calls_that_run_again(planner):
    trace = oc.chain([8] * 7, [8] * 7, [2] * 6, [3] * 6, [0] * 6, [0] * 6)
    plan = planner.plan(
        Question(trace, budget(trace, 0.3), oc.Machine("m", 1, 1, link_bytes_per_us=0.5))
    )
    runs = sum(isinstance(instruction, Run) for instruction in plan.schedule.instructions)
    assert plan.notes["runs_again"] == runs - len(trace.calls) > 0


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [0.05, 0.25])
def test_computing_again_beats_offloading_alone_on_a_slow_link(resnet, fraction):
    machine, size = oc.machine("v100-pcie"), budget(resnet, fraction)
    plans = [p.plan(Question(resnet, size, machine)) for p in (Belady(), Prefix(), Combined(3000))]
    for plan in plans:
        verify(plan, resnet, size, machine)
    belady, prefix, combined = (plan.makespan_us for plan in plans)
    assert combined <= prefix <= belady
    assert combined < belady
    assert len([i for i in plans[1].schedule.instructions if isinstance(i, Run)]) > len(
        resnet.calls
    )


@pytest.mark.slow
def test_combined_is_never_worse_than_its_starts_and_deterministic(resnet):
    machine, size = oc.machine("v100-32gb-nvlink"), budget(resnet, 0.1)
    found = Combined(evaluations=500).plan(Question(resnet, size, machine, seed=7))
    again = Combined(evaluations=500).plan(Question(resnet, size, machine, seed=7))
    assert found.schedule == again.schedule
    for planner in (Belady(), Prefix(), SlidingWindow(), WindowCyclic()):
        assert found.makespan_us <= planner.plan(Question(resnet, size, machine)).makespan_us


def test_a_time_limit_cuts_the_search_short_and_says_so(resnet):
    machine, size = oc.machine("v100-pcie"), budget(resnet, 0.1)
    plan = Combined(evaluations=10**9).plan(
        Question(resnet, size, machine, effort=Effort.within(0.3))
    )
    assert plan.notes["cut_short"]
    verify(plan, resnet, size, machine)
