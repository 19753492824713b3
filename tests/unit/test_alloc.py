"""Allocators: books, misuse, best fit against a scan, mappings on memory that checks itself."""

from __future__ import annotations

import contextlib
import itertools
import json
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.quick import all_but
from support.strict_memory import StrictMemory

from ooctrain.alloc.base import Allocator, Books, RangedAllocator, Stats
from ooctrain.alloc.best_fit import ROUND_BYTES, BestFit
from ooctrain.alloc.buddy import Buddy
from ooctrain.alloc.bump import Bump
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.first_fit import FirstFit, FirstFitBySize
from ooctrain.alloc.log import Recorder
from ooctrain.alloc.registry import allocators, choose_allocator
from ooctrain.alloc.replay import serve
from ooctrain.alloc.virtual import VirtualAddressing, default_chunk_bytes
from ooctrain.devices.cpu.host_vm import max_mapped_chunks
from ooctrain.errors import ConfigError, InvalidFree, OutOfDeviceMemory
from ooctrain.testing.check_allocator import AllocatorFailure, check_allocator

PAGE = 4096
BUDGET = 32 * PAGE
MAKERS = {
    "best-fit": BestFit,
    "buddy": Buddy,
    "bump": Bump,
    "first-fit": FirstFit,
    "first-fit-by-size": FirstFitBySize,
    "va": lambda memory: VirtualAddressing(memory, PAGE),
    "va-2": lambda memory: VirtualAddressing(memory, 2 * PAGE),
}
# What a client does: a number picks a live block to free, a size allocates.
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("free"), st.integers(0, 30)),
        st.tuples(st.just("allocate"), st.integers(1, 12 * PAGE)),
        st.tuples(st.just("allocate"), st.sampled_from([PAGE, 3 * PAGE, 7 * PAGE])),
    ),
    max_size=50,
)


@pytest.fixture(params=MAKERS)
def allocator(request):
    return MAKERS[request.param](StrictMemory(BUDGET))


def test_they_are_what_the_protocols_say():
    assert isinstance(BestFit(DryMemory(BUDGET)), Allocator)
    assert not isinstance(BestFit(DryMemory(BUDGET)), RangedAllocator)
    assert isinstance(MAKERS["va"](DryMemory(BUDGET)), RangedAllocator)


def test_ranges_without_memory_lie_apart():
    memory = DryMemory(BUDGET)
    lows = [memory.reserve(512) for _ in range(3)]
    assert memory.linear() == memory.linear_address
    assert all(low + 512 < high for low, high in itertools.pairwise([*lows, memory.linear()]))


@pytest.mark.parametrize("name", all_but(MAKERS, "bump", "first-fit-by-size", "va-2"))
@settings(max_examples=40)
@given(operations=OPERATIONS)
def test_blocks_are_disjoint_keep_their_bytes_and_the_books_balance(name, operations):
    memory = StrictMemory(BUDGET, PAGE if name.startswith("va") else ROUND_BYTES)
    allocator = MAKERS[name](memory)
    granted = allocator.granule.granted
    live, peak = [], 0
    for number, (what, value) in enumerate(operations):
        if what == "free" and live:
            block, mark = live.pop(value % len(live))
            assert set(memory.read(block.address, block.requested_bytes)) == {mark}
            allocator.free(block)
        elif what == "allocate":
            before = allocator.snapshot()
            held = sum(granted(b.requested_bytes) for b, _ in live)
            try:
                block = allocator.allocate(value, f"block {number}")
            except OutOfDeviceMemory:
                # Chunks never fragment: there, refusing means that the free chunks are too few.
                assert (
                    not allocator.granule.ranges or held + granted(value) > allocator.budget_bytes
                )
                assert allocator.snapshot() == before
            else:
                live.append((block, number))
                assert block.granted_bytes == granted(value)
                _disjoint([b for b, _ in live])
                memory.write(block.address, block.requested_bytes, number)
        allocator.check()
        stats = allocator.stats()
        assert stats.requested_bytes == sum(b.requested_bytes for b, _ in live)
        assert stats.granted_bytes == sum(b.granted_bytes for b, _ in live)
        assert stats.granted_bytes <= stats.reserved_bytes <= allocator.budget_bytes
        parts = stats.granted_bytes + stats.pending_bytes + stats.cached_bytes
        assert stats.reserved_bytes == parts
        assert stats.internal_bytes == stats.granted_bytes - stats.requested_bytes >= 0
        assert stats.free_bytes == allocator.budget_bytes - stats.granted_bytes
        assert 0 <= stats.external_ratio <= 1
        peak = max(peak, stats.granted_bytes)
        assert stats.peak_granted_bytes == peak
    assert allocator.close() == [block for block, _ in live]


