"""Series b: allocators. Choosing a hole, merging holes, a page table, offline placement.

The requests are those of a real step, of a ResNet-18 that swaps, or a few that can be drawn. An
answer is judged by the addresses of its blocks: two that live at the same time share no byte, and
no request that would fit is refused. The memory that it needs is compared with that of the
library's allocator on the same requests, and with the most that lives at one time, which no
allocator beats. Read next: `../../alloc/best_fit.py`, `../../alloc/virtual.py`,
`../../alloc/static.py` for the library's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from ooctrain.alloc.base import Allocator
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_allocator
from ooctrain.alloc.replay import peak_bytes
from ooctrain.alloc.static import Forecast, Lifetime, pack
from ooctrain.course.puzzles.attempt import Attempt, Puzzle, Score, Wrong, attempted, wanted
from ooctrain.course.replays import GRANULE, ROOM, addresses_given, extent_bytes, log_of
from ooctrain.course.rubric import Replay
from ooctrain.report.charts import Area, Piece, areas_svg, strips_svg
from ooctrain.units import MIB, Granule

# b1, b2: holes

STEP = Replay(
    model="resnet18", batch=64, budget="25%", machine="v100-pcie", planner="lru", par="best-fit",
    full_ratio=1.0, none_ratio=2.0, points=0,
)  # fmt: skip
Hole = tuple[int, int]  # (offset, bytes)
#: (bytes, begin, end): blocks that can be drawn; in the order of their sizes they do not pack well.
FEW = (
    (7, 0, 2), (8, 1, 6), (5, 1, 5), (2, 1, 2), (2, 2, 6), (4, 3, 5), (6, 3, 4), (6, 4, 6),
    (8, 5, 8),
)  # fmt: skip
Placed = tuple[str, int, int, int, int]  # name, offset, end, made at request, gone at request


def judge_choose(title: str, choose: Callable[[list[Hole], int], int | None]) -> Attempt:
    """b1: `choose(holes, size)` names the hole that a block goes into; None: the free end."""

    def place(holes: list[Hole], size: int, name: str, arena_bytes: int) -> int | None:
        inner = [hole for hole in holes if sum(hole) < arena_bytes]
        end = [hole for hole in holes if sum(hole) == arena_bytes and hole[1] >= size]
        found = choose(list(inner), size)
        if found is None:
            return end[0][0] if end else None
        number = wanted(found, int, "choose returns the number of a hole, or None")
        if not 0 <= number < len(inner) or inner[number][1] < size:
            shown = inner[number] if 0 <= number < len(inner) else f"none of {len(inner)}"
            raise Wrong(f"{name} of {size} bytes does not fit into hole {number}, which is {shown}")
        return inner[number][0]

    return _on_a_step(title, place, None)


def judge_join(title: str, give_back: Callable[[list[Hole], int, int], list[Hole]]) -> Attempt:
    """b2: `give_back(holes, offset, size)` returns the holes after a block has gone."""

    return _on_a_step(title, lowest, lambda *block: give_back(*block))


Place = Callable[[list[Hole], int, str, int], int | None]


def lowest(holes: list[Hole], size: int, name: str, arena_bytes: int) -> int | None:
    """First fit: the hole with the lowest offset."""
    return next((offset for offset, length in holes if length >= size), None)


def serve(
    arena_bytes: int, place: Place, give_back: Callable | None = None
) -> tuple[list[Placed], int]:
    """Serves the step in an arena: which block lay where and when, and how many were refused.

    Args:
        give_back: makes the holes; None: they are what no block covers.

    Raises:
        Wrong: holes that are not what no block covers.
    """
    live: dict[int, tuple[str, int, int, int]] = {}
    gone: list[Placed] = []
    holes, refused = [(0, arena_bytes)], 0
    for time, request in enumerate(log_of(STEP).requests):
        if request.op == "allocate":
            size = GRANULE.granted(request.nbytes)
            offset = place(holes, size, request.tag, arena_bytes)
            if offset is None:
                refused += 1
                continue
            live[request.key] = (request.tag, offset, offset + size, time)
            holes = _cut(holes, offset, size)
        elif request.op == "free" and request.key in live:
            name, offset, end, since = live.pop(request.key)
            gone.append((name, offset, end, since, time))
            free = _uncovered(live.values(), arena_bytes)
            if give_back is not None:
                given = give_back(list(holes), offset, end - offset)
                _check_holes(given, free, name, offset, end)
            holes = free
    last = len(log_of(STEP).requests)
    return [*gone, *((*block, last) for block in live.values())], refused


def _cut(holes: Sequence[Hole], offset: int, size: int) -> list[Hole]:
    rest = [(at, length) if at != offset else (at + size, length - size) for at, length in holes]
    return [hole for hole in rest if hole[1]]


def _uncovered(blocks: Any, arena_bytes: int) -> list[Hole]:
    """What no block covers, ascending."""
    holes, at = [], 0
    for _, offset, end, _ in sorted(blocks, key=lambda block: block[1]):
        if offset > at:
            holes.append((at, offset - at))
        at = end
    return [*holes, (at, arena_bytes - at)] if at < arena_bytes else holes


def _check_holes(given: Any, free: list[Hole], name: str, offset: int, end: int) -> None:
    where = f"after {name!r} gave back [{offset}, {end})"
    found = [tuple(hole) for hole in wanted(given, list, "give_back returns a list of holes")]
    if found == free:
        return
    if sorted(found) == free:
        raise Wrong(f"{where} the holes are not in the order of their offsets")
    for hole in free:
        if hole not in found:
            near = [h for h in found if h[0] < hole[0] + hole[1] and hole[0] < h[0] + h[1]]
            raise Wrong(f"{where} there is a hole {hole}, and yours there are {near[:3]}")
    extra = next(hole for hole in found if hole not in free)
    raise Wrong(f"{where} there is no hole {extra}")


def _on_a_step(title: str, place: Place, give_back: Callable | None) -> Attempt:
    log = log_of(STEP)
    alive, arena = peak_bytes(log.requests), ROOM * peak_bytes(log.requests)
    name = "first-fit" if give_back else "best-fit"
    target = _target_bytes(name)
    wrong, found = attempted(lambda: serve(arena, place, give_back))
    blocks = found[0] if found else []
    extent = max(end for _, _, end, _, _ in blocks) if blocks else None
    _, tight = attempted(lambda: serve(target, place, give_back))
    numbers = (
        Score("arena, MiB", extent and extent / MIB, target / MIB, alive / MIB),
        Score("refused in target arena", tight and tight[1], 0, 0),
    )
    hint = _outgrown(blocks, target)
    return Attempt(title, numbers, wrong, hint, arena_picture(title, blocks, alive))


def _outgrown(blocks: Sequence[Placed], target: int) -> str:
    """With which block the arena outgrows the target, and what is free below it."""
    over = [block for block in blocks if block[2] > target]
    if not over:
        return ""
    name, offset, end, since, _ = min(over, key=lambda block: block[3])
    live = [block for block in blocks if block[3] < since < block[4] and block[1] < offset]
    free = offset - sum(below[2] - below[1] for below in live)
    size = (end - offset) / MIB
    return (
        f"it outgrows the target at request {since}, with {name} of {size:.1f} MiB: below it "
        f"{free / MIB:.1f} MiB are free, in pieces"
    )


@lru_cache(maxsize=2)
def _target_bytes(name: str) -> int:
    """What the library's allocator needs for the step: of holes by address, or by size."""
    log = log_of(STEP)
    arena = ROOM * peak_bytes(log.requests)
    if name == "best-fit":
        choice = choose_allocator(name, arena, binding=False)
        allocator: Allocator = choice.make(DryMemory(arena))
        return GRANULE.granted(extent_bytes(log, addresses_given(log, allocator)))
    blocks, _ = serve(arena, lowest)
    return max(end for _, _, end, _, _ in blocks)


