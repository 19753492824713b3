"""Planners that choose are offered the step made narrow; `auto` takes it where it pays, and asks
the search however long the others took.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.errors import Infeasible
from ooctrain.execution.compose import plan_step, rewritten
from ooctrain.execution.settings import DEFAULT_REWRITES
from ooctrain.rewrite import REWRITES
from ooctrain.rewrite.narrow import narrower
from ooctrain.sched.planners import auto as auto_module
from ooctrain.sched.planners.auto import Auto
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.planner import call_need_bytes
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine
from ooctrain.units import Granule

SHAPE = (4, 3, 12, 12)
#: A link that is slow beside the arithmetic, so that waiting costs more than a pass through memory.
MACHINE = Machine("m", 4e3, 1e4, link_bytes_per_us=60.0, link="duplex")
#: In chunks of 64 KiB nothing of so small a step could move.
WHOLE = Granule(64, False)


class Residual(nn.Module):
    """Two blocks with shortcuts."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(8, 8, 1, bias=False) for _ in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in range(2)])
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        y = F.relu(self.stem(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = F.relu(norm(conv(y)) + y)
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


@pytest.fixture(scope="module")
def residual():
    oc.manual_seed(0)
    model = Residual()
    return model, oc.trace(model, SHAPE, threads=1, conv_algorithm="direct")


@pytest.fixture(scope="module")
def tight(residual):
    """A budget beneath the widest call of the fused step."""
    trace = rewritten(residual[1], DEFAULT_REWRITES).trace
    return max(call_need_bytes(call, trace, BYTES) for call in trace.calls) - 1


class Offered:
    """A planner of one's own that keeps what it is offered, and plans it."""

    name = "offered"

    def offered(self, steps):
        self.steps = steps
        return self

    def plan(self, trace, budget_bytes, machine, **options):
        ((name, narrow),) = self.steps.items()
        plan = Belady().plan(narrow, budget_bytes, machine, **options)
        return oc.Plan(narrow, (name,), plan.schedule, plan.makespan_us, plan.peak_bytes,
                       plan.host_peak_bytes)  # fmt: skip


def test_a_planner_that_chooses_is_offered_the_step_made_narrow(residual, tight):
    planner = Offered()
    plan = oc.plan(residual[1], tight, planner, MACHINE)
    fused = rewritten(residual[1], DEFAULT_REWRITES).trace
    assert planner.steps == narrower(fused, tight)
    assert plan.rewrites == (*DEFAULT_REWRITES, *planner.steps)
    verify(plan, residual[1], tight, MACHINE, rewrites=REWRITES)


def test_nothing_is_offered_where_no_call_is_wide(residual):
    fused = rewritten(residual[1], DEFAULT_REWRITES)
    planner = Offered()
    question = Question(fused.trace, 1 << 40, MACHINE)
    with pytest.raises(ValueError, match="not enough values"):
        plan_step(fused, planner, question)
    assert planner.steps == {}


@pytest.mark.parametrize("evaluations", quick([100, None]))
def test_auto_trains_within_less_than_the_widest_call(residual, tight, evaluations):
    """To the bits of training without a budget."""
    model, trace = residual
    with pytest.raises(Infeasible):
        get_planner("combined").plan(rewritten(trace, DEFAULT_REWRITES).trace, tight, MACHINE)
    asked = {"machine": MACHINE, "allocator": "best-fit", "evaluations": evaluations}
    plan = oc.plan(trace, tight, "auto", **asked)
    assert plan.rewrites[-1].startswith("narrow:")
    in_core = oc.plan(trace, 1 << 20, "keep-all", **asked)
    assert in_core.rewrites == plan.rewrites[:-1]
    rng = np.random.default_rng(0)
    batch = rng.standard_normal(SHAPE, np.float32), np.array([0, 3, 1, 1])
    found, expected = (oc.execute(p, model, batch, allocator="best-fit") for p in (plan, in_core))
    assert found.loss == expected.loss
    for name, value in expected.state.items():
        assert value.tobytes() == found.state[name].tobytes(), name


def test_where_chunks_are_large_it_is_refused_by_name(residual, tight):
    """An allocator that maps has `auto` ask for bands of bands; some calls then read nothing."""
    with pytest.raises(Infeasible, match="least"):
        oc.plan(residual[1], tight, "auto", MACHINE, allocator="va", evaluations=100)


@pytest.mark.slow
def test_the_least_budget_of_auto_is_that_of_the_narrow_step(residual):
    with pytest.raises(Infeasible) as refused:
        oc.plan(residual[1], 1000, "auto", MACHINE)
    least = refused.value.minimum_bytes
    assert oc.plan(residual[1], least, "auto", MACHINE).peak_bytes <= least
    with pytest.raises(Infeasible):
        oc.plan(residual[1], least - 1, "auto", MACHINE)


def forms(trace, budget_bytes):
    fused = rewritten(trace, DEFAULT_REWRITES).trace
    return fused, narrower(fused, budget_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.1, 1.6])
def test_what_is_offered_makes_no_plan_slower(residual, tight, share):
    budget = int(share * tight)
    fused, offered = forms(residual[1], budget)
    alone, best = (
        auto.plan(fused, budget, MACHINE, granule=WHOLE)
        for auto in (Auto(), Auto().offered(offered))
    )
    assert best.makespan_us < alone.makespan_us
    assert alone.rewrites == ()
    assert (*best.rewrites,) == (*offered,)
    assert best.trace is offered[best.rewrites[0]]


def test_with_a_number_of_evaluations_the_form_that_promises_most_is_searched(
    residual, tight, monkeypatch
):
    asked = []

    class Noted(Combined):
        def plan(self, trace, *args, **options):
            asked.append(trace)
            return super().plan(trace, *args, **options)

    monkeypatch.setattr(auto_module, "Combined", Noted)
    budget = tight * 5 // 4
    fused, offered = forms(residual[1], budget)
    promises = {
        name: Combined().promise(Question(step, budget, MACHINE, WHOLE))
        for name, step in {"": fused, **offered}.items()
    }
    Auto(evaluations=1000).offered(offered).plan(fused, budget, MACHINE, granule=WHOLE)
    assert asked == [{"": fused, **offered}[min(promises, key=lambda name: promises[name])]]
    asked.clear()
    Auto().offered(offered).plan(fused, budget, MACHINE, granule=WHOLE)
    assert asked == [fused, *offered.values()]