def _disjoint(blocks):
    ends = sorted((b.address, b.address + b.granted_bytes) for b in blocks)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


@given(operations=OPERATIONS)
def test_best_fit_takes_the_smallest_hole_and_the_wilderness_last(operations):
    allocator = BestFit(DryMemory(BUDGET))
    live = []
    for what, value in operations:
        if what == "free" and live:
            allocator.free(live.pop(value % len(live)))
        elif what == "allocate":
            size, snapshot = allocator.granule.granted(value), allocator.snapshot()
            fitting = sorted((s, o) for o, s in snapshot["holes"] if s >= size)
            expected = fitting[0][1] if fitting else snapshot["top"]
            if expected + size > BUDGET:
                continue
            live.append(allocator.allocate(value))
            assert live[-1].address - allocator._base == expected


LINEAR = ["best-fit", "buddy", "bump", "first-fit"]


@pytest.mark.parametrize("name", all_but(LINEAR, "bump", "first-fit"))
@given(operations=OPERATIONS)
def test_the_reserved_peak_does_not_depend_on_the_arena(name, operations):
    """A schedule fits the budgets from its reserved peak on, for best fit exactly these."""
    wide = MAKERS[name](DryMemory(100 * BUDGET))
    requests = Recorder(wide)
    live = []
    for what, value in operations:
        if what == "free" and live:
            requests.free(live.pop(value % len(live)))
        elif what == "allocate":
            live.append(requests.allocate(value))
    peak = wide.stats().peak_reserved_bytes
    if not peak:
        return
    exact = serve(requests.requests, MAKERS[name](DryMemory(peak)))
    assert exact.peak_reserved_bytes == peak
    if name != "buddy":  # its highest place may stick out behind the arena
        with pytest.raises(OutOfDeviceMemory):
            serve(requests.requests, MAKERS[name](DryMemory(peak - ROUND_BYTES)))


@pytest.mark.parametrize("name", all_but(MAKERS, "bump", "first-fit-by-size", "va-2"))
@given(operations=OPERATIONS)
def test_the_largest_request_that_would_be_served_is_just_that(name, operations):
    allocator, live = MAKERS[name](DryMemory(BUDGET)), []
    for what, value in operations:
        if what == "free" and live:
            allocator.free(live.pop(value % len(live)))
        elif what == "allocate":
            with contextlib.suppress(OutOfDeviceMemory):
                live.append(allocator.allocate(value))
    largest = allocator.stats().largest_bytes
    with pytest.raises(OutOfDeviceMemory):
        allocator.allocate(largest + 1)
    if largest:
        allocator.free(allocator.allocate(largest))


def test_buddies_split_and_join():
    allocator = Buddy(DryMemory(64 * 512))
    a, b, c = (allocator.allocate(size) for size in (512, 1500, 512))
    base = allocator.snapshot()["base"]
    assert [x.address - base for x in (a, b, c)] == [0, 2048, 512]
    assert allocator.snapshot()["holes"] == [[1024, 1024]]
    assert allocator.stats().cached_bytes == 1024 + 512  # the free buddy; the rest of b's place
    allocator.free(b)
    assert allocator.stats().reserved_bytes == 1024
    allocator.free(a)
    assert allocator.snapshot()["holes"] == [[0, 512]]
    allocator.free(c)
    assert (allocator.snapshot()["holes"], allocator.stats().reserved_bytes) == ([], 0)