def arena_picture(title: str, blocks: Sequence[Placed], alive: int) -> str:
    """Which block lies where and when; the small ones are left out."""
    areas = [
        Area(since, until, offset / MIB, end / MIB, name, int(".grad" in name))
        for name, offset, end, since, until in blocks
        if end - offset > alive / 500
    ]
    return areas_svg(
        title, areas, axes=("request", "address, MiB"), legend=("forward", "backward"),
        limits=[("the most that lives at one time", alive / MIB)],
    )  # fmt: skip


# b3: a page table. A block's addresses are contiguous; its pages can lie anywhere. Blocks of a few
# pages are allocated and freed. Each writes a mark of its own into each of its pages, and all marks
# are read again after every step. So a page that two blocks share, a page that is lost and an
# address that is translated to the wrong place are all detected, and named.

PAGE, PAGES = 16, 24


def judge_pages(title: str, answer: tuple[Callable, Callable, Callable]) -> Attempt:
    """`(map_pages, unmap_pages, translate)`: addresses in a row, pages anywhere."""
    rows: list[tuple[str, list[Piece]]] = []
    counts = {"refused": 0, "lost": 0}
    wrong, ended = attempted(lambda: _use_pages(answer, rows, counts))
    numbers = (
        Score("blocks refused", counts["refused"] if ended else None, 0, 0),
        Score("pages lost", counts["lost"] if ended else None, 0, 0),
    )
    shown = [row for number, row in enumerate(rows) if number % 8 == 0][:12]
    picture = strips_svg(
        title, shown or [("no block", [])], extent=PAGES, axis="physical page",
        legend=[f"block {i}, {i + 5}, ..." for i in range(5)],
    )  # fmt: skip
    return Attempt(title, numbers, wrong, "every page that is free can be mapped", picture)


