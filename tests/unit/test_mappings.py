"""Which mapping is found, and which goes first: the first that serves, the one unused for longest.

What is found is compared with a look at every mapping in turn, and the looks are counted: a step of
hundreds of thousands of instructions asks for a mapping each time that no run of free chunks is
long enough. Read next: `ooctrain/alloc/mappings.py`, `test_virtual.py`.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.mappings import ChunkMapping, FreeRuns, MappingCache, Run, chunks_of, runs_of
from ooctrain.errors import DriverError

CHUNK, CHUNKS = 4096, 24


def cache_of(chunks=CHUNKS, most=1 << 30):
    memory = DryMemory(chunks * CHUNK, CHUNK, max_mappings=most)
    return MappingCache(memory, CHUNK, Counter()), FreeRuns(chunks)


def first_that_serves(cache, slots, free):
    """What `find` promises, word for word."""
    for mapping in cache:
        fits = mapping.slots == mapping.mapped() == slots and mapping.tag is None
        if fits and not mapping.live and all(map(free.is_free, mapping.runs)):
            return mapping
    return None


def begun_or_empty(cache, slots, tag, free):
    """What `find_begun` promises, word for word."""
    idle = [m for m in cache if (m.slots, m.tag, m.live) == (slots, tag, False)]
    for mapping in idle:
        first = mapping.first and chunks_of(mapping.first).tolist()
        if (
            first
            and len(first) <= free.count
            and chunks_of(free.holes(len(first))).tolist() == first
        ):
            return mapping
    return next((mapping for mapping in idle if mapping.first is None), None)


@pytest.mark.parametrize("seed", range(30))
def test_the_first_that_serves_is_found_whatever_came_and_went(seed):
    rng, (cache, free) = random.Random(seed), cache_of()
    held: list[ChunkMapping] = []
    taken: dict[ChunkMapping, list[Run]] = {}
    for _ in range(150):
        slots, tag = rng.randint(1, 5), rng.choice([None, None, "", "parts"])
        if tag is not None:
            found = cache.find_begun(slots, tag, free)
            assert found is begun_or_empty(cache, slots, tag, free)
        else:
            found = cache.find(slots, free)
            assert found is first_that_serves(cache, slots, free)
        if found is None and free.count >= slots:
            found = cache.make(slots, free.holes(slots) if tag is None else (), tag)
        if found is not None and rng.random() < 0.8:
            if (
                found.tag is not None and free.count
            ):  # a first range of one slot or more, where it likes
                count = rng.randint(1, min(slots, free.count))
                at, found.first = rng.randint(0, slots - count), free.holes(count)
                cache.put(found, np.arange(at, at + count), chunks_of(found.first))
            if found.tag is not None and not free.count:
                continue
            found.live = True
            taken[found] = found.runs if found.tag is None else found.first
            free.take(taken[found])
            held.append(found)
        while held and (rng.random() < 0.5 or free.count < 5):
            left = held.pop(rng.randrange(len(held)))
            free.give(taken.pop(left))
            cache.leave(left)
        cache.check()


class Mapped(DryMemory):
    """Remembers what is mapped, in chunks, and refuses the call at a number."""

    def __init__(self, refused):
        super().__init__(CHUNKS * CHUNK, CHUNK)
        self.left, self.chunks = refused, {}

    def map(self, address, offset, size_bytes):
        self.left -= 1
        if self.left == 0:
            raise DriverError("refused", call="map", status=2)
        for at in range(0, size_bytes, CHUNK):
            self.chunks[address + at] = (offset + at) // CHUNK

    def unmap(self, address, size_bytes):
        for at in range(0, size_bytes, CHUNK):
            del self.chunks[address + at]


@pytest.mark.parametrize("refused", range(2, 6))
def test_what_a_refused_call_has_put_on_the_map_is_taken_off_again(refused):
    """Slots 1, 2, 3 get neighbours, 5 a chunk alone, and 6 another: three calls."""
    memory = Mapped(refused)
    cache = MappingCache(memory, CHUNK, counts := Counter())
    mapping = cache.make(8, [(16, 8)])
    slots, chunks = np.array([1, 2, 3, 5, 6]), np.array([4, 5, 6, 11, 9])
    given = {1: (1, 2, 3), 2: (5,), 3: (6,)}
    done = [slot for call in range(1, refused - 1) for slot in given[call]]
    if refused == 5:
        cache.put(mapping, slots, chunks)
        assert mapping.table.tolist() == [16, 4, 5, 6, 20, 11, 9, 23]
    else:
        with pytest.raises(DriverError):
            cache.put(mapping, slots, chunks)
        lost = [*done, *given[refused - 1]]
        assert mapping.table.tolist() == [-1 if n in lost else 16 + n for n in range(8)]
        found = {(a - mapping.address) // CHUNK: c for a, c in memory.chunks.items()}
        unknown = given[refused - 1]  # what the refused call was to replace
        assert all(found.get(n, -1) == c for n, c in enumerate(mapping.table) if n not in unknown)
        assert counts["unmaps"] == (len(done) > 0) + (len(done) > 3)
    assert counts["maps"] == refused - 1
    cache.check()


def test_who_lacks_the_same_chunk_as_before_is_not_looked_at_again(monkeypatch):
    cache, free = cache_of()
    for number in range(20):
        cache.make(2, runs_of([number, 23]))
    free.take([(23, 1)])
    looks = []
    is_free = FreeRuns.is_free
    monkeypatch.setattr(
        FreeRuns, "is_free", lambda self, run: looks.append(run) or is_free(self, run)
    )
    assert [cache.find(2, free) for _ in range(50)] == [None] * 50
    assert len(looks) <= 40, "each mapping's runs once"
    free.give([(23, 1)])
    assert cache.find(2, free) is next(iter(cache))


def test_the_one_that_nobody_has_used_for_longest_goes_first():
    cache, _ = cache_of(most=5)
    four = [cache.make(1, [(number, 1)]) for number in range(4)]
    for mapping in four:
        mapping.live = True
    for place in (2, 0, 3):
        cache.leave(four[place])
    four[2].live = True  # a block has come back to it
    fifth = cache.make(1, [(9, 1)])
    assert four[0] not in list(cache)
    assert list(cache) == [four[1], four[2], four[3], fifth]


def test_one_that_no_block_has_used_goes_before_those_that_were_used():
    cache, _ = cache_of(most=3)
    used = cache.make(1, [(0, 1)])
    used.live = True
    cache.leave(used)
    unused = cache.make(1, [(1, 1)])
    third = cache.make(1, [(2, 1)])
    assert unused not in list(cache)
    assert list(cache) == [used, third]
