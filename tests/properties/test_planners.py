"""Laws of planners, of `lower` and of the bounds, on random traces."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.quick import all_but
from support.random_decisions import random_decisions
from support.strategies import GRANULES, SEEDS, machines, traces

from ooctrain.errors import Infeasible
from ooctrain.sched.bounds.closed import lower_bound
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.lower import lower, lower_timed
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import verify
from ooctrain.step.trace import Trace
from ooctrain.testing.check_planner import check_planner
from ooctrain.testing.interpreter import in_core, interpret
from ooctrain.testing.random_traces import random_values

PLANNERS = [
    "keep-all", "naive", "window", "window:count=occurrence", "window:size=3,persistent=host",
    "window:size=0.5,persistent=device", "auto",
]  # fmt: skip
SWAP_PLANNERS = [
    "belady", "belady:pieces=1", "dynprog", "dynprog:exact_stages=0", "greedy", "hmms", "lms",
    "lms:swapout_threshold=2,swapin_ahead=3,swapin_groupby=2", "lms-auto", "lms-grid", "lru",
    "vdnn", "vdnn-all", "vdnn-conv", "window-cyclic",
    "window-cyclic:resident=false,tuned=false,ordered=false",
]  # fmt: skip


@pytest.mark.parametrize(
    "spec",
    # `auto` asks most of the others: ten seconds.
    [
        pytest.param(spec, marks=pytest.mark.slow if spec == "auto" or ":" in spec else ())
        for spec in PLANNERS
    ],
)
def test_planners_keep_the_laws(spec):
    examples = 6 if spec == "auto" else 10  # it asks all the others
    assert check_planner(get_planner(spec), examples=examples, seed=1, time_limit_s=60) >= 2


@pytest.mark.slow
def test_auto_names_no_budget_where_host_memory_lacks():
    """With this seed it named what `dtr` needs on the device; `dtr` then lacked host memory."""
    laws = ("the host budget is kept",)
    assert check_planner(get_planner("auto"), examples=6, seed=0, time_limit_s=60, laws=laws) >= 2


@pytest.mark.parametrize(
    "spec",
    # Variants of a planner that stands here already, and the two that search longest.
    all_but(
        SWAP_PLANNERS,
        *(spec for spec in SWAP_PLANNERS if ":" in spec), "window-cyclic", "hmms", "lms-grid",
    ),
)  # fmt: skip
def test_swap_planners_keep_the_laws(spec):
    assert check_planner(get_planner(spec), examples=6, seed=3, time_limit_s=8) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("spec", [s for s in (*PLANNERS, *SWAP_PLANNERS) if s != "auto"])
def test_they_keep_the_laws_for_long(spec):
    assert check_planner(get_planner(spec), examples=40, seed=2, time_limit_s=60) >= 2


@settings(max_examples=300)
@given(traces(), machines(), GRANULES, SEEDS, st.integers(0, 40))
def test_any_decisions_lower_to_a_legal_list_with_the_engines_own_times(
    trace, machine, granule, seed, slack_bytes
):
    decisions = random_decisions(trace, random.Random(seed), granule)
    least = least_budget(decisions, trace, machine, granule)
    lowered = lower_timed(decisions, trace, least + slack_bytes, machine, granule)
    verify(lowered.schedule, trace, least + slack_bytes)
    timeline = simulate(lowered.schedule, trace, machine)
    assert round(timeline.makespan_us * 1000) == lowered.makespan_ns
    starts = {event.index: round(event.start_us * 1000) for event in timeline.events}
    assert starts == {index: lowered.start_ns[index] for index in starts}


def least_budget(decisions, trace, machine, granule):
    try:
        lower(decisions, trace, 0, machine, granule)
    except Infeasible as refusal:
        least = refusal.minimum_bytes
    else:
        return 0  # all that the step touches is empty
    with pytest.raises(Infeasible) as refused:
        lower(decisions, trace, least - 1, machine, granule)
    assert refused.value.minimum_bytes == least
    return least


@settings(max_examples=40)
@given(traces(), machines(), GRANULES, SEEDS)
def test_lowered_lists_give_in_core_results_three_times_in_a_row(trace, machine, granule, seed):
    rng = random.Random(seed)
    decisions = random_decisions(trace, rng, granule)
    budget_bytes = least_budget(decisions, trace, machine, granule)
    schedule = lower(decisions, trace, budget_bytes, machine, granule)
    start = random_values(trace, rng)
    for _ in range(3):
        outcome = interpret(trace, schedule, start, rng, shared_link=machine.link == "shared")
        assert outcome.persistent == in_core(trace, start).persistent
        start = {**random_values(trace, rng), **outcome.persistent}


@settings(max_examples=100)
@given(traces(), machines(), GRANULES, SEEDS, st.booleans())
def test_no_list_beats_the_bounds(trace, machine, granule, seed, recompute):
    decisions = random_decisions(trace, random.Random(seed), granule, recompute=recompute)
    budget_bytes = least_budget(decisions, trace, machine, granule)
    lowered = lower_timed(decisions, trace, budget_bytes, machine, granule)
    bound = lower_bound(trace, budget_bytes, machine, recompute=recompute)
    assert lowered.makespan_ns / 1000 >= bound.makespan_us - 1e-6


@pytest.mark.slow
@settings(max_examples=25)
@given(traces(), machines(), GRANULES)
def test_budgets_in_percent_are_what_the_planners_mean(trace, machine, granule):
    """100 % is what keep-all needs, and 0 % is enough for those that swap everything."""
    least, most = trace_minimum_bytes(trace, granule), trace_peak_bytes(trace, granule)
    keep_all = get_planner("keep-all")
    assert keep_all.plan(Question(trace, most, machine, granule=granule)).peak_bytes <= most
    with pytest.raises(Infeasible) as refused:
        keep_all.plan(Question(trace, most - 1, machine, granule=granule))
    assert refused.value.minimum_bytes == most
    for spec in ("window", "auto", "window:count=occurrence"):
        with pytest.raises(Infeasible) as refused:
            get_planner(spec).plan(Question(trace, 0, machine, granule=granule))
        assert refused.value.minimum_bytes <= max(least, bound_pairs_bytes(trace, granule))


def bound_pairs_bytes(trace: Trace, granule: Granule) -> int:
    """Both values of a parameter that is read after its update are held (`bound_to_device`)."""
    return trace_minimum_bytes(trace, granule) + sum(
        granule.granted(trace.variables[new].nbytes) for new in trace.carries
    )
