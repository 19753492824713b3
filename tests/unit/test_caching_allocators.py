"""The allocators of the frameworks: segments that are never joined, and ranges that are kept."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ooctrain.alloc.base import Stats
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.best_fit_caching import RULES, CachingBestFit
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_allocator
from ooctrain.alloc.va_nnabla import NnablaVirtualAddressing
from ooctrain.errors import ConfigError, OutOfDeviceMemory
from ooctrain.units import GIB, KIB, MIB, Granule

PAGE = 4 * KIB


def caching(budget: int, rules: str = "nnabla") -> CachingBestFit:
    return CachingBestFit(DryMemory(budget), rules)


# Segments.


@pytest.mark.parametrize(
    ("rules", "size", "segment"),
    [("nnabla", 1, MIB), ("nnabla", MIB, MIB), ("nnabla", MIB + 1, 9 * MIB // 8),
     ("nnabla", 100 * MIB, 100 * MIB), ("pytorch", 1, 2 * MIB), ("pytorch", MIB, 2 * MIB),
     ("pytorch", MIB + 1, 20 * MIB), ("pytorch", 10 * MIB - 512, 20 * MIB),
     ("pytorch", 10 * MIB, 10 * MIB), ("pytorch", 10 * MIB + 1, 12 * MIB)],
)  # fmt: skip
def test_a_request_gets_a_segment_of_the_size_that_the_framework_asks_for(rules, size, segment):
    allocator = caching(GIB, rules)
    allocator.allocate(size)
    assert allocator.stats().reserved_bytes == segment


@pytest.mark.parametrize(
    ("rules", "hole", "size", "taken"),
    [("nnabla", MIB, MIB - 512, MIB - 512), ("nnabla", 4 * MIB, 3 * MIB, 4 * MIB),
     ("nnabla", 4 * MIB + 512, 3 * MIB, 3 * MIB), ("nnabla", 8 * MIB, 2 * MIB + 1, 17 * MIB // 8),
     ("pytorch", 20 * MIB, 2 * MIB + 512, 2 * MIB + 512),
     ("pytorch", 20 * MIB, 19 * MIB, 20 * MIB)],
)  # fmt: skip
def test_a_piece_is_split_only_where_enough_is_left(rules, hole, size, taken):
    assert RULES[rules].piece_bytes(size, hole) == taken


def test_pieces_of_two_segments_never_become_one():
    """16 MiB are free in two segments of 8, and 12 MiB get a third segment, unlike in one arena."""
    segments, arena = caching(64 * MIB), BestFit(DryMemory(64 * MIB))
    for allocator in (segments, arena):
        first, second = allocator.allocate(8 * MIB), allocator.allocate(8 * MIB)
        allocator.free(first)
        allocator.free(second)
        allocator.allocate(12 * MIB)
    assert segments.stats().reserved_bytes == 28 * MIB
    assert arena.stats().reserved_bytes == 12 * MIB


def test_a_small_block_holds_a_whole_segment_and_then_the_budget_is_lost():
    """Figure 3's loss: all but 2 MiB are free, and no piece is as large as the half."""
    allocator = CachingBestFit(DryMemory(64 * MIB), "pytorch")
    blocks = [allocator.allocate(size) for size in [20 * MIB, 2 * MIB] for _ in range(1)]
    allocator.free(blocks[0])
    kept = allocator.allocate(2 * MIB)  # the smallest piece that takes it lies beside the other
    assert kept.address == blocks[1].address + 2 * MIB
    with pytest.raises(OutOfDeviceMemory, match="in pieces") as caught:
        allocator.allocate(48 * MIB)
    assert caught.value.largest_bytes == 44 * MIB
    assert caught.value.free_bytes == 60 * MIB


def test_unused_segments_go_back_to_the_driver_only_where_that_serves():
    allocator = caching(16 * MIB)
    first = allocator.allocate(6 * MIB)
    allocator.free(first)
    kept = allocator.allocate(8 * MIB)
    assert allocator.stats().reserved_bytes == 14 * MIB, "a segment is kept for the next request"
    before = allocator.snapshot()
    with pytest.raises(OutOfDeviceMemory):
        allocator.allocate(9 * MIB)
    assert allocator.snapshot() == before
    allocator.allocate(7 * MIB)
    assert allocator.stats().reserved_bytes == 15 * MIB
    assert kept.granted_bytes == 8 * MIB
    allocator.check()


