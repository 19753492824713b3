"""The public tests of the assignment.

They try the planner of `--planner`, else of `adapters.py` in this folder; `--law-seed` decides the
hidden steps. Read next: README.md.
"""

import random
from pathlib import Path

import pytest

import ooctrain as oc
from ooctrain.course.measures import budget_bytes_of, par_us, step_of
from ooctrain.course.rubric import read_rubric
from ooctrain.sched.bounds.lp_bound import fluid_bound
from ooctrain.sched.budget import trace_minimum_bytes
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import SwapIn, SwapOut
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.testing.random_traces import FakeOp

WHOLE = oc.Granule(1, ranges=False)
MACHINE = oc.Machine("toy", 1, 1, link_bytes_per_us=10, link="duplex")
MEASURES = read_rubric(Path(__file__).parent).measures


def reads(*names, size_bytes=10):
    """A step that reads values in this order, 1 us each; a copy of a value takes 1 us."""
    builder, values = TraceBuilder(), {}
    for name in dict.fromkeys(names):
        values[name] = builder.variable(name, (size_bytes,), "uint8", "input")
    for place, name in enumerate(names):
        out = builder.variable(f"out{place}", (1,), "uint8")
        builder.call(f"read{place}", FakeOp(name), (values[name],), (out,), duration_ns=1000)
    return builder.build()


def there_and_back(sizes, forward_ns=1000, backward_ns=2000):
    """A step whose values are made forward and read backward."""
    builder = TraceBuilder()
    values = [builder.variable("x", (sizes[0],), "uint8", "input")]
    for stage, size in enumerate(sizes):
        values.append(builder.variable(f"a{stage}", (size,), "uint8"))
        builder.call(f"F{stage}", FakeOp("f"), (values[-2],), (values[-1],), duration_ns=forward_ns)
    gradient = builder.variable("g", (8,), "uint8", "grad")
    builder.call("loss", FakeOp("loss"), (values[-1],), (gradient,), phase="loss", duration_ns=0)
    for stage in reversed(range(len(sizes))):
        before, gradient = gradient, builder.variable(f"g{stage}", (8,), "uint8", "grad")
        builder.call(
            f"B{stage}", FakeOp("b"), (before, values[stage], values[stage + 1]), (gradient,),
            phase="backward", duration_ns=backward_ns,
        )  # fmt: skip
    return builder.build()


def made(planner, trace, budget_bytes):
    """A verified plan."""
    plan = planner.plan(Question(trace, budget_bytes, MACHINE, granule=WHOLE))
    verify(plan, trace, budget_bytes, MACHINE)
    return plan


def moved(plan, kind):
    """Names of what an instruction moves, in the order of the list."""
    return [plan.trace.variables[i.var].name for i in plan.schedule if isinstance(i, kind)]


def test_the_least_budget_is_the_largest_call(planner):
    trace = there_and_back([8, 9, 10, 11, 12])
    with pytest.raises(oc.Infeasible) as refused:
        planner.plan(Question(trace, 1, MACHINE, granule=WHOLE))
    said, least = refused.value.minimum_bytes, trace_minimum_bytes(trace, WHOLE)
    assert said == least, f"{least} bytes are the least that works; your refusal says {said}"


def test_nothing_moves_where_all_fits(planner):
    plan = made(planner, there_and_back([8, 9, 10, 11, 12]), 10_000)
    sent, fetched = moved(plan, SwapOut), moved(plan, SwapIn)
    assert sent == [], f"all values fit, and yours sends {', '.join(sent)} to the host"
    assert fetched == ["x"], f"only the input comes from the host, once; yours fetches {fetched}"


def test_what_comes_next_is_fetched_while_a_call_runs(planner):
    """Nine calls of 1 us, nine copies of 1 us, room for three values: only the first one waits."""
    plan = made(planner, reads(*"pqrstuvwx"), 35)
    assert plan.makespan_us <= 10.5, f"copies and calls overlap: 10 us, not {plan.makespan_us:.1f}"


def test_what_comes_again_soon_stays(planner):
    plan = made(planner, reads(*"ppqpqrqrsrs"), 35)
    fetched = "".join(sorted(moved(plan, SwapIn)))
    assert fetched == "pqrs", f"each value is fetched once; yours fetches {fetched}"


@pytest.mark.parametrize("number", range(5))
def test_hidden_steps(planner, number, request):
    rng = random.Random(f"{request.config.getoption('law_seed')}/{number}")
    sizes = [rng.randint(8, 30) for _ in range(rng.randint(8, 16))]
    trace = there_and_back(sizes, forward_ns=2000, backward_ns=4000)
    least, most = trace_minimum_bytes(trace, WHOLE), sum(sizes)
    budget_bytes = least + (most - least) // 3
    plan = made(planner, trace, budget_bytes)
    bound_us = fluid_bound(trace, budget_bytes, MACHINE, recompute=False).makespan_us
    ratio = plan.makespan_us / bound_us
    assert ratio <= 1.6, f"your plan takes {ratio:.2f} times what no planner beats; 1.6 is the most"


@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: f"{m.model}-{m.budget}")
def test_bound(planner, measure):
    trace, budget_bytes, machine = step_of(measure), budget_bytes_of(measure), measure.machine
    plan = planner.plan(Question(trace, budget_bytes, oc.machine(machine), granule=WHOLE))
    verify(plan, trace, budget_bytes, oc.machine(machine))
    ratio = plan.makespan_us / par_us(measure)
    print(f"{measure.model}, {measure.budget}: {plan.makespan_us:.0f} us, {ratio:.2f} x the bound")
    most = measure.none_ratio
    assert ratio < most, f"your plan takes {ratio:.2f} times the bound; from {most:g} on no points"
