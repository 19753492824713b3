"""The public tests of the assignment.

They try the planner of `--planner`, else of `adapters.py` in this folder; `--law-seed` decides the
hidden reads. Read next: README.md.
"""

import random
from pathlib import Path

import pytest

import ooctrain as oc
from ooctrain.course.measures import budget_bytes_of, par_us, step_of
from ooctrain.course.rubric import read_rubric
from ooctrain.sched.budget import trace_minimum_bytes
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import SwapIn, SwapOut
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.testing import check_planner
from ooctrain.testing.check_planner import LAWS
from ooctrain.testing.random_traces import FakeOp

WHOLE = oc.Granule(1, ranges=False)
MACHINE = oc.Machine("toy", 1, 1, link_bytes_per_us=10)
MEASURES = read_rubric(Path(__file__).parent).measures


def reads(*names, size_bytes=10):
    """A step that reads values in this order; each call writes one byte that is never read."""
    builder, values = TraceBuilder(), {}
    for name in dict.fromkeys(names):
        values[name] = builder.variable(name, (size_bytes,), "uint8", "input")
    for place, name in enumerate(names):
        out = builder.variable(f"out{place}", (1,), "uint8")
        builder.call(f"read{place}", FakeOp(name), (values[name],), (out,), duration_ns=1000)
    return builder.build()


