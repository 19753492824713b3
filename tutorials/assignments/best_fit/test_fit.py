"""The public tests of the assignment.

They try the allocator of `--allocator`, else of `adapters.py` in this folder. Read next: README.md.
"""

from itertools import pairwise

import pytest

from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_allocator
from ooctrain.errors import OutOfDeviceMemory

KIB = 1024


@pytest.fixture
def arena(allocator):
    """A fresh allocator over 64 KiB."""
    choice = choose_allocator(allocator, 64 * KIB, binding=False)
    return choice.make(DryMemory(64 * KIB))


def blocks(arena, *sizes_kib):
    """One block of each size."""
    return [arena.allocate(size * KIB, f"{size} KiB") for size in sizes_kib]


def test_blocks_lie_apart(arena):
    places = sorted((b.address, b.granted_bytes) for b in blocks(arena, 1, 2, 3, 4))
    for (lo, size), (nxt, _) in pairwise(places):
        assert lo + size <= nxt, f"a block ends at {lo + size}, and the next one begins at {nxt}"


def test_what_does_not_fit_is_refused_and_changes_nothing(arena):
    blocks(arena, 60)
    before = arena.stats()
    with pytest.raises(OutOfDeviceMemory) as refused:
        arena.allocate(5 * KIB, "too much")
    largest = refused.value.largest_bytes
    assert largest == 4 * KIB, f"4 KiB could still be had, and the refusal says {largest} bytes"
    after = arena.stats().granted_bytes
    assert after == before.granted_bytes, "a refused request changes what is granted"


def test_a_hole_is_used_again(arena):
    first, _ = blocks(arena, 8, 4)
    arena.free(first)
    again = arena.allocate(8 * KIB).address - first.address
    assert again == 0, f"the hole of a block of 8 KiB takes the next such block, not {again} behind"


def test_the_smallest_hole_that_takes_it(arena):
    large, _, small, _ = blocks(arena, 8, 1, 4, 1)
    arena.free(large)
    arena.free(small)
    placed = arena.allocate(3 * KIB).address - small.address
    assert placed == 0, f"3 KiB go into the hole of 4 KiB, the smallest; yours are {placed:+} away"
    placed = arena.allocate(6 * KIB).address - large.address
    assert placed == 0, f"6 KiB go into the hole of 8 KiB; yours are {placed:+} bytes away"


def test_neighbours_melt(arena):
    first, second, third, _ = blocks(arena, 2, 2, 2, 1)
    for block in (first, third, second):  # the last one has a hole on either side
        arena.free(block)
    placed = arena.allocate(6 * KIB).address - first.address
    assert placed == 0, f"three holes of 2 KiB are one of 6 KiB; yours is {placed:+} bytes away"


def test_the_free_end_grows_back(arena):
    _, last = blocks(arena, 4, 8)
    arena.free(last)
    stats = arena.stats()
    reserved, largest = stats.reserved_bytes, stats.largest_bytes
    assert reserved == 4 * KIB, f"4096 bytes lie below the last block; yours reserves {reserved}"
    assert largest == 60 * KIB, f"60 KiB are free in a row; yours promises {largest} bytes"
