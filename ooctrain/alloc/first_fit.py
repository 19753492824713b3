"""First fit, packed offline: the n-th request has its offset before the first step begins.

A training step asks for the same blocks in the same order each time, so the search for places can
be done once, with the future known, from a `Forecast` of the requests. At run time the allocator
only counts requests, and refuses one that was not foreseen. Parameters and their gradients have a
pool of their own: they are small and stay long, and would fragment the general pool. The third pool
of the paper is the host's (`sched/host.py`). Without a forecast requests are placed as they come,
lowest offset first, as in a plain first-fit allocator.

Sources: paper 004, section 4.4; `first-fit-by-size` is ours (see `static.py`). Its limitation: with
a forecast it serves no unforeseen request. Read next: `static.py`, `../execution/placement.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, get_args

from ooctrain.alloc.arena_map import ArenaSnapshot
from ooctrain.alloc.base import Block, Books, Event, Stats, size_of
from ooctrain.alloc.best_fit import ROUND_BYTES
from ooctrain.alloc.static import EXACT_WORK, Forecast, Lifetime, Order, Packing, pack
from ooctrain.devices.interface import Memory
from ooctrain.errors import ConfigError, OutOfDeviceMemory, PlanMismatch
from ooctrain.sched.spans import lowest_gap
from ooctrain.units import Granule, format_bytes


class FirstFit:
    """Offsets from a packing, whole variables.

    Args:
        memory: the arena; it is used as one linear piece.
        order: order in which blocks are placed: "list", "size", or "exact": the best that a search
            finds.
        pools: 2: parameters and their gradients apart; 1: all together.
        work: work of that search, in nodes times blocks; the result depends on no clock.
    """

    name = "first-fit"
    granule = Granule(ROUND_BYTES, ranges=False)

    def __init__(
        self, memory: Memory, order: Order = "list", pools: int = 2, work: int = EXACT_WORK
    ):
        if order not in get_args(Order) or pools not in (1, 2) or not size_of(work):
            raise ConfigError(
                f"first-fit has no order {order!r} with {pools!r} pools and work {work!r}",
                code="OOC-106",
                fix=f"order is one of {', '.join(get_args(Order))}, pools is 1 or 2, work a "
                "positive whole number",
            )
        self.budget_bytes = memory.size_bytes // ROUND_BYTES * ROUND_BYTES
        self._base = memory.linear()
        self._books = Books(self.name, self.budget_bytes)
        self._order, self._pools, self._work = order, pools, work
        self._taken: list[tuple[int, int]] = []  # (offset, end) of the live blocks, by offset
        self._packing: Packing | None = None
        self._expected: list[tuple[Lifetime, int]] = []  # each request with its offset
        self._again: list[tuple[Lifetime, int]] = []  # from the second round on
        self._served = 0  # requests of this round

    def load_plan(self, forecast: Forecast) -> None:
        """Fixes every offset. From now on only the foreseen requests are served, in order.

        Raises:
            PlanMismatch: blocks are live already.
            OutOfDeviceMemory: the packing is larger than the arena.
        """
        if self._taken:
            raise PlanMismatch(
                f"{self.name} has live blocks: a packing comes before the first",
                fix="free all blocks first, or pack with a new allocator",
            )
        packing = pack(forecast, self.granule, self._order, self._pools, self._work)
        if packing.extent_bytes > self.budget_bytes:
            raise self._too_large(packing)
        once = {first for first, _ in forecast.carried}
        entries = list(zip(forecast.lifetimes, packing.offsets, strict=True))
        self._expected, self._served = entries, 0
        self._again = [entry for place, entry in enumerate(entries) if place not in once]
        before = self._packing.extent_bytes if self._packing else 0
        self._packing = packing
        self._books.move(0, 0, packing.extent_bytes - before)

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """The block at its packed offset; without a packing, at the lowest that is free.

        Raises:
            PlanMismatch: not the request that was foreseen, or its place is still taken.
            OutOfDeviceMemory: without a packing, no hole takes it.

        Cost: O(log blocks) and a list insert; without a packing, O(blocks).
        """
        size = self.granule.granted(self._books.checked_size(nbytes))
        if self._packing is None:
            return self._allocate_unplanned(nbytes, size, tag)
        offset = self._planned_offset(nbytes, tag)
        place = bisect_left(self._taken, (offset, 0))
        near = self._taken[max(0, place - 1) : place + 1]
        if any(start < offset + size and offset < end for start, end in near):
            raise self._mismatch(tag, nbytes, "a block that should be gone is still in its place")
        self._taken.insert(place, (offset, offset + size))
        self._expected, self._served = self._round()
        self._served += 1
        self._books.move(nbytes, size, 0)
        return self._books.open(self._base + offset, nbytes, size, tag)

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Takes a block back. `after` is not needed here."""
        self._books.retire(block)
        top = self._top()
        offset = block.address - self._base
        del self._taken[bisect_left(self._taken, (offset, 0))]
        shrink = 0 if self._packing else top - self._top()
        self._books.move(-block.requested_bytes, -block.granted_bytes, -shrink)

    def stats(self) -> Stats:
        """The books; reserved is the extent of the packing, or all below the highest block.

        With a packing every foreseen request is served, so nothing counts as external
        fragmentation; what the packing costs is its extent beyond `least` (`snapshot`).
        """
        return self._books.stats(None if self._packing else self._largest())

    def check(self) -> None:
        """Live blocks are apart, within the extent, and as listed."""
        assert all(end <= start for (_, end), (start, _) in pairwise(self._taken)), "overlap"
        places = sorted(
            (b.address - self._base, b.granted_bytes) for b in self._books.live.values()
        )
        assert self._taken == [(offset, offset + size) for offset, size in places]
        extent = self._packing.extent_bytes if self._packing else self._top()
        assert self._top() <= extent <= self.budget_bytes
        self._books.check(cached_bytes=extent - sum(size for _, size in places))

    def snapshot(self) -> dict[str, Any]:
        """Live blocks and, with a packing, its pools and the least that any packing needs."""
        packing = self._packing
        return ArenaSnapshot(
            {
                **self._books.layout(base=self._base),
                "top": packing.extent_bytes if packing else self._top(),
                "pools": list(packing.pools) if packing else [],
                "least": packing.least_bytes if packing else 0,
                "served": self._served,
            }
        )

    def close(self) -> list[Block]:
        return self._books.close()

    def _planned_offset(self, nbytes: int, tag: str) -> int:
        """Where the next foreseen request goes, if this is it."""
        expected, served = self._round()
        if not expected:
            raise self._mismatch(tag, nbytes, "nothing was foreseen")
        life, offset = expected[served]
        if (life.tag, life.nbytes) != (tag, nbytes):
            raise self._mismatch(
                tag, nbytes, f"foreseen was {life.tag!r} with {format_bytes(life.nbytes)}"
            )
        return offset

    def _round(self) -> tuple[list[tuple[Lifetime, int]], int]:
        """The foreseen requests of the round that the next one belongs to, and its place there."""
        if self._served == len(self._expected):
            return self._again, 0
        return self._expected, self._served

    def _too_large(self, packing: Packing) -> OutOfDeviceMemory:
        self._books.counts["failures"] += 1
        lost = packing.extent_bytes - packing.least_bytes
        return OutOfDeviceMemory(
            "the placement of a whole step is larger than the arena",
            where=f"allocator {self.name}",
            numbers=f"it takes {packing.extent_bytes} B in pools of {packing.pools}, of which "
            f"{lost} B are fragmentation; budget {self.budget_bytes} B",
            fix=f"a --budget of {packing.extent_bytes} B, or --allocator va, which needs "
            f"{packing.least_bytes} B and a chunk for each block",
            granted_bytes=packing.least_bytes, free_bytes=self.budget_bytes,
            largest_bytes=self.budget_bytes - lost, budget_bytes=self.budget_bytes,
            enough_bytes=packing.extent_bytes,
        )  # fmt: skip

    def _mismatch(self, tag: str, nbytes: int, why: str) -> PlanMismatch:
        self._books.counts["failures"] += 1
        return PlanMismatch(
            f"the packing of {self.name} has no place for {format_bytes(nbytes)}: {why}",
            where=f"{tag or 'a block'}, request {self._served} of the round",
            fix="pack again for what is run, or --allocator va or best-fit, which take what comes",
        )

    def _allocate_unplanned(self, nbytes: int, size: int, tag: str) -> Block:
        offset = lowest_gap(self._taken, size)
        if offset + size > self.budget_bytes:
            free = self.budget_bytes - self._books.granted
            raise self._books.refuse(nbytes, size, free, self._largest(), tag, self.snapshot())
        top = self._top()
        place = bisect_right(self._taken, (offset, 0))
        self._taken.insert(place, (offset, offset + size))
        self._books.move(nbytes, size, self._top() - top)
        return self._books.open(self._base + offset, nbytes, size, tag)

    def _top(self) -> int:
        return self._taken[-1][1] if self._taken else 0

    def _largest(self) -> int:
        ends = [0, *(end for _, end in self._taken)]
        starts = [*(start for start, _ in self._taken), self.budget_bytes]
        return max(start - end for end, start in zip(ends, starts, strict=True))


class FirstFitBySize(FirstFit):
    """The same, placed the largest first and in one pool: the better packing of the two."""

    name = "first-fit-by-size"

    def __init__(
        self, memory: Memory, order: Order = "size", pools: int = 1, work: int = EXACT_WORK
    ):
        super().__init__(memory, order, pools, work)
