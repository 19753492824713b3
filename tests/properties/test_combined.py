"""Laws of `combined`: never worse than its starts, never beaten where everything fits."""

from __future__ import annotations

import random

import pytest
from support.quick import quick

from ooctrain.api import step_trace
from ooctrain.errors import Infeasible
from ooctrain.sched.bounds.closed import arrivals_us
from ooctrain.sched.budget import input_bytes, trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners import combined
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planners.registry import get_planner, planners
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.sched.verify import verify
from ooctrain.step import presets
from ooctrain.testing.random_traces import random_machine, random_trace

#: Those that search for long, or that ask others.
NOT_ASKED = {"auto", "combined"}
#: Whose plans `combined` is never above, in steps that are not long.
STARTS = ("keep-all", "belady", "prefix", "window-cyclic", "dtr", "window")


def random_step(seed, *, calls=10):
    rng = random.Random(seed)
    trace = random_trace(rng, calls=rng.randint(2, calls), max_bytes=24, duration_ns=20_000)
    return rng, trace, random_machine(rng)


def plan_of(planner, trace, budget, machine, host=None):
    """A plan that the verifier accepts, or None."""
    try:
        plan = planner.plan(Question(trace, budget, machine, host_budget_bytes=host))
    except Infeasible:
        return None
    verify(plan, trace, budget, machine, host_budget_bytes=host)
    return plan


def is_never_worse_than_its_starts(seed):
    """Within any budget, with host memory or without, after a short search or none."""
    rng, trace, machine = random_step(seed)
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    budget = rng.randint(least, max(least, most))
    host = rng.choice([None, input_bytes(trace), input_bytes(trace) + rng.randint(0, most)])
    ours = plan_of(Combined(evaluations=rng.choice([0, 40])), trace, budget, machine, host)
    compared = 0
    for planner in map(get_planner, STARTS):
        theirs = plan_of(planner, trace, budget, machine, host)
        if theirs is not None:
            assert ours is not None, planner.name
            assert ours.makespan_us <= theirs.makespan_us, planner.name
            compared += 1
    return compared


@pytest.mark.parametrize("first", quick([0, 100, 200], 0))
def test_is_never_worse_than_its_starts(first):
    seeds = range(first, first + 100) if first else (*range(8), 144, 230, 358)  # one is faster
    assert sum(map(is_never_worse_than_its_starts, seeds)) > len(seeds)


def has_a_plan_of_a_long_step_where_a_start_has(seed):
    """On a host with room for the inputs alone, where few are asked before the search."""
    rng, trace, machine = random_step(seed)
    least, host = trace_minimum_bytes(trace, BYTES), input_bytes(trace)
    budget = rng.randint(least, max(least, trace_peak_bytes(trace, BYTES)))
    asked = tuple(get_planner(name) for name in STARTS[:-1])  # `window` needs room on the host
    theirs = [plan_of(planner, trace, budget, machine, host) for planner in asked]
    ours = plan_of(Combined(evaluations=0), trace, budget, machine, host)
    assert ours is not None or not any(theirs)
    return ours is not None


@pytest.mark.slow
def test_has_a_plan_of_a_long_step_where_a_start_has(monkeypatch):
    monkeypatch.setattr(combined, "CALLS", 1)
    assert sum(map(has_a_plan_of_a_long_step_where_a_start_has, range(60))) > 30


def test_a_long_step_without_host_memory_is_not_put_to_prefix_where_another_has_a_plan(monkeypatch):
    """On DenseNet-201 that took longer than the search, for a plan five times as slow."""
    trace = step_trace("unet", 2, 64)
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    monkeypatch.setattr(combined, "CALLS", len(trace.calls) - 1)
    monkeypatch.setattr(Prefix, "plan", lambda *_args, **_named: pytest.fail("prefix is asked"))
    plan = Combined(evaluations=40).plan(
        Question(trace, least + (most - least) // 2, presets.machine("v100-pcie"),
        host_budget_bytes=input_bytes(trace))
    )  # fmt: skip
    assert plan.makespan_us > 0


def is_not_beaten_where_everything_fits(seed):
    """By no planner's plan, and none is faster than the inputs can come."""
    _, trace, machine = random_step(seed)
    budget = trace_peak_bytes(trace, BYTES)
    ours = plan_of(Combined(evaluations=40), trace, budget, machine)
    bound = arrivals_us(trace, machine)
    assert ours.makespan_us >= bound
    for name in planners():
        theirs = None if name in NOT_ASKED else plan_of(get_planner(name), trace, budget, machine)
        if theirs is not None:
            assert theirs.makespan_us >= bound, name
            assert ours.makespan_us <= theirs.makespan_us, name


@pytest.mark.parametrize(
    "seed",
    [9, 118, 251, *(pytest.param(n, marks=pytest.mark.slow) for n in range(200, 300) if n != 251)],
)
def test_is_not_beaten_where_everything_fits(seed):
    is_not_beaten_where_everything_fits(seed)
