"""Host memory is a budget like the device's: `combined` and `prefix` search within both."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from support.quick import quick
from support.random_decisions import random_decisions

import ooctrain as oc
from ooctrain.errors import DoesNotFit, Infeasible
from ooctrain.execution.executor import host_extent_bytes
from ooctrain.execution.fit import ROOM_TRIES, prepare
from ooctrain.execution.settings import Settings
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import input_bytes, resolve_budget, trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.ledger import walk
from ooctrain.sched.planners.belady import Belady, offload
from ooctrain.sched.planners.checkmate import Checkmate
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planning.decisions import Decisions, Gap
from ooctrain.sched.planning.host_gaps import HostGaps, is_host_tight
from ooctrain.sched.planning.lower import lower_within
from ooctrain.sched.planning.planner import make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable, rematerialise
from ooctrain.sched.schedule import BYTES
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine
from ooctrain.testing.random_traces import random_trace

MACHINE = Machine("plain", 1, 1, 1.0, link="duplex", latency_us=0.0, call_overhead_us=0.0)


def plan_within(planner, trace, device_bytes, host_bytes):
    """A plan that the verifier finds within both budgets; None where there is none."""
    try:
        plan = planner.plan(Question(trace, device_bytes, MACHINE, host_budget_bytes=host_bytes))
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


def host_budgets_are_kept(seed):
    """Of every planner that is told of the host, for budgets between none and enough."""
    rng = random.Random(seed)
    trace = random_trace(rng, calls=rng.randint(4, 12), max_bytes=24, duration_ns=20_000)
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    device, inputs = rng.randint(least, max(least, most - 1)), input_bytes(trace)
    found = 0
    for planner in (Belady(), Prefix(steps=4)):
        free = plan_within(planner, trace, device, None)
        for share in (0.0, 0.3, 0.7) if free else ():
            host = inputs + int(share * (free.host_peak_bytes - inputs))
            found += plan_within(planner, trace, device, host) is not None
        if free:
            same = plan_within(planner, trace, device, free.host_peak_bytes)
            assert same.makespan_us == free.makespan_us
    return found


@pytest.mark.parametrize("first", quick([0, 100], 0))
def test_host_budgets_are_kept_and_enough_host_memory_changes_nothing(first):
    count = 100 if first else 15
    assert sum(map(host_budgets_are_kept, range(first, first + count))) > count // 3


def some_runs(rng, trace):
    """Each call once, or some values computed again."""
    return rematerialise(trace, [v for v in droppable(trace) if rng.random() < 0.3])


def on_the_host(trace, gaps, runs):
    """Byte by byte: what copies of gaps hold on the host in each slot, from the first gap of a byte
    to its last one.
    """
    held = [0] * (runs + 1)
    inputs = {v for v in trace.initial if not trace.variables[v].persistent}
    for var in {gap.var for gap in gaps} - inputs:
        for byte in range(trace.variables[var].nbytes):
            away = [gap for gap in gaps if gap.var == var and gap.lo <= byte < gap.hi]
            if away:
                first, last = min(g.after for g in away) + 1, max(g.before for g in away)
                for slot in range(first, last + 1):
                    held[slot] += 1
    return held


def what_leaves_fits_on_the_host(seed):
    """Of what Belady's rule sends out; and the room is counted to the byte."""
    rng = random.Random(seed)
    trace = random_trace(rng, calls=rng.randint(4, 14), max_bytes=12, duration_ns=20_000)
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    runs, host = some_runs(rng, trace), input_bytes(trace) + rng.randint(0, max(1, most // 2))
    device = rng.randint(least, max(least, most - 1))
    found = 0
    for host_bytes in (None, host):
        question = Question(trace, device, MACHINE, host_budget_bytes=host_bytes)
        try:
            gaps = offload("test", question, runs, step_bytes=1 << 40).gaps
        except Infeasible:
            continue
        held = on_the_host(trace, gaps, len(runs))
        if host_bytes is not None:
            assert max(held) <= host_bytes - input_bytes(trace)
            found += max(held) > 0
        inputs = frozenset(v for v in trace.initial if not trace.variables[v].persistent)
        room = HostGaps(most * 10, len(runs), inputs)
        for gap in sorted(gaps, key=lambda gap: gap.after):
            room.open(gap)
            assert room.fitting(gap, 0, gap.hi) == gap.hi
            room.take(gap, 0, gap.hi)
        assert [most * 10 - left for left in room._margin.left_bytes] == held
    return found


@pytest.mark.parametrize("first", quick([0, 200, 600], 0))
def test_what_leaves_fits_on_the_host(first):
    count = 400 if first else 60
    assert sum(map(what_leaves_fits_on_the_host, range(first, first + count))) > count // 8


def the_least_host_memory_is_enough(seed):
    """Copies out that begin early must not take room that others need: the list of some gaps stays
    within what they hold on the host at once. Whether it would go beyond, if it might.
    """
    rng = random.Random(seed)
    trace = random_trace(rng, calls=rng.randint(4, 14), max_bytes=12, duration_ns=20_000)
    drawn = random_decisions(trace, rng)
    gaps = tuple(g for g in drawn.gaps if g.after >= 0 and g.before < len(drawn.runs))
    needed = input_bytes(trace) + max(on_the_host(trace, gaps, len(drawn.runs)))
    peaks = []
    for host_bytes in (needed, None):
        question = Question(trace, 1 << 40, MACHINE, host_budget_bytes=host_bytes)
        schedule = lower_within(Decisions(drawn.runs, gaps), question).schedule
        peaks.append(max(row.host_ledger_bytes for row in walk(trace, schedule)))
    assert peaks[0] <= needed
    return peaks[1] > needed


@pytest.mark.parametrize("first", quick([0, 200], 0))
def test_the_least_host_memory_of_some_gaps_is_enough(first):
    count = 200 if first else 60
    assert sum(map(the_least_host_memory_is_enough, range(first, first + count))) > count // 20


def test_no_host_memory_costs_time_and_the_bound_knows_it():
    """Values that cannot wait on the host are computed again."""
    stages = 6
    chain = oc.chain([8] * (stages + 1), [8] * (stages + 1), [9] * stages, [9] * stages,
                     [0] * stages, [0] * stages)  # fmt: skip
    device, inputs = resolve_budget(chain, "40%"), input_bytes(chain)
    bounds = [
        oc.fluid_bound(chain, device, MACHINE, resident=True, host_budget_bytes=host).makespan_us
        for host in (None, inputs + 8, inputs)
    ]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1]
    plan = plan_within(Prefix(), chain, device, inputs)
    assert plan.makespan_us >= bounds[-1]
    assert plan.host_peak_bytes == inputs


def test_the_host_lacks_room_if_it_holds_something_but_not_all_that_is_beyond_the_budget():
    trace = oc.chain([8] * 7, [8] * 7, [9] * 6, [9] * 6, [0] * 6, [0] * 6)
    beyond, inputs = 20, input_bytes(trace)
    question = Question(trace, trace_peak_bytes(trace, BYTES) - beyond, MACHINE)
    lacks = {
        room: is_host_tight(replace(question, host_budget_bytes=inputs + room))
        for room in (0, 1, beyond - 1, beyond, 3 * beyond)
    }
    assert [room for room, short in lacks.items() if short] == [1, beyond - 1]
    assert not is_host_tight(question)


def test_a_gap_has_no_room_where_its_older_copy_has_none_between():
    """The bytes that were copied out for the gap before must stay on the host until this one."""
    room = HostGaps(5, 10, frozenset())
    first, second, other = Gap(0, 0, 5, 0, 3), Gap(0, 0, 5, 6, 8), Gap(1, 0, 5, 3, 6)
    for gap in (first, other):
        room.open(gap)
        assert room.fitting(gap, 0, 5) == 5
        room.take(gap, 0, 5)
    room.open(second)
    assert room.fitting(second, 0, 5) == 0


def prepared_beside(planner, host_budget, budget="10%"):
    """A step whose host copies come and go, so that slots leave gaps."""
    oc.manual_seed(0)
    model = oc.models.build("lenet", 10, "cifar", 3)
    trace = oc.trace(model, (64, 3, 32, 32), optimizer="sgd", threads=1)
    beside = {"machine": "cpu-generic", "threads": 1, "host_budget": host_budget}
    return prepare(trace, Settings(budget=budget, planner=planner, **beside))


def slab_bytes(prepared):
    return host_extent_bytes(prepared.plan.trace, prepared.plan.schedule)


def test_the_slab_with_the_gaps_between_its_slots_stays_within_the_host_budget():
    """`lru`'s slab was 24 % larger than --host-budget: only what its slots hold was counted."""
    roomy = prepared_beside("lru", None)
    held = roomy.predict().host_peak_bytes
    assert slab_bytes(roomy) > 1.1 * held
    for budget in (held, (held + slab_bytes(roomy)) // 2):
        with pytest.raises(DoesNotFit, match="host slab") as found:
            prepared_beside("lru", budget)
        assert found.value.reserved_bytes > budget == found.value.budget_bytes
    assert slab_bytes(prepared_beside("lru", slab_bytes(roomy))) == slab_bytes(roomy)


class OneSlab:
    """One list, whatever the budgets; it notes those of the host."""

    name = "one-slab"

    def __init__(self, schedule):
        self.schedule, self.asked = schedule, []

    def plan(self, question):
        self.asked.append(question.host_budget_bytes)
        schedule = replace(self.schedule, granule=question.granule)
        return make_plan(schedule, question.trace, question.machine)


def test_where_a_slab_is_too_large_a_plan_with_less_on_the_host_is_asked_for():
    roomy, spare = prepared_beside("lru", None), 100_000
    held, extent = roomy.predict().host_peak_bytes, slab_bytes(roomy)
    assert held < extent - spare, "the verifier refuses what is held beyond the budget"
    planner = OneSlab(roomy.plan.schedule)
    assert slab_bytes(prepared_beside(planner, extent)) == extent
    assert planner.asked == [extent]
    planner.asked.clear()
    with pytest.raises(DoesNotFit) as refused:
        prepared_beside(planner, extent - spare)
    assert refused.value.minimum_bytes == extent
    *asked, tried = planner.asked
    assert tried == extent, "what is named has been tried"
    assert len(asked) == ROOM_TRIES
    assert all(0.9 * spare < more - less <= spare for more, less in pairwise(asked))


def test_inputs_alone_are_within_any_host_budget():
    """They wait there before each step, and what slots are aligned by does not count."""
    prepared = prepared_beside("dtr", 0, "70%")
    assert prepared.predict().host_peak_bytes == input_bytes(prepared.plan.trace)


@pytest.mark.slow
@pytest.mark.parametrize("machine", quick(["cpu-generic", "v100-pcie"], 0))
def test_a_little_host_memory_is_no_loss(machine):
    """With 4 KiB beside the inputs U-Net took 17 % longer than with nothing beside them."""
    a_little_host_memory_is_no_loss(machine)


def a_little_host_memory_is_no_loss(machine):
    trace = apply_rewrites(
        oc.trace(oc.models.build("unet", stem="cifar"), (2, 3, 64, 64), threads=1),
        ("fuse", "share_storage"),
    )
    planner, where, device = Combined(evaluations=300), oc.machine(machine), "10%"
    alone, beside = (
        planner.plan(Question(trace, resolve_budget(trace, device), where, host_budget_bytes=host))
        for host in (input_bytes(trace), input_bytes(trace) + 4096)
    )
    assert beside.makespan_us <= alone.makespan_us


def test_naive_says_that_the_device_lacks_where_both_do():
    """It named the host alone, and `auto` took it to have enough of the device."""
    trace = random_trace(random.Random(3), calls=6, max_bytes=24, duration_ns=20_000)
    with pytest.raises(Infeasible) as refused:
        Naive().plan(Question(trace, 0, MACHINE, host_budget_bytes=0))
    least = refused.value.minimum_bytes
    assert least == Naive().plan(Question(trace, 1 << 40, MACHINE)).peak_bytes
