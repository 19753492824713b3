"""Small objects in a region of their own: what is pinned, what it costs, that bytes are kept."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_lists import random_schedule

import ooctrain as oc
from ooctrain.alloc.registry import choose_allocator
from ooctrain.devices.interface import Debug
from ooctrain.errors import ConfigError, Infeasible, ScheduleError
from ooctrain.execution.fit import prepare
from ooctrain.execution.settings import DEFAULT_REWRITES, Settings
from ooctrain.rewrite import REWRITES, apply_rewrites
from ooctrain.rewrite.pin_small import KINDS, pin_small, pinning_for, pinning_lasting
from ooctrain.sched.budget import (
    ALIGN_BYTES,
    region,
    trace_minimum_bytes,
    trace_peak_bytes,
    with_region,
)
from ooctrain.sched.planners.registry import as_planner
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.planner import plan_excluding
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Free, Run, Schedule
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import Machine
from ooctrain.testing.interpreter import in_core
from ooctrain.testing.random_traces import random_trace, random_values
from ooctrain.testing.run_list import Way, run_list
from ooctrain.units import KIB, MIB, Granule

MACHINE = Machine("any", 1, 1, 1)
SEEDS = st.integers(0, 2**32 - 1)


def rewritten(name="resnet18", batch=4):
    model = oc.models.build(name, num_classes=10, stem="cifar")
    trace = oc.trace(model, (batch, 3, 32, 32), device="cpu", threads=1)
    return trace, apply_rewrites(trace, DEFAULT_REWRITES)


@given(SEEDS, st.integers(1, 24))
def test_what_shares_a_storage_is_pinned_together_and_has_one_place(seed, most):
    trace = random_trace(random.Random(seed), calls=8)
    pinned = pin_small(trace, most)
    pinned.check()
    places = region(pinned)
    ends = {}
    for before, after in zip(trace.variables, pinned.variables, strict=True):
        assert after.pinned == (after.id in places.offsets)
        assert after.nbytes == (0 if after.pinned else before.nbytes)
        if after.pinned:
            assert before.kind in ("param", "state", "stat")
            assert before.nbytes <= most
            ends[places.offsets[after.id]] = places.offsets[after.id] + after.value_bytes
    starts = sorted(ends)
    assert all(start % ALIGN_BYTES == 0 for start in starts)
    borders = itertools.pairwise([*starts, places.size_bytes])
    assert all(ends[a] <= b for a, b in borders)
    for call in trace.calls:
        for out, source in call.reuse.items():
            assert places.offsets.get(out) == places.offsets.get(source)
    for new, old in trace.carries.items():
        assert pinned.variables[new].pinned == pinned.variables[old].pinned


@pytest.mark.parametrize("chunk", [16 * KIB, 64 * KIB, MIB, 40 * MIB])
def test_no_step_needs_more_for_it(chunk):
    """Neither the least nor the most: that is the rule by which it is done at all."""
    _, trace = rewritten()
    granule = Granule(chunk)
    names = pinning_for(trace, granule)
    assert names == (f"pin_small:{chunk // 8}",)
    pinned = apply_rewrites(trace, names)
    beside = with_region(granule, pinned)
    assert beside.fixed_bytes % chunk == 0
    assert trace_minimum_bytes(pinned, beside) < trace_minimum_bytes(trace, granule)
    assert trace_peak_bytes(pinned, beside) < trace_peak_bytes(trace, granule)


def test_as_many_lasting_variables_are_pinned_as_the_room_holds():
    _, trace = rewritten()
    lasting = sorted({v.nbytes for v in trace.variables if v.kind in KINDS and v.nbytes})
    for room_bytes in (0, 4 * KIB, 64 * KIB, MIB, 1 << 40):
        names = pinning_lasting(trace, room_bytes)
        held = region(apply_rewrites(trace, names)).size_bytes
        assert held <= room_bytes
        pinned = int(names[0].partition(":")[2]) if names else 0
        larger = [size for size in lasting if size > pinned]
        if larger:
            assert region(pin_small(trace, larger[0])).size_bytes > room_bytes
    everything = apply_rewrites(trace, pinning_lasting(trace, 1 << 40))
    assert all(v.pinned for v in everything.variables if v.persistent and v.value_bytes)


def test_tiling_leaves_pinned_what_it_does_not_touch():
    original, trace = rewritten()
    pinned = pin_small(trace, 8 * KIB)
    tiled = apply_rewrites(pinned, ("tile:2x2",))
    names = {v.name for v in tiled.variables if v.pinned}
    assert names
    assert names <= {v.name for v in pinned.variables if v.pinned}
    assert region(tiled).size_bytes <= region(pinned).size_bytes
    rewrites = (*DEFAULT_REWRITES, "pin_small:8192", "tile:2x2")
    assert apply_rewrites(original, rewrites).fingerprint == tiled.fingerprint


def test_fine_rounding_and_steps_without_small_lasting_values_stay_as_they_are():
    _, trace = rewritten()
    for granule in (Granule(), Granule(512, False), Granule(8 * KIB)):
        assert pinning_for(trace, granule) == ()
    build = TraceBuilder()
    x = build.variable("x", (64,), "float32", "input")
    mean = build.variable("mean", (64,), "float32", "stat")
    build.call("f", None, (x,), (mean,))
    assert pinning_for(build.build(), Granule(64 * KIB)) == ()
    for wrong in ("pin_small", "pin_small:", "pin_small:x", "pin_small:0", "pin_small:-4"):
        with pytest.raises(ConfigError):
            apply_rewrites(trace, (wrong,))


@pytest.mark.parametrize("planner", ["window", "vdnn", "lms", "belady", "prefix", "keep-all"])
def test_every_planner_plans_beside_it(planner):
    """Verified, with the same peak everywhere, and at exactly its minimum."""
    original, trace = rewritten()
    granule = Granule(64 * KIB)
    names = pinning_for(trace, granule)
    pinned = apply_rewrites(trace, names)
    beside = with_region(granule, pinned)
    machine = oc.machine("cpu-generic")
    least = trace_minimum_bytes(pinned, beside)
    budget = least + (trace_peak_bytes(pinned, beside) - least) // 4
    question = Question(pinned, budget, machine, beside, effort=Effort.within(0.5))
    found = as_planner(planner)
    try:
        plan = plan_excluding(found, question)
    except Infeasible as refusal:
        budget = max(budget + 1, refusal.minimum_bytes)
        plan = plan_excluding(found, replace(question, budget_bytes=budget))
    plan = replace(plan, rewrites=(*DEFAULT_REWRITES, *names, *plan.rewrites))
    verify(plan, original, budget, machine, rewrites=REWRITES)
    timeline = simulate(plan.schedule, plan.trace, machine)
    assert timeline.peak_bytes == plan.peak_bytes <= budget
    assert plan.schedule.granule.fixed_bytes == beside.fixed_bytes
    assert type(plan).from_json(plan.to_json(), plan.trace) == plan


@given(SEEDS, st.sampled_from([64, 600, 3000]), st.sampled_from(["best-fit", "va:chunk=4KiB"]))
@settings(max_examples=60)
def test_three_steps_beside_it_are_three_in_core_steps(seed, most, name):
    """Lists drawn at random, poisoned memory, both ends of carries in places of their own."""
    rng = random.Random(seed)
    choice = choose_allocator(name, 1 << 26, probe=lambda: "")
    trace = random_trace(rng, calls=rng.randint(2, 8), max_bytes=4000)
    pinned = pin_small(trace, most)
    granule = with_region(choice.granule, pinned)
    schedule = random_schedule(pinned, rng, granule=granule)
    if broken_rule(schedule, pinned) == "R202":
        return  # it reads what has been written over
    start = random_values(trace, rng)
    inputs = [{v: random_values(trace, rng)[v] for v in trace.initial
               if not trace.variables[v].persistent} for _ in range(3)]  # fmt: skip
    debug = rng.choice([Debug(check_ledger=True), Debug(poison=0xFF, delay_us=200)])
    ran = run_list(pinned, schedule, Way(choice, debug=debug), start, inputs)
    values, expected = dict(start), []
    for given_now in inputs:
        values = {**values, **given_now}
        values |= in_core(trace, values).persistent
        expected.append({v: values[v] for v in trace.end_variables})
    same = list(ran.persistent) == expected
    assert same
    simulated = simulate(ran.results[0].program.schedule, pinned, MACHINE)
    assert ran.granted_bytes == simulated.peak_bytes


def broken_rule(schedule, trace):
    """The rule that a schedule breaks, if it breaks one."""
    try:
        verify(schedule, trace, None)
    except ScheduleError as broken:
        return broken.rule
    return ""


def test_to_read_what_was_updated_in_place_breaks_a_rule():
    build = TraceBuilder()
    x = build.variable("x", (64,), "float32", "input")
    w = build.variable("w", (8,), "float32", "param")
    y = build.variable("y", (64,), "float32", "activation")
    after = build.variable("w'", (8,), "float32", "param")
    build.call("f", None, (x, w), (y,))
    build.call("update", None, (w, y), (after,), reuse={after: w}, pure=False, phase="update")
    build.carries[after] = w
    trace = pin_small(build.build(), 64)
    assert trace.variables[w].pinned
    assert trace.variables[after].pinned
    start = ((x, 0, 256), (w, 0, 0))
    rest = (Free(y, 0, 256), Free(x, 0, 256))
    good = Schedule((Run(0), Run(1), *rest), start, (), Granule(fixed_bytes=ALIGN_BYTES))
    verify(good, trace, None)
    again = replace(good, instructions=(Run(0), Run(1), Run(0, ()), *rest))
    assert broken_rule(again, trace) == "R202"
    uncounted = replace(good, granule=Granule(fixed_bytes=ALIGN_BYTES - 1))
    assert broken_rule(uncounted, trace) == "R108"


@pytest.mark.slow
def test_training_keeps_the_bits_and_values_can_be_read_and_set():
    def run(budget, allocator):
        oc.manual_seed(3)
        model = oc.models.build("resnet18", num_classes=10, stem="cifar")
        x = np.random.default_rng(0).standard_normal((2, 3, 32, 32), np.float32)
        with oc.Trainer(model, budget=budget, planner="window", allocator=allocator) as trainer:
            losses = [trainer.step(x, np.array([1, 2]))]
            state = model.state_dict()
            bias = np.array(state["bn1.bias"])
            model.load_state_dict({**state, "bn1.bias": bias + 1})
            losses.append(trainer.step(x, np.array([1, 2])))
            fixed = trainer.plan.schedule.granule.fixed_bytes
            state = {name: np.asarray(value).tobytes() for name, value in state.items()}
            return (
                losses,
                bias.tobytes(),
                np.asarray(model.state_dict()["bn1.bias"]).tobytes(),
                fixed,
            )

    plain, small = run(None, "best-fit"), run("40%", "va")
    assert plain[:3] == small[:3]
    assert (plain[3], small[3] > 0) == (0, True)


def test_a_prepared_step_counts_the_region_in_its_budget():
    original, _ = rewritten()
    for allocator, at_least in (("va:chunk=1MiB", MIB), ("best-fit", 0)):
        step = prepare(original, Settings(budget="30%", planner="window", allocator=allocator))
        fixed = step.plan.schedule.granule.fixed_bytes
        assert fixed >= at_least
        assert fixed < step.plan.peak_bytes <= step.budget_bytes
        assert step.reserved_bytes <= step.allocator.budget_bytes
