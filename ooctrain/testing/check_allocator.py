"""The laws of an allocator, for the library's own and for a user's.

In: how to make an allocator over a memory. Out: the number of request lists that it passed, or an
`AllocatorFailure` with the shortest failing list of requests that could be found. The one idea: a
client that remembers what it was given, over memory that checks every access, sees every broken
promise; requests are plain data, so a failing list is cut down until each of them is needed.
Source: notes on allocators, section 5. Read next: `strict_memory.py`, `../alloc/base.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from ooctrain.alloc.base import Allocator, Block, RangedAllocator, make_changes
from ooctrain.alloc.registry import choose_allocator
from ooctrain.errors import ConfigError, InvalidFree, OoctrainError, OutOfDeviceMemory
from ooctrain.testing.strict_memory import StrictMemory

Make = Callable[[Any], Allocator]
#: ("allocate", bytes), ("free", which live block) or ("part", which): gives a part back and away
Request = tuple[str, int]
PAGE_BYTES, ARENA_PAGES, SECTOR_BYTES = 4096, 48, 512
WRONG_SIZES = (0, -1, 1.5, 2**63, None)


class AllocatorFailure(OoctrainError, AssertionError):
    """An allocator breaks a law.

    Attributes:
        requests: the shortest failing list that was found.
    """

    default_code = "OOC-292"

    def __init__(self, what: str, *, requests: Sequence[Request], **details: str):
        super().__init__(what, **details)
        self.requests = tuple(requests)


def check_allocator(make: Make | str, *, examples: int = 100, seed: int = 0) -> int:
    """Holds an allocator to its promises.

    The laws: live blocks are disjoint, as large as asked for, and keep their bytes; the books are
    the sums; a refused request changes nothing, and with ranges is refused only if memory is short;
    wrong sizes and wrong frees are refused; the same requests give the same layout; what was
    freed can be had again; `close` names what was live.

    Args:
        make: the allocator's class, a function that takes the memory, or a name with parameters
            ("va:chunk=4KiB", "file.py:Class").
        examples: how many random lists of requests are tried.
        seed: of the lists.

    Returns:
        The number of lists tried.

    Raises:
        AllocatorFailure: a law is broken.
    """
    if isinstance(make, str):
        make = choose_allocator(make, ARENA_PAGES * PAGE_BYTES, binding=False).make
    rng = random.Random(seed)
    for _ in range(examples):
        requests = _random_requests(rng)
        problem = _problem(make, requests)
        if problem:
            shortest = _shorten(make, requests)
            listed = ", ".join(f"{what} {value}" for what, value in shortest)
            raise AllocatorFailure(
                _problem(make, shortest), requests=shortest, where=f"after: {listed}",
                fix="ooctrain/alloc/base.py says what an allocator promises",
            )  # fmt: skip
    return examples


def _random_requests(rng: random.Random) -> list[Request]:
    sizes = [rng.randint(1, 14 * PAGE_BYTES) for _ in range(4)]
    requests: list[Request] = []
    for _ in range(rng.randint(1, 50)):
        what = rng.choices(["allocate", "free", "part"], [5, 4, 1])[0]
        some = rng.choice([*sizes, rng.randint(1, 6 * PAGE_BYTES)])
        requests.append((what, some if what == "allocate" else rng.randrange(40)))
    return requests


def _problem(make: Make, requests: Sequence[Request]) -> str:
    """What is wrong, or an empty text."""
    try:
        _Client(make).run(requests)
        if _layout(make, requests) != _layout(make, requests):
            return "the same requests gave two layouts"
    except AssertionError as broken:
        return str(broken) or "check() fails"
    except (OoctrainError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        return f"unexpected {error!r}"
    return ""


def _layout(make: Make, requests: Sequence[Request]) -> dict[str, Any]:
    client = _Client(make)
    for request in requests:
        client.serve(request)
    return client.allocator.snapshot()


def _shorten(make: Make, requests: Sequence[Request]) -> list[Request]:
    """Leaves requests out, one after the other, as long as something is still wrong."""
    kept, place = list(requests), 0
    while place < len(kept):
        without = kept[:place] + kept[place + 1 :]
        if _problem(make, without):
            kept = without
        else:
            place += 1
    return kept


class _Client:
    """Remembers what it was given and what it wrote there."""

    def __init__(self, make: Make):
        sample = make(StrictMemory(ARENA_PAGES * PAGE_BYTES, PAGE_BYTES))
        unit = PAGE_BYTES if sample.granule.ranges else SECTOR_BYTES
        self.memory = StrictMemory(ARENA_PAGES * PAGE_BYTES, unit)
        self.allocator = make(self.memory)
        self.live: list[tuple[Block, int]] = []
        self.marks = 0

    def run(self, requests: Sequence[Request]) -> None:
        self._refuses_nonsense()
        for request in requests:
            self.serve(request)
            self.allocator.check()
            self._books_balance()
        left = [block for block, _ in self.live]
        self._gives_all_back()
        assert sorted(b.id for b in self.allocator.close()) == [], f"close forgets {left}"

    def serve(self, request: Request) -> None:
        what, value = request
        if what == "allocate":
            self._allocate(value)
        elif self.live:
            block, mark = self.live[value % len(self.live)]
            self._keeps_bytes(block, mark)
            if what == "free":
                del self.live[value % len(self.live)]
                self.allocator.free(block)
                self._refuses_to_free(block)
            elif isinstance(self.allocator, RangedAllocator):
                self._part(self.allocator, block, mark)

    def _allocate(self, nbytes: int) -> None:
        granted = self.allocator.granule.granted(nbytes)
        before = self.allocator.snapshot()
        try:
            block = self.allocator.allocate(nbytes, f"block {self.marks}")
        except OutOfDeviceMemory:
            assert self.allocator.snapshot() == before, "a refused request changed something"
            held = sum(b.granted_bytes for b, _ in self.live)
            short = held + granted > self.allocator.budget_bytes
            assert short or not self.allocator.granule.ranges, "refused although enough is free"
            return
        make_changes(self.allocator)
        assert block.granted_bytes == granted, f"{block.granted_bytes} B granted, not {granted}"
        self._is_apart(block)
        self.marks += 1
        self.memory.write(block.address, block.requested_bytes, self.marks)
        self.live.append((block, self.marks))

    def _part(self, allocator: RangedAllocator, block: Block, mark: int) -> None:
        """Gives the last granule back and claims it again."""
        size = allocator.granule.size_bytes
        lo = (block.requested_bytes - 1) // size * size
        before = block.granted_bytes
        allocator.unmap_range(block, lo, block.requested_bytes)
        assert block.granted_bytes == before - size, "unmap_range gives nothing back"
        allocator.map_range(block, lo, block.requested_bytes)
        make_changes(allocator)
        self.memory.write(block.address + lo, block.requested_bytes - lo, mark)

    def _is_apart(self, block: Block) -> None:
        lo, hi = block.address, block.address + block.granted_bytes
        for other, _ in self.live:
            apart = hi <= other.address or other.address + other.granted_bytes <= lo
            assert apart, f"{block.tag} lies on {other.tag}"

    def _keeps_bytes(self, block: Block, mark: int) -> None:
        found = set(self.memory.read(block.address, block.requested_bytes))
        assert found == {mark}, f"somebody wrote into {block.tag}"

    def _books_balance(self) -> None:
        stats = self.allocator.stats()
        requested = sum(block.requested_bytes for block, _ in self.live)
        granted = sum(block.granted_bytes for block, _ in self.live)
        assert stats.requested_bytes == requested, "requested_bytes is not the sum"
        assert stats.granted_bytes == granted, "granted_bytes is not the sum"
        assert granted <= stats.reserved_bytes <= self.allocator.budget_bytes, "reserved_bytes"
        assert stats.peak_granted_bytes >= granted, "the peak is lower than the present value"

    def _refuses_nonsense(self) -> None:
        for wrong in WRONG_SIZES:
            try:
                self.allocator.allocate(wrong)  # type: ignore[arg-type]
            except ConfigError:
                continue
            raise AssertionError(f"allocate({wrong!r}) is not refused")

    def _refuses_to_free(self, block: Block) -> None:
        try:
            self.allocator.free(block)
        except InvalidFree:
            return
        raise AssertionError(f"{block.tag} can be freed twice")

    def _gives_all_back(self) -> None:
        """Everything freed, one block can have nearly the whole arena."""
        for block, mark in self.live:
            self._keeps_bytes(block, mark)
            self.allocator.free(block)
        self.live.clear()
        assert self.allocator.stats().granted_bytes == 0, "granted_bytes is not 0 at the end"
        self._allocate(self.allocator.budget_bytes)
        assert self.live, "what was freed cannot be had again"
        self.allocator.free(self.live.pop()[0])
