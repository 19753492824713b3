"""How many steps are replayed until it is known what an allocator needs, and whether they do."""

from __future__ import annotations

import pytest

import ooctrain as oc
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_dry
from ooctrain.errors import Infeasible
from ooctrain.execution import placement, program
from ooctrain.execution.placement import Placement, play_step, reserved_peak
from ooctrain.execution.program import make_program
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question

STEPS = 6
PLANNERS = ("keep-all", "belady", "prefix", "window:persistent=host", "lru")


def plans(granule):
    """Lists of a small network: parameters move in some, calls run again in one."""
    layers = [oc.nn.Conv2d(3, 16, 3, padding=1), oc.nn.BatchNorm2d(16), oc.nn.ReLU()]
    for _ in range(3):
        layers += [oc.nn.Conv2d(16, 16, 3, padding=1), oc.nn.BatchNorm2d(16), oc.nn.ReLU()]
    model = oc.nn.Sequential(*layers, oc.nn.AdaptiveAvgPool2d(1), oc.nn.Flatten())
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trace = oc.trace(model, (4, 3, 32, 32), threads=1, optimizer=optimizer)
    trace = apply_rewrites(trace, ("fuse", "share_storage"))
    least, most = trace_minimum_bytes(trace, granule), trace_peak_bytes(trace, granule)
    machine = oc.machine("cpu-generic")
    for name in PLANNERS:
        for share in (0.1, 0.4, 1.0):
            budget = int(least + share * (most - least))
            try:
                yield get_planner(name).plan(Question(trace, budget, machine, granule=granule))
            except Infeasible:
                continue


def test_where_any_chunks_make_a_block_every_step_holds_as_much():
    choice = choose_dry("va:chunk=4KiB", 1 << 24)
    moved = 0
    for plan in plans(choice.granule):
        program = make_program(plan.trace, plan.schedule, choice)
        memory = DryMemory(choice.granule.granted(program.peak_bytes))
        allocator = choice.make(memory)
        placed, peaks, layouts = Placement(program, allocator), [], set()
        for _ in range(STEPS):
            placed.claim_start()
            play_step(placed)
            peaks.append(allocator.stats().peak_reserved_bytes)
            layouts.add(tuple(sorted((v, b.address) for v, b in placed.blocks.items())))
        assert set(peaks) == {reserved_peak(plan.schedule, plan.trace, choice)}
        moved += len(layouts) > 1
    assert moved, "in no plan a step ends elsewhere than the one before"


@pytest.mark.parametrize(("name", "steps"), [("va:chunk=4KiB", 1), ("best-fit", 2)])
def test_only_allocators_with_holes_are_asked_for_more_than_one_step(name, steps, monkeypatch):
    """Sixteen steps of `va` were replayed: three quarters of the time that a long list took."""
    choice, played = choose_dry(name, 1 << 24), []
    plan = next(iter(plans(choice.granule)))

    def counted(placed: Placement) -> None:
        played.append(placed)
        play_step(placed)

    monkeypatch.setattr(placement, "play_step", counted)
    reserved_peak(plan.schedule, plan.trace, choice)
    assert len(played) == 1 if steps == 1 else len(played) >= steps


def test_a_replay_for_the_allocator_gives_nothing_a_place_on_the_host(monkeypatch):
    """First fit of host slots takes long where a hundred thousand copies are held."""
    choice = choose_dry("va:chunk=4096", 1 << 30)
    plan = next(p for p in plans(choice.granule) if p.schedule.start_host)
    placed = reserved_peak(plan.schedule, plan.trace, choice)
    asked = make_program(plan.trace, plan.schedule, choice)
    monkeypatch.setattr(program, "host_slots", lambda *a, **k: pytest.fail("nobody reads them"))
    assert reserved_peak(plan.schedule, plan.trace, choice) == placed
    replayed = make_program(plan.trace, plan.schedule, choice, align_bytes=None)
    assert replayed.issued == asked.issued
    assert [step.index for step in replayed.steps] == [step.index for step in asked.steps]
