"""Every allocator keeps every law on every back end; what is broken is told with few requests."""

from __future__ import annotations

import json

import pytest
from support.quick import all_but, quick

from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.holes import Holes
from ooctrain.alloc.log import Recorder as Logged
from ooctrain.alloc.registry import allocators, choose_allocator
from ooctrain.alloc.virtual import VirtualAddressing
from ooctrain.alloc.wrappers import Checked, Counted, ThreadSafe
from ooctrain.devices.interface import Memory
from ooctrain.testing import check_allocator
from ooctrain.testing.allocator_grounds import DriverGround, make_ground
from ooctrain.testing.allocator_laws import LAWS, Ask, Broken, DrawnProgram, own_laws
from ooctrain.testing.check_allocator import (
    UNITS,
    AllocatorFailure,
    run_requests,
    sweep_refusals,
)
from ooctrain.testing.fake_driver import FakeDriver

PAGE = 4096
#: Each allocator of the registry, with chunks small enough to cut an arena of 12 pages to pieces.
NAMES = {
    "best-fit": BestFit.name,
    "best-fit-caching": "best-fit-caching:small=4KiB,chunk=4KiB",
    "buddy": "buddy",
    "bump": "bump",
    "first-fit": "first-fit",
    "first-fit-by-size": "first-fit-by-size",
    "gmlake": "gmlake:chunk=4KiB",
    "passthrough": "passthrough:chunk=4KiB",
    "stalloc": "stalloc",
    "va": "va:chunk=4KiB",
    "va-nnabla": "va-nnabla:chunk=4KiB,waiting=2",
    "va-paper": "va-paper:chunk=4KiB",
}
WRAPPED = {
    "Checked": lambda memory: Checked(BestFit(memory)),
    "Counted": lambda memory: Counted(VirtualAddressing(memory, 2 * PAGE)),
    "Logged": lambda memory: Logged(BestFit(memory)),
    "ThreadSafe": lambda memory: ThreadSafe(VirtualAddressing(memory, PAGE)),
}


def test_every_allocator_is_held_to_the_laws():
    assert set(NAMES) == set(allocators())


@pytest.mark.parametrize(
    "name",
    all_but(
        sorted(NAMES), "passthrough", "first-fit-by-size", "bump", "buddy", "gmlake", "va-paper"
    ),
)
def test_it_keeps_the_laws(name):
    assert check_allocator(NAMES[name], examples=4) == 4


@pytest.mark.parametrize("name", all_but(sorted(WRAPPED), "ThreadSafe", "Counted"))
def test_a_wrapped_allocator_keeps_the_laws(name):
    assert check_allocator(WRAPPED[name], examples=3) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NAMES))
def test_it_keeps_the_laws_for_long(name):
    assert check_allocator(NAMES[name], examples=1500, seed=1) == 1500


@pytest.mark.parametrize(
    "name",
    quick(["best-fit", "best-fit-caching:chunk=4KiB", "va:chunk=4KiB", "va-nnabla:chunk=4KiB",
           "va-paper:chunk=4KiB", "gmlake:chunk=4KiB"], 0, 2, 5),
)  # fmt: skip
def test_every_obtaining_call_is_refused_once(name):
    """At least one for each piece of memory, one reservation, one mapping, one access."""
    make = choose_allocator(name, UNITS * PAGE, binding=False).make
    assert sweep_refusals(make) >= UNITS + 3
    assert sweep_refusals(make, "memfd") >= 4


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["va", "va-paper", "passthrough"])
def test_it_keeps_the_laws_on_a_gpu(name):
    assert check_allocator(f"{name}:chunk=2MiB", examples=8, backends=["cuda"]) == 8


# What a failure says.


class Forgetful(Holes):
    """Holes of which the large ones lose a sector."""

    def add(self, offset: int, size_bytes: int) -> None:
        super().add(offset, size_bytes - 512 if size_bytes > 2 * PAGE else size_bytes)


class Greedy(BestFit):
    """Forgets a sector of large holes."""

    def __init__(self, memory: Memory):
        super().__init__(memory)
        self._holes = Forgetful()


def test_a_failure_is_short_says_its_law_and_can_be_repeated():
    with pytest.raises(AllocatorFailure) as caught:
        check_allocator(Greedy, seed=3)
    failure = caught.value
    assert failure.law == "P16"
    assert len(failure.requests) <= 4
    text = str(failure)
    assert "P16 (check() passes" in text
    assert "  1. " in text
    assert "run_requests(make, failure.program, 'strict')" in text
    with pytest.raises(AssertionError):
        run_requests(Greedy, failure.program, failure.backend)


