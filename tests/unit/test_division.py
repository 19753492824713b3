"""One memory budget: its parts, its division between arena and slab, and what refuses it."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from functools import cache

import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain.devices.cpu.host_vm import PAGE_BYTES
from ooctrain.devices.spill import FileCalls, Spill
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.execution import fit
from ooctrain.execution.executor import host_extent_bytes
from ooctrain.execution.fit import prepare
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.promise import (
    BUFFERS_BYTES,
    INSTRUCTIONS_A_CALL,
    LIST_BYTES_AN_INSTRUCTION,
    OWN_STEP_BYTES,
    OwnShare,
    Promise,
    parts_of,
)
from ooctrain.execution.settings import Settings
from ooctrain.rewrite import keeps_bits
from ooctrain.sched.budget import input_bytes, trace_peak_bytes
from ooctrain.sched.planners.auto import Auto
from ooctrain.sched.planners.chen import ChenSqrt
from ooctrain.sched.planning.planner import host_too_small, make_plan
from ooctrain.sched.schedule import Fence, Run
from ooctrain.step.presets import TYPICAL_DISK, machine
from ooctrain.step.trace import Trace
from ooctrain.units import MIB

EXT4 = 0xEF53
NOTHING = OwnShare(0, 0)
HOW = Settings(machine="cpu-generic", threads=1, planner="chen-sqrt", time_limit_s=None)


@cache
def small_trace() -> Trace:
    layers = [oc.nn.Conv2d(3, 8, 3, padding=1), oc.nn.ReLU()]
    for _ in range(9):
        layers += [oc.nn.Conv2d(8, 8, 3, padding=1), oc.nn.ReLU()]
    model = oc.nn.Sequential(*layers, oc.nn.AdaptiveAvgPool2d(1), oc.nn.Flatten())
    return oc.trace(model, (4, 3, 64, 64), threads=1)


def divided(trace: Trace, left: int, how: Settings = HOW) -> PreparedStep:
    """The step within so many bytes of arena and slab."""
    fixed = parts_of(trace, 0, NOTHING, how.thread_count).fixed_bytes
    return prepare(trace, replace(how, memory=fixed + left), NOTHING)


def promise_is_kept_by_the_sum(trace: Trace, left: int) -> Promise:
    """The law of the division: the parts, each as large as what it stands for, fill the budget at
    most."""
    found = divided(trace, left)
    promise, plan = found.promise, found.plan
    assert promise is not None
    sizes = [getattr(promise, field.name) for field in fields(promise)]
    assert promise.promised_bytes == sum(sizes) - promise.memory_bytes <= promise.memory_bytes
    assert promise.arena_bytes == found.budget_bytes >= found.reserved_bytes
    assert promise.slab_bytes == host_extent_bytes(plan.trace, plan.schedule)
    return promise


@cache
def in_core_bytes() -> tuple[int, int]:
    """Arena and slab of the small step in-core."""
    found = prepare(small_trace(), HOW)
    return found.budget_bytes, host_extent_bytes(found.plan.trace, found.plan.schedule)


def test_the_parts_of_a_promise_fill_the_memory_at_most():
    trace = small_trace()
    arena, slab = in_core_bytes()
    whole = promise_is_kept_by_the_sum(trace, arena + slab)
    assert (whole.arena_bytes, whole.slab_bytes) == (arena, slab)
    for left in (arena, arena * 7 // 8, arena * 3 // 4):
        promise = promise_is_kept_by_the_sum(trace, left)
        assert promise.arena_bytes < arena


def test_a_slab_on_a_disk_counts_for_its_buffers_alone(tmp_path, monkeypatch):
    """Swapping saves nothing where both memories are RAM, and does where one is a disk."""
    monkeypatch.setattr(FileCalls, "file_system", lambda self, folder: EXT4)
    trace = small_trace()
    needed = in_core_bytes()[0]
    how = replace(HOW, planner="belady", spill=Spill(str(tmp_path)))
    left = needed // 2 + BUFFERS_BYTES
    found = divided(trace, left, how)
    promise, plan = found.promise, found.plan
    assert promise is not None
    assert promise.slab_bytes == BUFFERS_BYTES
    assert promise.arena_bytes == found.budget_bytes <= left - promise.slab_bytes
    assert promise.promised_bytes <= promise.memory_bytes
    slab = host_extent_bytes(plan.trace, plan.schedule)
    assert slab + promise.arena_bytes >= needed > promise.arena_bytes
    with pytest.raises(Infeasible):
        divided(trace, needed // 2, replace(how, spill=None))


class LongerInLess(ChenSqrt):
    """A planner whose list takes an eighth more of what the arena is smaller than in-core."""

    def plan(self, question):
        plan = super().plan(question)
        longer_bytes = (in_core_bytes()[0] - question.budget_bytes) // 8
        usual = INSTRUCTIONS_A_CALL * len(small_trace().calls)
        wanted = usual + longer_bytes // LIST_BYTES_AN_INSTRUCTION
        listed = plan.schedule.instructions
        fences = (Fence(),) * max(0, wanted - len(listed))
        schedule = replace(plan.schedule, instructions=(*listed, *fences))
        return make_plan(schedule, plan.trace, question.machine)


def test_a_list_that_is_longer_in_a_smaller_arena_gets_another_plan():
    """The arena gave up what the list was too long by; the next list was a little longer again, and
    a plan that took a fifth more time was taken."""
    trace = small_trace()
    arena, slab = in_core_bytes()
    left = arena * 7 // 8
    promise = divided(trace, left, replace(HOW, planner=LongerInLess())).promise
    assert promise is not None
    assert promise.promised_bytes <= promise.memory_bytes
    over = (arena - (left - slab)) // 8
    assert promise.arena_bytes > left - slab - 3 * over


def test_a_list_with_the_bits_of_in_core_is_searched_though_one_in_bands_is_quicker(
    tmp_path, monkeypatch
):
    """`auto` took bands, and what was left was the first list that was found without a search."""
    monkeypatch.setattr(FileCalls, "file_system", lambda self, folder: EXT4)
    oc.manual_seed(0)
    model = oc.models.build("vgg11", 10, "cifar", 3)
    trace = oc.trace(model, (8, 3, 128, 128), threads=1)
    base = machine(None, "cpu")
    quick = replace(base, flops_per_us=1.2e6, memory_bytes_per_us=35e3, disk=TYPICAL_DISK)
    how = replace(HOW, planner="auto", machine=quick, spill=Spill(str(tmp_path)), evaluations=2000)
    in_core = prepare(trace, how)
    left = int(0.55 * in_core.budget_bytes) + BUFFERS_BYTES
    found = divided(trace, left, how)
    exact = prepare(trace, replace(how, planner=Auto(), budget=found.budget_bytes))
    assert keeps_bits(found.plan.rewrites)
    assert found.predict().makespan_us <= 1.01 * exact.predict().makespan_us


def test_of_two_that_are_as_quick_the_one_with_the_bits_of_in_core_is_taken():
    exact = prepare(small_trace(), HOW)
    in_bands = replace(exact, plan=replace(exact.plan, rewrites=("bands:2:0.fwd:3.fwd",)))
    assert not keeps_bits(in_bands.plan.rewrites)
    for plans in ([in_bands, exact], [exact, in_bands]):
        assert keeps_bits(min(plans, key=fit.step_us).plan.rewrites)


def test_parameters_beyond_the_arena_are_set_aside_for_the_way_home(tmp_path, monkeypatch):
    """They wait on the disk between steps, and come home when the trainer ends or begins a test."""
    monkeypatch.setattr(FileCalls, "file_system", lambda self, folder: EXT4)
    linears = [layer for _ in range(6) for layer in (oc.nn.Linear(512, 512), oc.nn.ReLU())]
    model = oc.nn.Sequential(oc.nn.Flatten(), oc.nn.Linear(16, 512), *linears, oc.nn.Linear(512, 3))
    trace = oc.trace(model, (2, 1, 4, 4), threads=1)
    how = replace(HOW, planner="combined", spill=Spill(str(tmp_path)))
    variables = [trace.variables[v] for v in trace.initial]
    persistent = [v.value_bytes for v in variables if v.persistent]
    needed = sum(persistent) + max(persistent)
    fixed = parts_of(trace, 0, NOTHING, 1)
    for left in (needed + (1 << 20), 2 * needed):
        promise = divided(trace, left + BUFFERS_BYTES, how).promise
        assert promise is not None
        home = promise.values_bytes - fixed.values_bytes
        assert promise.arena_bytes + home >= needed
        assert promise.promised_bytes <= promise.memory_bytes
    assert prepare(trace, replace(how, budget=needed * 3 // 4)).plan, "in less, but not home"
    with pytest.raises(Infeasible, match="OOC-124"):
        divided(trace, needed * 3 // 4 + BUFFERS_BYTES, how)


class SaysOnlyThatTheHostLacks(ChenSqrt):
    """A planner that names no budget when it refuses."""

    def plan(self, question):
        try:
            return super().plan(question)
        except Infeasible:
            raise host_too_small(self.name) from None


def test_where_no_planner_names_a_least_it_is_looked_for():
    trace, how = small_trace(), replace(HOW, planner=SaysOnlyThatTheHostLacks())
    in_core = sum(in_core_bytes())
    fixed = parts_of(trace, 0, NOTHING, 1).fixed_bytes
    with pytest.raises(Infeasible) as refused:
        divided(trace, in_core // 8, how)
    least = refused.value.minimum_bytes - fixed - OWN_STEP_BYTES
    assert least < 0.8 * in_core
    assert divided(trace, least, how).promise is not None


def test_what_persists_and_a_copy_of_its_largest_may_be_all_that_a_step_takes():
    """Each parameter comes home beside a copy, which is larger than all other values of this step.
    The input and the bias take a page each.
    """
    floats = PAGE_BYTES // 4
    model = oc.nn.Sequential(oc.nn.Flatten(), oc.nn.Linear(floats, floats))
    trace = oc.trace(model, (1, 1, floats, 1), None, training=False, threads=1)
    weight_bytes = floats * PAGE_BYTES
    enough = PAGE_BYTES + (weight_bytes + PAGE_BYTES) + weight_bytes
    assert divided(trace, enough).promise is not None
    with pytest.raises(Infeasible):
        divided(trace, enough - 1)


def test_the_least_that_is_named_does_not_depend_on_what_was_asked():
    """It depended on where the search for it began. Whatever is more is enough, too."""
    trace, how = small_trace(), replace(HOW, planner=SaysOnlyThatTheHostLacks())
    in_core, fixed = sum(in_core_bytes()), parts_of(trace, 0, NOTHING, 1).fixed_bytes
    named = set()
    for left in (-fixed + 1, 0, in_core // 8, in_core // 5, in_core // 3):
        with pytest.raises(Infeasible) as refused:
            divided(trace, left, how)
        named.add(refused.value.minimum_bytes - fixed)
    (least,) = named
    for more in (0, MIB // 3, in_core // 7):
        assert divided(trace, least + more, how).promise is not None


class NotesItsTime(ChenSqrt):
    """A planner that writes down how long it may search."""

    def __init__(self):
        self.limits_s = []

    def plan(self, question):
        self.limits_s.append(question.effort.deadline.left_s())
        return super().plan(question)


def test_where_the_least_is_looked_for_nobody_searches_for_a_better_plan():
    """Six tries of the whole search took minutes before a refusal."""
    planner = NotesItsTime()
    with pytest.raises(Infeasible):
        divided(small_trace(), 0, replace(HOW, planner=planner))
    assert len(planner.limits_s) >= fit.LEAST_TRIES
    assert all(limit == 0 for limit in planner.limits_s)


def test_much_memory_is_not_taken_where_little_is_needed():
    trace = small_trace()
    assert divided(trace, 1 << 40).budget_bytes == in_core_bytes()[0]


def test_too_little_is_refused_with_a_memory_that_does():
    trace, leasts = small_trace(), []
    for memory in (1, parts_of(trace, 0, NOTHING, 1).fixed_bytes + (64 << 10)):
        with pytest.raises(Infeasible) as refused:
            prepare(trace, replace(HOW, memory=memory), NOTHING)
        assert refused.value.code == "OOC-124"
        leasts.append(refused.value.minimum_bytes)
        assert f"--memory {leasts[-1]}" in refused.value.fix
    least, in_core = (
        leasts[0],
        parts_of(trace, 0, NOTHING, 1).fixed_bytes + sum(in_core_bytes()),
    )
    assert least == leasts[1] < in_core + OWN_STEP_BYTES
    assert prepare(trace, replace(HOW, memory=least), NOTHING).promise.memory_bytes == least


@pytest.mark.slow
def test_the_same_division_each_time():
    trace, arena = small_trace(), in_core_bytes()[0]
    one, other = (divided(trace, arena * 7 // 8) for _ in range(2))
    assert (one.plan.schedule, one.promise) == (other.plan.schedule, other.promise)


@pytest.mark.parametrize("planner", quick(["window", "belady", "lru", "naive"], 0))
def test_who_runs_each_call_once_needs_the_in_core_peak_in_both_memories(planner):
    """Swapping from RAM to RAM saves nothing of the sum."""
    trace = small_trace()
    plan = oc.plan(trace, "30%", planner, "cpu-generic")
    runs = [i.call for i in plan.schedule.instructions if isinstance(i, Run)]
    assert len(runs) == len(set(runs))
    assert plan.peak_bytes + plan.host_peak_bytes >= trace_peak_bytes(plan.trace)
    assert plan.peak_bytes < trace_peak_bytes(plan.trace)


@pytest.mark.parametrize("budget", ["0"])
def test_a_host_budget_below_the_inputs_leaves_nothing_for_swapped_values(budget):
    trace = small_trace()
    plan = oc.plan(trace, "60%", "chen-sqrt", "cpu-generic", host_budget=budget)
    assert plan.host_peak_bytes == input_bytes(plan.trace)
    assert oc.simulate(plan, plan.trace, "cpu-generic").bytes_out == 0
    with pytest.raises(Infeasible):
        oc.plan(trace, "30%", "window", "cpu-generic", host_budget=budget)


@pytest.mark.parametrize("beside", [{"budget": "1MiB"}, {"host_budget": 0}])
def test_memory_beside_a_budget_is_refused_by_name(beside):
    with pytest.raises(ConfigError) as refused:
        Settings(memory="1GiB", **beside)
    assert refused.value.code == "OOC-122"
    assert f"--{next(iter(beside)).replace('_', '-')}" in str(refused.value)
    with pytest.raises(ConfigError, match="OOC-122"):
        oc.plan(small_trace(), memory="1GiB", **beside)


def test_memory_is_of_the_cpu_device():
    for how in ({"device": "cuda"},):
        with pytest.raises(ConfigError, match="OOC-123"):
            Settings(memory="1GiB", **how)
    with pytest.raises(ConfigError, match="OOC-123"):
        oc.plan(small_trace(), memory="1GiB", machine="v100-pcie")
    for wrong in ("25%", 0, "much"):
        with pytest.raises(ConfigError):
            Settings(memory=wrong)


def test_planning_alone_takes_the_usual_share_of_a_process():
    trace = small_trace()
    plan = oc.plan(trace, memory="1GiB", machine="cpu-generic")
    assert plan.notes["planner"] == "keep-all"
    assert (
        parts_of(trace, MIB, None, 1).own_bytes
        > asdict(parts_of(trace, MIB, NOTHING, 1))["own_bytes"]
    )
