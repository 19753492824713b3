"""Allocators and packings place blocks where they did: the same bytes reserved, the same holes.

That blocks never overlap and that the books are right, laws hold for any allocator. Which of many
free places is taken decides how much an arena needs, and no law knows it.
`support/known.py` says why the
answers stand in a table.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from random import Random

import pytest
from support import known
from support.known_steps import DUPLEX, MACHINE, budget, step
from support.quick import every

from ooctrain.alloc.log import AllocationLog, Request, foresee, hold_whole
from ooctrain.alloc.registry import allocators, choose_dry
from ooctrain.alloc.replay import block_lives, replay, snapshot_at_peak
from ooctrain.alloc.static import pack
from ooctrain.errors import OoctrainError
from ooctrain.execution.placement import (
    allocation_log,
    mapped_bytes,
    reserved_peak,
    with_mapping,
)
from ooctrain.execution.planners import get_planner
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planning.question import Question
from ooctrain.units import Granule

MIB = 1 << 20
#: On which it takes time to map memory.
MAPPING = replace(DUPLEX, map_us_per_byte=0.0004)
SIZES = (100, 512, 5000, 70_000, 300_000, MIB, 3 * MIB + 1, 9 * MIB)


def drawn_log(seed: int, count: int = 90, live: int = 14) -> AllocationLog:
    """Blocks of all sizes that come and go; what was made later goes sooner, mostly."""
    drawn, there, requests = Random(seed), list[int](), list[Request]()
    for key in range(count):
        if key % 30 == 0:
            requests.append(Request("step", key // 30))
        size = int(drawn.choice(SIZES) * drawn.uniform(0.6, 1.0))
        requests.append(Request("allocate", key, size, tag=f"b{key}"))
        there.append(key)
        while len(there) > live or (there and drawn.random() < 0.4):
            gone = there.pop(drawn.randrange(len(there) // 2, len(there)))
            requests.append(Request("free", gone))
    requests += [Request("free", key) for key in there]
    tags = frozenset(f"b{key}" for key in range(0, count, 7))
    return AllocationLog(requests, "", Granule(), 64 * MIB, parameters=tags)


def ranged_log(seed: int) -> AllocationLog:
    """Blocks of which parts are mapped and unmapped, in whole chunks."""
    drawn, requests = Random(seed), list[Request]()
    mapped, sizes = dict[int, list[bool]](), dict[int, int]()
    for key in range(24):
        size = drawn.randrange(1, 9) * 2 * MIB - drawn.choice((0, 0, 1000))
        requests.append(Request("reserve", key, size, tag=f"r{key}"))
        sizes[key] = size
        mapped[key] = [False] * -(-size // (2 * MIB))
        for _ in range(10):
            other = drawn.choice(sorted(mapped))
            part = drawn.randrange(len(mapped[other]))
            if sum(map(sum, mapped.values())) > 20 or mapped[other][part]:
                op = "unmap" if mapped[other][part] else None
            else:
                op = "map"
            if op:
                mapped[other][part] = op == "map"
                lo = part * 2 * MIB
                requests.append(Request(op, other, lo=lo, hi=min(lo + 2 * MIB, sizes[other])))
        if len(mapped) > 6:
            gone = drawn.choice(sorted(mapped))
            del mapped[gone]
            requests.append(Request("free", gone))
    return AllocationLog(requests, "", Granule(2 * MIB), 64 * MIB)


def planned_log() -> AllocationLog:
    """What a list with parts of variables asks for."""
    asked = Question(step("plain"), budget("plain", 0.9), MACHINE, Granule(4096))
    plan = get_planner("window").plan(asked)
    return allocation_log(plan.trace, plan.schedule, 2 * plan.peak_bytes)


LOGS = {
    "drawn": lambda: drawn_log(1), "few": lambda: drawn_log(2, 60, 6), "planned": planned_log,
    "ranged": lambda: ranged_log(3),
}  # fmt: skip


def row_of(name: str, which: str) -> known.Row:
    log = LOGS[which]()
    held = AllocationLog(hold_whole(log.requests), "", log.granule, log.budget_bytes)
    found = replay(log, name)
    tight = replay(log, name, budget=int(found.reserved_bytes * 0.8))
    books = {word: n for word, n in asdict(found.stats).items() if word != "waited_ns"}
    lives = block_lives(held, name)
    return (which, found.reserved_bytes, found.granted_bytes, found.served, tight.served,
            tight.failure and tight.failure.request.tag, found.maps_by_step, known.digest(books),
            known.digest(lives), known.digest(snapshot_at_peak(log, tight)))  # fmt: skip


@pytest.mark.parametrize("name", allocators())
def test_an_allocator_places_blocks_where_it_did(name):
    known.check_rows("places", name, [row_of(name, which) for which in LOGS])


def arena(name: str, which: str, spec: str, share: float) -> known.Row:
    choice = choose_dry(name, 64 * MIB)
    granule = choice.granule
    room = int(trace_peak_bytes(step(which), granule) * share)
    try:
        plan = get_planner(spec).plan(Question(step(which), room, MACHINE, granule))
        reserved = reserved_peak(plan.schedule, plan.trace, choice)
        machine = with_mapping(MAPPING, plan.schedule, plan.trace, choice)
        mapped = mapped_bytes(plan.schedule, plan.trace, choice)
    except OoctrainError as error:  # its chunks are too large for so many blocks
        return which, spec, error.code
    return which, spec, reserved, mapped, known.digest(machine)


@pytest.mark.parametrize("name", every(allocators(), 3))
def test_the_arena_of_a_plan_is_what_it_was(name):
    asked = ("plain", "window", 0.9), ("blocks", "belady", 0.95), ("everything", "keep-all", 1.5)
    known.check_rows("arenas", name, [arena(name, *question) for question in asked])


@pytest.mark.parametrize("order", ["list", "size"])
def test_packings_are_what_they_were(order):
    rows = []
    for seed, live in ((3, 14), (4, 8), (5, 20)):
        log = drawn_log(seed, 40, live)
        for pools in (1, 2):
            asked = foresee([r for r in log.requests if r.op != "step"], log.parameters)
            found = pack(asked, Granule(512), order, pools)
            rows.append((seed, pools, found.pools, found.least_bytes, known.digest(found.offsets)))
    known.check_rows("packings", order, rows)


def test_every_row_is_of_an_allocator():
    assert known.whose("places") == known.whose("arenas") == set(allocators())