def test_the_same_seed_finds_the_same():
    found = []
    for _ in range(2):
        with pytest.raises(AllocatorFailure) as caught:
            check_allocator(Greedy, seed=5, backends=["strict"])
        found.append(caught.value.program)
    assert found[0] == found[1]


def test_requests_read_as_sentences():
    words = [str(Ask("allocate", 5, 2)), str(Ask("claim", 1, 0, 2, 3))]
    assert words == [
        "allocate 5 B on stream 2",
        "claim 3 granules from 2 of reserved block 1 on stream 0",
    ]


def test_a_ground_gives_back_what_it_has_when_its_memory_is_refused():
    for number in range(UNITS):
        ground = make_ground("strict", UNITS * PAGE, PAGE, refuse_at=number)
        assert not ground.take_back()
        assert ground.held()["handles"] == UNITS


def test_each_law_that_is_used_is_stated():
    assert all(len(text) > 10 for text in LAWS.values())
    with pytest.raises(KeyError):
        Broken("P99", "no such law")
    assert own_laws("somebody's") == ()


# The grounds, on which all of it stands.


@pytest.mark.parametrize("kind", ["strict", "memfd", "plain"])
def test_a_ground_sees_bytes_that_change(kind):
    ground = make_ground(kind, UNITS * PAGE, PAGE)
    address = ground.memory.linear()
    ground.fill(address, 100, 7, 0)
    ground.wait(1, ground.event(0))
    ground.expect(address, 100, 7, 1, "mine")
    assert ground.finish() == ""
    ground.fill(address + 99, 1, 8, 2)
    ground.wait(1, ground.event(2))
    ground.expect(address, 100, 7, 1, "mine")
    assert ground.finish() == "mine: 7 was written, 8 is read"
    assert not any(ground.close().values())


def test_of_large_ranges_each_page_is_looked_at():
    ground = make_ground("strict", 64 * PAGE, PAGE)
    address = ground.memory.linear()
    ground.fill(address, 64 * PAGE, 7, 0)
    ground.fill(address + 40 * PAGE, PAGE, 8, 0)
    ground.expect(address, 64 * PAGE, 7, 0, "large")
    assert ground.finish() == "large: 7 was written, 8 is read"


def test_a_ground_over_a_full_slab_starts_anew():
    ground = DriverGround(FakeDriver(4 * PAGE, PAGE), 4 * PAGE, PAGE)
    address = ground.memory.linear()
    ground.fill(address, 4 * PAGE, 1, 0)
    for _ in range(40):
        ground.expect(address, 4 * PAGE, 1, 0, "all")
    assert ground.finish() == ""


def test_work_is_done_in_the_order_that_was_chosen():
    """Two fills of one page on streams that nothing orders: the order decides what is read."""
    seen = []
    for order in ((0, 0, 0), (1, 0, 0)):
        ground = make_ground("strict", PAGE, PAGE, order)
        address = ground.memory.linear()
        ground.fill(address, 1, 1, 0)
        ground.fill(address, 1, 2, 1)
        ground.finish()
        ground.expect(address, 1, 1, 0, "last")
        seen.append(ground.finish())
    assert seen == ["last: 1 was written, 2 is read", ""]


# Law P17.


def test_a_free_within_an_allocate_is_put_off_and_not_lost():
    """As from a finalizer: the memory's own call comes back into the allocator."""
    inside = []

    class Calling(DryMemory):
        def reserve(self, size_bytes: int) -> int:
            for block in inside:
                allocator.free(block)
            inside.clear()
            return super().reserve(size_bytes)

    allocator = ThreadSafe(VirtualAddressing(Calling(8 * PAGE), PAGE))
    blocks = [allocator.allocate(PAGE) for _ in range(8)]
    for block in blocks[::2]:
        allocator.free(block)
    inside.append(blocks[1])
    large = allocator.allocate(3 * PAGE)  # needs a range of its own
    assert not inside
    assert allocator.stats().granted_bytes == 6 * PAGE
    allocator.check()
    allocator.free(large)
    assert json.dumps(allocator.snapshot())
    assert {b.id for b in allocator.close()} == {blocks[i].id for i in (3, 5, 7)}


def test_a_program_without_requests_is_one():
    assert run_requests(BestFit, DrawnProgram(())) == 0
