"""What the papers prove about planning, on random instances; the truth is searched for, not told.

On tiny random steps and chains, fluid <= relaxed <= exact <= every
planner that moves whole values, and each of these numbers is found by other code: an LP, a search
byte by byte, a search value by value, the simulator. Sources: paper 002, sections 3 to 5; where the
print is wrong, docs/errata.md. Read next: `test_exact.py`, `test_partition_families.py`,
`tests/unit/test_swap_planners.py` (dynprog against every ordered schedule),
`tests/errata/test_errata_002.py` (lemma 3).
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from support.tiny_steps import tiny_step

import ooctrain as oc
from ooctrain.errors import Infeasible
from ooctrain.sched.bounds.exact import exact_makespan_us
from ooctrain.sched.bounds.lp_bound import fluid_bound
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.greedy import shortest_prefix
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.chain_view import chain_view
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule, SwapIn, SwapOut
from ooctrain.step.chain import chain
from ooctrain.testing.random_traces import random_machine, random_trace

#: One byte per us, as in `sched/bounds/exact.py`.
SHARED = oc.Machine("tiny", 1, 1, link_bytes_per_us=1, link="shared")
#: Whole values only.
WHOLE = Granule(1, ranges=False)
#: Those that run each call once.
SWAPPERS = ("naive", "window", "window-cyclic", "lms", "lms-auto", "lms-grid", "vdnn", "vdnn-all",
            "vdnn-conv", "hmms", "greedy", "dynprog", "belady", "lru")  # fmt: skip
SLACK_US = 1e-6


def steps(count: int, first: int):
    """(trace, budget) of random tiny steps, budgets from the least to the peak."""
    for seed in range(first, first + count):
        rng = random.Random(seed)
        trace = tiny_step(rng, most_stages=2)
        least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
        yield trace, rng.randint(least, most)


def makespan_us(spec: str, trace, budget_bytes: int, granule: Granule) -> float | None:
    try:
        plan = get_planner(spec).plan(Question(trace, budget_bytes, SHARED, granule=granule))
    except Infeasible:
        return None
    return plan.makespan_us


def test_fluid_is_at_most_relaxed_is_at_most_exact_is_at_most_every_whole_planner():
    compared = dict.fromkeys(SWAPPERS, 0)
    apart = 0
    for trace, budget_bytes in steps(8, first=700):
        fluid = fluid_bound(trace, budget_bytes, SHARED, recompute=False).makespan_us
        relaxed = exact_makespan_us(trace, budget_bytes, partial=True)
        exact = exact_makespan_us(trace, budget_bytes, partial=False)
        assert fluid <= relaxed * (1 + SLACK_US)
        assert exact is None or relaxed <= exact
        apart += exact is not None and fluid < exact
        for spec in SWAPPERS:
            found = makespan_us(spec, trace, budget_bytes, WHOLE)
            if found is not None:
                assert exact is not None, spec
                assert found >= exact - SLACK_US, spec
                compared[spec] += 1
    assert min(compared.values()) > 0, compared
    assert apart


def random_chain(rng: random.Random, stages: int, unit: int = 1):
    """Sizes in multiples of some bytes; x_0, which persists, has none."""

    def draw(count: int, low: int, top: int, factor: int = unit) -> list[int]:
        return [factor * rng.randint(low, top) for _ in range(count)]

    return chain(
        [0, *draw(stages, 1, 6)], draw(stages + 1, 0, 3), draw(stages, 0, 5, 1),
        draw(stages, 1, 6, 1), draw(stages, 0, 2), draw(stages, 0, 3),
    )  # fmt: skip


def test_in_the_fractional_relaxation_no_choice_beats_greedys_prefix():
    """Theorem 2: the first M_peak - M bytes, whoever holds them, are as good as any others, and
    greedy's whole prefix is the shortest that holds them. The LP chooses freely.
    """
    rng, cut, machine = random.Random(21), 0, replace(SHARED, link_bytes_per_us=10)
    for _ in range(30):
        trace = random_chain(rng, rng.randint(2, 6), unit=10)
        view = chain_view(trace, machine)
        least, most = view.minimum()[0], view.peak()[0]
        budget_bytes = rng.randint(least, most)
        prefix = shortest_prefix(view, budget_bytes)
        plan = get_planner("belady:pieces=1000000").plan(Question(trace, budget_bytes, machine))
        sent = [i.var for i in plan.schedule if isinstance(i, SwapOut) for _ in range(i.lo, i.hi)]
        assert len(sent) == most - budget_bytes
        assert {v for i in prefix for v in view.variables(i)} >= set(sent)
        assert not prefix or sum(view.x[i] for i in prefix[:-1]) < len(sent)
        bound = fluid_bound(trace, budget_bytes, machine, recompute=False, resident=True)
        assert plan.makespan_us == pytest.approx(bound.makespan_us, abs=0.25)
        cut += sum(view.x[i] for i in prefix) > len(sent)
    assert cut > 5


@pytest.mark.parametrize(
    "spec", ["keep-all", "belady", "greedy", "dynprog", "vdnn", "window", "hmms", "lru", "rotor",
             "chen-sqrt", "pofo", "prefix", "auto"],
)  # fmt: skip
def test_at_the_in_core_peak_nothing_moves_and_nothing_runs_again(spec):
    for seed in range(8):
        trace = random_chain(random.Random(seed), 4)
        most = chain_view(trace, SHARED).peak()[0]
        plan = get_planner(spec).plan(Question(trace, most, SHARED))
        assert not [i for i in plan.schedule if isinstance(i, SwapIn | SwapOut)]
        assert plan.makespan_us == sum(call.duration_ns for call in trace.calls) / 1000


@pytest.mark.parametrize("spec", ["keep-all", "belady", "window-cyclic", "prefix", "auto"])
def test_where_everything_fits_parameters_stay_too(spec):
    for seed in range(40):
        rng = random.Random(seed)
        trace, machine = random_trace(rng), random_machine(rng)
        plan = get_planner(spec).plan(Question(trace, trace_peak_bytes(trace, BYTES), machine))
        assert not [i for i in plan.schedule if isinstance(i, SwapOut)]


@pytest.mark.parametrize("spec", ["naive", "belady", "greedy", "dynprog", "vdnn", "rotor", "pofo",
                                  "chen-sqrt", "lms-auto", "prefix"])  # fmt: skip
def test_a_byte_below_the_minimum_there_is_a_witness(spec):
    planner = get_planner(spec)
    for trace, _ in steps(6, first=800):
        with pytest.raises(Infeasible) as refused:
            planner.plan(Question(trace, 0, SHARED))
        least = refused.value.minimum_bytes
        assert planner.plan(Question(trace, least, SHARED)).peak_bytes <= least
        with pytest.raises(Infeasible) as refused:
            planner.plan(Question(trace, least - 1, SHARED))
        assert refused.value.minimum_bytes == least
        assert refused.value.witness_call in {call.name for call in trace.calls}


@pytest.mark.parametrize("recompute", [False, True])
def test_the_optimum_and_its_bound_never_get_worse_with_memory(recompute):
    falls = 0
    for trace, _ in steps(5, first=900):
        least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
        budgets = range(least, most + 1)
        exact = [exact_makespan_us(trace, b, recompute=recompute) for b in budgets]
        bounds = [fluid_bound(trace, b, SHARED, recompute=recompute).makespan_us for b in budgets]
        assert exact == sorted(exact, reverse=True)
        assert all(b <= a + SLACK_US for a, b in itertools.pairwise(bounds))
        falls += exact[0] > exact[-1]
    assert falls


@pytest.mark.parametrize("spec", ["belady", "dynprog", "greedy"])
def test_the_best_plan_up_to_a_budget_never_gets_worse(spec):
    """A plan stays legal with more memory; so the best over all smaller budgets is monotone, and
    the bound lies below each of them.
    """
    for seed in range(6):
        trace = random_chain(random.Random(seed), 5)
        view = chain_view(trace, SHARED)
        best = float("inf")
        for budget_bytes in range(view.minimum()[0], view.peak()[0] + 1):
            plan = get_planner(spec).plan(Question(trace, budget_bytes, SHARED))
            assert plan.peak_bytes <= budget_bytes
            best = min(best, plan.makespan_us)
        assert best == plan.makespan_us == sum(c.duration_ns for c in trace.calls) / 1000
