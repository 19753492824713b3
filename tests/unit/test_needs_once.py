"""What is known of both memories before a list is made: nobody is refused who had a plan."""

from __future__ import annotations

from functools import cache

import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain.errors import Infeasible
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import input_bytes, trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners import belady
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.window import SlidingWindow
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.residency import alive_bytes
from ooctrain.units import BYTES, Granule

SHARES = (0.0, 0.1, 0.3, 0.6, 0.9)
GRANULES = (BYTES, Granule(4096, ranges=True), Granule(4096, ranges=False))


@cache
def small_step(batch: int = 4):
    layers = [oc.nn.Conv2d(3, 8, 3, padding=1), oc.nn.BatchNorm2d(8), oc.nn.ReLU()]
    for _ in range(2):
        layers += [oc.nn.Conv2d(8, 8, 3, padding=1), oc.nn.BatchNorm2d(8), oc.nn.ReLU()]
    model = oc.nn.Sequential(*layers, oc.nn.AdaptiveAvgPool2d(1), oc.nn.Flatten())
    trace = oc.trace(model, (batch, 3, 32, 32), threads=1)
    return apply_rewrites(trace, ("fuse", "share_storage"))


def answers(trace, planner, granule) -> list[tuple]:
    """What a planner says to budgets of both memories: its list, or its refusal's least."""
    least, most = trace_minimum_bytes(trace, granule), trace_peak_bytes(trace, granule)
    inputs, machine, found = input_bytes(trace), oc.machine("cpu-generic"), []
    for device in SHARES:
        for host in (*SHARES, 1.0):
            budgets = int(least + device * (most - least)), int(inputs + host * most)
            try:
                plan = planner.plan(
                    Question(
                        trace, budgets[0], machine, granule=granule, host_budget_bytes=budgets[1]
                    )
                )
                found.append((*budgets, plan.schedule, plan.host_peak_bytes))
            except Infeasible as refusal:
                found.append((*budgets, refusal.minimum_bytes))
    return found


@cache
def answers_of_belady(granule) -> list[tuple]:
    return answers(small_step(), Belady(), granule)


@pytest.mark.parametrize("granule", GRANULES)
def test_who_is_refused_before_a_list_is_made_had_none(granule, monkeypatch):
    trace, now = small_step(), answers_of_belady(granule)
    monkeypatch.setattr(belady, "check_both_memories", lambda planner, question: None)
    assert answers(trace, Belady(), granule) == now
    refused = [answer for answer in now if answer[2] is None]
    assert refused
    alive = alive_bytes(trace)
    assert any(device + host < alive for device, host, _ in refused)


@pytest.mark.parametrize("granule", quick(GRANULES, 0))
def test_no_list_that_runs_each_call_once_holds_less_than_is_alive(granule):
    trace = small_step()
    alive = alive_bytes(trace)
    for every in (answers_of_belady(granule), answers(trace, SlidingWindow(), granule)):
        plans = [answer for answer in every if len(answer) == 4]
        assert plans
        assert all(device + host >= alive for device, _, _, host in plans)
