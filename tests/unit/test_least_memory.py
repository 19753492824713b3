"""The least memory that a refusal names: found in few plans, without a search, and it does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain.devices.cpu.host_vm import PAGE_BYTES
from ooctrain.errors import Infeasible
from ooctrain.execution import fit
from ooctrain.execution.fit import prepare
from ooctrain.execution.planners import auto
from ooctrain.execution.promise import OWN_STEP_BYTES, OwnShare, parts_of
from ooctrain.execution.settings import Settings
from ooctrain.rewrite import keeps_bits
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.question import Question
from ooctrain.units import MIB

HOW = Settings(machine="cpu-generic", threads=1, evaluations=100)
NOTHING = OwnShare(0, 0)


def step(*shape, layers=6):
    found = [oc.nn.Conv2d(3, 8, 3, padding=1), oc.nn.ReLU()]
    for _ in range(layers):
        found += [oc.nn.Conv2d(8, 8, 3, padding=1), oc.nn.ReLU()]
    model = oc.nn.Sequential(*found, oc.nn.AdaptiveAvgPool2d(1), oc.nn.Flatten())
    return oc.trace(model, shape, threads=1)


def named(trace, memory=1, how=HOW):
    with pytest.raises(Infeasible, match="OOC-124") as refused:
        prepare(trace, replace(how, memory=memory), NOTHING)
    return refused.value.minimum_bytes


def counted(monkeypatch, owner, method):
    """Calls of a method or function from now on."""
    before, calls = getattr(owner, method), []

    def counting(*given, **named):
        calls.append(given)
        return before(*given, **named)

    monkeypatch.setattr(owner, method, counting)
    return calls


@pytest.mark.parametrize("left", [-1, MIB])
def test_what_cannot_do_is_refused_without_a_search(monkeypatch, left):
    """A refusal of DenseNet-121 took five times as long as its plan: six searches for nothing."""
    trace = step(4, 3, 64, 64)
    searches = counted(monkeypatch, Combined, "plan")
    plans = counted(monkeypatch, fit.LimitSearch, "best")
    fixed = parts_of(trace, 0, NOTHING, 1).fixed_bytes
    persists = sum(v.value_bytes for v in trace.variables if v.persistent)
    assert persists < MIB
    named(trace, max(1, fixed + left * persists // MIB))
    assert not searches
    assert len(plans) <= 1 + 2 * (fit.LEAST_TRIES + fit.BANDS_TRIES)


@pytest.mark.slow
def test_the_least_that_is_named_does_and_is_the_same_whatever_was_asked():
    trace = step(4, 3, 64, 64)
    fixed = parts_of(trace, 0, NOTHING, 1).fixed_bytes
    found = named(trace)
    assert found == named(trace, fixed + MIB)
    for memory in (found - OWN_STEP_BYTES, found - OWN_STEP_BYTES + MIB // 16):
        promise = prepare(trace, replace(HOW, memory=memory), NOTHING).promise
        assert promise.promised_bytes <= memory


@pytest.mark.slow
def test_in_a_long_step_fewer_divisions_are_searched(monkeypatch):
    """Three searches of a step of 1800 calls took minutes."""
    trace = step(4, 3, 64, 64)
    memory = named(trace) - OWN_STEP_BYTES
    monkeypatch.setattr(fit, "NEAR", 0.0)  # none is quick enough
    asked = counted(monkeypatch, fit.Fit, "at")
    searched = []
    for most in (3 * len(trace.calls), len(trace.calls), 1):
        monkeypatch.setattr(fit, "MOST_CALLS", most)
        asked.clear()
        prepare(trace, replace(HOW, memory=memory), NOTHING)
        searched.append(sum(each[1].time_limit_s is None for each in asked))
    assert searched == [3, 1, 1]


def test_bands_are_tried_where_no_list_of_the_step_as_it_is_does(monkeypatch):
    """One large image: the largest call of the untiled step needs more than all of a band's."""
    trace = step(1, 3, 1024, 64, layers=2)
    with_bands = named(trace)
    monkeypatch.setattr(fit, "BANDS_TRIES", 0)
    assert with_bands < named(trace)
    monkeypatch.undo()
    monkeypatch.setattr(fit, "MOST_BANDED_CALLS", 1)
    assert with_bands < named(trace), "a long step is not written in bands"


@pytest.mark.parametrize(("between", "tries"), [(PAGE_BYTES, 0), (PAGE_BYTES + 1, 1)])
def test_a_page_between_too_little_and_enough_is_not_halved(between, tries):
    asked, enough = [], MIB
    found = fit.halved(enough - between, enough, 1, asked.append, int, PAGE_BYTES)
    assert found == enough
    assert len(asked) == tries


@pytest.mark.parametrize(("no", "yes"), [(100, 0), (0, 100), (7, 8), (8, 7)])
def test_one_search_goes_up_or_down_and_says_only_what_was_tried(no, yes):
    """What does and what does not may take turns between the ends."""
    for odd in range(2):
        tried = {}

        def does(number, odd=odd, tried=tried):
            tried[number] = number % 2 == odd
            return number if tried[number] else None

        found = fit.halved(no, yes, 20, does, int)
        assert found == yes or tried.get(found)
        beside = found + (1 if no > found else -1)
        assert beside == no or tried.get(beside) is False, "it ended before the numbers met"


def test_where_any_plan_will_do_the_first_is_taken():
    """Of a planner that swaps, where the host has room; else of one that computes again."""
    trace, machine = step(4, 3, 64, 64), HOW.find_machine()
    host = sum(v.value_bytes for v in trace.variables if v.kind == "input")
    peak = trace_peak_bytes(trace)
    asked = Question(trace, peak // 2, machine, effort=Effort.none(), same_bits=True)
    assert auto().plan(asked).notes["chosen"] == "window"
    short = replace(asked, host_budget_bytes=host)
    again = auto().plan(short)
    assert again.notes["chosen"] == "dtr"
    assert keeps_bits(again.rewrites)
    with pytest.raises(Infeasible):
        auto().plan(replace(short, budget_bytes=1))


@pytest.mark.parametrize("at_once", quick([False, True], 1))
def test_bands_only_where_their_bits_will_do(at_once):
    """One large image: what the largest call needs is more than that of a band."""
    trace, machine = step(1, 3, 128, 16, layers=1), HOW.find_machine()
    effort = Effort.none() if at_once else Effort(100)
    asked = Question(trace, trace_minimum_bytes(trace) // 2, machine, effort=effort)
    assert not keeps_bits(auto().plan(asked).rewrites)
    with pytest.raises(Infeasible) as refused:
        auto().plan(replace(asked, same_bits=True))
    assert refused.value.minimum_bytes > trace_minimum_bytes(trace) // 2