def test_the_paper_baseline_fragments_more_than_one_arena():
    """The same requests: a step of growing layers, freed as backward frees them, then larger."""
    made = {}
    for name in ("best-fit", "best-fit-caching"):
        allocator = choose_allocator(name, GIB, probe=lambda: "").make(DryMemory(GIB))
        for step in range(1, 4):
            blocks = [allocator.allocate((step * layer + 1) * 700 * KIB) for layer in range(8)]
            for block in blocks[::2] + blocks[1::2]:
                allocator.free(block)
        made[name] = allocator.stats().peak_reserved_bytes
    assert made["best-fit-caching"] > made["best-fit"]


@pytest.mark.parametrize("name", ["rules=tlsf", "small=1000", "small=0", "chunk=1000"])
def test_what_it_cannot_do_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=r"rules|small|chunk"):
        choose_allocator(f"best-fit-caching:{name}", GIB, probe=lambda: "")


# Ranges that are kept: the four cases against the simplest program that has them.

SIZES = st.lists(
    st.one_of(st.tuples(st.just("free"), st.integers(0, 9)),
              st.tuples(st.just("allocate"), st.integers(1, 9))),
    max_size=40,
)  # fmt: skip
_ALL_FOUR = [
    ("allocate", 2), ("allocate", 3), ("free", 0), ("allocate", 2), ("free", 0),
    ("allocate", 6), ("free", 1), ("allocate", 1), ("free", 0), ("allocate", 9),
]  # fmt: skip


class Written:
    """The authors' program without addresses: sizes of kept ranges, and counts of chunks."""

    def __init__(self) -> None:
        self.kept: list[int] = []  # sizes, those freed first in front of their equals
        self.loose = self.made = 0
        self.maps = 0

    def allocate(self, count: int) -> None:
        if count in self.kept:
            self.kept.remove(count)
            return
        self.maps += 1
        have = 0
        smaller = [size for size in self.kept if size < count]
        if self.kept and not smaller:
            have += self._take(min(self.kept), count)
        else:
            if smaller:
                have += self._take(max(smaller), count)
            used = min(self.loose, count - have)
            self.loose, have = self.loose - used, have + used
            enough = [size for size in self.kept if size >= count - have]
            if have < count and enough:
                have += self._take(min(enough), count - have)
            while have < count and self.kept:
                have += self._take(max(self.kept), count - have)
        self.made += count - have

    def _take(self, size: int, missing: int) -> int:
        self.kept.remove(size)
        self.loose += max(0, size - missing)
        return min(size, missing)


@settings(max_examples=40)
@example(_ALL_FOUR)
@given(SIZES)
def test_kept_ranges_do_what_the_authors_program_does(requests):
    allocator, written = NnablaVirtualAddressing(DryMemory(40 * PAGE), PAGE), Written()
    live = []
    for what, value in requests:
        if what == "free" and live:
            block = live.pop(value % len(live))
            allocator.free(block)
            written.kept.append(block.granted_bytes // PAGE)
        elif what == "allocate" and allocator.stats().free_bytes >= value * PAGE:
            live.append(allocator.allocate(value * PAGE - 1))
            written.allocate(value)
        assert allocator.snapshot()["kept"] == sorted(written.kept)
        assert (len(allocator._loose), allocator._fresh) == (written.loose, written.made)
        stats: Stats = allocator.stats()
        assert stats.reservations == written.maps
        allocator.check()


def test_a_range_of_the_size_is_used_again_without_the_driver():
    allocator = NnablaVirtualAddressing(DryMemory(40 * PAGE), PAGE)
    first = allocator.allocate(3 * PAGE)
    allocator.free(first)
    maps = allocator.stats().maps
    again = allocator.allocate(3 * PAGE - 5)
    assert (again.address, allocator.stats().maps) == (first.address, maps)
    assert allocator.stats().reuses == 1


@pytest.mark.parametrize("name", ["waiting=-1", "waiting=1.5", "chunk=1000"])
def test_wrong_settings_of_kept_ranges(name):
    with pytest.raises(ConfigError):
        choose_allocator(f"va-nnabla:{name}", GIB, probe=lambda: "")


def test_of_ranges_of_one_size_the_one_that_was_freed_first_serves_again():
    """And no part of one comes or goes on its own."""
    allocator = NnablaVirtualAddressing(DryMemory(64 * PAGE), PAGE)
    assert allocator.granule == Granule(PAGE, ranges=False)
    blocks = [allocator.allocate(3 * PAGE) for _ in range(3)]
    for block in (blocks[1], blocks[0], blocks[2]):
        allocator.free(block)
    again = [allocator.allocate(3 * PAGE).address for _ in range(3)]
    assert again == [blocks[1].address, blocks[0].address, blocks[2].address]