def _use_pages(answer: Any, rows: list, counts: dict[str, int]) -> bool:
    """Makes and frees blocks, writes a mark into each page of each, and reads all marks again."""
    if not isinstance(answer, tuple) or len(answer) != 3:
        raise Wrong("the answer is three functions: (map_pages, unmap_pages, translate)")
    map_pages, unmap_pages, translate = answer
    table: dict[int, int] = {}
    free, memory = list(range(PAGES)), [-1] * (PAGES * PAGE)
    live: dict[int, tuple[int, int]] = {}
    rng, next_page = random.Random(0), 0
    for number in range(120):
        if live and (rng.random() < 0.45 or sum(n for _, n in live.values()) > PAGES - 4):
            gone = rng.choice(list(live))
            first, pages = live.pop(gone)
            unmap_pages(table, free, first, pages)
        else:
            pages = min(rng.randint(1, 6), PAGES - sum(n for _, n in live.values()))
            map_pages(table, free, next_page, pages)
            live[number] = (next_page, pages)
            next_page += pages
            if len([p for p in range(*_pages(live[number])) if p in table]) < pages:
                counts["refused"] += 1
            _write(memory, table, translate, number, live[number])
        _check_pages(table, free, live)
        for block, place in live.items():
            _read(memory, table, translate, block, place)
        owner = {table[p]: b for b, place in live.items() for p in range(*_pages(place))}
        rows.append((f"step {number}", [Piece(p, p + 1, "", b % 5) for p, b in owner.items()]))
    counts["lost"] = PAGES - len(free) - sum(pages for _, pages in live.values())
    return True


def _pages(place: tuple[int, int]) -> tuple[int, int]:
    return place[0], place[0] + place[1]


