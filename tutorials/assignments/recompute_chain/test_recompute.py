"""The public tests of the assignment.

They try the planner of `--planner`, else of `adapters.py` in this folder; `--law-seed` decides the
hidden chains. Read next: README.md.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

import ooctrain as oc
from ooctrain.course.measures import budget_bytes_of, par_us, step_of
from ooctrain.course.rubric import read_rubric
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Run, SwapOut
from ooctrain.sched.verify import verify

WHOLE = oc.Granule(1, ranges=False)
MACHINE = oc.Machine("toy", 1, 1, link_bytes_per_us=10)
MEASURES = read_rubric(Path(__file__).parent).measures
STAGES = 36


def equal_chain(stages=STAGES):
    """Stages of 10 bytes, 1 us forward and 2 us backward."""
    values, nothing = [10] * (stages + 1), [0] * stages
    return oc.chain(values, values, [1] * stages, [2] * stages, nothing, nothing)


def unlike_chain(rng):
    """From 12 to 24 stages of 5 to 15 bytes, 1 to 3 us forward."""
    stages = rng.randint(12, 24)
    values = [rng.randint(5, 15) for _ in range(stages + 1)]
    forward, nothing = [rng.randint(1, 3) for _ in range(stages)], [0] * stages
    return oc.chain(values, values, forward, [2 * time for time in forward], nothing, nothing)


def computing_us(trace, *phases):
    """What all calls take, or those of some phases."""
    chosen = [call for call in trace.calls if not phases or call.phase in phases]
    return sum(call.duration_ns for call in chosen) / 1000


def made(planner, trace, budget_bytes):
    """A verified plan."""
    plan = planner.plan(Question(trace, budget_bytes, MACHINE, granule=WHOLE))
    verify(plan, trace, budget_bytes, MACHINE)
    return plan


def runs(plan):
    """{call: how often it runs}."""
    return Counter(i.call for i in plan.schedule if isinstance(i, Run))


def test_nothing_runs_twice_where_all_fits(planner):
    plan = made(planner, equal_chain(), 1000)
    twice = sum(count > 1 for count in runs(plan).values())
    assert not twice, f"all values fit, and {twice} calls run more than once"
    least_us = computing_us(plan.trace)
    assert plan.makespan_us == least_us, f"the calls take {least_us} us, yours {plan.makespan_us}"


def test_nothing_is_sent_to_the_host(planner):
    plan = made(planner, equal_chain(), 250)
    sent = sum(isinstance(one, SwapOut) for one in plan.schedule)
    assert not sent, f"{sent} values are sent to the host; they are computed again instead"


def test_a_chain_fits_in_the_root_of_its_memory(planner):
    """37 values of 10 bytes; 6 borders, a segment of 6, and what a call needs are some 18."""
    plan = made(planner, equal_chain(), 180)
    assert plan.peak_bytes <= 180, f"the budget is 180 bytes, your plan needs {plan.peak_bytes}"


def test_no_call_runs_more_than_twice(planner):
    for budget_bytes in (350, 250, 200):
        most = max(runs(made(planner, equal_chain(), budget_bytes)).values())
        assert most <= 2, f"in {budget_bytes} bytes a call runs {most} times; twice is enough"


@pytest.mark.parametrize("number", range(5))
def test_hidden_chains(planner, number, request):
    trace = unlike_chain(random.Random(f"{request.config.getoption('law_seed')}/{number}"))
    budget_bytes = int(0.8 * sum(v.nbytes for v in trace.variables if v.kind == "activation"))
    plan = made(planner, trace, budget_bytes)
    most_us = computing_us(trace) + computing_us(trace, "forward")
    assert plan.makespan_us <= most_us, (
        f"one more forward pass is enough, {most_us:g} us in all; yours takes {plan.makespan_us:g}"
    )


@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: f"{m.model}-{m.budget}")
def test_par(planner, measure):
    trace, budget_bytes, machine = step_of(measure), budget_bytes_of(measure), measure.machine
    plan = planner.plan(Question(trace, budget_bytes, oc.machine(machine), granule=WHOLE))
    verify(plan, trace, budget_bytes, oc.machine(machine))
    ratio = plan.makespan_us / par_us(measure)
    print(f"{measure.model}, {measure.budget}: {plan.makespan_us:.0f} us, {ratio:.2f} x par")
    most = measure.none_ratio
    assert ratio < most, f"your plan takes {ratio:.2f} times par; from {most:g} on no points"