def test_bump_uses_no_hole_until_all_above_it_is_gone():
    allocator = Bump(DryMemory(8 * 512))
    a, b, c = (allocator.allocate(512, name) for name in "abc")
    allocator.free(b)
    d = allocator.allocate(512, "d")
    assert d.address == c.address + 512
    with pytest.raises(OutOfDeviceMemory, match="in pieces"):
        allocator.allocate(5 * 512)
    allocator.check()
    allocator.free(c)
    allocator.free(d)
    allocator.check()
    assert allocator.allocate(512).address == b.address
    assert a.id in {entry["id"] for entry in allocator.snapshot()["blocks"]}


@given(operations=OPERATIONS)
def test_the_same_requests_give_the_same_layout(operations):
    def run(name):
        allocator = MAKERS[name](DryMemory(BUDGET))
        live = []
        for what, value in operations:
            if what == "free" and live:
                allocator.free(live.pop(value % len(live)))
            elif what == "allocate":
                try:
                    live.append(allocator.allocate(value))
                except OutOfDeviceMemory:
                    continue
        return allocator.snapshot()

    for name in MAKERS:
        assert run(name) == run(name)
        assert json.loads(json.dumps(run(name)))


@pytest.mark.parametrize("size", [0, -1, 1.5, 2**63, True, None, "4096"])
def test_what_is_not_a_size_is_refused(allocator, size):
    before = allocator.snapshot()
    with pytest.raises(ConfigError, match="cannot allocate"):
        allocator.allocate(size)
    assert allocator.snapshot() == before


def test_wrong_frees_are_refused_and_change_nothing(allocator):
    other = BestFit(DryMemory(BUDGET))
    foreign = other.allocate(100, "foreign")
    block, kept = allocator.allocate(100, "mine"), allocator.allocate(5000, "kept")
    allocator.free(block)
    before = allocator.snapshot()
    for wrong in (block, foreign, None, 7):
        with pytest.raises(InvalidFree):
            allocator.free(wrong)
    assert allocator.snapshot() == before
    assert allocator.close() == [kept]
    for act in (lambda: allocator.free(kept), lambda: allocator.allocate(10)):
        with pytest.raises(InvalidFree, match="closed"):
            act()


def test_what_is_left_at_the_end_is_told_once(allocator):
    """After that nothing lives in it any more."""
    left = [allocator.allocate(PAGE, tag) for tag in ("one", "two")]
    assert allocator.close() == left
    assert allocator.snapshot()["blocks"] == []
    assert allocator.close() == []


def test_out_of_memory_says_what_was_asked_what_is_free_and_who_holds_it(allocator):
    for number in range(8):
        allocator.allocate(4 * PAGE, f"layer{number}.out")
    with pytest.raises(OutOfDeviceMemory, match="the arena is full") as caught:
        allocator.allocate(1, "one.more")
    text = str(caught.value)
    assert "one.more" in text
    assert f"budget {BUDGET} B" in text
    assert "free 0 B" in text
    assert "layer0.out 16.0 KiB" in text
    assert allocator.stats().failures == 1


def test_fragmentation_is_told_from_a_full_arena():
    allocator = BestFit(DryMemory(8 * PAGE))
    blocks = [allocator.allocate(PAGE) for _ in range(8)]
    for block in blocks[::2]:
        allocator.free(block)
    with pytest.raises(OutOfDeviceMemory, match="in pieces") as caught:
        allocator.allocate(2 * PAGE)
    assert f"free {4 * PAGE} B, largest hole {PAGE} B" in str(caught.value)
    assert VirtualAddressing(DryMemory(8 * PAGE), PAGE).stats().cached_bytes == 0


def test_va_serves_from_pieces_what_best_fit_cannot():
    allocator = VirtualAddressing(StrictMemory(8 * PAGE), PAGE)
    blocks = [allocator.allocate(PAGE) for _ in range(8)]
    for block in blocks[::2]:
        allocator.free(block)
    assert allocator.allocate(4 * PAGE).granted_bytes == 4 * PAGE