def _address(table: dict, translate: Callable, address: int, block: int) -> int:
    found = wanted(translate(table, address), int, "translate returns a physical address")
    page = table.get(address // PAGE)
    if page is None or found != page * PAGE + address % PAGE:
        raise Wrong(
            f"address {address} of block {block} is translated to {found}: virtual page "
            f"{address // PAGE} is {page}, and pages have {PAGE} bytes"
        )
    return found


def _write(memory: list, table: dict, translate: Callable, block: int, place: Any) -> None:
    for page in range(*_pages(place)):
        memory[_address(table, translate, page * PAGE + block % PAGE, block)] = block


def _read(memory: list, table: dict, translate: Callable, block: int, place: Any) -> None:
    for page in range(*_pages(place)):
        found = memory[_address(table, translate, page * PAGE + block % PAGE, block)]
        if found != block:
            raise Wrong(f"virtual page {page} of block {block} holds what block {found} wrote")


def _check_pages(table: dict, free: list, live: dict[int, tuple[int, int]]) -> None:
    mapped = {page for place in live.values() for page in range(*_pages(place))}
    for page in mapped:
        if page not in table:
            raise Wrong(f"virtual page {page} of a live block is not in the table")
    for page in table:
        if page not in mapped:
            raise Wrong(f"virtual page {page} belongs to no live block, and is in the table")
    physical = [*table.values(), *free]
    for page in physical:
        if page not in range(PAGES):
            raise Wrong(f"{page!r} is no physical page: there are 0 to {PAGES - 1}")
        if physical.count(page) > 1:
            raise Wrong(f"physical page {page} is mapped twice, or mapped and free")


# b4: places known beforehand


def lifetimes_of_a_step() -> list[tuple[int, int, int]]:
    """(bytes, begin, end) of the blocks of the first step of `STEP`."""
    requests = log_of(STEP).requests
    second = [n for n, request in enumerate(requests) if request.op == "step"][1]
    born: dict[int, tuple[int, int]] = {}
    found = []
    for time, request in enumerate(requests[:second]):
        if request.op == "allocate":
            born[request.key] = (request.nbytes, time)
        elif request.op == "free":
            found.append((*born.pop(request.key), time))
    return sorted([*found, *((*block, second) for block in born.values())], key=lambda b: b[1])


def judge_pack(title: str, pack_blocks: Callable[[list], list[int]]) -> Attempt:
    """b4: `pack(lifetimes)` returns an offset for each of (bytes, begin, end)."""
    sets = {"few blocks, bytes": (list(FEW), 1), "ResNet-18, MiB": (lifetimes_of_a_step(), MIB)}
    wrong, numbers, areas = "", list[Score](), list[Area]()
    for name, (blocks, unit) in sets.items():
        failed, offsets = attempted(partial(_packed, pack_blocks, blocks))
        wrong = wrong or failed
        extent = None
        if offsets is not None:
            extent = max(at + size for at, (size, _, _) in zip(offsets, blocks, strict=True)) / unit
        target, bound = _packing(tuple(blocks))
        numbers.append(Score(name, extent, target / unit, bound / unit))
        if not areas and offsets is not None:
            areas = [
                Area(begin, end, at, at + size, f"block {n}", n)
                for n, (at, (size, begin, end)) in enumerate(zip(offsets, blocks, strict=True))
            ]
    limits = [("the most that lives at one time", numbers[0].bound or 0)]
    legend = [f"block {n}, {n + 6}, ..." for n in range(6)]
    picture = areas_svg(title, areas, axes=("time", "address"), legend=legend, limits=limits)
    hint = "the largest first is good, and not always best: which others keep a place for long?"
    return Attempt(title, (numbers[0], numbers[1]), wrong, hint, picture)


def _packed(pack_blocks: Callable, blocks: list[tuple[int, int, int]]) -> list[int]:
    offsets = wanted(pack_blocks(list(blocks)), (list, tuple), "pack returns a list of offsets")
    if len(offsets) != len(blocks):
        raise Wrong(f"{len(offsets)} offsets for {len(blocks)} blocks")
    for n, at in enumerate(offsets):
        if wanted(at, int, f"the offset of block {n} is a whole number") < 0:
            raise Wrong(f"block {n} lies at {at}")
    order = sorted(range(len(blocks)), key=lambda n: blocks[n][1])
    live: list[int] = []
    for n in order:
        size, begin, _ = blocks[n]
        live = [m for m in live if blocks[m][2] > begin]
        for m in live:
            if offsets[n] < offsets[m] + blocks[m][0] and offsets[m] < offsets[n] + size:
                raise Wrong(
                    f"blocks {m} and {n} both live at {begin} and share bytes: {m} has "
                    f"[{offsets[m]}, {offsets[m] + blocks[m][0]}), {n} has "
                    f"[{offsets[n]}, {offsets[n] + size})"
                )
        live.append(n)
    return list(offsets)


@lru_cache(maxsize=4)
def _packing(blocks: tuple[tuple[int, int, int], ...]) -> tuple[int, int]:
    """(what the library needs, the most that lives at one time)."""
    lives = tuple(Lifetime(size, str(n), lo, hi) for n, (size, lo, hi) in enumerate(blocks))
    packing = pack(Forecast(lives), Granule(1), "size", 1)
    return packing.extent_bytes, packing.least_bytes


PUZZLES = (
    Puzzle("b1", "Which hole", judge_choose),
    Puzzle("b2", "Holes melt", judge_join),
    Puzzle("b3", "A page table", judge_pages),
    Puzzle("b4", "All places beforehand", judge_pack),
)
