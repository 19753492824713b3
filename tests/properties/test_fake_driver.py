"""The allocators over the strict driver: any requests, any order of queued work, any refusal.

The client of this machine does what the executor does: a claim waits for every release listed
before it and changes the mappings before the new block is used, sooner or later than other claims
do; `after` are the events of a block's last uses. The fake is lazy, so an allocator that breaks a
mapping too early, maps a chunk twice, or forgets access is found out; every block's bytes are
checked by queued work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ooctrain.alloc.base import Allocator, Block, Changes
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.virtual import VirtualAddressing
from ooctrain.devices.driver_memory import DriverMemory
from ooctrain.devices.fake_driver import FakeDriver
from ooctrain.errors import ConfigError, DriverError, InvalidFree, OutOfDeviceMemory

PAGE, TOTAL_PAGES, BUDGET_PAGES = 4096, 14, 12
SIZES = st.integers(1, 5 * PAGE)
PICK = st.integers(0, 99)
#: Which of the driver's next calls is refused.
FAIL = st.none() | st.integers(0, 4)
#: The order of the waiting pieces of work: which of those that can go on.
ORDER = st.lists(st.integers(0, 7), max_size=12)


def expect(error: Exception, text: str) -> None:
    assert text in str(error)


@dataclass(slots=True)
class Reached:
    """A driver's event, as allocators are given it."""

    driver: FakeDriver
    event: int

    def wait(self) -> None:
        self.driver.synchronize_event(self.event)


@dataclass(slots=True)
class Held:
    """A live block: which granules of it are held, its mark, and its last use."""

    block: Block
    mark: int
    granules: set[int] = field(default_factory=set)
    last: Reached | None = None


@dataclass(slots=True)
class Claim:
    """Granules that a block has been given, whose mappings are still to be changed."""

    held: Held
    granules: set[int]
    stream: int
    changes: Changes | None
    releases: list[Reached]


