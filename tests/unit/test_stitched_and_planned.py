"""GMLake's stitching and STAlloc's plan with an allocator for the rest."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.first_fit import FirstFitBySize
from ooctrain.alloc.gmlake import Gmlake
from ooctrain.alloc.registry import choose_allocator
from ooctrain.alloc.stalloc import Stalloc
from ooctrain.alloc.static import Forecast, Lifetime
from ooctrain.errors import ConfigError, OutOfDeviceMemory, PlanMismatch
from ooctrain.units import GIB, KIB

PAGE = 4 * KIB


class Lake:
    """Primitive and stitched blocks as the paper tells it, in sets of chunks."""

    def __init__(self) -> None:
        self.primitives: list[list[int]] = []
        self.ranges: list[list[int]] = []  # in the order of their making
        self.live: list[list[int]] = []
        self.made = self.maps = 0

    def allocate(self, count: int) -> None:
        held = {chunk for chunks in self.live for chunk in chunks}
        chunks = next((r for r in self.ranges if len(r) == count and not held & {*r}), None)
        if chunks is None:
            chunks = self._stitch(count, [p for p in self.primitives if not held & {*p}])
            self.ranges.append(chunks)
            self.maps += 1
        self.live.append(chunks)

    def _stitch(self, count: int, idle: list[list[int]]) -> list[int]:
        fitting = sorted((len(p), p[0], p) for p in idle if len(p) >= count)
        order = [fitting[0][2]] if fitting else sorted(idle, key=lambda p: (-len(p), p[0]))
        chunks: list[int] = []
        for primitive in order:
            missing = count - len(chunks)
            if missing == 0:
                break
            if len(primitive) > missing:
                self.primitives.remove(primitive)
                self.primitives += [primitive[:missing], primitive[missing:]]
            chunks += primitive[:missing]
        new = list(range(self.made, self.made + count - len(chunks)))
        self.made += len(new)
        self.primitives += [new] if new else []
        return chunks + new


#: A new block, its range again, a split, the whole again from its halves, both stitched with new
#: chunks, and three of which the last is split.
_ALL_FOUR = [
    ("allocate", 8), ("free", 0), ("allocate", 8), ("free", 0), ("allocate", 3), ("allocate", 5),
    ("free", 0), ("free", 0), ("allocate", 8), ("free", 0), ("allocate", 10), ("free", 0),
    ("allocate", 9), ("free", 0), ("allocate", 10),
]  # fmt: skip
REQUESTS = st.lists(
    st.tuples(st.sampled_from(["allocate", "allocate", "free"]), st.integers(1, 12)), max_size=30
)


@settings(max_examples=40)
@example(_ALL_FOUR)
@given(REQUESTS)
def test_blocks_are_split_and_stitched_as_the_paper_tells(requests):
    allocator, paper = Gmlake(DryMemory(40 * PAGE), PAGE), Lake()
    live = []
    for what, value in requests:
        if what == "free" and live:
            place = value % len(live)
            allocator.free(live.pop(place))
            paper.live.pop(place)
        elif what == "allocate" and allocator.stats().free_bytes >= value * PAGE:
            live.append(allocator.allocate(value * PAGE - 1))
            paper.allocate(value)
        stats = allocator.stats()
        assert sorted(allocator._primitives) == sorted(paper.primitives)
        assert (stats.reserved_bytes, stats.reservations) == (paper.made * PAGE, paper.maps)
        allocator.check()


def test_it_never_reserves_more_than_lived_at_one_time():
    """New memory is asked for only where all that is free is not enough."""
    allocator = Gmlake(DryMemory(64 * PAGE), PAGE)
    blocks = [allocator.allocate(3 * PAGE) for _ in range(16)]
    for block in blocks[::2]:
        allocator.free(block)
    allocator.allocate(24 * PAGE)
    assert allocator.stats().reserved_bytes == 48 * PAGE
    with pytest.raises(OutOfDeviceMemory):
        allocator.allocate(17 * PAGE)
    allocator.allocate(16 * PAGE)
    assert allocator.stats().peak_cached_bytes == 24 * PAGE


LIVES = (
    Lifetime(1000, "a", 0, 3), Lifetime(300, "x", 1, 2), Lifetime(2000, "b", 2, 5),
    Lifetime(300, "x", 3, 5), Lifetime(700, "c", 4, 5),
)  # fmt: skip


def a_round(allocator, *, without=(), more=()):
    """Offsets of the foreseen requests of a round, some of them left out, others made besides."""
    base, live, offsets = allocator.snapshot()["base"], {}, []
    for time, life in enumerate(LIVES):
        for number in [n for n in live if LIVES[n].end <= time]:
            allocator.free(live.pop(number))
        extra = [allocator.allocate(size, "extra") for at, size in more if at == time]
        if time not in without:
            live[time] = allocator.allocate(life.nbytes, life.tag)
            offsets.append(live[time].address - base)
        for block in extra:
            allocator.free(block)
        allocator.check()
    for block in live.values():
        allocator.free(block)
    return offsets


def test_what_is_foreseen_lies_as_planned_whatever_else_comes():
    planned, alone = Stalloc(DryMemory(1 << 16)), FirstFitBySize(DryMemory(1 << 16))
    for allocator in (planned, alone):
        allocator.load_plan(Forecast(LIVES))
    wanted = a_round(alone)
    assert a_round(planned) == a_round(planned) == wanted
    extent = sum(planned.snapshot()["pools"])
    assert planned.stats().peak_reserved_bytes == extent
    more = [(1, 5000), (2, 512), (4, 300)]
    assert a_round(planned, more=more) == wanted
    assert planned.stats().peak_reserved_bytes == extent + 5120
    assert a_round(planned, without=(1, 2)) == [wanted[0], wanted[1], wanted[4]]  # the other x's
    assert a_round(planned) == wanted


def test_parameters_have_no_pool_of_their_own():
    """What does not live at the same time has the same place, of whatever kind it is."""
    planned = Stalloc(DryMemory(1 << 16))
    planned.load_plan(Forecast((Lifetime(1000, "w", 0, 1, True), Lifetime(1000, "x", 1, 2))))
    assert planned.snapshot()["pools"] == [1024]
    parameter = planned.allocate(1000, "w")
    planned.free(parameter)
    assert planned.allocate(1000, "x").address == parameter.address


def test_a_foreseen_block_whose_place_is_taken_lies_behind_the_plan():
    planned = Stalloc(DryMemory(1 << 16))
    planned.load_plan(Forecast((Lifetime(1000, "a", 0, 1),)))
    first, second = planned.allocate(1000, "a"), planned.allocate(1000, "a")
    assert second.address - first.address == 1024
    planned.free(first)
    planned.check()
    assert planned.allocate(1000, "a").address == first.address
    planned.check()


def test_the_next_one_of_its_size_takes_the_hole_of_a_block_that_was_not_foreseen():
    planned = Stalloc(DryMemory(1 << 16))
    planned.load_plan(Forecast((Lifetime(1000, "a", 0, 1),)))
    holes, between = planned.allocate(2048, "b"), planned.allocate(512, "c")
    planned.free(holes)
    planned.check()
    assert planned.allocate(2048, "d").address == holes.address
    assert planned.allocate(512, "e").address == between.address + 512
    planned.check()


def test_a_check_finds_books_that_do_not_agree():
    planned = Stalloc(DryMemory(1 << 16))
    planned.load_plan(Forecast((Lifetime(1000, "a", 0, 1),)))
    planned.allocate(1000, "a")
    planned.check()
    planned._books.granted += 1
    with pytest.raises(AssertionError, match="A is not the sum"):
        planned.check()


def test_a_part_of_the_trace_may_be_unknown():
    planned = Stalloc(DryMemory(1 << 16), unknown=2)
    planned.load_plan(Forecast(LIVES))
    assert sum(planned.snapshot()["pools"]) == 1024 + 2048 + 1024 - 1024
    a_round(planned)
    assert planned.stats().peak_reserved_bytes > sum(planned.snapshot()["pools"])


def test_a_plan_comes_before_the_first_block_and_fits():
    planned = Stalloc(DryMemory(2048))
    with pytest.raises(OutOfDeviceMemory, match="larger than the arena"):
        planned.load_plan(Forecast((Lifetime(2049, "a", 0, 1),)))
    assert planned.stats().failures == 1
    block = planned.allocate(512)
    with pytest.raises(PlanMismatch):
        planned.load_plan(Forecast(()))
    planned.free(block)
    planned.load_plan(Forecast((Lifetime(2048, "a", 0, 1),)))
    with pytest.raises(OutOfDeviceMemory):
        planned.allocate(1, "other")
    planned.allocate(2048, "a")


@pytest.mark.parametrize(
    "name", ["gmlake:chunk=1000", "stalloc:order=best", "stalloc:unknown=-1", "stalloc:unknown=x"]
)
def test_wrong_settings(name):
    with pytest.raises(ConfigError):
        choose_allocator(name, GIB, probe=lambda: "")