@pytest.mark.parametrize("chunk", [0, -PAGE, 1000, PAGE + 1, 1.5, True])
def test_impossible_chunks_are_refused(chunk):
    with pytest.raises(ConfigError, match="chunk"):
        VirtualAddressing(DryMemory(BUDGET), chunk)


def test_the_chunk_grows_with_the_budget_so_that_the_system_can_map_all():
    assert default_chunk_bytes(1 << 20) == 64 << 10
    for shift in range(20, 40):
        assert (1 << shift) // default_chunk_bytes(1 << shift) <= max_mapped_chunks()
    large = PAGE * (max_mapped_chunks() + 1)
    with pytest.raises(ConfigError, match="more mappings than the system allows"):
        choose_allocator("va:chunk=4KiB", large, probe=lambda: "")
    with pytest.raises(ConfigError, match=r"a chunk of 1.00 MiB is larger than the budget"):
        choose_allocator("va:chunk=1MiB", BUDGET, probe=lambda: "")
    for size in (BUDGET, large):
        asked = choose_allocator("va:chunk=1MiB", size, probe=lambda: "", binding=False)
        assert asked.granule.size_bytes == 1 << 20


def test_names_parameters_and_fallback():
    assert {"best-fit", "va"} <= set(allocators())
    choice = choose_allocator("va:chunk=8KiB", BUDGET + 100, probe=lambda: "")
    assert choice.granule.size_bytes == 2 * PAGE
    assert choice.budget_bytes == BUDGET
    assert "100 B of the budget" in choice.notices[0]
    hidden = choose_allocator("va", 1 << 20, probe=lambda: "hidden by a test")
    assert hidden.name == "best-fit"
    assert not hidden.granule.ranges
    assert "hidden by a test" in hidden.notices[0]
    with pytest.raises(ConfigError, match=r"(?s)unknown allocator 'vaa'.*'va'"):
        choose_allocator("vaa", BUDGET)
    with pytest.raises(ConfigError, match="no parameter"):
        choose_allocator("va:chunks=4096", BUDGET)


def test_an_allocator_of_ones_own_is_loaded_from_its_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from ooctrain.alloc.best_fit import BestFit\n"
        "class Mine(BestFit):\n"
        "    name = 'mine'\n"
        "class Half:\n"
        "    def __init__(self, memory): self.name = 'half'\n"
    )
    choice = choose_allocator(f"{path}:Mine", BUDGET)
    assert choice.make(DryMemory(BUDGET)).name == "mine"
    with pytest.raises(ConfigError, match="has no granule, budget_bytes, allocate"):
        choose_allocator(f"{path}:Half", BUDGET)


@pytest.mark.slow  # `tests/properties/test_allocators.py` tries the same laws in more depth
@pytest.mark.parametrize("name", MAKERS)
def test_they_keep_the_laws_that_a_users_allocator_is_held_to(name):
    assert check_allocator(MAKERS[name], examples=40) == 40


class Forgetful(BestFit):
    """Loses the memory of large blocks that are freed."""

    def free(self, block, after=()):
        if block.requested_bytes > 5 * PAGE:
            self._books.retire(block)
            self._books.move(-block.requested_bytes, -block.granted_bytes, 0)
        else:
            super().free(block, after)


class Generous(BestFit):
    """Lets a block be freed twice."""

    def free(self, block, after=()):
        if block.id in self._books.live:
            super().free(block, after)


class Shifted(BestFit):
    """Hands out addresses one sector too high."""

    def allocate(self, nbytes, tag=""):
        block = super().allocate(nbytes, tag)
        shifted = replace(block, address=block.address + ROUND_BYTES)
        self._books.live[block.id] = shifted
        return shifted


@pytest.mark.parametrize(
    ("allocator", "laws"),
    [(Forgetful, "P7 P12 P16 B1"), (Generous, "P10"), (Shifted, "P5 P16 B3")],
)
def test_broken_allocators_are_caught_with_few_requests(allocator, laws):
    with pytest.raises(AllocatorFailure) as caught:
        check_allocator(allocator)
    assert caught.value.law in laws.split()
    assert len(caught.value.requests) <= 4


