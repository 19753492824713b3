"""Host memory is a budget like the device's: `combined` and `prefix` search within both."""

from __future__ import annotations

import random

import pytest
from support.quick import quick

from ooctrain.errors import Infeasible
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.checkmate.checkmate import Checkmate
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planning.host_room import input_bytes
from ooctrain.sched.schedule import BYTES
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine
from ooctrain.testing.random_traces import random_trace

MACHINE = Machine("plain", 1, 1, 1.0, link="duplex", latency_us=0.0, call_overhead_us=0.0)


def plan_within(planner, trace, device_bytes, host_bytes):
    """A plan that the verifier finds within both budgets; None where there is none."""
    try:
        plan = planner.plan(trace, device_bytes, MACHINE, host_budget_bytes=host_bytes)
    except Infeasible:
        return None
    verify(plan, trace, device_bytes, MACHINE, host_budget_bytes=host_bytes)
    return plan


def combined_plans_where_checkmate_does(seed):
    """With the host memory that `checkmate` needs, and with some more."""
    rng = random.Random(seed)
    trace = random_trace(rng, calls=rng.randint(3, 8), max_bytes=24, duration_ns=20_000)
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    device = rng.randint(least, max(least, most - 1))
    inputs = input_bytes(trace)
    host = inputs + rng.choice([0, 0, rng.randint(0, most)])
    theirs = plan_within(Checkmate(), trace, device, inputs)
    ours = plan_within(Combined(evaluations=300), trace, device, host)
    assert theirs is None or ours is not None
    if theirs is not None and host == inputs and device < most:
        assert ours.makespan_us <= theirs.makespan_us
    return theirs is not None


@pytest.mark.parametrize("first", quick([0, 50, 100, 150], 0))
def test_combined_plans_where_checkmate_does(first):
    count = 50 if first else 12
    assert sum(map(combined_plans_where_checkmate_does, range(first, first + count))) > count // 3
