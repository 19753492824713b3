"""Allocators answer long rows of requests as they did: addresses, books, refusals, layouts.

`test_known_places.py` knows how much memory lists need. Here requests of a few sizes come and go in
a small arena, wrong ones among them, with and without wrappers around the allocator; after each the
books and the layout are looked at, and each refusal with all that it says in numbers.
`support/known.py` says why and how to write the tables anew.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import astuple
from typing import ClassVar

import pytest
from support import known

from ooctrain.alloc import (
    best_fit,
    best_fit_caching,
    buddy,
    bump,
    chunk_arena,
    dry_run,
    first_fit,
    gmlake,
    mappings,
    passthrough,
    stalloc,
    va_nnabla,
    va_paper,
    virtual,
)
from ooctrain.alloc.arena_map import arena_text
from ooctrain.alloc.base import Block, innermost
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.log import AllocationLog, Recorder, Request, foresee, hold_whole
from ooctrain.alloc.registry import choose_allocator, choose_dry
from ooctrain.alloc.replay import Spanned, peak_bytes, replay, spanned_dry
from ooctrain.alloc.static import Forecast, Lifetime, Plannable
from ooctrain.alloc.wrappers import Checked, Counted, FailAt, Limited, Poisoned, ThreadSafe
from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.testing.allocator_grounds import make_ground
from ooctrain.units import Granule

#: Their mistakes are this file's to notice.
JUDGED = (
    best_fit, best_fit_caching, buddy, bump, chunk_arena, dry_run, first_fit, gmlake, mappings,
    passthrough, stalloc, va_nnabla, va_paper, virtual,
)  # fmt: skip
ARENA = 96 << 10
NAMES = (
    "best-fit", "best-fit-caching:chunk=4KiB", "best-fit-caching:chunk=8KiB", "buddy", "bump",
    "first-fit", "first-fit-by-size", "passthrough:chunk=4KiB", "va:chunk=4KiB", "va:chunk=8KiB",
    "gmlake:chunk=4KiB", "stalloc", "stalloc:unknown=2", "va-nnabla:chunk=4KiB",
    "va-paper:chunk=4KiB",
)  # fmt: skip


class Done:
    """An event, with a number; waits for it are counted."""

    waited: ClassVar[Counter] = Counter()

    def __init__(self, number: int, over: bool):
        self.number, self.over = number, over

    def wait(self) -> None:
        self.waited["all"] += 1

    def done(self) -> bool:
        return self.over


def numbers_of(error: OoctrainError) -> tuple:
    """What an error says besides its words."""
    fields = ("granted_bytes", "free_bytes", "largest_bytes", "budget_bytes", "enough_bytes")
    return (error.code, *(getattr(error, name, "") for name in fields))


def row_of_requests(allocator, seed: int, count: int = 70) -> list:
    """What comes of requests that are drawn."""
    rng, live, gone, rows = random.Random(seed), list[Block](), list[Block](), []
    ranged = allocator.granule.ranges
    parts: dict[int, list[tuple[int, int]]] = {}
    unit = allocator.granule.size_bytes
    Done.waited.clear()

    def one() -> object:
        kind = rng.choice(["allocate"] * 5 + ["free"] * 4 + ["wrong"] + ["reserve", "map", "map",
                          "unmap"] * ranged)  # fmt: skip
        after = [Done(n, rng.random() < 0.5) for n in range(rng.randint(0, 2))]
        if kind == "allocate":
            size = rng.choice([1, 60, 512, 513, 3000, 4096, 5000, 9000, 20_000, 40_000])
            live.append(allocator.allocate(size, f"b{len(rows) % 9}"))
            return astuple(live[-1])
        if kind == "free" and live:
            block = live.pop(rng.randrange(len(live)))
            gone.append(block)
            parts.pop(block.id, None)
            return allocator.free(block, after)
        if kind == "wrong":
            wrong = rng.choice(["size", "gone", "foreign", "large"])
            if wrong == "size":
                return allocator.allocate(rng.choice([0, -1, 1 << 63]))
            if wrong == "large":
                return allocator.allocate(ARENA + 1, "large")
            foreign = Block(10**6, 64, 64, 64, "foreign")
            return allocator.free(gone[-1] if gone and wrong == "gone" else foreign)
        if kind == "reserve":
            live.append(allocator.reserve(rng.choice([unit, 3 * unit, 2 * unit + 9]), "parts"))
            parts[live[-1].id] = []
            return astuple(live[-1])
        reserved = [block for block in live if block.id in parts]
        if kind in ("map", "unmap") and reserved:
            block = rng.choice(reserved)
            slots = -(-block.requested_bytes // unit)
            first = rng.randrange(slots)
            lo = first * unit
            hi = min((first + rng.randint(1, 2)) * unit, block.requested_bytes)
            if rng.random() < 0.05:
                lo, hi = rng.choice(((lo + 1, hi), (lo, hi - 1), (hi, lo), (lo, hi + unit)))
            if kind == "map":
                allocator.map_range(block, lo, hi)
            else:
                allocator.unmap_range(block, lo, hi, after)
            return lo, hi, block.granted_bytes
        return None

    for _ in range(count):
        try:
            found = one()
        except OoctrainError as error:
            found = numbers_of(error)
        stats = [value for name, value in vars_of(allocator.stats()) if not name.endswith("_ns")]
        rows.append((found, stats, allocator.snapshot(), Done.waited["all"]))
        allocator.check()
    rows.append(arena_text(allocator.snapshot(), 60).count("\n"))
    rows.append([block.id for block in allocator.close()])
    return rows


def vars_of(thing) -> list[tuple[str, object]]:
    return [(name, getattr(thing, name)) for name in thing.__dataclass_fields__]


@pytest.mark.parametrize("name", NAMES)
def test_an_allocator_answers_as_it_did(name):
    choice = choose_dry(name, ARENA)
    rows: list[known.Row] = [(choice.name, choice.granule, choice.budget_bytes, choice.maps,
                              choice.piece_bytes, len(choice.notices))]  # fmt: skip
    for seed in range(2):
        dry = row_of_requests(choice.make(DryMemory(ARENA, 4096)), seed)
        ground = make_ground("strict", ARENA, 4096)
        mapped = row_of_requests(choice.make(ground.memory), seed + 10)
        few = row_of_requests(choice.make(DryMemory(ARENA, 4096, 5)), seed + 20)
        rows.append((seed, *(known.digest(each) for each in (dry, mapped, few)), dry[-1]))
    known.check_rows("answers", name, rows)


@pytest.mark.parametrize("name", ["best-fit", "va:chunk=4KiB", "buddy"])
def test_wrappers_answer_as_they_did(name):
    choice = choose_dry(name, ARENA)
    wrappers = {
        "limited": lambda inner: Limited(inner, 50_000), "counted": Counted,
        "fail at 3": lambda inner: FailAt(inner, 3), "fail at 30": lambda inner: FailAt(inner, 30),
        "checked": Checked, "safe": ThreadSafe, "spanned": Spanned, "recorder": Recorder,
    }  # fmt: skip
    rows = []
    for what, wrap in wrappers.items():
        for seed in range(1):
            wrapped = wrap(choice.make(DryMemory(ARENA, 4096)))
            found = row_of_requests(wrapped, seed)
            own = {
                key: getattr(wrapped, key, "") for key in
                ("peak_reserved_bytes", "spanned_bytes", "base", "misbooked", "highest_end")
            }  # fmt: skip
            kept = wrapped.log("x") if what == "recorder" else ""
            rows.append((what, seed, known.digest(found), known.digest(own), known.digest(kept)))
    known.check_rows("answers", f"wrappers of {name}", rows)


@pytest.mark.parametrize("name", ["best-fit", "va:chunk=4KiB"])
def test_blocks_are_poisoned_where_they_were(name):
    class Filled:
        """Memory that is filled."""

        def __init__(self):
            self.fills: list[tuple[int, int, int]] = []

        def fill(self, address: int, size_bytes: int, value: int) -> None:
            self.fills.append((address, size_bytes, value))

    rows = []
    for seed in range(2):
        filled = Filled()
        poisoned = Poisoned(choose_dry(name, ARENA).make(DryMemory(ARENA, 4096)), filled)
        found = row_of_requests(poisoned, seed)
        rows.append((seed, len(filled.fills), known.digest(filled.fills), known.digest(found)))
    known.check_rows("answers", f"poisoned {name}", rows)


@pytest.mark.parametrize("name", ["best-fit", "va:chunk=4KiB"])
def test_requests_that_were_recorded_are_served_as_they_were(name):
    rows = []
    for seed in range(3):
        recorder = Recorder(choose_dry(name, ARENA).make(DryMemory(ARENA, 4096)))
        row_of_requests(recorder, seed)
        recorder.mark_step()
        log = recorder.log(f"of {name}")
        whole = hold_whole(log.requests)
        rows.append((len(log.requests), len(whole), peak_bytes(log.requests),
                     peak_bytes(whole, Granule(512)), known.digest(log.requests),
                     known.digest(whole)))  # fmt: skip
        for other in ("va:chunk=4KiB", "gmlake:chunk=4KiB", "buddy", "stalloc"):
            held = AllocationLog(whole, "", Granule(1), ARENA)
            try:
                found = replay(held, other)
            except OoctrainError as error:
                rows.append((other, *numbers_of(error)))
                continue
            shares = found.external_share, found.internal_share
            rows.append((other, found.reserved_bytes, found.granted_bytes, found.served,
                         *(f"{share:.6f}" for share in shares),
                         known.digest(found.failure and found.failure.request)))  # fmt: skip
        steps = [request for request in whole if request.op != "step"]
        rows.append([known.digest(foresee(steps, {"b1", "b2"}))])
    known.check_rows("answers", f"recorded of {name}", rows)


@pytest.mark.parametrize("name", ["stalloc", "stalloc:order=list", "stalloc:unknown=3", "first-fit",
                                  "first-fit-by-size"])  # fmt: skip
def test_plans_are_loaded_and_kept_as_they_were(name):
    """One plan after the other, each served twice, with something that was not foreseen between."""
    allocator = choose_dry(name, ARENA).make(DryMemory(ARENA, 4096))
    planned = innermost(allocator)
    assert isinstance(planned, Plannable)
    rng, rows = random.Random(5), []
    for _ in range(3):
        lives = []
        for number in range(12):
            begin = rng.randrange(10)
            size = rng.choice([100, 512, 4000, 9000])
            lives.append(Lifetime(size, f"b{number}", begin, begin + rng.randint(1, 6)))
        lives.sort(key=lambda life: life.begin)
        try:
            planned.load_plan(Forecast(tuple(lives)))
        except OoctrainError as error:
            rows.append(numbers_of(error))
            continue
        for _ in range(2):
            live: list[tuple[int, Block]] = []
            for life in lives:
                for end, block in [one for one in live if one[0] <= life.begin]:
                    allocator.free(block)
                    live.remove((end, block))
                for size, tag in ((life.nbytes, life.tag), (700, "unforeseen")):
                    try:
                        block = allocator.allocate(size, tag)
                    except OoctrainError as error:
                        rows.append(numbers_of(error))
                    else:
                        live.append((life.end if tag == life.tag else life.begin, block))
                        rows.append(astuple(block))
                allocator.check()
                rows.append((known.digest(allocator.snapshot()), allocator.stats().reserved_bytes))
            for _, block in live:
                allocator.free(block)
    rows.append((len(allocator.close()), allocator.stats().peak_reserved_bytes))
    known.check_rows("answers", f"planned {name}", [
        (len(rows), known.digest(rows), *rows[-1]),
    ])  # fmt: skip


def test_parts_of_memory_without_bytes_are_counted():
    """The allocator that only holds whole blocks, with ranges."""
    granule = Granule(4096)
    allocator = dry_run.DryAllocator(granule)
    block = allocator.reserve(10_000, "a")
    assert (block.granted_bytes, allocator.stats().granted_bytes) == (0, 0)
    allocator.map_range(block, 0, 8192)
    assert (block.granted_bytes, allocator.stats().granted_bytes) == (8192, 8192)
    allocator.map_range(block, 8192, 10_000)
    assert block.granted_bytes == 12_288
    allocator.unmap_range(block, 0, 4096)
    assert (block.granted_bytes, allocator.stats().granted_bytes) == (8192, 8192)
    assert [one["id"] for one in allocator.snapshot()["blocks"]] == [block.id]
    assert allocator.stats().peak_granted_bytes == 12_288
    assert allocator.close() == [block]
    for call in (allocator.map_range, allocator.unmap_range):
        with pytest.raises(OoctrainError):
            call(block, 0, 4096)


def test_parts_of_blocks_are_not_foreseen():
    with pytest.raises(ConfigError) as caught:
        foresee([Request("reserve", 0, 100, tag="a"), Request("map", 0, lo=0, hi=50)])
    assert caught.value.code == "OOC-108"


def test_what_is_chosen_has_a_name():
    class Mine(best_fit.BestFit):
        name = "mine"

    class Short:
        granule, budget_bytes, name = Granule(1), 5, "short"

    assert choose_allocator(Mine, ARENA).name == "mine"
    for wrong, said in ((lambda memory: Short(), "of its own"), ("no-such", "no-such")):
        with pytest.raises(ConfigError) as caught:
            choose_allocator(wrong, ARENA)
        assert said in caught.value.what
    planned = choose_dry("stalloc", ARENA).make(DryMemory(ARENA))
    assert isinstance(innermost(planned), Plannable)
    assert not isinstance(innermost(spanned_dry("buddy", ARENA)), Plannable)
    fallback = choose_allocator("va:chunk=4KiB", ARENA, probe=lambda: "none here")
    assert fallback.name == "best-fit"
    assert not fallback.maps
    assert "none here" in fallback.notices[0]
    odd = choose_allocator("va:chunk=4KiB", ARENA + 9, probe=lambda: "")
    assert (odd.budget_bytes, len(odd.notices), odd.maps, odd.piece_bytes) == (ARENA, 1, True, 4096)
    large = choose_allocator("va", 64 << 20, probe=lambda: "", page_bytes=2 << 20)
    assert large.piece_bytes == 2 << 20
