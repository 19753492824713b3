"""Planners find the step made narrow among a question's forms; `auto` and `combined` take it where
it pays.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import numpy as np
import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.errors import Infeasible, PartFailed
from ooctrain.execution import compose
from ooctrain.execution.compose import NarrowForms, found_by, plan_step, rewritten
from ooctrain.execution.settings import DEFAULT_REWRITES
from ooctrain.rewrite import REWRITES
from ooctrain.rewrite.narrow import narrower
from ooctrain.sched.budget import input_bytes, trace_peak_bytes
from ooctrain.sched.planners import auto as auto_module
from ooctrain.sched.planners import combined as combined_module
from ooctrain.sched.planners.auto import Auto
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.checkmate import Checkmate
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.planner import call_need_bytes, infeasible
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


class OfAnotherForm:
    """A planner of one's own that plans the only other form of its question."""

    name = "of-another-form"

    def plan(self, question):
        self.forms = dict(question.forms)
        ((name, narrow),) = self.forms.items()
        plan = Belady().plan(replace(question, trace=narrow, forms={}))
        return replace(plan, rewrites=(name,))


def test_a_question_has_the_step_made_narrow_among_its_forms(residual, tight):
    planner = OfAnotherForm()
    plan = oc.plan(residual[1], tight, planner, MACHINE)
    fused = rewritten(residual[1], DEFAULT_REWRITES).trace
    assert planner.forms == narrower(fused, tight)
    assert plan.rewrites == (*DEFAULT_REWRITES, *planner.forms)
    verify(plan, residual[1], tight, MACHINE, rewrites=REWRITES)


def test_there_is_no_other_form_where_no_call_is_wide(residual):
    fused = rewritten(residual[1], DEFAULT_REWRITES)
    planner = OfAnotherForm()
    question = Question(fused.trace, 1 << 40, MACHINE)
    with pytest.raises(PartFailed, match="not enough values"):
        plan_step(fused, planner, question)
    assert planner.forms == {}


def test_forms_are_written_once_and_only_for_a_planner_that_looks_at_them(
    residual, tight, monkeypatch
):
    written, fused = [], rewritten(residual[1], DEFAULT_REWRITES).trace

    def counted(trace, budget_bytes):
        written.append(budget_bytes)
        return narrower(trace, budget_bytes)

    monkeypatch.setattr(compose, "narrower", counted)
    budget = 5 * tight // 4
    found_by(Naive(), Question(fused, budget, MACHINE))
    assert not written
    forms = NarrowForms(fused, budget)
    assert len(forms) == len([*forms]) == len([*forms.values()]) == 1
    assert written == [budget]


def test_a_rewrite_that_fails_leaves_the_step_as_it_is(residual, tight, monkeypatch):
    def fails(trace, budget_bytes):
        raise KeyError("narrow")

    monkeypatch.setattr(compose, "narrower", fails)
    fused = rewritten(residual[1], DEFAULT_REWRITES).trace
    assert not NarrowForms(fused, tight)
    question = Question(fused, 5 * tight // 4, MACHINE, effort=Effort(200))
    assert not found_by(Combined(), question).rewrites


@pytest.mark.parametrize("planner", ["auto", "combined"])
@pytest.mark.parametrize("evaluations", quick([100, None]))
def test_it_trains_within_less_than_the_widest_call(residual, tight, planner, evaluations):
    """To the bits of training without a budget."""
    model, trace = residual
    with pytest.raises(Infeasible):
        get_planner(planner).plan(
            Question(rewritten(trace, DEFAULT_REWRITES).trace, tight, MACHINE)
        )
    asked = {"machine": MACHINE, "allocator": "best-fit", "evaluations": evaluations}
    plan = oc.plan(trace, tight, planner, **asked)
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
@pytest.mark.parametrize("planner", ["auto", "combined"])
def test_the_least_budget_is_that_of_the_narrow_step(residual, planner):
    with pytest.raises(Infeasible) as refused:
        oc.plan(residual[1], 1000, planner, MACHINE)
    least = refused.value.minimum_bytes
    assert oc.plan(residual[1], least, planner, MACHINE).peak_bytes <= least
    with pytest.raises(Infeasible):
        oc.plan(residual[1], least - 1, planner, MACHINE)


def forms(trace, budget_bytes):
    fused = rewritten(trace, DEFAULT_REWRITES).trace
    return fused, narrower(fused, budget_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.1, 1.6])
