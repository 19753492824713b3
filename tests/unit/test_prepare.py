"""Preparing a step: whose trace it is, where the search for a limit begins, threads it serves."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.quick import every

import ooctrain as oc
from ooctrain import nn
from ooctrain.alloc.registry import choose_allocator
from ooctrain.errors import DoesNotFit, Infeasible, PlanMismatch
from ooctrain.execution import fit as module
from ooctrain.execution import settings
from ooctrain.execution.fit import prepare
from ooctrain.execution.placement import reserved_peak
from ooctrain.execution.prepared_step import placed
from ooctrain.execution.sessions import threads_served
from ooctrain.execution.settings import Settings
from ooctrain.sched.planning.question import makespan_us
from ooctrain.sched.schedule import Free, Run, Schedule
from ooctrain.step.builder import TraceBuilder

SHAPE = (2, 3, 8, 8)


def step(device: str = "cpu"):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())
    return oc.trace(model, SHAPE, device=device, threads=1)


def test_a_plan_for_a_gpu_is_not_placed_on_the_cpu():
    plan = oc.plan(step("cuda"), "1GiB", "keep-all", "rtx2080ti")
    with pytest.raises(PlanMismatch, match="traced for device 'cuda', not 'cpu'"):
        placed(plan, Settings(device="cpu"))


@pytest.mark.parametrize("problem", ["", "it maps nothing"])
def test_how_a_gpu_maps_is_asked_of_it(problem, monkeypatch):
    gpu = SimpleNamespace(granularity_bytes=2 << 20, mapping_problem=problem)
    monkeypatch.setattr(settings.cuda_open, "look_at_gpu", lambda: gpu)
    for check in ("require_kernels", "require_compiler"):
        monkeypatch.setattr(settings.cuda_open, check, lambda *_: None)
    chosen = Settings(device="cuda").chooser(step("cuda"))(64 << 20, False)
    assert problem in "".join(chosen.notices)
    assert chosen.maps == (not problem)
    assert chosen.piece_bytes == (None if problem else 2 << 20)


def test_the_search_for_a_limit_begins_right_below_the_least_budget(monkeypatch):
    found = []

    def asked(search):
        found.append(search)
        raise StopIteration

    monkeypatch.setattr(module.LimitSearch, "best", asked)
    with pytest.raises(StopIteration):
        prepare(step(), Settings(budget="90%", planner="window", threads=1))
    (search,) = found
    below = search.refused_bytes
    assert search.at(below + 1, makespan_us)[0].peak_bytes == below + 1
    with pytest.raises(Infeasible):
        search.at(below, makespan_us)


@pytest.mark.parametrize("allocator", every(sorted(oc.allocators()), 3))
@pytest.mark.parametrize("planner", ["keep-all", "naive"])
def test_a_planner_finds_a_plan_at_the_least_budget_that_its_refusal_names(allocator, planner):
    """Whatever the allocator leaves unused of a budget; that it has no place may come after."""
    settings = Settings(budget=4096, planner=planner, allocator=allocator, threads=1)
    with pytest.raises(Infeasible) as refusal:
        prepare(step(), settings)
    least = refusal.value.minimum_bytes
    with suppress(DoesNotFit):
        assert prepare(step(), replace(settings, budget=least)).plan.peak_bytes <= least


@pytest.mark.parametrize("piece", [4096, 8192])
def test_a_least_budget_is_in_whole_pieces_and_does(piece):
    name = f"best-fit-caching:chunk={piece}"  # maps pieces, and rounds by 512 bytes
    with pytest.raises(Infeasible) as of_planner:
        oc.plan(step(), piece, "naive", granule=choose_allocator(name, 1 << 20).granule)
    with pytest.raises(Infeasible) as named:
        prepare(step(), Settings(piece, "naive", name, threads=1))
    least = of_planner.value.minimum_bytes
    assert least % piece
    assert named.value.minimum_bytes % piece == 0
    found = prepare(step(), Settings(named.value.minimum_bytes, "naive", name, threads=1))
    assert found.reserved_bytes <= named.value.minimum_bytes
    for less in range(-(-least // piece) * piece, named.value.minimum_bytes, piece):
        with pytest.raises(DoesNotFit):
            prepare(step(), Settings(less, "naive", name, threads=1))


def test_one_thread_is_always_served():
    assert threads_served(step(), 1) == 1
    assert threads_served(step(), 9) >= 1


def test_a_reserved_peak_is_that_of_an_arena_no_larger_than_need_be():
    """Twelve KiB have a place of sixteen, which sticks out of an arena of twelve."""
    builder = TraceBuilder()
    builder.call("f", None, (), (builder.variable("out", (12 << 10,), "uint8"),))
    schedule = Schedule((Run(0), Free(0, 0, 12 << 10)))
    buddy = choose_allocator("buddy", 64 << 10)
    assert reserved_peak(schedule, builder.build(), buddy) == 12 << 10