class Client(RuleBasedStateMachine):
    """Requests to one allocator over one driver; subclasses say which."""

    chunk_pages = 1
    ranges = False

    def make(self, memory: DriverMemory) -> Allocator:
        return BestFit(memory)

    def __init__(self):
        super().__init__()
        self.order: list[int] = []
        self.driver = FakeDriver(TOTAL_PAGES * PAGE, PAGE, choose=self.chosen)
        self.chunk = self.chunk_pages * PAGE
        self.memory = DriverMemory(self.driver, BUDGET_PAGES * PAGE, self.chunk)
        self.allocator = self.make(self.memory)
        self.live: list[Held] = []
        self.freed: list[Block] = []
        self.releases: list[Reached] = []
        self.claims: list[Claim] = []
        self.marks, self.broken = 0, False

    def chosen(self, streams):
        return streams[(self.order.pop() if self.order else 0) % len(streams)]

    @initialize(kept=st.lists(st.booleans(), min_size=BUDGET_PAGES, max_size=BUDGET_PAGES))
    def holes(self, kept):
        """Begins with an arena that is full of small blocks, and frees some of them."""
        self.queues = [self.driver.create_stream() for _ in range(3)]
        for place in range(BUDGET_PAGES // self.chunk_pages):
            self.allocate(self.chunk, place % 3, None)
        for place in reversed(range(BUDGET_PAGES // self.chunk_pages)):
            if not kept[place]:
                self.free(place)

    # Requests.

    @precondition(lambda self: not self.broken)
    @rule(nbytes=SIZES, stream=st.integers(0, 2), fail=FAIL)
    def allocate(self, nbytes, stream, fail):
        before = self.allocator.snapshot(), self.books()
        if fail is not None:
            self.driver.fail(fail)
        try:
            block = self.allocator.allocate(nbytes, f"block {self.marks}")
        except OutOfDeviceMemory:
            assert (self.allocator.snapshot(), self.books()) == before
            free = self.allocator.budget_bytes - self.granted()
            assert not self.ranges or self.allocator.granule.granted(nbytes) > free
            self.driver.clear_fault()
            return
        except DriverError as error:
            # The address range was refused: nothing has happened.
            expect(error, "injected")
            assert (self.allocator.snapshot(), self.books()) == before
            return
        self.driver.clear_fault()
        held = Held(block, 0)
        self.live.append(held)
        self.freed = [b for b in self.freed if b.id != block.id]
        self.claim(held, range(self.granules(nbytes)), stream)

    @precondition(lambda self: self.live and not self.broken)
    @rule(pick=PICK)
    def free(self, pick):
        held = self.live[pick % len(self.live)]
        if not self.settle(held):
            return
        self.live.remove(held)
        after = [held.last] if held.last else []
        self.allocator.free(held.block, after)
        self.releases += after
        self.freed.append(held.block)

    @precondition(lambda self: self.ranges and self.live and not self.broken)
    @rule(pick=PICK, lo=PICK, count=st.integers(1, 4))
    def unmap_range(self, pick, lo, count):
        held = self.live[pick % len(self.live)]
        if not self.settle(held):
            return
        first, last = self.range_of(held, lo, count)
        wanted = set(range(first, last))
        after = [held.last] if held.last else []
        bounds = first * self.chunk, min(last * self.chunk, held.block.requested_bytes)
        if not wanted <= held.granules:
            with pytest.raises(ConfigError, match="not held"):
                self.allocator.unmap_range(held.block, *bounds, after)
            return
        self.allocator.unmap_range(held.block, *bounds, after)
        self.releases += after
        held.granules -= wanted

    @precondition(lambda self: self.ranges and self.live and not self.broken)
    @rule(pick=PICK, lo=PICK, count=st.integers(1, 4), stream=st.integers(0, 2))
    def map_range(self, pick, lo, count, stream):
        held = self.live[pick % len(self.live)]
        if not self.settle(held):
            return
        first, last = self.range_of(held, lo, count)
        bounds = first * self.chunk, min(last * self.chunk, held.block.requested_bytes)
        before = self.allocator.snapshot(), self.books()
        try:
            self.allocator.map_range(held.block, *bounds)
        except ConfigError as error:
            expect(error, "held already")
            assert held.granules & set(range(first, last))
            assert (self.allocator.snapshot(), self.books()) == before
        except OutOfDeviceMemory:
            assert (self.allocator.snapshot(), self.books()) == before
        else:
            self.claim(held, range(first, last), stream)

    @precondition(lambda self: self.freed and not self.broken)
    @rule(pick=PICK)
    def double_free(self, pick):
        before = self.allocator.snapshot(), self.books()
        with pytest.raises(InvalidFree):
            self.allocator.free(self.freed[pick % len(self.freed)])
        assert (self.allocator.snapshot(), self.books()) == before

    # Work.

    @precondition(lambda self: self.live and not self.broken)
    @rule(pick=PICK, stream=st.integers(0, 2))
    def use(self, pick, stream):
        """Reads a block on some stream, behind its last use."""
        held = self.live[pick % len(self.live)]
        if held.last is not None:
            self.driver.wait_event(self.queues[stream], held.last.event)
        self.check_bytes(held, stream)

    @rule(order=ORDER, pieces=st.integers(1, 12))
    def work(self, order, pieces):
        self.order = list(order)
        for _ in range(pieces):
            self.driver.step()

    @precondition(lambda self: self.claims and not self.broken)
    @rule(pick=PICK, fail=FAIL)
    def change_mappings(self, pick, fail):
        """One of the waiting claims is made; streams make theirs in any order."""
        if fail is not None:
            self.driver.fail(fail)
        self.make_claim(self.claims.pop(pick % len(self.claims)))

    def claim(self, held: Held, granules: range, stream: int) -> None:
        changes = self.allocator.take_changes()
        self.claims.append(Claim(held, set(granules), stream, changes, [*self.releases]))
        held.granules |= set(granules)

    def settle(self, held: Held) -> bool:
        """Makes the claims of one block, whose use is over before the block changes hands."""
        for claim in [claim for claim in self.claims if claim.held is held]:
            self.claims.remove(claim)
            self.make_claim(claim)
        return not self.broken

    def make_claim(self, claim: Claim) -> None:
        """Changes the mappings, then queues a write of all that is held now, then a check."""
        held = claim.held
        try:
            if claim.changes is not None:
                claim.changes()
        except DriverError as error:
            expect(error, "injected")
            # A claim whose mapping fails ends the run; then everything must still come back.
            self.broken = True
            return
        finally:
            self.driver.clear_fault()
        for reached in [*claim.releases, *([held.last] if held.last else [])]:
            self.driver.wait_event(self.queues[claim.stream], reached.event)
        self.marks += 1
        held.mark = self.marks % 251
        for address, size in self.mapped(held):
            self.driver.fill(address, held.mark, size, self.queues[claim.stream])
        self.check_bytes(held, claim.stream)

    def check_bytes(self, held: Held, stream: int) -> None:
        uses, mark = self.mapped(held), held.mark

        def check() -> None:
            for address, size in uses:
                assert set(self.driver.read(address, size)) == {mark}, "somebody wrote into it"

        self.driver.launch(self.queues[stream], uses, check, f"check of {held.block.tag}")
        held.last = Reached(self.driver, self.driver.create_event())
        self.driver.record_event(held.last.event, self.queues[stream])

    # Sizes.

    def granules(self, nbytes: int) -> int:
        return -(-nbytes // self.chunk) if self.ranges else 1

    def range_of(self, held: Held, lo: int, count: int) -> tuple[int, int]:
        slots = self.granules(held.block.requested_bytes)
        return lo % slots, min(lo % slots + count, slots)

    def ranges_of(self, held: Held) -> list[tuple[int, int]]:
        """(address, bytes) of what is held."""
        base, size = held.block.address, held.block.requested_bytes
        step = self.chunk if self.ranges else size
        return [(base + g * step, min(step, size - g * step)) for g in sorted(held.granules)]

    def mapped(self, held: Held) -> list[tuple[int, int]]:
        """(address, bytes) of what is held and no claim is waiting for."""
        waiting = [c.granules for c in self.claims if c.held is held]
        return self.ranges_of(Held(held.block, 0, held.granules.difference(*waiting)))

    def granted(self) -> int:
        return sum(held.block.granted_bytes for held in self.live)

    def books(self) -> tuple[int, ...]:
        stats = self.allocator.stats()
        return (
            stats.requested_bytes, stats.granted_bytes, stats.cached_bytes, stats.reserved_bytes,
            stats.peak_reserved_bytes, stats.allocations, stats.frees,
        )  # fmt: skip

    # Laws.

    @invariant()
    def the_driver_agrees(self):
        handles = BUDGET_PAGES // self.chunk_pages
        held = self.driver.held()
        assert held["handles"] == handles
        assert self.driver.used_bytes == handles * self.chunk == self.memory.used_bytes()
        assert all(access for _, _, access in self.driver.mappings())

    @precondition(lambda self: not self.broken)
    @invariant()
    def the_books_balance(self):
        self.allocator.check()
        stats = self.allocator.stats()
        assert stats.reserved_bytes == stats.granted_bytes + stats.cached_bytes
        assert stats.granted_bytes == self.granted()
        assert stats.requested_bytes == sum(n for h in self.live for _, n in self.ranges_of(h))
        assert stats.reserved_bytes <= stats.peak_reserved_bytes <= self.allocator.budget_bytes
        if self.ranges:
            assert stats.granted_bytes == sum(len(h.granules) for h in self.live) * self.chunk
            assert stats.cached_bytes == 0

    @precondition(lambda self: not self.broken)
    @invariant()
    def blocks_are_apart_and_accessible(self):
        ranges = sorted(piece for held in self.live for piece in self.ranges_of(held))
        for (address, size), (behind, _) in pairwise(ranges):
            assert address + size <= behind
        for address, size in [piece for held in self.live for piece in self.mapped(held)]:
            self.driver.read(address, size)

    def teardown(self):
        if not hasattr(self, "queues"):
            return
        self.driver.clear_fault()
        self.driver.drain()
        live = self.allocator.close()
        assert [b.id for b in live] == sorted(held.block.id for held in self.live)
        self.memory.close()
        left = self.driver.held()
        assert self.driver.used_bytes == 0
        assert not any(left[kind] for kind in ("handles", "bytes", "reservations", "mappings"))


class VaClient(Client):
    ranges = True

    def make(self, memory):
        return VirtualAddressing(memory, self.chunk)


class VaWideClient(VaClient):
    chunk_pages = 2


@pytest.mark.parametrize("client", [Client, VaClient, VaWideClient])
def test_allocators_keep_every_rule_of_the_driver(client):
    run_state_machine_as_test(
        client,
        settings=settings(
            max_examples=40, stateful_step_count=30, suppress_health_check=list(HealthCheck)
        ),
    )


# The test of the test: planted bugs of allocators and of the memory below them.


class UsesBeforeMapping(VaClient):
    """Forgets to change the mappings."""

    def make_claim(self, claim):
        claim.changes = None
        super().make_claim(claim)


class NoAccess(DriverMemory):
    """Forgets that a mapping begins without access."""

    def map(self, address, offset, size_bytes):
        driver, self._driver = self._driver, Deaf(self._driver, "set_access")
        super().map(address, offset, size_bytes)
        self._driver = driver


class Leaks(DriverMemory):
    """Keeps one handle."""

    def close(self):
        self._handles = self._handles[1:]
        super().close()


class Deaf:
    """A driver that ignores one call."""

    def __init__(self, inner, ignored):
        self.inner, self.ignored = inner, ignored

    def __getattr__(self, name):
        return (lambda *_: None) if name == self.ignored else getattr(self.inner, name)


class NoEventWait(VirtualAddressing):
    """Breaks mappings before their last use is over."""

    def _perform(self, changes):
        changes.after.clear()
        super()._perform(changes)


class RoundsDown(BestFit):
    """Grants less than was asked for."""

    def allocate(self, nbytes, tag=""):
        block = super().allocate(max(1, nbytes - 512), tag)
        block.requested_bytes = nbytes
        return block


class FreesTwice(BestFit):
    """Takes a freed block again."""

    def free(self, block, after=()):
        if block.id in self._books.live:
            super().free(block, after)


class ForgetsOnRefusal(VirtualAddressing):
    """A refused request stays in the books."""

    def allocate(self, nbytes, tag=""):
        try:
            return super().allocate(nbytes, tag)
        except OutOfDeviceMemory:
            self._books.counts["allocations"] += 1
            raise


class WrongChunk(VirtualAddressing):
    """Maps a chunk that somebody else may hold."""

    def _perform(self, changes):
        changes.maps = [(address, max(0, chunk - 1), n) for address, chunk, n in changes.maps]
        super()._perform(changes)


def over(memory_class, client):
    class Planted(client):
        def __init__(self):
            super().__init__()
            self.memory.close()
            self.memory = memory_class(self.driver, BUDGET_PAGES * PAGE, self.chunk)
            self.allocator = self.make(self.memory)

    return Planted


def of(allocator_class, client):
    class Planted(client):
        def make(self, memory):
            ranged = issubclass(allocator_class, VirtualAddressing)
            return allocator_class(memory, self.chunk) if ranged else allocator_class(memory)

    return Planted


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(UsesBeforeMapping, id="changes forgotten"),
        pytest.param(over(NoAccess, Client), id="no access"),
        pytest.param(over(Leaks, VaClient), id="a handle leaks"),
        pytest.param(of(NoEventWait, VaClient), id="no event wait"),
        pytest.param(of(RoundsDown, Client), id="rounds down"),
        pytest.param(of(FreesTwice, Client), id="double free"),
        pytest.param(of(ForgetsOnRefusal, VaClient), id="state after refusal"),
        pytest.param(of(WrongChunk, VaClient), id="a chunk of another block"),
    ],
)
def test_a_planted_bug_is_found(planted):
    with pytest.raises((AssertionError, DriverError, pytest.fail.Exception)):
        run_state_machine_as_test(
            planted,
            settings=settings(
                max_examples=1000, stateful_step_count=40, database=None, derandomize=True,
                phases=(Phase.generate,),
                report_multiple_bugs=False, suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip
