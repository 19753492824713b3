"""Laws of planners, of `lower` and of the bounds, on random traces.

`Belady`, the test vehicle of `lower`, evicts what is needed last: offline caching (Belady 1966), in
bytes.
"""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooctrain.cost import Machine
from ooctrain.errors import Infeasible
from ooctrain.sched.base import check_host, infeasible, make_plan
from ooctrain.sched.bounds import lower_bound
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.decisions import Decisions, Gap, possible_gaps, runs_once
from ooctrain.sched.lower import lower, lower_timed
from ooctrain.sched.profile import tabulate
from ooctrain.sched.registry import get_planner
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import verify
from ooctrain.testing.check_planner import check_planner
from ooctrain.testing.interpreter import in_core, interpret
from ooctrain.testing.random_decisions import random_decisions
from ooctrain.testing.random_traces import random_values
from ooctrain.testing.strategies import GRANULES, SEEDS, machines, traces
from ooctrain.trace import Trace

PLANNERS = [
    "keep-all", "naive", "window", "window:count=occurrence", "window:size=3,persistent=host",
    "window:size=0.5,persistent=device", "auto",
]  # fmt: skip


class Belady:
    """Each call at which memory is short evicts the bytes whose next use is farthest."""

    name = "belady"

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        schedule = lower(self.decide(trace, budget_bytes, machine, granule), trace, budget_bytes,
                         machine, granule)  # fmt: skip
        plan = make_plan(schedule, trace, machine)
        check_host(self.name, plan, host_budget_bytes)
        return plan

    def decide(
        self, trace: Trace, budget_bytes: int, machine: Machine, granule: Granule
    ) -> Decisions:
        runs = runs_once(trace)
        gaps = [gap for gap in possible_gaps(trace, runs) if gap.after >= 0]
        everything = tabulate(Decisions(runs, tuple(gaps)), trace, machine, granule)
        least = max([everything.start_bytes, *everything.resident_bytes])
        if least > budget_bytes:
            raise infeasible(self.name, budget_bytes, least, "")
        resident = tabulate(Decisions(runs), trace, machine, granule).resident_bytes
        return Decisions(runs, tuple(self._evict(gaps, resident, budget_bytes, granule)))

    def _evict(self, gaps: list[Gap], resident: list[int], budget_bytes: int, granule: Granule):
        open_gaps: list[tuple[int, int, int, Gap]] = []
        evicted_until = [0] * (len(resident) + 1)
        opening = sorted(gaps, key=lambda gap: -gap.after)
        away = 0
        for position, bytes_now in enumerate(resident):
            away -= evicted_until[position]
            while away + budget_bytes < bytes_now and open_gaps:
                _, _, lo, gap = heapq.heappop(open_gaps)
                if gap.before <= position:
                    continue
                short = granule.granted(bytes_now - budget_bytes - away)
                hi = min(gap.hi, lo + short) if granule.ranges else gap.hi
                yield Gap(gap.var, lo, hi, gap.after, gap.before)
                away += granule.granted(hi - lo)
                evicted_until[gap.before] += granule.granted(hi - lo)
                if hi < gap.hi:
                    heapq.heappush(open_gaps, (-gap.before, gap.var, hi, gap))
            while opening and opening[-1].after == position:
                gap = opening.pop()
                heapq.heappush(open_gaps, (-gap.before, gap.var, 0, gap))


@pytest.mark.parametrize("spec", PLANNERS)
def test_planners_keep_the_laws(spec):
    assert check_planner(get_planner(spec), examples=25, seed=1, time_limit_s=15) >= 2


def test_a_decision_planner_over_lower_keeps_the_laws():
    assert check_planner(Belady(), examples=40, seed=2, time_limit_s=15) >= 2


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
    with pytest.raises(Infeasible) as refused:
        lower(decisions, trace, 0, machine, granule)
    least = refused.value.minimum_bytes
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


@settings(max_examples=60)
@given(traces(), machines(), GRANULES)
def test_budgets_in_percent_are_what_the_planners_mean(trace, machine, granule):
    """100 % is what keep-all needs, and 0 % is enough for those that swap everything."""
    least, most = trace_minimum_bytes(trace, granule), trace_peak_bytes(trace, granule)
    keep_all = get_planner("keep-all")
    assert keep_all.plan(trace, most, machine, granule=granule).peak_bytes <= most
    with pytest.raises(Infeasible) as refused:
        keep_all.plan(trace, most - 1, machine, granule=granule)
    assert refused.value.minimum_bytes == most
    for spec in ("window", "auto", "window:count=occurrence"):
        with pytest.raises(Infeasible) as refused:
            get_planner(spec).plan(trace, 0, machine, granule=granule)
        assert refused.value.minimum_bytes <= max(least, bound_pairs_bytes(trace, granule))


def bound_pairs_bytes(trace: Trace, granule: Granule) -> int:
    """Both values of a parameter that is read after its update are held (`bound_to_device`)."""
    return trace_minimum_bytes(trace, granule) + sum(
        granule.granted(trace.variables[new].nbytes) for new in trace.carries
    )
