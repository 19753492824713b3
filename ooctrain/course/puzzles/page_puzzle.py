"""Puzzle b3: a page table. A block's addresses are contiguous; its pages can lie anywhere.

Blocks of a few pages are allocated and freed. Each writes a mark of its own into each of its pages,
and all marks are read again after every step. So a page that two blocks share, a page that is lost
and an address that is translated to the wrong place are all detected, and named. Read next:
tutorial 07, `../../alloc/virtual.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ooctrain.course.puzzles.attempt import Attempt, Score, Wrong, attempted, wanted
from ooctrain.report.charts import Piece, strips_svg

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