def test_another_form_makes_no_plan_slower(residual, tight, share):
    budget = int(share * tight)
    fused, offered = forms(residual[1], budget)
    alone, best = (
        Auto().plan(Question(fused, budget, MACHINE, WHOLE, forms=given)) for given in ({}, offered)
    )
    assert best.makespan_us < alone.makespan_us
    assert alone.rewrites == ()
    assert (*best.rewrites,) == (*offered,)
    assert best.trace is offered[best.rewrites[0]]


@pytest.mark.slow
def test_with_a_number_of_evaluations_the_form_that_promises_most_is_searched(
    residual, tight, monkeypatch
):
    asked = []

    class Noted(Combined):
        def plan(self, question):
            asked.append(question.trace)
            assert not question.forms
            return super().plan(question)

    monkeypatch.setattr(auto_module, "Combined", Noted)
    budget = tight * 5 // 4
    fused, offered = forms(residual[1], budget)
    question = Question(fused, budget, MACHINE, WHOLE, effort=Effort(1000), forms=offered)
    promises = {
        name: Combined().promise(replace(question, trace=step))
        for name, step in {"": fused, **offered}.items()
    }
    Auto().plan(question)
    assert asked == [{"": fused, **offered}[min(promises, key=lambda name: promises[name])]]
    asked.clear()
    Auto().plan(replace(question, effort=Effort()))
    assert asked == [fused, *offered.values()]


#: Between the least budget and the in-core peak.
SHARES = [k / 16 for k in range(3, 16, 4)]


def budget_of(fused, share):
    least = max(call_need_bytes(call, fused, BYTES) for call in fused.calls)
    return least + int(share * (trace_peak_bytes(fused, BYTES) - least))


@pytest.mark.parametrize("evaluations", quick([200, 3000], 0))
def test_another_form_makes_no_plan_of_combined_slower(residual, evaluations):
    """Where all fits or the step as it is promises more, the plan is the one without forms."""
    taken, combined = set(), Combined(evaluations)
    for share in SHARES:
        budget = budget_of(forms(residual[1], 1)[0], share)
        fused, offered = forms(residual[1], budget)
        alone = combined.plan(Question(fused, budget, MACHINE))
        found = combined.plan(Question(fused, budget, MACHINE, forms=offered))
        taken.add(found.rewrites)
        if found.rewrites:
            assert (*found.rewrites,) == (*offered,)
            assert found.trace is offered[found.rewrites[0]]
            assert found.makespan_us < alone.makespan_us
        else:
            assert found == alone
    assert () in taken
    assert len(taken) > 1


