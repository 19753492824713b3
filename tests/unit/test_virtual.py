"""Virtual addressing: what is mapped when, and that what is mapped once is not mapped again."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strict_memory import StrictMemory

import ooctrain as oc
from ooctrain.alloc.base import Block
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.mappings import MOST_ALIASES, FreeRuns, chunks_of, runs_of, stretches
from ooctrain.alloc.virtual import VirtualAddressing
from ooctrain.devices.cpu.host_vm import VirtualArena, why_no_virtual_memory
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import ConfigError, DriverError, OutOfDeviceMemory

PAGE = 4096
SIZES = st.integers(1, 12 * PAGE)
STEP = st.lists(st.one_of(SIZES, st.integers(-30, -1)), max_size=60)


class Event:
    """Counts how often it was waited for."""

    waited = 0

    def wait(self):
        self.waited += 1


def va(chunks, **options):
    """An allocator of one-page chunks and its memory."""
    memory = StrictMemory(chunks * PAGE)
    for name, value in options.items():
        setattr(memory, name, value)
    return VirtualAddressing(memory, PAGE), memory


def comb(allocator, chunks):
    """Fills the arena with blocks of a chunk and frees every second: no two free neighbours."""
    blocks = [allocator.allocate(PAGE, f"tooth {i}") for i in range(chunks)]
    for block in blocks[::2]:
        allocator.free(block)
    return blocks[1::2]


# Free chunks.


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(1, 6)), max_size=60))
def test_room_is_a_set_of_chunks(operations):
    free_runs, free = FreeRuns(20), set(range(20))
    for first, count in operations:
        run = set(range(first, min(20, first + count)))
        if run <= free:
            assert free_runs.is_free((first, len(run)))
            free_runs.take([(first, len(run))])
            free -= run
        elif not run & free:
            free_runs.give([(first, len(run))])
            free |= run
        assert free_runs.runs() == runs_of(sorted(free))
        assert (free_runs.count, set(np.flatnonzero(~free_runs.held))) == (len(free), free)
        sizes = [size for _, size in free_runs.runs() if size >= count]
        found = free_runs.find(count)
        assert (found is None) == (not sizes)
        if found is not None:
            assert (found, min(sizes)) in free_runs.runs()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12))
def test_stretches_are_as_long_as_both_columns_count_up(pairs):
    slots, chunks = (np.array([pair[i] for pair in pairs], int) for i in (0, 1))
    places = [range(lo, hi) for lo, hi in stretches(slots, chunks)]
    assert [place for stretch in places for place in stretch] == list(range(len(pairs)))
    for before, here in itertools.pairwise(range(len(pairs))):
        together = any(before in stretch and here in stretch for stretch in places)
        goes_on = all(column[here] == column[before] + 1 for column in (slots, chunks))
        assert together == goes_on


@given(st.sets(st.integers(0, 29)), st.data())
def test_holes_are_as_few_as_can_be(held, data):
    free_runs = FreeRuns(30)
    free_runs.take(runs_of(sorted(held)))
    wanted = data.draw(st.integers(1, 30))
    if wanted > free_runs.count:
        with pytest.raises(ValueError, match="missing"):
            free_runs.holes(wanted)
        return
    holes = free_runs.holes(wanted)
    chunks = chunks_of(holes).tolist()
    assert len(set(chunks)) == wanted
    assert not held & set(chunks)
    largest = sorted((size for _, size in free_runs.runs()), reverse=True)
    fewest = next(n for n in itertools.count(1) if sum(largest[:n]) >= wanted)
    assert len(holes) == fewest


# System calls.


def test_what_fits_in_one_piece_needs_no_system_call():
    allocator, memory = va(16)
    for _ in range(5):
        blocks = [allocator.allocate(size * PAGE - 7) for size in (3, 5, 3, 2)]
        for block in blocks:
            allocator.free(block)
    assert (memory.map_calls, len(memory.reservations)) == (1, 1)
    assert allocator.stats().reuses == 20


def test_a_block_is_stitched_from_holes_and_its_home_serves_again_without_a_call():
    allocator, memory = va(8)
    teeth = comb(allocator, 8)
    first = allocator.allocate(4 * PAGE, "stitched")
    memory.write(first.address, 4 * PAGE, "one")
    calls = memory.map_calls
    assert calls == 5  # the identity mapping, and four holes
    last_use = Event()
    allocator.free(first, (last_use,))
    whole = allocator.allocate(3 * PAGE, "another size has its own")
    allocator.free(whole)
    second = allocator.allocate(4 * PAGE, "again")
    assert second.address == first.address
    assert (memory.map_calls, memory.unmap_calls, last_use.waited) == (calls + 3, 0, 0)
    assert memory.read(second.address, 4 * PAGE) == ["one"] * 4
    allocator.check()
    for block in (*teeth, second):
        allocator.free(block)
    everything = allocator.allocate(8 * PAGE)
    assert memory.map_calls == calls + 3
    assert memory.read(everything.address, PAGE) == ["one"]


@given(STEP)
def test_a_step_that_is_repeated_maps_nothing_from_the_second_time_on(step):
    """Free chunks and older mappings decide: a step that begins alike finds what was made."""
    allocator, memory = va(24)
    calls = []
    for _ in range(4):
        live = []
        for number in step:
            if number < 0 and live:
                allocator.free(live.pop(number % len(live)))
            elif number > 0 and -(-number // PAGE) * PAGE + sum(b.granted_bytes for b in live) <= (
                24 * PAGE
            ):
                live.append(allocator.allocate(number))
        for block in live:
            allocator.free(block)
        allocator.check()
        calls.append((memory.map_calls, allocator.stats().maps, allocator.stats().reservations))
    assert calls[0] == calls[1] == calls[2] == calls[3]


#: Numbers that say which block of some is claimed or released, and which slots of it.
PARTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=40
)


@given(PARTS)
def test_a_step_in_parts_that_is_repeated_maps_only_what_comes_to_a_block_that_has_begun(step):
    """A block in parts begins where it began in the step before, if others of its name begin with
    the same range. What it claims later gets what is free then, and the block cannot move: that may
    be mapped anew, and what was there once more."""
    allocator, memory = va(16)
    totals = [memory.mapped_bytes]
    for _ in range(5):
        live: dict[int, Block] = {}
        held: dict[int, set[int]] = {}
        had: dict[int, set[int]] = {}
        later = 0
        for which, first, count in step:
            slots = set(range(first, min(6, first + count)))
            lo, hi = first * PAGE, (first + len(slots)) * PAGE
            mine = held.get(which, set())
            if slots <= mine:
                mine -= slots
                if mine:
                    allocator.unmap_range(live[which], lo, hi)
                else:
                    allocator.free(live.pop(which))
                    del held[which], had[which]
            elif not slots & mine and sum(map(len, held.values())) + len(slots) <= 16:
                if which not in live:
                    live[which] = allocator.reserve(6 * PAGE, f"block {which} from {lo} to {hi}")
                    held[which], had[which] = set(), set()
                else:
                    later += len(slots) + len(slots & had[which])
                allocator.map_range(live[which], lo, hi)
                held[which] |= slots
                had[which] |= slots
        for block in live.values():
            allocator.free(block)
        allocator.check()
        totals.append(memory.mapped_bytes)
        assert allocator.stats().mapped_bytes == len(memory.page_at) * PAGE
    mapped = [after - before for before, after in itertools.pairwise(totals)]
    assert max(mapped[1:]) <= later * PAGE, (mapped, later)
    assert len(set(mapped[2:])) == 1, "a later step maps other bytes than the one before"


def test_a_part_that_finds_its_chunks_mapped_is_a_reuse_and_no_system_call():
    allocator, memory = va(8)
    counts = []
    for _ in range(3):
        block = allocator.reserve(4 * PAGE, "parts")
        allocator.map_range(block, 0, 3 * PAGE)
        allocator.free(block)
        counts.append((memory.map_calls, allocator.stats().reuses))
    calls = counts[0][0]
    assert counts == [(calls, 0), (calls, 1), (calls, 2)]


@pytest.mark.slow
def test_resnet_18_at_a_quarter_maps_nothing_after_its_first_step():
    """The counters of a real training, whose swapped variables come back to other places."""
    if why_no_virtual_memory():
        pytest.skip(why_no_virtual_memory())
    model = oc.models.build("resnet18", stem="cifar")
    x, y = np.zeros((8, 3, 32, 32), np.float32), np.arange(8) % 10
    with oc.Trainer(model, budget="25%", planner="window", allocator="va", threads=1) as trainer:
        counts = []
        for _ in range(4):
            trainer.step(x, y)
            prepared = trainer.prepared
            wanted = (prepared.plan.trace.outputs["loss"],)
            session = trainer._residence.session(prepared, trainer.settings, wanted)
            stats = session.allocator.stats()
            counts.append((stats.maps, stats.unmaps, stats.reservations))
        assert session.allocator.name == "va"
        assert counts[0][0] > 1, "no block was stitched: the test shows nothing"
        assert counts[1] == counts[2] == counts[3]


@given(st.lists(st.one_of(st.integers(1, 4), st.integers(-8, -1)), max_size=50))
def test_stitched_blocks_keep_their_bytes_whatever_else_has_their_chunks_mapped(operations):
    allocator, memory = va(24)
    comb(allocator, 24)
    live = []
    for mark, number in enumerate(operations):
        if number < 0 and live:
            block, written = live.pop(number % len(live))
            assert set(memory.read(block.address, block.requested_bytes)) == {written}
            allocator.free(block)
        elif 0 < number <= allocator._free.count:
            live.append((allocator.allocate(number * PAGE), mark))
            memory.write(live[-1][0].address, number * PAGE, mark)
        allocator.check()


# Parts.


@given(
    operations=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 7), st.integers(1, 8)), max_size=60
    )
)
def test_parts_come_and_go_and_keep_their_bytes(operations):
    """Four blocks of 8 chunks over 12 chunks of memory: parts are claimed, refused, given back."""
    allocator, memory = va(12)
    blocks = [allocator.reserve(8 * PAGE - 100, f"block {i}") for i in range(4)]
    held: dict[tuple[int, int], int] = {}
    for number, (which, first, count) in enumerate(operations):
        slots = [(which, slot) for slot in range(first, min(8, first + count))]
        block = blocks[which]
        lo, hi = first * PAGE, min(block.requested_bytes, (first + len(slots)) * PAGE)
        kept = [slot in held for slot in slots]
        if all(kept):
            for _, slot in slots:
                size = min(PAGE, block.requested_bytes - slot * PAGE)
                mark = memory.read(block.address + slot * PAGE, size)
                assert mark == [held.pop((which, slot))]
            allocator.unmap_range(block, lo, hi)
        elif any(kept):
            for act in (allocator.map_range, allocator.unmap_range):
                with pytest.raises(ConfigError):
                    act(block, lo, hi)
        elif len(held) + len(slots) > 12:
            with pytest.raises(OutOfDeviceMemory):
                allocator.map_range(block, lo, hi)
        else:
            allocator.map_range(block, lo, hi)
            memory.write(block.address + lo, hi - lo, number)
            held.update(dict.fromkeys(slots, number))
        allocator.check()
        assert allocator.stats().granted_bytes == len(held) * PAGE
        assert allocator.stats().requested_bytes == sum(
            min(PAGE, 8 * PAGE - 100 - slot * PAGE) for _, slot in held
        )
    assert allocator.close() == blocks
    assert not memory.reservations


def test_mapping_over_a_part_waits_for_the_last_use_of_its_slots_and_of_no_others():
    allocator, memory = va(4)
    block = allocator.reserve(3 * PAGE, "parted")
    allocator.map_range(block, 0, 3 * PAGE)
    uses = [Event(), Event(), Event()]
    for slot in range(3):
        allocator.unmap_range(block, slot * PAGE, (slot + 1) * PAGE, (uses[slot],))
    allocator.map_range(block, 0, PAGE)
    assert [use.waited for use in uses] == [0, 0, 0], "its chunk was free, and mapped there still"
    calls = memory.map_calls
    other = allocator.allocate(2 * PAGE, "where the next chunks of the block are")
    allocator.map_range(block, PAGE, 2 * PAGE)
    assert [use.waited for use in uses] == [0, 1, 0]
    assert (memory.map_calls, allocator.stats().host_waits) == (calls + 1, 1)
    memory.write(other.address, 2 * PAGE, "other")
    memory.write(block.address, 2 * PAGE, "mine")
    assert memory.read(other.address, 2 * PAGE) == ["other"] * 2
    allocator.check()


def test_only_reserved_blocks_have_parts():
    allocator, _ = va(4)
    whole, parted = allocator.allocate(2 * PAGE), allocator.reserve(2 * PAGE)
    for act in (allocator.map_range, allocator.unmap_range):
        with pytest.raises(ConfigError, match="whole until freed"):
            act(whole, 0, PAGE)
        for lo, hi in ((0, 100), (-PAGE, PAGE), (PAGE, PAGE), (0, 3 * PAGE), (7, 2 * PAGE)):
            with pytest.raises(ConfigError):
                act(parted, lo, hi)
    allocator.free(parted)
    assert allocator.stats().granted_bytes == 2 * PAGE


# Bounds.


def test_what_is_mapped_is_bounded_and_the_longest_unused_home_goes_after_its_last_use():
    allocator, memory = va(32, max_mappings=16)
    teeth = comb(allocator, 32)
    uses = []
    for size in (5, 6, 5, 8):
        block = allocator.allocate(size * PAGE)
        uses.append(Event())
        allocator.free(block, (uses[-1],))
        allocator.check()
        assert allocator._cache.mappings <= 16
    # The mapping of 5 was used again before that of 8 was made, so that of 6 went.
    assert [use.waited for use in uses] == [0, 1, 0, 0]
    assert allocator.stats().unmaps == 6
    for block in teeth:
        allocator.free(block)
    allocator.close()
    assert not memory.reservations


@given(STEP)
def test_page_tables_stay_within_their_share(step):
    allocator, _ = va(6)
    live = [allocator.allocate(PAGE)]
    for number in step * 3:
        if number < 0 and live:
            allocator.free(live.pop(number % len(live)))
        elif number > 0 and -(-number // PAGE) <= allocator._free.count:
            live.append(allocator.allocate(number))
        assert allocator.stats().mapped_bytes <= MOST_ALIASES * 6 * PAGE
        allocator.check()


# Refused calls.


class Refusing:
    """Memory that refuses its n-th call that acquires something."""

    def __init__(self, memory, refused):
        self.memory, self.left = memory, refused
        self.size_bytes, self.granularity_bytes = memory.size_bytes, memory.granularity_bytes
        self.max_mappings, self.release = memory.max_mappings, memory.release

    def reserve(self, size_bytes):
        self._count()
        return self.memory.reserve(size_bytes)

    def map(self, *arguments):
        self._count()
        self.memory.map(*arguments)

    def _count(self):
        self.left -= 1
        if self.left == -1:
            raise DriverError("refused", call="map")


@pytest.mark.parametrize("refused", range(1, 12))
def test_a_refused_call_changes_nothing_and_may_be_repeated(refused):
    inner = StrictMemory(8 * PAGE)
    memory = Refusing(inner, refused)
    failures = 0

    def until_done(act):
        nonlocal failures
        before = (allocator.snapshot(), allocator.stats(), dict(inner.reservations))
        try:
            return act()
        except DriverError:
            failures += 1
            after = (allocator.snapshot(), allocator.stats(), dict(inner.reservations))
            assert after == before
            allocator.check()
            return act()

    with pytest.raises(DriverError) if refused < 2 else contextlib.nullcontext():
        allocator = VirtualAddressing(memory, PAGE)
    if refused < 2:
        assert not inner.reservations
        return
    comb(allocator, 8)
    stitched = until_done(lambda: allocator.allocate(3 * PAGE))
    parted = until_done(lambda: allocator.reserve(2 * PAGE))
    until_done(lambda: allocator.map_range(parted, 0, PAGE))
    allocator.unmap_range(parted, 0, PAGE)
    allocator.free(stitched)
    inner.write(allocator.allocate(PAGE, "takes what was the part's").address, PAGE, "other")
    until_done(lambda: allocator.map_range(parted, 0, 2 * PAGE))
    inner.write(parted.address, 2 * PAGE, "parted")
    assert failures <= 1
    allocator.close()
    assert not inner.reservations


# The real thing.


@pytest.mark.skipif(bool(why_no_virtual_memory()), reason="no virtual memory here")
def test_bytes_written_through_one_home_are_seen_through_the_other():
    arena = VirtualArena(8 * PAGE)
    allocator = VirtualAddressing(arena, PAGE)
    teeth = comb(allocator, 8)
    stitched = allocator.allocate(4 * PAGE)
    bytes_at(stitched.address, 4 * PAGE)[:] = np.repeat(np.arange(4, dtype=np.uint8), PAGE)
    allocator.free(stitched)
    for block in teeth:
        allocator.free(block)
    plain = allocator.allocate(8 * PAGE)
    assert bytes_at(plain.address, 8 * PAGE)[:: 2 * PAGE].tolist() == [0, 1, 2, 3]
    allocator.close()
    arena.close()


def test_the_choice_does_not_depend_on_addresses():
    def run(memory):
        allocator = VirtualAddressing(memory, PAGE)
        teeth = comb(allocator, 16)
        blocks = [allocator.allocate(size * PAGE) for size in (3, 4, 1)]
        for block in (*teeth[:3], blocks[0]):
            allocator.free(block)
        allocator.allocate(5 * PAGE)
        return allocator.snapshot()["chunks"]

    assert run(StrictMemory(16 * PAGE)) == run(DryMemory(16 * PAGE))
