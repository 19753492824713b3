"""`auto`: its tables, what runs in them, and what it makes of the plans."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planners import auto
from ooctrain.sched.planners.auto import (
    CHUNK_BYTES,
    IN_CORE,
    QUICK,
    THOROUGH,
    Auto,
    AutoStage,
    Race,
)
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.portfolio import Turn
from ooctrain.sched.planners.registry import PLANNERS
from ooctrain.sched.planners.window import SlidingWindow
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.planner import infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import SwapOut
from ooctrain.step.machine import Machine
from ooctrain.step.presets import TYPICAL_DISK, machine, on_disk
from ooctrain.units import Granule

MACHINE = Machine("m", 1, 1, link_bytes_per_us=300, link="duplex")
CHAIN = oc.chain([300 << 10] * 9, [300 << 10] * 9, [400] * 8, [600] * 8, [0] * 8, [0] * 8)


@pytest.fixture
def answers(monkeypatch):
    """[(granule in which `belady` plans, its plan)]; no other planner moves parts."""
    found, plan_of = [], Belady.plan

    def noted(planner, question):
        plan = plan_of(planner, question)
        found.append((question.granule, plan))
        return plan

    monkeypatch.setattr(Belady, "plan", noted)
    monkeypatch.setattr(auto, "NEAR", 100.0)  # so that it does not search
    monkeypatch.setattr(auto, "MOST_CALLS_QUICK", 0)  # nor take a list that computes again
    return found


def test_parts_are_moved_in_whole_chunks(answers):
    """An allocator maps chunks; the plan is counted in the granule of the question."""
    plan = Auto().plan(Question(CHAIN, 1600 << 10, MACHINE, granule=Granule(512)))
    ((granule, answer),) = answers
    assert granule == Granule(CHUNK_BYTES)
    moved = [move for move in answer.schedule if isinstance(move, SwapOut)]
    assert any(move.lo for move in moved)
    assert all(move.lo % CHUNK_BYTES == 0 for move in moved)
    assert plan.notes["chosen"] == "belady"
    assert plan.schedule.granule == Granule(512)


def test_whole_variables_are_counted_as_the_question_does(answers):
    whole = Granule(512, ranges=False)
    Auto().plan(Question(CHAIN, 1600 << 10, MACHINE, granule=whole))
    assert [granule for granule, _ in answers] == [whole]


# The tables


class Takes:
    """A planner whose plans take a given time; it notes its questions."""

    def __init__(self, name, us, need_bytes=0):
        self.name, self.us, self.need_bytes, self.asked = name, us, need_bytes, []

    def plan(self, question):
        self.asked.append(question)
        if question.budget_bytes < self.need_bytes:
            raise infeasible(self.name, question.budget_bytes, self.need_bytes, "")
        plan = KeepAll().plan(replace(question, budget_bytes=1 << 40))
        return replace(plan, makespan_us=self.us)


BUDGET = 1600 << 10


def race(**asked):
    question = Question(CHAIN, BUDGET, MACHINE, Granule(512), **asked)
    return Race(question)


def turns_of(*planners):
    return lambda _race: map(Turn, planners)


def test_a_stage_runs_where_its_condition_holds_when_its_turn_comes():
    first, second, never = Takes("first", 9e9), Takes("second", 8e9), Takes("never", 1.0)
    running = race()
    running.run_stages((
        AutoStage("", turns_of(never), when=lambda race: race.found),
        AutoStage("", turns_of(first)),
        AutoStage("", turns_of(second), when=lambda race: race.found),
    ))  # fmt: skip
    assert [len(planner.asked) for planner in (never, first, second)] == [0, 1, 1]
    assert running.chosen == "second"


@pytest.mark.parametrize(("until_near", "runs"), [(True, [1, 1, 0]), (False, [1, 1, 1])])
def test_the_rest_of_a_stage_may_be_left_out_once_a_plan_is_near(until_near, runs):
    running = race()
    near_us, far_us = 0.99 * running.near_us, 2 * running.near_us
    planners = Takes("far", far_us), Takes("near", near_us), Takes("rest", far_us)
    running.run_stages((AutoStage("", turns_of(*planners), until_near=until_near),))
    assert [len(planner.asked) for planner in planners] == runs
    assert running.near


def test_a_rewritten_step_is_worth_its_planning_where_what_is_known_is_far():
    running = race()
    bound_us = running.near_us / auto.NEAR
    assert running.far
    running.run_stages((AutoStage("", turns_of(Takes("far", 1.11 * bound_us))),))
    assert running.far
    running.run_stages((AutoStage("", turns_of(Takes("less", 1.09 * bound_us))),))
    assert not running.far


def rows():
    """The turns of all stages, for a short step."""
    running = race()
    return [turn for stage in (*IN_CORE, *QUICK, *THOROUGH) for turn in stage.turns(running)]


def test_what_moves_parts_plans_in_whole_chunks_or_has_to_gain():
    """So that plans can be executed with the default allocator, wherever they are as fast."""
    moving = [turn for turn in rows() if isinstance(turn.planner, Belady | Combined)]
    assert len(moving) >= 3
    for turn in moving:
        asked = turn.question
        in_chunks = asked is not None and asked.granule == Granule(CHUNK_BYTES)
        assert in_chunks or turn.gain == auto.NEAR
    # Of the others each is asked the question itself, so that its refusal counts.
    others = [turn for turn in rows() if not isinstance(turn.planner, Belady | Combined)]
    assert all(turn.question is None for turn in others)


#: Planners without a row of their own: {name: why}.
NO_ROW = {
    "auto": "itself", "keep-all": "runs before the tables",
    "greedy": "`dynprog` solves exactly what it rounds", "lms": "a point of `lms-grid`",
    "lms-auto": "a point of `lms-grid`", "vdnn-all": "one of the two that `vdnn` compares",
    "vdnn-conv": "the other one",
}  # fmt: skip


def test_in_a_short_step_every_planner_that_keeps_the_step_has_a_row():
    assert {turn.planner.name for turn in rows()} == {*PLANNERS} - {*NO_ROW}
    assert all(stage.why for stage in (*IN_CORE, *QUICK, *THOROUGH))


def test_a_share_of_the_time_is_left_to_the_search(monkeypatch):
    """Those before it stop sooner; the search, and what follows, have all that is left."""
    left_s = {}

    def noted(kind):
        plan_of = kind.plan

        def plan(planner, question):
            left_s.setdefault(kind, question.effort.deadline.left_s())
            return plan_of(planner, question)

        monkeypatch.setattr(kind, "plan", plan)

    for kind in (SlidingWindow, Combined, Naive):
        noted(kind)
    limit_s = 1000.0
    asked = Question(
        CHAIN, BUDGET, MACHINE, Granule(512, ranges=False), effort=Effort.within(limit_s, 50)
    )
    monkeypatch.setattr(auto, "NEAR", 1e-3)
    monkeypatch.setattr(auto, "SHORT_STEP", 0)
    monkeypatch.setattr(auto, "LONG_STEP", 0)
    Auto().plan(asked)
    until_search_s = (1 - auto.SEARCH_SHARE) * limit_s
    assert left_s[SlidingWindow] <= until_search_s < min(left_s[Combined], left_s[Naive])


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


@pytest.mark.slow
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
    asked, plan_of = [], Dtr.plan

    def noted(planner, question):
        asked.append(question)
        return plan_of(planner, question)

    monkeypatch.setattr(Dtr, "plan", noted)
    monkeypatch.setattr(auto, "NEAR", 100.0)
    for most in (len(CHAIN.calls), len(CHAIN.calls) - 1):
        monkeypatch.setattr(auto, "MOST_CALLS_QUICK", most)
        Auto().plan(Question(CHAIN, 1600 << 10, MACHINE, granule=Granule(512)))
    assert len(asked) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("own", "number"), quick([(None, 30), (7, 7), (0, 0)], 1, names=2))
def test_its_own_number_of_evaluations_counts_before_the_question_s(monkeypatch, own, number):
    asked = []

    def noted(planner, question):
        asked.append(question.effort.evaluations)
        raise infeasible("combined", question.budget_bytes, question.budget_bytes + 1, "")

    monkeypatch.setattr(Combined, "plan", noted)
    monkeypatch.setattr(auto, "NEAR", 1e-3)
    whole = Granule(512, ranges=False)
    Auto(evaluations=own).plan(Question(CHAIN, BUDGET, MACHINE, whole, effort=Effort(30)))
    assert set(asked) == {number}
