"""Wrappers of allocators: each keeps its promise, alone and around others, and does no more."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from support.quick import all_but
from support.strict_memory import StrictMemory

import ooctrain as oc
from ooctrain.alloc.base import Allocator, Block
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_allocator
from ooctrain.alloc.virtual import VirtualAddressing
from ooctrain.alloc.wrappers import (
    Checked,
    Counted,
    FailAt,
    Limited,
    Logged,
    Poisoned,
    ThreadSafe,
    Wrapper,
)
from ooctrain.devices.cpu.copy_engine import CopyLink
from ooctrain.devices.cpu.device import CpuDevice
from ooctrain.engine.incore import initial_values
from ooctrain.errors import ConfigError, InvalidFree, OutOfDeviceMemory, PlanMismatch
from ooctrain.execution.executor import Session, host_extent_bytes
from ooctrain.execution.fit import prepare
from ooctrain.execution.sessions import input_values
from ooctrain.execution.settings import Settings
from ooctrain.step.chain import chain
from ooctrain.testing.check_allocator import check_allocator

PAGE = 4096
BUDGET = 16 * PAGE


def best_fit() -> BestFit:
    return BestFit(DryMemory(BUDGET))


def virtual() -> VirtualAddressing:
    return VirtualAddressing(StrictMemory(BUDGET), PAGE)


class Bytes:
    """Memory that can be filled, by address."""

    def __init__(self):
        self.values = {}

    def fill(self, address, size_bytes, value):
        self.values.update(dict.fromkeys(range(address, address + size_bytes), value))

    def read(self, block):
        return {self.values.get(block.address + i) for i in range(block.requested_bytes)}


class Nothing:
    """Memory that takes no note of being filled."""

    def fill(self, address, size_bytes, value):
        assert address > 0
        assert size_bytes > 0
        assert value in (0xFF, 0x7F)


NESTS = {
    "limited": lambda inner: Limited(inner, 1 << 40),
    "logged": Logged,
    "counted": Counted,
    "poisoned": lambda inner: Poisoned(inner, Nothing()),
    "fail-at": lambda inner: FailAt(inner, 1 << 40),
    "thread-safe": ThreadSafe,
    "checked": Checked,
    "all": lambda inner: ThreadSafe(Checked(Counted(Logged(Limited(inner, 1 << 40))))),
}


@pytest.mark.parametrize("name", all_but(NESTS, *sorted(NESTS.keys() - {"poisoned", "all"})))
def test_they_are_allocators_and_keep_the_laws(name):
    assert isinstance(NESTS[name](best_fit()), Allocator)
    assert check_allocator(lambda memory: NESTS[name](BestFit(memory)), examples=20) == 20


@pytest.mark.parametrize("name", NESTS)
def test_ranges_work_if_the_inner_allocator_has_them_and_else_say_so(name):
    outer = NESTS[name](virtual())
    block = outer.reserve(4 * PAGE, "x")
    outer.map_range(block, PAGE, 3 * PAGE)
    assert outer.stats().granted_bytes == 2 * PAGE
    outer.unmap_range(block, PAGE, 2 * PAGE)
    outer.check()
    assert outer.stats().granted_bytes == PAGE
    outer.free(block)
    assert outer.close() == []
    for act in (lambda a: a.reserve(100), lambda a: a.map_range(Block(1, 0, 1, 1, ""), 0, 1)):
        with pytest.raises(ConfigError, match="no ranges"):
            act(NESTS[name](best_fit()))


def test_limited_counts_what_is_granted_and_refusing_leaves_no_trace():
    limited = Limited(best_fit(), 4 * 512 + 100)
    assert limited.budget_bytes == 4 * 512
    a, b, c = (limited.allocate(512, name) for name in "abc")
    limited.free(b)
    before, stats = limited.snapshot(), limited.stats()
    assert (stats.free_bytes, stats.largest_bytes) == (2 * 512, 2 * 512)
    with pytest.raises(OutOfDeviceMemory, match=r"over the limit of 2.00 KiB"):
        limited.allocate(3 * 512)
    assert (limited.snapshot(), limited.stats()) == (before, stats)
    assert stats.reserved_bytes == stats.granted_bytes + stats.cached_bytes <= limited.budget_bytes
    limited.allocate(512)
    limited.allocate(512)
    with pytest.raises(OutOfDeviceMemory):
        limited.allocate(1)
    for wrong in (True, 0, -1, 1.5, 2**63):
        with pytest.raises(ConfigError, match="cannot allocate"):
            limited.allocate(wrong)
    assert {x["tag"] for x in limited.snapshot()["blocks"]} >= {a.tag, c.tag}
    with pytest.raises(ConfigError, match="allows nothing"):
        Limited(best_fit(), 0)


def test_limited_keeps_the_laws_where_the_inner_allocator_has_holes():
    def binding(memory):
        return Limited(BestFit(memory), 9 * PAGE)

    assert check_allocator(binding, examples=40, backends=("strict",)) == 40


def test_limited_holds_for_ranges():
    limited = Limited(virtual(), 2 * PAGE)
    block = limited.reserve(4 * PAGE)
    limited.map_range(block, 0, 2 * PAGE)
    with pytest.raises(OutOfDeviceMemory):
        limited.map_range(block, 2 * PAGE, 3 * PAGE)


def test_counted_counts_calls_and_bytes_by_tag():
    counted = Counted(virtual())
    block = counted.allocate(100, "x")
    counted.allocate(50, "x")
    counted.free(block)
    with pytest.raises(OutOfDeviceMemory):
        counted.allocate(BUDGET * 2, "large")
    assert counted.calls == {"allocate": 3, "free": 1}
    assert counted.bytes_by_tag == {"x": 150}
    assert all(spent > 0 for spent in counted.spent_ns.values())


def test_counted_counts_ranges_too():
    counted = Counted(virtual())
    block = counted.reserve(4 * PAGE, "x")
    counted.map_range(block, 0, PAGE)
    counted.map_range(block, PAGE, 3 * PAGE)
    counted.unmap_range(block, 0, PAGE)
    counted.map_range(block, 0, PAGE)
    assert counted.calls == {"reserve": 1, "map_range": 3, "unmap_range": 1}
    assert counted.bytes_by_tag == {"x": 4 * PAGE}


def test_poison_shows_reads_too_early_and_too_late():
    memory = Bytes()
    allocator = Poisoned(best_fit(), memory)
    block = allocator.allocate(700)
    assert memory.read(block) == {0xFF}
    memory.fill(block.address, 700, 1)
    allocator.free(block)
    assert memory.read(block) == {0x7F}
    again = allocator.allocate(700)
    memory.fill(again.address, 700, 2)
    with pytest.raises(InvalidFree):
        allocator.free(block)
    assert memory.read(again) == {2}, "a wrong free poisons nobody else's bytes"


def test_fail_at_sweeps_over_every_claim_of_a_client():
    def client(allocator):
        kept = [allocator.allocate(100, str(n)) for n in range(3)]
        allocator.free(kept.pop())
        kept.append(allocator.allocate(900, "large"))

    for claim in range(10):
        allocator = FailAt(best_fit(), claim)
        try:
            client(allocator)
        except OutOfDeviceMemory:
            allocator.check()
            assert allocator.claims == claim + 1
            assert allocator.allocate(100)  # it fails once
        else:
            break
    assert claim == 4


def test_threads_share_an_allocator():
    shared = ThreadSafe(best_fit())

    def work():
        for size in range(1, 400):
            shared.free(shared.allocate(size))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.check()
    stats = shared.stats()
    assert (stats.allocations, stats.frees, stats.granted_bytes) == (1596, 1596, 0)


class Holder:
    """Frees its block when it is collected, as an array of a user would."""

    def __init__(self, allocator, block):
        self.allocator, self.block, self.itself = allocator, block, self

    def __del__(self):
        self.allocator.free(self.block)


class CollectingInside(Wrapper):
    """The garbage collector runs in the middle of an allocation."""

    def allocate(self, nbytes, tag=""):
        before = self.inner.stats().frees
        gc.collect()
        assert self.inner.stats().frees == before, "freed within an allocation"
        return self.inner.allocate(nbytes, tag)


def test_a_free_from_a_finalizer_is_put_off_and_not_lost():
    """Law P17: also where the finalizer runs inside the allocator."""
    allocator = ThreadSafe(CollectingInside(best_fit()))
    gc.disable()
    try:
        Holder(allocator, allocator.allocate(100, "held by a cycle"))
        kept = allocator.allocate(200, "kept")
    finally:
        gc.enable()
    assert [entry["tag"] for entry in allocator.snapshot()["blocks"]] == ["kept"]
    allocator.free(kept)
    assert allocator.stats().frees == 2
    assert allocator.close() == []


@pytest.mark.slow
def test_a_wrong_free_from_a_finalizer_is_told_by_the_next_call():
    allocator = ThreadSafe(CollectingInside(best_fit()))
    gc.disable()
    try:
        block = allocator.allocate(100)
        Holder(allocator, block)
        allocator.free(block)
        allocator.allocate(100, "here the finalizer runs")
    finally:
        gc.enable()
    with pytest.raises(InvalidFree):
        allocator.stats()
    assert len(allocator.snapshot()["blocks"]) == 1


class Overlapping(BestFit):
    """Gives every second block the address of the one before."""

    last = 0

    def allocate(self, nbytes, tag=""):
        block = super().allocate(nbytes, tag)
        if block.id % 2 == 0:
            block.address = self.last
        self.last = block.address
        return block


class Unaligned(BestFit):
    """Addresses in the middle of a cache line."""

    def allocate(self, nbytes, tag=""):
        block = super().allocate(nbytes, tag)
        block.address += 8
        return block


class Stingy(BestFit):
    """Rounds down."""

    def allocate(self, nbytes, tag=""):
        block = super().allocate(nbytes, tag)
        block.granted_bytes -= 512
        return block


class Absent(BestFit):
    """Returns nothing."""

    def allocate(self, nbytes, tag=""):
        super().allocate(nbytes, tag)


WRONG = [
    (Overlapping, r"it lies on '[xy]\d'"), (Unaligned, "not a positive multiple of 64"),
    (Stingy, "with rounding; it says"), (Absent, "it is None"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "words"), WRONG)
def test_a_users_wrong_allocator_is_named_before_the_first_step(kind, words):
    trace = chain([3000, 700, 900], [3000, 700, 900], [5, 5], [7, 7], [0, 0], [0, 0])
    source = f"{__file__}:{kind.__name__}"
    with pytest.raises(PlanMismatch, match=words) as caught:
        prepare(trace, Settings(allocator=source, rewrites=(), machine="cpu-generic"))
    assert caught.value.code == "OOC-132"
    assert "check_allocator" in str(caught.value)


def test_a_combination_of_ones_own_is_a_function_in_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from ooctrain.alloc.best_fit import BestFit\n"
        "from ooctrain.alloc.wrappers import Limited, Logged\n"
        "def make(memory, limit=4096):\n"
        "    return Limited(Logged(BestFit(memory)), limit)\n"
    )
    choice = choose_allocator(f"{path}:make:limit=8KiB", BUDGET)
    assert choice.budget_bytes == 8192
    assert choice.make(DryMemory(BUDGET)).allocate(8192).granted_bytes == 8192


def run_with(allocator_of, prepared, values, batch):
    """One step on a fresh device; returns its loss and the allocator."""
    plan = prepared.plan
    extent = host_extent_bytes(plan.trace, plan.schedule)
    device = CpuDevice(prepared.allocator.budget_bytes, extent, 1, CopyLink(prepared.machine.link))
    try:
        allocator = allocator_of(prepared.allocator.make(device.memory))
        loss = plan.trace.outputs["loss"]
        session = Session(plan.trace, plan.schedule, device, allocator, values, (loss,))
        scalars = {"lr": 0.1, "seed": 0, "step": 0}
        result = session.run_step(input_values(plan.trace, *batch), scalars)
        session.close()
        return result.outputs[loss], allocator
    finally:
        device.close()


@pytest.mark.parametrize("name", ["best-fit", "va:chunk=4KiB"])
def test_training_survives_a_refusal_at_every_claim(name):
    """Whichever claim of a step is refused: a clear error, no hang, and the next run is right."""
    oc.manual_seed(0)
    layers = [oc.nn.Conv2d(3, 4, 3), oc.nn.ReLU(), oc.nn.Flatten(), oc.nn.Linear(64, 3)]
    model = oc.nn.Sequential(*layers)
    trace = oc.trace(model, (2, 3, 6, 6), threads=1)
    how = Settings(allocator=name, planner="naive", threads=1)
    prepared = prepare(trace, how)
    start = initial_values(trace, model)
    values = {v: start[prepared.plan.trace.variables[v].name]
              for v in prepared.plan.trace.end_variables}  # fmt: skip
    batch = (np.ones((2, 3, 6, 6), np.float32), np.zeros(2, np.int64))
    expected, counting = run_with(lambda a: FailAt(a, 1 << 40), prepared, values, batch)
    assert counting.claims > 10
    for claim in range(counting.claims):
        with pytest.raises(OutOfDeviceMemory, match=f"claim {claim} fails on purpose"):
            run_with(lambda a, n=claim: FailAt(a, n), prepared, values, batch)
    found, _ = run_with(lambda a: Checked(Counted(a)), prepared, values, batch)
    assert found.tobytes() == expected.tobytes()
