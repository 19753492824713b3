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
    assert all(lo + size <= nxt for (lo, size), (nxt, _) in pairwise(places))


def test_what_does_not_fit_is_refused_and_changes_nothing(arena):
    blocks(arena, 60)
    before = arena.stats()
    with pytest.raises(OutOfDeviceMemory) as refused:
        arena.allocate(5 * KIB, "too much")
    assert refused.value.largest_bytes == 4 * KIB
    assert arena.stats().granted_bytes == before.granted_bytes


def test_a_hole_is_used_again(arena):
    first, _ = blocks(arena, 8, 4)
    arena.free(first)
    assert arena.allocate(8 * KIB).address == first.address


def test_the_smallest_hole_that_takes_it(arena):
    large, _, small, _ = blocks(arena, 8, 1, 4, 1)
    arena.free(large)
    arena.free(small)
    assert arena.allocate(3 * KIB).address == small.address
    assert arena.allocate(6 * KIB).address == large.address


def test_neighbours_melt(arena):
    first, second, third, _ = blocks(arena, 2, 2, 2, 1)
    for block in (first, third, second):  # the last one has a hole on either side
        arena.free(block)
    assert arena.allocate(6 * KIB).address == first.address


def test_the_free_end_grows_back(arena):
    _, last = blocks(arena, 4, 8)
    arena.free(last)
    assert arena.stats().reserved_bytes == 4 * KIB
    assert arena.stats().largest_bytes == 60 * KIB