def test_the_books_tell_what_rounding_and_what_holes_cost():
    """Three blocks of a sector, asked for as 500, 400 and 300 bytes; the middle one goes."""
    allocator = BestFit(DryMemory(8 * 512))
    blocks = [allocator.allocate(size) for size in (500, 400, 300)]
    allocator.free(blocks[1])
    stats = allocator.stats()
    assert (stats.requested_bytes, stats.granted_bytes, stats.cached_bytes) == (800, 1024, 512)
    assert (stats.reserved_bytes, stats.pending_bytes) == (1536, 0)
    assert stats.internal_bytes == 224
    assert (stats.free_bytes, stats.largest_bytes, stats.external_bytes) == (3072, 2560, 512)
    assert stats.external_ratio == pytest.approx(512 / 3072)
    assert (stats.peak_requested_bytes, stats.peak_reserved_bytes) == (1200, 1536)
    assert (stats.peak_cached_bytes, stats.peak_pending_bytes) == (512, 0)
    assert stats.overhead == pytest.approx(1536 / 1200 - 1)
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    assert allocator.stats().peak_cached_bytes == 1024
    assert (allocator.stats().external_ratio, Stats().overhead) == (0.0, 0.0)


def test_books_that_do_not_add_up_are_noticed():
    books = Books("mine", 4096)
    books.open(1 << 20, 100, 512, "x")
    with pytest.raises(AssertionError, match="A is not the sum"):
        books.check(cached_bytes=0)
    books.move(100, 512, 1024)
    with pytest.raises(AssertionError, match="V is not A"):
        books.check(cached_bytes=0)
    books.check(cached_bytes=512)
    books.move(0, 0, 512, pending=512)
    books.check(cached_bytes=512)
    assert books.stats().peak_pending_bytes == 512
    books.move(0, 0, 4096)
    with pytest.raises(AssertionError, match="more than the budget"):
        books.check(cached_bytes=512 + 4096)


def test_an_allocator_is_chosen_by_its_class_too():
    choice, named = (choose_allocator(which, 1 << 20) for which in (BestFit, "best-fit"))
    assert (choice.name, choice.granule, choice.budget_bytes) == (
        named.name, named.granule, named.budget_bytes,
    )  # fmt: skip
    assert isinstance(choice.make(DryMemory(1 << 20)), BestFit)


@pytest.mark.parametrize("name", ["best-fit", "buddy", "first-fit", "first-fit-by-size"])
def test_in_an_arena_of_few_sectors_the_largest_request_is_found_by_trying(name):
    """Whatever is freed of it, down to a last sector that lies alone."""
    for sectors in range(1, 8):
        for sizes in ([1] * sectors, [2] * (sectors // 2) + [1] * (sectors % 2)):
            for freed in itertools.product((False, True), repeat=len(sizes)):
                allocator = MAKERS[name](DryMemory(sectors * ROUND_BYTES))
                blocks = [allocator.allocate(size * ROUND_BYTES) for size in sizes]
                for block, goes in zip(blocks, freed, strict=True):
                    if goes:
                        allocator.free(block)
                expected = allocator.stats().largest_bytes
                tried = range(sectors * ROUND_BYTES, 0, -ROUND_BYTES)
                assert expected == next((n for n in tried if _is_served(allocator, n)), 0)


def _is_served(allocator, size):
    with contextlib.suppress(OutOfDeviceMemory):
        allocator.free(allocator.allocate(size))
        return True
    return False


@pytest.mark.parametrize("name", ["va", "gmlake", "va-paper", "va-nnabla"])
def test_more_chunks_than_can_be_mapped_are_refused_before_any_table_is_made(name):
    """A terabyte in chunks of 4 KiB: the tables had 268 million rows, and then came the refusal."""
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError) as refused:
            choose_allocator(f"{name}:chunk=4KiB", 1 << 40, probe=lambda: "")
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused.value.code == "OOC-107"
    assert most_bytes < 1 << 20
