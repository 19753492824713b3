"""What a step maps anew: counted on paper as a run does it, and part of the prediction."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain.devices.cpu.host_vm import VirtualArena, why_no_virtual_memory
from ooctrain.engine.incore import initial_values
from ooctrain.errors import Infeasible
from ooctrain.execution.fit import LASTING_SHARE, NEVER_US, prepare
from ooctrain.execution.placement import mapped_by_step, mapped_bytes, maps_dearly, with_mapping
from ooctrain.execution.sessions import input_values, open_session
from ooctrain.execution.settings import Settings
from ooctrain.machine import memory_speed
from ooctrain.machine.memory_speed import COPIES, COPY_BYTES, MAP_PIECE_BYTES, map_us_per_byte
from ooctrain.models.unet import UNet
from ooctrain.sched.budget import region
from ooctrain.sched.planners.belady import Belady

SHAPE = (8, 3, 32, 32)
STEPS = 4
#: One that keeps no call waiting for a copy, so that all issue is on the way of the step.
MACHINE = oc.Machine("instant copies", 1e5, 1e4, link_bytes_per_us=1e12)


@pytest.fixture(scope="module")
def unet():
    oc.manual_seed(0)
    model = UNet(3, 3, 8, 2)
    return model, oc.trace(model, SHAPE, threads=1)


def settings(planner, allocator="va:chunk=4KiB"):
    return Settings(
        budget="25%", planner=planner, allocator=allocator, machine=MACHINE, threads=1
    )  # fmt: skip


@pytest.fixture(scope="module")
def prepared(unet):
    """The step prepared for a planner and an allocator, once for all tests."""
    return cache(
        lambda planner, allocator="va:chunk=4KiB": prepare(unet[1], settings(planner, allocator))
    )


def mapped(found, steps=STEPS):
    return mapped_by_step(found.plan.schedule, found.plan.trace, found.allocator, steps)


def test_whole_variables_are_mapped_once_and_parts_again_in_each_step(prepared):
    whole, parts = (mapped(prepared(planner), 6) for planner in ("window", "belady"))
    assert whole[0] > 0
    assert whole[2:] == [0] * 4
    assert min(parts) > 0


def test_the_mean_of_later_steps_counts(prepared):
    found = prepared("belady")
    counts = mapped(found, 5)
    plan = found.plan
    assert mapped_bytes(plan.schedule, plan.trace, found.allocator) == np.mean(counts[2:])


@pytest.mark.slow
def test_without_virtual_addressing_nothing_is_mapped(prepared):
    assert mapped(prepared("window", "best-fit")) == [0] * STEPS


@pytest.mark.skipif(bool(why_no_virtual_memory()), reason="no virtual memory here")
@pytest.mark.parametrize("planner", ["window", "belady"])
def test_a_run_maps_what_was_counted_on_paper(planner, unet, prepared, monkeypatch):
    model, _ = unet
    total, counts = [0], []
    place = VirtualArena.map

    def counting(arena, address, offset, size_bytes):
        total[0] += size_bytes
        place(arena, address, offset, size_bytes)

    monkeypatch.setattr(VirtualArena, "map", counting)
    found = prepared(planner)
    trace = found.plan.trace
    start = initial_values(trace, model)
    values = {v: start[trace.variables[v].name] for v in trace.initial if
              trace.variables[v].persistent}  # fmt: skip
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    inputs = input_values(trace, x, np.zeros((8, 32, 32), np.int64))
    device, session = open_session(found, settings(planner), values, ())
    for step in range(STEPS):
        session.run_step(inputs, {"lr": 0.01, "step": step, "seed": 0})
        counts.append(total[0])
        total[0] = 0
    session.close()
    device.close()
    # The first step's count has what opening the session maps, the whole arena, as well.
    assert counts[1:] == mapped(found)[1:]


def test_mapping_is_time_of_the_thread_that_issues(prepared):
    found = prepared("belady")
    plan, rate = found.plan, 5e-4
    there = replace(MACHINE, map_us_per_byte=rate)
    before = oc.simulate(plan.schedule, plan.trace, MACHINE).makespan_us
    slower = with_mapping(there, plan.schedule, plan.trace, found.allocator)
    after = oc.simulate(plan.schedule, plan.trace, slower).makespan_us
    bytes_mapped = mapped_bytes(plan.schedule, plan.trace, found.allocator)
    assert after - before == pytest.approx(rate * bytes_mapped, rel=0.05)
    assert found.predict(there).makespan_us == after
    assert found.predict().makespan_us == before == plan.makespan_us


def test_where_mapping_is_dearer_than_copying_what_lasts_stays(unet):
    """An H200 copies a MiB in 20 us and maps it in 35."""
    asked, regions = settings("belady", "va:chunk=64KiB"), []
    for us in (5e-5, 2e-4):
        there = replace(MACHINE, link_bytes_per_us=1e4, map_us_per_byte=us)
        found = prepare(unet[1], replace(asked, machine=there))
        assert maps_dearly(there, found.allocator) == (us > 1e-4)
        regions.append(region(found.plan.trace).size_bytes)
    assert regions[0] < regions[1] <= found.budget_bytes // LASTING_SHARE


def test_what_lasts_may_leave_where_the_budget_has_no_room_for_it(unet):
    """The least budget of a step is the same, be mapping dear or not."""
    dear = replace(MACHINE, link_bytes_per_us=1e4, map_us_per_byte=2e-4)
    asked = replace(settings("belady", "va:chunk=64KiB"), budget=1)
    with pytest.raises(Infeasible) as refused:
        prepare(unet[1], asked)
    least = replace(asked, budget=refused.value.minimum_bytes)
    with pytest.raises(Infeasible) as also:
        prepare(unet[1], replace(asked, machine=dear))
    assert also.value.minimum_bytes == refused.value.minimum_bytes
    assert prepare(unet[1], replace(least, machine=dear)).plan.peak_bytes <= least.budget


@pytest.mark.slow
@pytest.mark.parametrize("link_bytes_per_us", [20.0, 200.0, 2000.0])
def test_auto_knows_what_its_plan_maps(unet, link_bytes_per_us):
    """Where mapping is dear its plan is not slower than those that move whole variables."""
    there = replace(MACHINE, link_bytes_per_us=link_bytes_per_us, map_us_per_byte=1e-2)
    asked = replace(settings("auto"), machine=there, time_limit_s=None)
    predicted = prepare(unet[1], asked).predict().makespan_us
    for planner in ("window", "dtr", "superneurons"):
        other = prepare(unet[1], replace(asked, planner=planner))
        if not any(mapped(other)[2:]):
            assert predicted <= 1.001 * other.predict().makespan_us


class NotesItsCosts:
    """A planner of one's own that compares its plans by what the question says they cost."""

    name = "notes-its-costs"

    def __init__(self):
        self.besides_us = []

    def plan(self, question):
        plan = Belady().plan(question)
        self.besides_us.append(question.cost(plan) - plan.makespan_us)
        return plan


