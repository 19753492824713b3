"""`auto`: what it asks others, and what it makes of their answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planners import auto
from ooctrain.sched.planners.auto import CHUNK_BYTES, Auto
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import SwapOut
from ooctrain.step.machine import Machine
from ooctrain.step.presets import TYPICAL_DISK, machine, on_disk
from ooctrain.units import Granule

MACHINE = Machine("m", 1, 1, link_bytes_per_us=300, link="duplex")
CHAIN = oc.chain([300 << 10] * 9, [300 << 10] * 9, [400] * 8, [600] * 8, [0] * 8, [0] * 8)


@pytest.fixture
def answers(monkeypatch):
    """[(granule in which `belady` is asked, its plan)]; nobody else moves parts."""
    found = []

    class Noted(Belady):
        def plan(self, *given, granule, **options):
            plan = super().plan(*given, granule=granule, **options)
            found.append((granule, plan))
            return plan

    monkeypatch.setattr(auto, "Belady", Noted)
    near_is(monkeypatch, 100.0)  # so that it does not search
    monkeypatch.setattr(auto, "MOST_CALLS_QUICK", 0)  # nor take a list that computes again
    return found


def test_parts_are_moved_in_whole_chunks(answers):
    """An allocator maps chunks; the plan is counted in the granule of whoever asks."""
    plan = Auto().plan(Question(CHAIN, 1600 << 10, MACHINE, granule=Granule(512)))
    ((granule, answer),) = answers
    assert granule == Granule(CHUNK_BYTES)
    moved = [move for move in answer.schedule if isinstance(move, SwapOut)]
    assert any(move.lo for move in moved)
    assert all(move.lo % CHUNK_BYTES == 0 for move in moved)
    assert plan.notes["chosen"] == "belady"
    assert plan.schedule.granule == Granule(512)


def test_whole_variables_are_counted_as_they_are_asked_for(answers):
    whole = Granule(512, ranges=False)
    Auto().plan(Question(CHAIN, 1600 << 10, MACHINE, granule=whole))
    assert [granule for granule, _ in answers] == [whole]


@pytest.mark.parametrize("share", quick(["60%", "80%"], 0))
def test_near_the_bound_no_planner_that_is_quick_to_ask_is_faster(share):
    """It took `belady`'s list of 1.020 without asking `dtr`, whose list of 1.013 needs no host."""
    oc.manual_seed(0)
    model = oc.models.build("resnet18", 10, "cifar", 3)
    trace = oc.trace(model, (16, 3, 32, 32), optimizer="sgd", threads=1)

    def step_us(planner):
        return oc.plan(trace, share, planner=planner, machine="cpu-generic").makespan_us

    quick = [step_us(planner) for planner in ("window", "belady", "dtr", "prefix")]
    assert step_us("auto") <= min(quick)


def test_bands_are_tried_where_no_list_comes_near_what_one_might_reach():
    """A quick processor beside a slow disk: no list was known to be slower than the calls, so
    nobody was asked who tiles. The list that was found took 1.8 times as long as one in bands."""
    oc.manual_seed(0)
    model = oc.models.build("vgg11", 10, "cifar", 3)
    trace = oc.trace(model, (8, 3, 128, 128), optimizer="sgd", threads=1)
    budget = int(0.55 * trace_peak_bytes(apply_rewrites(trace, ("fuse", "share_storage"))))
    base = machine(None, "cpu")
    quick = replace(base, flops_per_us=1.2e6, memory_bytes_per_us=35e3, disk=TYPICAL_DISK)

    def step_us(planner):
        found = oc.plan(trace, budget, planner=planner, machine=on_disk(quick), evaluations=1000)
        return found.makespan_us

    assert step_us("auto") <= auto.NEAR * step_us("banded")


def test_in_long_steps_near_is_enough(monkeypatch):
    """`dtr` takes longer than the steps that it saves time in."""
    asked = []

    class Noted(Dtr):
        def plan(self, *given, **options):
            asked.append(given)
            return super().plan(*given, **options)

    monkeypatch.setattr(auto, "Dtr", Noted)
    near_is(monkeypatch, 100.0)
    for most in (len(CHAIN.calls), len(CHAIN.calls) - 1):
        monkeypatch.setattr(auto, "MOST_CALLS_QUICK", most)
        Auto().plan(Question(CHAIN, 1600 << 10, MACHINE, granule=Granule(512)))
    assert len(asked) == 1


@pytest.mark.parametrize("own", [None, 7])
def test_who_was_given_no_number_of_evaluations_takes_the_one_of_whoever_asks(own):
    assert Auto(evaluations=own).with_evaluations(30)._evaluations == (own or 30)
    assert Auto(evaluations=own)._evaluations == own
