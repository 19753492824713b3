"""The LP bound: what can be counted by hand, and that no list beats it."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_decisions import random_decisions
from support.strategies import SEEDS, machines, traces

import ooctrain as oc
from ooctrain.errors import Infeasible
from ooctrain.sched.bounds.closed import compute_us
from ooctrain.sched.bounds.lp_bound import Covered, FluidItems, fluid_bound
from ooctrain.sched.budget import input_bytes, trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planners.window import SlidingWindow
from ooctrain.sched.planning.lower import lower_timed
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.step.builder import TraceBuilder

SLOW = oc.Machine("slow", flops_per_us=1, memory_bytes_per_us=1, link_bytes_per_us=1)


@pytest.fixture(scope="module")
def chain():
    return oc.chain([4] * 6, [4] * 6, [2] * 5, [3] * 5, [0] * 5, [0] * 5)


@given(traces(), st.booleans(), st.booleans())
def test_an_item_is_a_gap_between_two_uses_of_its_life(trace, recompute, resident):
    items = FluidItems(trace, 100, [0.0] * len(trace.calls))
    for item in items.of(Covered(recompute, resident)):
        life, variable = items.lives[item.life], trace.variables[item.var]
        assert life.var == item.var
        assert (item.opens - 1, item.needed) in pairwise(life.uses)
        assert item.size == variable.nbytes / 100


def test_what_comes_back_waits_until_its_own_gap_has_begun():
    """While h runs a must be away, and may not come back in place of b, which h reads."""
    builder = TraceBuilder()
    a, b, c, d, e = (builder.variable(v, (10,), "uint8", "activation") for v in "abcde")
    builder.call("f", None, (), (a,), duration_ns=1_000)
    builder.call("g", None, (), (b,), duration_ns=20_000)
    builder.call("h", None, (b,), (c,), workspace_bytes=10, duration_ns=40_000)
    builder.call("i", None, (a, c), (d,), duration_ns=1_000)
    builder.call("j", None, (b, d), (e,), duration_ns=1_000)
    trace = builder.build()
    bound = fluid_bound(trace, 30, SLOW, recompute=False)
    assert bound is not None
    assert bound.makespan_us == pytest.approx(83, rel=1e-4)  # a in after h, and b in after i
    assert Belady().plan(Question(trace, 30, SLOW)).makespan_us == 83


def test_at_the_in_core_peak_the_bound_is_the_compute_time(chain):
    bound = fluid_bound(chain, trace_peak_bytes(chain, BYTES), SLOW, resident=True)
    assert bound.makespan_us == pytest.approx(compute_us(chain, SLOW), rel=1e-5)


def test_below_what_a_call_needs_there_is_no_bound_for_there_is_no_list(chain):
    least = trace_minimum_bytes(chain, BYTES)
    assert fluid_bound(chain, least, SLOW, resident=True) is not None
    assert fluid_bound(chain, least - 1, SLOW, resident=True) is None


def test_both_sides_of_the_lp_agree_and_recomputation_only_lowers_it(chain):
    budget = trace_minimum_bytes(chain, BYTES)
    alone, both = (fluid_bound(chain, budget, SLOW, recompute=again) for again in (False, True))
    for bound in (alone, both):
        assert bound.dual_us == pytest.approx(bound.primal_us, rel=1e-6)
    assert compute_us(chain, SLOW) < both.makespan_us < alone.makespan_us
    assert "run again" in both.covers
    assert "once" in alone.covers


def test_on_a_chain_it_is_at_least_proposition_3(chain):
    """Paper 002: what is too much at the peak goes out and comes back."""
    peak, budget = trace_peak_bytes(chain, BYTES), trace_minimum_bytes(chain, BYTES)
    bound = fluid_bound(chain, budget, SLOW, recompute=False, resident=True)
    assert bound.makespan_us >= 2 * (peak - budget) * (1 - 1e-5)


def test_of_a_step_whose_calls_take_no_time_the_copies_remain():
    chain = oc.chain([4] * 4, [4] * 4, [0] * 3, [0] * 3, [0] * 3, [0] * 3)
    assert compute_us(chain, SLOW) == 0
    peak, least = trace_peak_bytes(chain, BYTES), trace_minimum_bytes(chain, BYTES)
    bound = fluid_bound(chain, least, SLOW, recompute=False, resident=True)
    assert 2 * (peak - least) * (1 - 1e-5) <= bound.makespan_us
    assert bound.makespan_us <= SlidingWindow().plan(Question(chain, least, SLOW)).makespan_us
    assert fluid_bound(chain, peak, SLOW, resident=True).makespan_us == pytest.approx(0, abs=1e-5)


@settings(max_examples=80)
@given(traces(), machines(), SEEDS, st.booleans())
def test_no_list_beats_the_lp(trace, machine, seed, recompute):
    decisions = random_decisions(trace, random.Random(seed), BYTES, recompute=recompute)
    budget = 0  # a step without a byte fits it
    try:
        lower_timed(decisions, trace, budget, machine)
    except Infeasible as refusal:
        budget = refusal.minimum_bytes
    lowered = lower_timed(decisions, trace, budget, machine)
    bound = fluid_bound(trace, budget, machine, recompute=recompute)
    assert bound is not None
    assert lowered.makespan_ns / 1000 >= bound.makespan_us * (1 - 1e-6)


@settings(max_examples=30)
@given(traces(), machines(), st.floats(0, 1))
def test_no_planner_beats_the_lp(trace, machine, share):
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    budget = least + round(share * (most - least))
    bound = fluid_bound(trace, budget, machine)
    for planner in (SlidingWindow(), Prefix(steps=3)):
        try:
            plan = planner.plan(Question(trace, budget, machine))
        except Infeasible:
            continue
        assert plan.makespan_us >= bound.makespan_us * (1 - 1e-6)


def test_an_updated_parameter_that_is_away_when_a_step_begins_goes_out_again():
    """100 bytes beside which the first call does not fit come in late, and leave at the end."""
    builder = TraceBuilder()
    old, large, small = (
        builder.variable(name, (size,), "uint8", kind)
        for name, size, kind in (("p", 100, "param"), ("t", 100, "activation"), ("s", 1, "grad"))
    )
    new = builder.variable("p.new", (100,), "uint8", "param")
    builder.call("f", None, (), (large,), duration_ns=1000)
    builder.call("g", None, (large,), (small,), duration_ns=1000)
    builder.call("update", None, (old, small), (new,), reuse={new: old}, duration_ns=1000)
    builder.carries[new] = old
    bound = fluid_bound(builder.build(), 102, SLOW, recompute=False)
    assert bound.makespan_us > 195


def test_an_input_that_comes_twice_lies_on_the_host_once():
    """It is read first and last, and does not fit beside what is computed in between."""
    builder = TraceBuilder()
    given_ = builder.variable("x", (10,), "uint8", "input")
    small, large, last = (
        builder.variable(name, (size,), "uint8", "activation")
        for name, size in (("s", 1), ("l", 10), ("y", 1))
    )
    builder.call("f", None, (given_,), (small,), duration_ns=1000)
    builder.call("g", None, (small,), (large,), duration_ns=1000)
    builder.call("h", None, (given_, small), (last,), duration_ns=1000)
    bound = fluid_bound(builder.build(), 12, SLOW, resident=True, host_budget_bytes=10)
    assert bound is not None
    assert bound.makespan_us == pytest.approx(22, rel=1e-4)  # 10 in, f, g meanwhile, 10 in, h


def computes_nothing_again_while_the_first_call_waits():
    """A value of 50 bytes, of which 20 have no room during a later call: two fifths of 10 us."""
    builder = TraceBuilder()
    given_ = builder.variable("x", (30,), "uint8", "input")
    again, middle, large, last = (
        builder.variable(name, (size,), "uint8", "activation")
        for name, size in (("a", 50), ("b", 50), ("c", 50), ("d", 0))
    )
    builder.call("f", None, (given_,), (again,), duration_ns=10_000)
    builder.call("g", None, (again,), (middle,), duration_ns=5000)
    builder.call("h", None, (middle,), (large,), duration_ns=5000)
    builder.call("k", None, (large, again), (last,), duration_ns=5000)
    trace = builder.build()
    bound = fluid_bound(trace, 130, SLOW, resident=True, host_budget_bytes=30)
    assert bound is not None
    assert bound.makespan_us == pytest.approx(30 + 25 + 4, rel=1e-4)
    plan = Dtr().plan(Question(trace, 130, SLOW, host_budget_bytes=30))
    assert plan.makespan_us == pytest.approx(30 + 25 + 10)


def test_while_the_first_call_waits_nothing_is_computed_again():
    computes_nothing_again_while_the_first_call_waits()


@settings(max_examples=80)
@given(traces(), machines(), st.floats(0, 1), st.floats(0, 1))
def test_prices_of_memory_say_what_other_budgets_are_worth_at_most(trace, machine, share, other):
    """The bound is convex in the budget, and the sum of the prices is its slope."""
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    budget, another = (least + round(part * (most - least)) for part in (share, other))
    here, there = (fluid_bound(trace, some, machine) for some in (budget, another))
    slope = sum(here.memory_prices.values())
    line = here.makespan_us - slope * (another - budget)
    assert there.makespan_us >= line - 1e-5 * here.makespan_us
    assert all(0 <= call < len(trace.calls) for call in here.memory_prices)


def test_a_byte_more_saves_what_its_price_says(chain):
    least, peak = trace_minimum_bytes(chain, BYTES), trace_peak_bytes(chain, BYTES)
    bounds = [fluid_bound(chain, budget, SLOW) for budget in range(least, peak + 1)]
    assert bounds[0].makespan_us > bounds[1].makespan_us
    assert sum(bounds[0].memory_prices.values()) > 0
    assert sum(bounds[-1].memory_prices.values()) == pytest.approx(0, abs=1e-6)


@settings(max_examples=80)
@given(traces(), st.floats(0, 1))
def test_no_planner_beats_the_lp_where_the_host_has_room_for_the_inputs_alone(trace, share):
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    budget, host = least + round(share * (most - least)), input_bytes(trace)
    bound = fluid_bound(trace, budget, SLOW, resident=True, host_budget_bytes=host)
    for planner in (Prefix(steps=3), Dtr()):
        try:
            plan = planner.plan(Question(trace, budget, SLOW, host_budget_bytes=host))
        except Infeasible:
            continue
        assert bound is not None
        assert plan.makespan_us >= bound.makespan_us * (1 - 1e-6)