def there_and_back(stages):
    """A step whose values are made forward and read backward."""
    builder = TraceBuilder()
    values = [builder.variable("x", (8,), "uint8", "input")]
    for stage in range(stages):
        values.append(builder.variable(f"a{stage}", (8 + stage,), "uint8"))
        builder.call(f"F{stage}", FakeOp("f"), (values[-2],), (values[-1],), duration_ns=1000)
    gradient = builder.variable("g", (8,), "uint8", "grad")
    builder.call("loss", FakeOp("loss"), (values[-1],), (gradient,), phase="loss", duration_ns=0)
    for stage in reversed(range(stages)):
        before, gradient = gradient, builder.variable(f"g{stage}", (8,), "uint8", "grad")
        builder.call(
            f"B{stage}", FakeOp("b"), (before, values[stage], values[stage + 1]), (gradient,),
            phase="backward", duration_ns=2000,
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


def test_nothing_moves_where_all_fits(planner):
    plan = made(planner, there_and_back(6), 10_000)
    sent, fetched = moved(plan, SwapOut), moved(plan, SwapIn)
    assert sent == [], f"all values fit, and yours sends {', '.join(sent)} to the host"
    assert fetched == ["x"], f"only the input comes from the host, once; yours fetches {fetched}"


def test_the_least_budget_is_the_largest_call(planner):
    trace = there_and_back(6)
    with pytest.raises(oc.Infeasible) as refused:
        planner.plan(Question(trace, 1, MACHINE, granule=WHOLE))
    said, least = refused.value.minimum_bytes, trace_minimum_bytes(trace, WHOLE)
    assert said == least, f"{least} bytes are the least that works; your refusal says {said}"


def test_it_plans_with_the_least(planner):
    trace = there_and_back(6)
    least = trace_minimum_bytes(trace, WHOLE)
    peak = made(planner, trace, least).peak_bytes
    assert peak <= least, f"the budget is {least} bytes, and your plan needs {peak}"


def test_the_least_recently_used_leaves(planner):
    """Three places and a byte. First in, first out would fetch p q r s p; Belady p q r s r."""
    plan = made(planner, reads("p", "q", "r", "p", "s", "q", "p", "r", "s"), 31)
    found = "".join(moved(plan, SwapIn))
    assert found == "pqrsqr", f"the least recently used leaves: pqrsqr are fetched, not {found}"


def fetched_by_lru(order, places):
    """What a cache of that size fetches if the least recently used leaves, and at once what is
    not read any more.
    """
    recent, fetched = [], []
    for at, name in enumerate(order):
        if name not in recent:
            fetched.append(name)
            recent = recent[max(0, len(recent) - places + 1) :]
        recent = [other for other in recent if other != name]
        recent += [name] * (name in order[at + 1 :])
    return fetched


def fetched_by(rule, order, places):
    """What a cache fetches that keeps another rule. `rule` chooses who leaves, of {name: (first
    read since it came, latest read, number of reads)}, knowing what is read next.
    """
    there, fetched = {}, []
    for at, name in enumerate(order):
        later = order[at + 1 :]
        if name not in there:
            fetched.append(name)
            if len(there) == places:
                del there[rule(there, order[at:])]
            there[name] = (at, at, 1)
        first, _, count = there[name]
        there[name] = (first, at, count + 1)
        there = {other: read for other, read in there.items() if other in later}
    return fetched


def next_read(name, later):
    """When it is read next."""
    return later.index(name)


#: Rules that are not the least recently used's.
RIVALS = (
    lambda there, later: min(there, key=lambda name: there[name][0]),  # first in, first out
    lambda there, later: max(there, key=lambda name: there[name][0]),  # last in, first out
    lambda there, later: max(there, key=lambda name: there[name][1]),  # most recently used
    lambda there, later: min(there, key=lambda name: there[name][2]),  # least often used
    lambda there, later: max(there, key=lambda name: next_read(name, later)),  # Belady's
    lambda there, later: min(there),  # by name
)


def telling_reads(rng):
    """(reads, places) on which each of the other rules fetches something else than LRU."""
    while True:
        places, names = rng.randint(2, 4), "abcdefg"[: rng.randint(5, 7)]
        order = [*names, *rng.choices(names, k=30)]
        wanted = fetched_by_lru(order, places)
        if all(fetched_by(rule, order, places) != wanted for rule in RIVALS):
            return order, places


@pytest.mark.parametrize("number", range(5))
def test_hidden_reads(planner, number, request):
    """Which values come, one after the other, on reads that --law-seed decides."""
    rng = random.Random(f"{request.config.getoption('law_seed')}/{number}")
    order, places = telling_reads(rng)
    plan = made(planner, reads(*order), 10 * places + 1)
    found, expected = moved(plan, SwapIn), fetched_by_lru(order, places)
    assert found == expected, (
        "law: the least recently used leaves; "
        f"{places} places, reads {''.join(order)}: {''.join(expected)} are fetched, "
        f"and by yours {''.join(found)}"
    )


def test_a_value_with_a_copy_leaves_without_another(planner):
    builder = TraceBuilder()
    names = ["a", "q", "r"] * 3
    values = {name: builder.variable(name, (10,), "uint8", "input") for name in ("q", "r")}
    values["a"] = builder.variable("a", (10,), "uint8")
    builder.call("make", FakeOp("make"), (), (values["a"],), duration_ns=1000)
    for place, name in enumerate(names):
        out = builder.variable(f"out{place}", (1,), "uint8")
        builder.call(f"read{place}", FakeOp(name), (values[name],), (out,), duration_ns=1000)
    plan = made(planner, builder.build(), 21)
    fetched, sent = moved(plan, SwapIn).count("a"), moved(plan, SwapOut)
    assert fetched == 2, f"a leaves twice and is fetched twice, by yours {fetched} times"
    assert sent == ["a"], f"a is sent to the host once and keeps its copy; yours sends {sent}"


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.budget)
def test_par(planner, measure):
    trace, budget_bytes, machine = step_of(measure), budget_bytes_of(measure), measure.machine
    plan = planner.plan(Question(trace, budget_bytes, oc.machine(machine), granule=WHOLE))
    verify(plan, trace, budget_bytes, oc.machine(machine))
    par = par_us(measure)
    print(f"{measure.budget}: {plan.makespan_us:.0f} us, par {par:.0f} us")
    ratio = plan.makespan_us / par
    assert ratio <= measure.full_ratio, (
        f"your plan takes {ratio:.2f} times as long as par, and {measure.full_ratio:g} is the most"
    )


@pytest.mark.parametrize("law", LAWS, ids=lambda name: name.replace(" ", "_"))
def test_laws(planner, law):
    tried = check_planner(planner, examples=10, time_limit_s=3, laws=(law,))
    assert tried > 0, "your planner is too slow for a single random case"