def test_combined_takes_no_form_if_told_so(residual, tight):
    question = Question(forms(residual[1], tight)[0], 5 * tight // 4, MACHINE, effort=Effort(200))
    assert found_by(get_planner("combined"), question).rewrites
    assert not found_by(get_planner("combined:forms=false"), question).rewrites


class Promising(Combined):
    """{fingerprint of a step: what is promised for it, what is found; None: nothing}, in us."""

    def __init__(self, knows):
        super().__init__()
        object.__setattr__(self, "knows", knows)
        object.__setattr__(self, "planned", [])

    def promise(self, question):
        return 1000 * self.knows[question.trace.fingerprint][0]

    def plan(self, question):
        if question.forms:
            return super().plan(question)
        trace, budget_bytes = question.trace, question.budget_bytes
        self.planned.append(trace.fingerprint)
        found_us = self.knows[trace.fingerprint][1]
        if found_us is None:
            raise infeasible(self.name, budget_bytes, budget_bytes + 1, "")
        plan = Belady().plan(replace(question, budget_bytes=question.peak_bytes))
        return replace(plan, makespan_us=found_us)


@pytest.mark.parametrize(
    ("as_it_is", "narrow", "searched", "best_us", "short"),
    [
        ((100, 90), (97, 91), ["narrow"], 91, 0),
        ((100, 90), (97, 91), ["narrow", "as it is"], 90, 1000),
        ((100, 90), (98.5, 91), ["as it is"], 90, 1000),  # not clearly more
        ((100, 90), (100, 80), ["as it is"], 90, 0),
        ((100, 90), (97, 101), ["narrow", "as it is"], 90, 0),  # it did not keep its promise
        ((100, 110), (97, 101), ["narrow", "as it is"], 101, 0),
        ((100, None), (100, 80), ["as it is", "narrow"], 80, 0),
        ((100, 80), (90, None), ["narrow", "as it is"], 80, 0),
        ((math.inf, None), (math.inf, 80), ["as it is", "narrow"], 80, 0),
        ((math.inf, None), (math.inf, 80), ["as it is", "narrow"], 80, 1000),
    ],
)
def test_the_form_that_promises_clearly_more_is_searched(
    residual, tight, monkeypatch, as_it_is, narrow, searched, best_us, short
):
    monkeypatch.setattr(combined_module, "CALLS", short)
    budget = 5 * tight // 4
    fused, offered = forms(residual[1], budget)
    names = {fused.fingerprint: "as it is"} | {f.fingerprint: "narrow" for f in offered.values()}
    planner = Promising({f: as_it_is if n == "as it is" else narrow for f, n in names.items()})
    plan = planner.plan(Question(fused, budget, MACHINE, forms=offered))
    assert [names[planned] for planned in planner.planned] == searched
    assert plan.makespan_us == best_us
    assert plan.rewrites == (() if names[plan.trace.fingerprint] == "as it is" else (*offered,))


@pytest.mark.parametrize(("beyond", "searched"), [(0, 2), (1, 1)])
def test_the_longest_step_that_is_planned_as_it_is_too_is_a_short_one(
    residual, tight, monkeypatch, beyond, searched
):
    fused, offered = forms(residual[1], 5 * tight // 4)
    planner = Promising(
        {form.fingerprint: (97, 91) for form in offered.values()} | {fused.fingerprint: (100, 90)}
    )
    monkeypatch.setattr(combined_module, "CALLS", len(fused.calls) - beyond)
    planner.plan(Question(fused, 5 * tight // 4, MACHINE, forms=offered))
    assert len(planner.planned) == searched


@pytest.mark.parametrize("short", [0, 1000])
def test_a_refusal_names_the_least_of_all_forms(residual, tight, monkeypatch, short):
    monkeypatch.setattr(combined_module, "CALLS", short)
    fused, offered = forms(residual[1], tight)
    (narrow,) = offered.values()
    with pytest.raises(Infeasible) as refused:
        Combined().plan(Question(fused, 1000, MACHINE, forms=offered))
    with pytest.raises(Infeasible) as alone:
        Combined().plan(Question(narrow, 1000, MACHINE))
    assert refused.value.minimum_bytes == alone.value.minimum_bytes


@pytest.mark.slow
def test_combined_is_never_above_checkmate_where_nothing_is_copied(residual):
    """Also where it takes another form of the step: `checkmate` plans the step as it is."""
    taken, fused = set(), rewritten(residual[1], DEFAULT_REWRITES).trace
    for share in SHARES:
        question = Question(
            fused, budget_of(fused, share), MACHINE, host_budget_bytes=input_bytes(fused),
            effort=Effort(300),
        )  # fmt: skip
        try:
            ours = found_by(Combined(), question)
        except Infeasible:
            with pytest.raises(Infeasible):
                found_by(Checkmate(), question)
            continue
        taken.add(ours.rewrites)
        verify(ours, fused, question.budget_bytes, MACHINE, rewrites=REWRITES,
               host_budget_bytes=question.host_budget_bytes)  # fmt: skip
        with contextlib.suppress(Infeasible):  # less than the program needs
            assert ours.makespan_us <= found_by(Checkmate(), question).makespan_us + 1e-6
    assert len(taken) > 1
