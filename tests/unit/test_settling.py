"""Steps that never end where an earlier one ended: a trainer stays within what was replayed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import ooctrain as oc
from ooctrain.alloc.registry import choose_allocator
from ooctrain.errors import DoesNotFit
from ooctrain.execution import placement
from ooctrain.execution.fit import Fit, prepare
from ooctrain.execution.placement import reserved_peak
from ooctrain.execution.settings import Settings
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question

WIDTHS = (48, 29, 37, 35, 21, 37, 39)  # found by a search: best fit settles nowhere
LEDGER_BYTES = 79360
STEPS = 60


class OfOneLimit:
    """`belady` at one limit of the ledger, whatever the budget."""

    name = "of-one-limit"

    def plan(self, question):
        return get_planner("belady").plan(replace(question, budget_bytes=LEDGER_BYTES))


def wandering():
    """A network whose parameters change places from step to step."""
    oc.manual_seed(0)
    layers = [oc.nn.Flatten()]
    for wide, narrow in pairwise(WIDTHS):
        layers += [oc.nn.Linear(wide, narrow), oc.nn.ReLU()]
    return oc.nn.Sequential(*layers, oc.nn.Linear(WIDTHS[-1], 4))


def reserved(steps, monkeypatch):
    monkeypatch.setattr(placement, "MAX_STEPS", steps)
    step = apply_rewrites(oc.trace(wandering(), (8, 3, 4, 4), threads=1), ("fuse", "share_storage"))
    choice = choose_allocator("best-fit", 1 << 30)
    question = Question(step, LEDGER_BYTES, oc.machine("v100-pcie"), choice.granule)
    plan = OfOneLimit().plan(question)
    found = reserved_peak(plan.schedule, plan.trace, choice)
    monkeypatch.undo()
    return found


def losses(**how):
    random = np.random.default_rng(0)
    batches = [
        (random.standard_normal((8, 3, 4, 4), np.float32), random.integers(0, 4, 8))
        for _ in range(STEPS)
    ]
    with oc.Trainer(wandering(), threads=1, machine="v100-pcie", **how) as trainer:
        return [trainer.step(x, y) for x, y in batches]


def test_a_run_stays_in_the_arena_of_the_steps_that_were_replayed(monkeypatch):
    """It ran out of memory (OOC-130) in the middle of training, after the last replayed step."""
    few, many = (reserved(steps, monkeypatch) for steps in (placement.MAX_STEPS, STEPS))
    assert few < many, "this network settles after all: find another one"
    found = losses(planner=OfOneLimit(), allocator="best-fit", budget=few)
    assert found == losses()


@pytest.mark.parametrize("planner", ["belady", "lru"])
def test_blocks_that_climb_from_step_to_step_are_a_plan_that_does_not_fit(planner, monkeypatch):
    """`bump` uses no hole below its highest block: it said that memory was full (OOC-130)."""
    monkeypatch.setattr(placement, "MAX_STEPS", 200)
    oc.manual_seed(0)
    step = oc.trace(oc.models.build("lenet", num_classes=10), (8, 3, 32, 32), threads=1)
    how = Settings(allocator="bump", planner=planner, budget="0%", machine="v100-pcie")
    with pytest.raises(DoesNotFit, match="on allocator 'bump'") as refused:
        prepare(step, how)
    assert refused.value.code == "OOC-121"
    assert "climb from step to step" in str(refused.value)


class Asked:
    """`belady`, which notes what it is asked for."""

    name = "asked"

    def __init__(self):
        self.budgets = []

    def plan(self, question):
        self.budgets.append(question.budget_bytes)
        return get_planner("belady").plan(question)


@pytest.mark.parametrize("above", [0, 1024, 4096])
def test_no_limit_is_asked_for_twice_where_the_allocator_cannot_place_the_plan(above):
    """At the least budget itself the planner was asked for a byte less six times. (What a refusal
    then names is another budget.)
    """
    oc.manual_seed(0)
    step = oc.trace(oc.models.build("lenet", num_classes=10), (8, 3, 32, 32), threads=1)
    planner = Asked()
    how = Settings(allocator="first-fit", planner=planner, budget=1024, machine="v100-pcie")
    fit = Fit.of(step, how)
    with pytest.raises(oc.Infeasible) as refused:
        fit.at(how, 1024)
    planner.budgets.clear()
    with pytest.raises(DoesNotFit):
        fit.at(how, refused.value.minimum_bytes + above)
    assert len(planner.budgets) == len({*planner.budgets})
    assert len(planner.budgets) <= 2 + above // 512
