"""Bounds <= exact optimum <= planners, on tiny steps; the LP bound is called certified for this."""

from __future__ import annotations

import random

import pytest
from support.tiny_steps import tiny_step

import ooctrain as oc
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.bounds.closed import lower_bound
from ooctrain.sched.bounds.exact import exact_makespan_us
from ooctrain.sched.bounds.lp_bound import fluid_bound
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planners.window import SlidingWindow
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.step.builder import TraceBuilder

#: One byte per us each way, as in `sched/bounds/exact.py`.
LINKS = {
    duplex: oc.Machine(
        "tiny", flops_per_us=1, memory_bytes_per_us=1, link_bytes_per_us=1,
        link="duplex" if duplex else "shared",
    )
    for duplex in (False, True)
}  # fmt: skip


def cases(count, *, first=0, most_stages=3):
    """(seed, trace, budget, duplex)"""
    for seed in range(first, first + count):
        rng = random.Random(seed)
        trace = tiny_step(rng, most_stages=most_stages)
        least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
        yield seed, trace, rng.randint(least, most), rng.random() < 0.5


def lp_us(trace, budget, duplex, *, recompute):
    bound = fluid_bound(trace, budget, LINKS[duplex], recompute=recompute)
    return None if bound is None else bound.makespan_us


def check_bounds(seed, trace, budget, duplex, *, recompute):
    truth = exact_makespan_us(trace, budget, duplex=duplex, recompute=recompute)
    fluid = lp_us(trace, budget, duplex, recompute=recompute)
    simple = lower_bound(trace, budget, LINKS[duplex], recompute=recompute).makespan_us
    assert truth is not None, seed
    assert fluid is not None, seed
    assert fluid <= truth * (1 + 1e-6), seed
    assert simple <= truth * (1 + 1e-6), seed
    return truth


@pytest.mark.parametrize("recompute", [False, True])
def test_no_bound_exceeds_the_exact_optimum(recompute):
    for case in cases(25, most_stages=2):
        check_bounds(*case, recompute=recompute)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
def test_no_bound_exceeds_the_exact_optimum_a_thousand_times(recompute):
    for case in cases(500, first=1000, most_stages=2):
        check_bounds(*case, recompute=recompute)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
def test_no_bound_exceeds_the_exact_optimum_of_larger_steps(recompute):
    for case in cases(40, first=2000):
        try:
            check_bounds(*case, recompute=recompute)
        except ConfigError:  # too large for the search
            continue


@pytest.mark.slow
def test_freedom_never_hurts_the_optimum():
    """Parts beat wholes, running again beats not, two directions beat one, more memory less."""
    better = 0
    for _, trace, _, _ in cases(10, first=100):
        budget = trace_minimum_bytes(trace, BYTES)
        whole = exact_makespan_us(trace, budget, partial=False)
        parts = exact_makespan_us(trace, budget)
        again = exact_makespan_us(trace, budget, recompute=True)
        both = exact_makespan_us(trace, budget, duplex=True)
        roomy = exact_makespan_us(trace, budget + 2)
        assert parts <= (whole or parts)
        assert max(again, both, roomy) <= parts
        better += min(again, both, roomy) < parts
    assert better


@pytest.mark.parametrize("planner", [Belady(), SlidingWindow()])
def test_no_offloading_planner_beats_the_exact_optimum(planner):
    for seed, trace, budget, duplex in cases(20, first=200, most_stages=2):
        truth = exact_makespan_us(trace, budget, duplex=duplex)
        try:
            plan = planner.plan(Question(trace, budget, LINKS[duplex]))
        except Infeasible:
            continue
        assert plan.makespan_us >= truth - 1e-6, seed


def test_no_planner_that_computes_again_beats_the_exact_optimum():
    for seed, trace, budget, duplex in cases(20, first=300, most_stages=2):
        truth = exact_makespan_us(trace, budget, duplex=duplex, recompute=True)
        plan = Prefix(steps=3).plan(Question(trace, budget, LINKS[duplex]))
        assert plan.makespan_us >= truth - 1e-6, seed


def test_in_core_the_optimum_is_the_way_in_and_the_compute_time():
    trace = tiny_step(random.Random(4))
    compute = sum(call.duration_ns for call in trace.calls) // 1000
    inputs = trace.variables[0].nbytes
    assert exact_makespan_us(trace, trace_peak_bytes(trace, BYTES)) == compute + inputs


def test_it_looks_at_as_many_states_as_it_may():
    """A step of one call has one state before its end."""
    builder = TraceBuilder()
    out = builder.variable("out", (4,), "uint8")
    builder.call("f", None, (), (out,), duration_ns=1000)
    assert exact_makespan_us(builder.build(), 4, most_states=1) == 1
    with pytest.raises(ConfigError, match="too large"):
        exact_makespan_us(builder.build(), 4, most_states=0)
