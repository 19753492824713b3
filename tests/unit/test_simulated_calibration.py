"""Calibration finds the machine that steps are simulated on, and asks for the steps that it needs.

Measured steps vary, so what comes of them can only be looked at. Here a trainer answers with the
time line that `simulate` foretells of its list on a machine that we know: its numbers are found
again. The disk and the clock are made up, too.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from ooctrain.devices.spill import BLOCK_BYTES
from ooctrain.errors import DoesNotFit, Infeasible
from ooctrain.execution.settings import DEFAULT_REWRITES
from ooctrain.layers.kernels.cpu.runtime import copy as copies
from ooctrain.machine import calibrate, disk_speed, memory_speed
from ooctrain.machine.disk_speed import COPIES, COPY_BYTES, DiskTimes, link_of, measure_disk
from ooctrain.models import build
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import resolve_budget
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Plan, Run, SwapIn, SwapOut
from ooctrain.sched.simulate import simulate
from ooctrain.step.machine import Machine, profile_key
from ooctrain.step.presets import with_link
from ooctrain.tracing import trace
from ooctrain.units import MAX_BYTES

TRUE = Machine(
    "true", 900.0, 1500.0, link_bytes_per_us=400.0, link="duplex", latency_us=15.0,
    link_out_bytes_per_us=400.0, link_in_bytes_per_us=600.0, issue_us=2.0, copy_issue_us=3.0,
    interference=1.25, pacing_us=6.0,
)  # fmt: skip
IMAGES, LABELS = np.zeros((4, 3, 32, 32), np.float32), np.zeros(4, np.int64)
FRAGMENTS = DoesNotFit("fragments", reserved_bytes=2, budget_bytes=1)
STEP = apply_rewrites(trace(build("lenet"), IMAGES.shape, threads=1), DEFAULT_REWRITES)


@cache
def planned(planner: str, budget: int | str | None, link: float | None) -> Plan:
    """A plan on `TRUE`, with a link imposed on it."""
    size_bytes = MAX_BYTES if budget is None else resolve_budget(STEP, budget, BYTES)
    there = TRUE if link is None else with_link(TRUE, link)
    return get_planner(planner).plan(Question(STEP, size_bytes, there))


class SimulatedTrainer:
    """Each step has the time line of its list on `TRUE`; a clock goes on by as much.

    Args: as of `Trainer`, those that calibration gives.
    """

    made: list[SimulatedTrainer]
    refusals: dict[object, Exception]
    now_us = 0.0

    def __init__(self, model, loss, optimizer, budget, planner, *settings, **more):
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.budget, self.planner, self.given = budget, planner, (settings, more)
        self.accumulate, self.conv_algorithm, self.clip, self.allow_tf32 = 3, "gemm", 1.5, False
        self.settings = SimpleNamespace(
            allocator="va", device="cpu", threads=1, machine="cpu-generic", seed=11
        )
        self.link = more.get("link_bandwidth")
        self.there = TRUE if self.link is None else with_link(TRUE, self.link)
        self.steps, self.closed, self.prepared, self.timeline = 0, False, None, None
        self.made.append(self)

    def prepare(self, shape):
        assert shape == IMAGES.shape
        if self.budget in self.refusals:
            raise self.refusals[self.budget]
        self.prepared = SimpleNamespace(plan=planned(self.planner, self.budget, self.link))
        return self.prepared

    def step(self, images, labels):
        assert images is IMAGES
        assert labels is LABELS
        self.steps += 1
        plan, there = self.prepared.plan, self.there
        line = simulate(plan.schedule, plan.trace, there)
        unpaid_us, events = 0.0, {event.index: event for event in line.events}
        for index, instruction in enumerate(plan.schedule):  # a device notes a call by itself
            unpaid_us += there.issue_us
            unpaid_us += there.copy_issue_us * isinstance(instruction, SwapIn | SwapOut)
            if isinstance(instruction, Run):
                event = events[index]
                events[index] = replace(event, start_us=event.start_us + unpaid_us)
                unpaid_us = 0.0
        self.timeline = replace(line, events=tuple(events.values()))
        type(self).now_us += line.makespan_us

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True


@pytest.fixture
def trainers(monkeypatch):
    class Trainer(SimulatedTrainer):
        made: ClassVar = []
        refusals: ClassVar = {}

    @contextmanager
    def nothing():
        yield

    monkeypatch.setattr(calibrate, "Trainer", Trainer)
    monkeypatch.setattr(calibrate, "map_us_per_byte", lambda: 0.125)
    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: Trainer.now_us / 1e6)
    return Trainer


def test_the_machine_on_which_steps_are_simulated_is_found(trainers):
    in_core = trainers("model", "loss", "optimizer", None, "keep-all")
    found = calibrate.calibrate(in_core, IMAGES, LABELS, "found", 4)
    assert (found.name, found.link, found.map_us_per_byte) == ("found", "duplex", 0.125)
    assert found.link_out_bytes_per_us == pytest.approx(400.0, rel=0.02)
    assert found.link_in_bytes_per_us == pytest.approx(600.0, rel=0.02)
    assert found.link_bytes_per_us == found.link_out_bytes_per_us
    assert found.latency_us + found.copy_issue_us == pytest.approx(18.0, rel=0.1)
    assert found.issue_us == pytest.approx(2.0, rel=0.06)  # some frees are on the way of no call
    assert found.interference == pytest.approx(1.25, abs=0.05)
    assert found.pacing_us == pytest.approx(6.0, abs=1.0)
    in_core_line = simulate(in_core.prepared.plan.schedule, STEP, TRUE)
    names = {event.name: event for event in in_core_line.events}
    for call in STEP.calls:
        event = names[call.name]
        took_us = found.profile[profile_key(call, STEP)]
        assert took_us <= event.end_us - event.start_us
    assert found.call_overhead_us == min(found.profile.values())
    assert found.flops_per_us == pytest.approx(900.0, rel=0.001)
    assert found.device_bytes == TRUE.device_bytes
    first, naive, window, alone, paced = trainers.made
    assert first is in_core
    # Each one takes turns with in-core steps, the last two with the same.
    assert alone.steps == paced.steps
    assert in_core.steps == naive.steps + window.steps + alone.steps
    assert [t.planner for t in trainers.made[1:]] == ["naive", "window", "naive", "window"]
    assert {t.budget for t in trainers.made[1:]} == {"25%"}
    assert naive.link is window.link is None
    assert alone.link == found.link_bytes_per_us * 0.25
    assert paced.link == pytest.approx(
        calibrate.balance_bytes_per_us([window.timeline], [in_core.timeline])
    )
    assert all(t.closed for t in trainers.made[1:])
    assert not in_core.closed
    for other in trainers.made[1:]:
        assert (other.model, other.loss, other.optimizer) == ("model", "loss", "optimizer")
        positional, named = other.given
        assert positional == ("va", "cpu", 3)
        link = named.pop("link_bandwidth")
        assert link == other.link
        assert named == {"threads": 1, "machine": "cpu-generic", "conv_algorithm": "gemm",
                         "seed": 11, "clip": 1.5, "allow_tf32": False}  # fmt: skip


class EnoughError(Exception):
    """The trainers are made."""


def test_what_does_not_fit_is_tried_with_more_memory(trainers, monkeypatch):
    def stop(*_):
        raise EnoughError

    monkeypatch.setattr(calibrate, "measure_steps", stop)

    def budgets(*refused):
        trainers.made.clear()
        trainers.refusals.clear()
        trainers.refusals.update(refused)
        in_core = trainers("model", "loss", "optimizer", None, "keep-all")
        in_core.prepare(IMAGES.shape)
        with pytest.raises(EnoughError):
            calibrate.calibrate(in_core, IMAGES, LABELS, "found", 1)
        return list(dict.fromkeys(t.budget for t in trainers.made[1:]))

    least = resolve_budget(STEP, "60%", BYTES)
    small = Infeasible("too small", minimum_bytes=least)
    assert budgets(("25%", small)) == ["25%", least]
    assert budgets(("25%", FRAGMENTS)) == ["25%", "50%"]
    assert budgets(("25%", FRAGMENTS), ("50%", FRAGMENTS)) == ["25%", "50%", "75%"]
    assert budgets(("25%", FRAGMENTS), ("50%", small)) == ["25%", "50%", least]
    unknown = Infeasible("too small", minimum_bytes=None)
    assert budgets(("25%", unknown)) == ["25%", "75%"]


@pytest.mark.parametrize(("steps", "step_s", "turns"), [
    (7, 10.0, 3), (6, 10.0, 2), (1, 10.0, 1), (1, 0.05, 3), (1, 0.0625, 2), (1, 0.125, 1),
])  # fmt: skip
def test_trainers_take_turns_of_four_steps_of_which_the_first_does_not_count(
    steps, step_s, turns, monkeypatch
):
    """Until each has as many as requested, and half a second of its own has passed."""
    made, now = [], [0.0]

    class Stepping:
        def step(self, images, labels):
            made.append(self)
            now[0] += step_s
            self.timeline = len(made)

    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: now[0])
    one, other = Stepping(), Stepping()
    first, second = calibrate.measure_steps([one, other], IMAGES, LABELS, steps)
    assert made == ([one] * 4 + [other] * 4) * turns
    counts = [n + 8 * turn for turn in range(turns) for n in (2, 3, 4)]
    assert first == counts
    assert second == [n + 4 for n in counts]


# The disk.


class MadeUpSlab:
    """Copies take as long as their bytes and a start-up; a clock goes on meanwhile."""

    address = 1 << 60
    now_us = 0.0

    def __init__(self, spill, size_bytes):
        self.spill, self.size_bytes, self.copies, self.closed = spill, size_bytes, [], False
        slabs.append(self)

    def copy(self, target, source, size_bytes):
        out = target >= self.address
        at = (target if out else source) - self.address
        assert (source if out else target) < self.address
        self.copies.append((out, at, size_bytes))
        MadeUpSlab.now_us += 50.0 + size_bytes / (1000.0 if out else 2000.0)

    def close(self):
        self.closed = True


slabs: list[MadeUpSlab] = []


class OneAfterTheOther:
    """In the place of a thread, as a made-up clock cannot go on in two."""

    def __init__(self, threads):
        assert threads == 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, work):
        return SimpleNamespace(result=lambda: found) if (found := work()) else None


@pytest.fixture
def disk(monkeypatch):
    slabs.clear()
    monkeypatch.setattr(disk_speed, "HostFile", MadeUpSlab)
    monkeypatch.setattr(disk_speed, "COPY_BYTES", 4 << 20)
    monkeypatch.setattr(disk_speed.time, "perf_counter", lambda: MadeUpSlab.now_us / 1e6)
    monkeypatch.setattr(disk_speed, "ThreadPoolExecutor", OneAfterTheOther)


def test_the_rates_of_a_disk_are_those_of_its_copies(disk):
    found = measure_disk("folder")
    (slab,) = slabs
    size, count = 4 << 20, COPIES
    assert slab.size_bytes == 2 * count * size
    assert (slab.spill.folder, found.folder, slab.closed) == ("folder", "folder", True)
    # Both together take as long as the slower one: each direction has its own link.
    assert found.link == "duplex"
    assert found.out_bytes_per_us == pytest.approx(size / (50.0 + size / 1000.0))
    assert found.in_bytes_per_us == pytest.approx(size / (50.0 + size / 2000.0))
    rate = (found.out_bytes_per_us + found.in_bytes_per_us) / 2
    small = [50.0 + BLOCK_BYTES / 1000.0] * 32 + [50.0 + BLOCK_BYTES / 2000.0] * 32
    assert found.latency_us == pytest.approx(np.median(small) - BLOCK_BYTES / rate)
    first, second = ([(n + at) * size for n in range(count)] for at in (0, count))
    laid = [(True, at, size) for at in first + second]
    alone = [(True, at, size) for at in first] + [(False, at, size) for at in second]
    tiny = [(True, 0, BLOCK_BYTES)] * 32 + [(False, count * size, BLOCK_BYTES)] * 32
    # Beside the other way the thread of the reading begins.
    beside = alone[count:] + alone[:count]
    assert slab.copies == laid + alone + beside + tiny


def test_a_disk_that_fails_is_closed(disk, monkeypatch):
    def fail(*_):
        raise OSError("broken")

    monkeypatch.setattr(MadeUpSlab, "copy", fail)
    with pytest.raises(OSError, match="broken"):
        measure_disk("folder")
    assert slabs[0].closed


@pytest.mark.parametrize(("beside", "link"), [
    ((300.0, 400.0), "duplex"), ((499.0, 100.0), "duplex"), ((500.0, 100.0), "shared"),
    ((100.0, 600.0), "shared"), ((600.0, 600.0), "shared"),
])  # fmt: skip
def test_the_link_is_the_one_that_foretells_both_together(beside, link):
    """Alone 200 and 400 us: in turns 600, at once 400, and between them 500."""
    found = link_of(DiskTimes(200.0, 400.0, *beside), "folder")
    assert (found.link, found.folder) == (link, "folder")
    size = COPIES * COPY_BYTES
    times = beside if link == "duplex" else (200.0, 400.0)
    assert (found.out_bytes_per_us, found.in_bytes_per_us) == tuple(size / t for t in times)


def test_a_copy_is_timed_by_the_median_of_eight(monkeypatch):
    now, took = [0.0], [9.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 90.0]

    def copy(target, source):
        assert target.nbytes == source.nbytes == 64 << 20
        now[0] += took.pop(0)

    monkeypatch.setattr(copies, "stream_copy", copy)
    monkeypatch.setattr(memory_speed.time, "perf_counter", lambda: now[0] / 1e6)
    assert memory_speed.copy_bytes_per_us() == pytest.approx((64 << 20) / 5.0, rel=1e-9)
    assert took == []


# Mapping.


@dataclass
class MadeUpMemory:
    """Mapping a piece takes 4 us, the first time each 100; unmapping 2. A clock goes on meanwhile.

    In the place of an arena of the host, and of the memory of a GPU.
    """

    size_bytes: int
    now_us: list[float]
    maps: list[tuple[int, int, int]] = field(default_factory=list)
    turns: int = 0
    closed: bool = False

    def reserve(self, size_bytes):
        assert size_bytes == self.size_bytes
        return 1 << 40

    def map(self, address, at, size_bytes):
        self.maps.append((address - (1 << 40), at, size_bytes))
        self.now_us[0] += 100.0 if len(self.maps) <= self.size_bytes // size_bytes else 4.0

    def unmap(self, address, size_bytes):
        self.turns += 1
        self.now_us[0] += 2.0 * self.turns

    def close(self):
        self.closed = True


@pytest.fixture
def memories(monkeypatch):
    made, now_us = [], [0.0]

    def make(*given):
        made.append(MadeUpMemory(given[-1], now_us))
        return made[-1]

    monkeypatch.setattr(memory_speed, "VirtualArena", make)
    monkeypatch.setattr(memory_speed, "DriverMemory", make)
    monkeypatch.setattr(memory_speed, "why_no_virtual_memory", lambda: "")
    monkeypatch.setattr(memory_speed.time, "perf_counter", lambda: now_us[0] / 1e6)
    monkeypatch.setattr(copies, "stream_copy", lambda target, source: None)
    return made


def test_pages_are_mapped_over_others_in_the_reverse_order(memories):
    """Eight turns of 32 pieces; the first, which maps where nothing is, does not count."""
    piece, count = 2 << 20, 32
    found = memory_speed.map_us_per_byte()
    (arena,) = memories
    assert found == pytest.approx(4.0 / piece, rel=1e-9)
    assert arena.closed
    assert arena.maps == [
        ((at + turn) % count * piece, (count - 1 - at) * piece, piece)
        for turn in range(8) for at in range(count)
    ]  # fmt: skip


def test_where_nothing_can_be_mapped_it_costs_nothing(memories, monkeypatch):
    monkeypatch.setattr(memory_speed, "why_no_virtual_memory", lambda: "no memfd")
    assert memory_speed.map_us_per_byte() == 0.0
    assert memories == []


@pytest.mark.parametrize("maps", [True, False])
def test_a_gpu_maps_all_pieces_at_once_and_the_last_turn_counts(maps, memories, monkeypatch):
    closed = []
    driver = SimpleNamespace(granularity=lambda: 4096, maps=maps, close=lambda: closed.append(True))
    monkeypatch.setattr(memory_speed.cuda_open, "open_cuda_driver", lambda: driver)
    found = memory_speed.gpu_map_us_per_byte()
    assert closed == [True]
    if not maps:
        assert (found, memories) == (0.0, [])
        return
    (memory,) = memories
    assert memory.maps == [(0, 0, 256 * 4096)] * 2
    assert memory.closed
    assert found == pytest.approx((4.0 + 4.0) / 256 / 4096, rel=1e-9)
    times = memory_speed.measure_mapping(driver, 8)
    assert times.piece_bytes == 4096
    assert times.map_us == pytest.approx((100.0 / 8, 4.0 / 8), rel=1e-9)
    assert times.unmap_us == pytest.approx((2.0 / 8, 4.0 / 8), rel=1e-9)