@pytest.mark.parametrize(
    ("allocator", "us_per_byte", "counts"),
    quick(
        [("va:chunk=4KiB", 1e-2, True), ("va:chunk=4KiB", 0.0, False), ("best-fit", 1e-2, False)],
        0,
        2,
        names=3,
    ),
)
def test_the_cost_of_a_plan_counts_what_it_maps(unet, allocator, us_per_byte, counts):
    """And is far too long, whoever wrote the planner, where the allocator cannot place the plan."""
    planner, there = NotesItsCosts(), replace(MACHINE, map_us_per_byte=us_per_byte)
    prepare(unet[1], replace(settings(planner, allocator), machine=there))
    assert planner.besides_us
    costs = planner.besides_us
    assert all(us > 0 if counts else us in (0, pytest.approx(NEVER_US)) for us in costs)
    assert (max(costs) > 1e9) == (allocator == "best-fit")


@pytest.mark.skipif(bool(why_no_virtual_memory()), reason="no virtual memory here")
def test_calibration_times_mappings_over_others(monkeypatch):
    pieces = []
    place = VirtualArena.map

    def noting(arena, address, offset, size_bytes):
        pieces.append((address, offset, size_bytes))
        place(arena, address, offset, size_bytes)

    monkeypatch.setattr(VirtualArena, "map", noting)
    rate = map_us_per_byte()
    turn = len(pieces) // COPIES
    assert {size for _, _, size in pieces} == {MAP_PIECE_BYTES}
    assert turn * MAP_PIECE_BYTES == COPY_BYTES
    for before, after in pairwise(range(0, len(pieces), turn)):
        first, second = (
            {address: offset for address, offset, _ in pieces[at : at + turn]}
            for at in (before, after)
        )
        assert first.keys() == second.keys()
        assert all(first[address] != second[address] for address in first)
    # A page is entered in some tenths of a microsecond, neither for nothing nor in milliseconds.
    assert 1e-6 < rate < 1e-2


def test_where_nothing_is_mapped_calibration_says_nothing(monkeypatch):
    monkeypatch.setattr(memory_speed, "why_no_virtual_memory", lambda: "no memfd")
    assert map_us_per_byte() == 0.0
