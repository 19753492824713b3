"""Laws of claims: no number of a plan is believed, and no bound is above what can be done.

A plan says how much memory it takes, how long its step, and what bound nobody beats. Of a true plan
each of these may be changed by a little or by much: the verifier refuses it, unless the change is
within a rounding. And a bound says of every list that it takes at least so long: of tiny steps the
best list is known by search, so no bound may be above it, and some must reach it.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from properties.test_exact import LINKS, cases, check_bounds, lp_us
from support.directed import always
from support.strategies import SEEDS

from ooctrain.errors import Infeasible, ScheduleError
from ooctrain.sched.bounds.closed import lower_bound
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import LowerBound
from ooctrain.sched.verify import verify
from ooctrain.testing.random_traces import random_machine, random_trace

CLAIMS = ("makespan_us", "peak_bytes", "host_peak_bytes", "lower_bound")
#: From a little more than what roundings of a long step are, to a lie.
CHANGES = (1e-6, 1e-4, 0.01, 0.5, 3.0)
#: (seed of a plan, by how much its claims are changed).
CLAIMED = [(seed, change) for seed in range(1, 7) for change in (0.01, 1e-4)]


def a_plan(seed):
    """A plan of a random step whose calls take some time, by some planner; None: it refuses."""
    rng = random.Random(seed)
    trace = random_trace(rng, calls=rng.randint(2, 8), max_bytes=5000, duration_ns=10**9)
    machine, planner = random_machine(rng), get_planner(rng.choice(["naive", "window", "lru"]))
    try:
        planner.plan(Question(trace, 0, machine))
    except Infeasible as refused:
        budget = refused.minimum_bytes
    else:
        return None
    found = planner.plan(Question(trace, budget, machine))
    return replace(found, lower_bound=lower_bound(trace, budget, machine)), trace, machine


def refused(plan, trace, machine):
    """The rule that a plan breaks; None: it is sound."""
    try:
        verify(plan, trace, None, machine)
    except ScheduleError as error:
        return error.rule
    return None


def check_claims(seed, change):
    """Each claim of a plan, too high and too low by a share."""
    made = a_plan(seed)
    if made is None:
        return
    plan, trace, machine = made
    assert refused(plan, trace, machine) is None
    for claim in CLAIMS:
        for sign in (1, -1):
            assert bool(refused(changed(plan, claim, sign * change), trace, machine)) == (
                _tells(plan, claim, sign * change)
            ), f"{claim} changed by {sign * change:.0e}"


def changed(plan, claim, share):
    """The plan with another claim; a bound is placed beside the makespan, since it may be less."""
    if claim == "lower_bound":
        return replace(plan, lower_bound=LowerBound(plan.makespan_us * (1 + share), "claimed"))
    true = getattr(plan, claim)
    if claim == "makespan_us":
        return replace(plan, makespan_us=true * (1 + share))
    by = max(1, int(true * abs(share)))  # a byte at least
    return replace(plan, **{claim: true + by if share > 0 else true - by})


def _tells(plan, claim, share):
    """Whether the change is one: above what is rounded, and of a bound upwards."""
    if claim == "lower_bound":
        return plan.makespan_us * share > plan.makespan_us * 1e-9 + 0.001
    if claim == "makespan_us":
        return abs(plan.makespan_us * share) >= 0.0005
    return True


@settings(max_examples=30)
@given(SEEDS, st.sampled_from(CHANGES))
@always(CLAIMED)
def test_whatever_a_plan_claims_is_found_out(seed, change):
    check_claims(seed, change)


# Bounds.


def check_tight_bounds(count=30):
    """Bounds are at most the best list's time; returns how many of them are just that."""
    reached = {"closed": 0, "LP": 0}
    for recompute in (False, True):
        for case in cases(count, first=400, most_stages=2):
            _, trace, budget, duplex = case
            best = check_bounds(*case, recompute=recompute)
            closed = lower_bound(trace, budget, LINKS[duplex], recompute=recompute).makespan_us
            reached["LP"] += lp_us(trace, budget, duplex, recompute=recompute) >= best * (1 - 1e-5)
            reached["closed"] += closed >= best * (1 - 1e-9)
    return reached


def test_no_bound_can_be_beaten_and_some_can_be_reached():
    reached = check_tight_bounds()
    assert min(reached.values()) >= 3, reached
