"""capuchin: its laws, its lanes, and its order of letting go on small steps."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ooctrain as oc
from ooctrain.errors import Infeasible
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import resolve_budget, trace_peak_bytes
from ooctrain.sched.planners.capuchin import Capuchin, Lane, LetGo, Policy, _Choosing
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, SwapIn, SwapOut
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine
from ooctrain.testing.check_planner import check_planner

PCIE = oc.machine("v100-pcie")
#: A byte takes 1 us each way; both ways at once.
PLAIN = Machine("plain", 1, 1, 1.0, link="duplex", latency_us=0.0, call_overhead_us=0.0)


@pytest.fixture(scope="module")
def chain():
    """Stages 0 to 5; `F_i` reads x_i and writes x_{i+1}, `B_i` reads x_i, x_{i+1}, y_{i+1}."""
    return oc.chain([8] * 7, [8] * 7, [20, 30, 40, 50, 60, 70], [30] * 6, [0] * 6, [0] * 6)


def names(trace, variables):
    return {trace.variables[v].name for v in variables}


def policy_of(trace, machine=PLAIN, budget_bytes=0):
    return Policy(Question(trace, budget_bytes, machine))


def slow(factor):
    return replace(PLAIN, link_bytes_per_us=PLAIN.link_bytes_per_us / factor)


@pytest.mark.slow
def test_capuchin_keeps_the_laws_of_planners():
    assert check_planner(Capuchin(), examples=40, seed=3, time_limit_s=120) >= 20


@pytest.mark.slow
def test_the_minimum_is_exact_on_a_network_and_every_larger_budget_has_a_plan():
    model = oc.models.build("resnet18", num_classes=10, stem="cifar")
    step = apply_rewrites(oc.trace(model, (128, 3, 32, 32)), ("fuse", "share_storage"))
    with pytest.raises(Infeasible) as refused:
        Capuchin().plan(Question(step, 0, PCIE))
    least = refused.value.minimum_bytes
    assert refused.value.witness_call in {call.name for call in step.calls}
    with pytest.raises(Infeasible):
        Capuchin().plan(Question(step, least - 1, PCIE))
    most = trace_peak_bytes(step, BYTES)
    for share in range(0, 101, 10):
        budget = least + (most - least) * share // 100
        verify(Capuchin().plan(Question(step, budget, PCIE)), step, budget, PCIE)
    plan = Capuchin().plan(Question(step, most, PCIE))
    assert plan.notes["swapped"] == plan.notes["runs_again"] == 0


busy = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=4)


@settings(max_examples=25)
@given(busy=busy, at=st.integers(0, 40), length=st.integers(1, 6))
@example(busy=[(2, 3), (6, 2)], at=3, length=1)
@example(busy=[(2, 3), (6, 2)], at=9, length=2)
def test_a_lane_finds_the_first_and_the_last_free_place(busy, at, length):
    lane, taken = Lane(), set()
    for begin, lasting in busy:
        start = lane.earliest_ns(begin, lasting)
        lane.take(start, lasting)
        assert taken.isdisjoint(range(start, start + lasting))
        taken |= set(range(start, start + lasting))

    def free(start):
        return taken.isdisjoint(range(start, start + length))

    assert lane.earliest_ns(at, length) == next(t for t in range(at, 200) if free(t))
    assert lane.latest_ns(at, length) == next(t for t in range(at - length, -99, -1) if free(t))


def test_values_with_the_most_free_time_are_swapped_first(chain):
    """x1 is away longest, then x2; one of 8 bytes is too many, then two."""
    policy = policy_of(chain, replace(PLAIN, link_bytes_per_us=100.0))
    most = trace_peak_bytes(chain, BYTES)
    assert names(chain, policy.by_free_time[:2]) == {"x1", "x2"}
    assert names(chain, policy.choose(most - 8).swapped) == {"x1"}
    assert names(chain, policy.choose(most - 16).swapped) == {"x1", "x2"}
    assert policy.choose(most) == LetGo(frozenset(), frozenset())


def test_a_value_helps_where_too_much_is_there_between_its_accesses_and_only_there(chain):
    policy = policy_of(chain)
    for var, gap in policy.intervals.items():
        for call in range(len(chain.calls)):
            choosing = _Choosing(policy, target_bytes=5)
            choosing.held[:] = 5
            choosing.held[call] = 6
            assert choosing._helps(var) == (gap.after < call < gap.before)


def test_free_time_is_the_interval_without_both_copies(chain):
    """x5 is read by F5 and next by B5, right after the loss; x4 by F4 and next by B5 ... B4."""
    policy = policy_of(chain)
    for var in policy.intervals:
        gap = policy.intervals[var]
        between = sum(call.duration_ns for call in chain.calls[gap.after + 1 : gap.before])
        copies = policy.copies_of(var, Lane(), Lane())
        assert copies.shown_ns == max(0, 2 * 8000 - between)
        assert copies.out_ns == copies.in_ns == 8000
    order = [policy.intervals[var].before for var in policy.by_free_time]
    assert order == sorted(order, reverse=True)


def test_copies_of_swapped_values_share_no_moment_of_a_lane(chain):
    """On a link that hides one or two values, all others of them would overlap."""
    for link, factor in itertools.product(("duplex", "shared"), (4, 8)):
        policy = policy_of(chain, replace(slow(factor), link=link))
        out = Lane()
        back = out if link == "shared" else Lane()
        spans = []
        for var in policy.by_free_time:
            copies = policy.copies_of(var, out, back)
            out.take(copies.leaves_ns, copies.out_ns)
            back.take(copies.returns_ns, copies.in_ns)
            assert copies.leaves_ns + copies.out_ns <= copies.returns_ns
            spans += [
                ("out", copies.leaves_ns, copies.out_ns),
                ("in", copies.returns_ns, copies.in_ns),
            ]
        for way in ({"out"}, {"in"}) if link == "duplex" else ({"out", "in"},):
            here = sorted((start, start + length) for kind, start, length in spans if kind in way)
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(here))


def test_where_the_link_is_slow_the_cheapest_per_byte_run_again_instead(chain):
    """F0 takes 20 us, F1 30: x1 costs least; x2 alone needs F1, and F0 too once x1 is gone."""
    policy = policy_of(chain, slow(1000))
    most = trace_peak_bytes(chain, BYTES)
    one = policy.choose(most - 8)
    assert (names(chain, one.dropped), one.swapped) == ({"x1"}, frozenset())
    x1, x2 = (chain.variable_by_name[name].id for name in ("x1", "x2"))
    assert policy.again_ns(x1, ()) == 20_000
    assert policy.again_ns(x2, ()) == 30_000
    assert policy.again_ns(x2, {x1}) == 50_000
    assert policy.again_ns(chain.variable_by_name["x3"].id, {x1, x2}) == 90_000


def test_what_can_be_hidden_is_swapped_and_only_then_something_runs_again(chain):
    """A link that hides some of the values: those travel, the others are computed again."""
    policy = policy_of(chain, slow(6))
    choice = policy.choose(0)
    assert choice.swapped
    assert choice.dropped
    assert choice.swapped.isdisjoint(choice.dropped)
    most = trace_peak_bytes(chain, BYTES)
    assert policy.choose(most - 8).dropped == frozenset()


def test_a_plan_that_only_swaps_what_is_hidden_costs_no_time(chain):
    fast = replace(PLAIN, link_bytes_per_us=100.0)
    most = trace_peak_bytes(chain, BYTES)
    plan = Capuchin().plan(Question(chain, most - 16, fast))
    whole = Capuchin().plan(Question(chain, most, fast))
    assert plan.notes == {"swapped": 2, "runs_again": 0}
    assert plan.makespan_us == pytest.approx(whole.makespan_us)


def test_each_swapped_value_travels_once():
    """Several backward calls read a value one after the other; it leaves before the first alone."""
    model = oc.models.build("resnet18", num_classes=10, stem="cifar")
    step = apply_rewrites(oc.trace(model, (128, 3, 32, 32)), ("fuse", "share_storage"))
    plan = Capuchin().plan(Question(step, resolve_budget(step, "85%"), PCIE))
    assert plan.notes["runs_again"] == 0
    listed = plan.schedule.instructions
    inputs = {v for v in step.initial if not step.variables[v].persistent}
    for way in (SwapOut, SwapIn):
        moved = [i.var for i in listed if isinstance(i, way) and i.var not in inputs]
        assert len(moved) == len(set(moved)) == plan.notes["swapped"] > 0


def test_values_that_cannot_be_had_again_cost_more_than_any_copy(chain):
    policy = policy_of(chain)
    x0 = chain.variable_by_name["x0"].id
    assert x0 not in policy.revivable
    assert all(policy.again_ns(var, ()) < math.inf for var in policy.revivable)
    assert (
        simulate(Capuchin().plan(Question(chain, 10**6, PLAIN)).schedule, chain, PLAIN).recompute_us
        == 0
    )


def test_a_step_of_a_few_bytes_has_a_plan_in_each_budget_from_its_least_on():
    step = oc.chain([3, 1, 6, 4, 4], [2, 1, 1, 1, 4], [5, 3, 1, 2], [17] * 4, [0] * 4, [0] * 4)
    with pytest.raises(Infeasible) as refused:
        Capuchin().plan(Question(step, 0, slow(20)))
    for budget in range(refused.value.minimum_bytes, trace_peak_bytes(step, BYTES) + 1):
        assert Capuchin().plan(Question(step, budget, slow(20))).peak_bytes <= budget
