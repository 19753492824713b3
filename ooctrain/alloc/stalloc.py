"""A packing of the trace with an allocator for the rest, as in STAlloc.

The trace of a step says which blocks will be asked for, so they are packed beforehand, as
`first-fit` does. But some networks ask for more: a mixture of experts sends each batch another way.
What was not foreseen is therefore served as it comes, by best fit, behind the extent of the
packing, where no foreseen block ever lies. A request is foreseen if its name and size are those of
a place in the packing; of several such places it gets the next in the order of the trace, unless a
block is still there. So one request more or less in a step disturbs no other.

`unknown=n` leaves each n-th block of the trace out of the packing, to show what that costs.
Departures
from the paper: it packs by phases and layers of the network and fuses groups, here the order by
size is tried against others (`static.py`); there dynamic requests fill gaps that the packing leaves
idle during their layer, here they lie behind the packing; there the rest goes to PyTorch's caching
allocator. Source: Huang et al., "STAlloc: enhancing memory efficiency in large-scale model training
with spatio-temporal planning" (2025), from the paper's abstract and the project's own source
(Apache-2.0), read, not copied. Read next: `first_fit.py`, which refuses what it did not foresee;
`gmlake.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, get_args

from ooctrain.alloc.arena_map import ArenaSnapshot
from ooctrain.alloc.base import Block, Books, Event, Stats, size_of
from ooctrain.alloc.best_fit import ROUND_BYTES
from ooctrain.alloc.holes import Holes
from ooctrain.alloc.static import Forecast, Order, Packing, pack
from ooctrain.devices.interface import Memory
from ooctrain.errors import ConfigError, OutOfDeviceMemory, PlanMismatch
from ooctrain.units import Granule, format_bytes

Name = tuple[str, int]  # of a request: tag and bytes


class Stalloc:
    """Foreseen blocks at packed offsets, others behind them; whole variables.

    Args:
        memory: the arena; it is used as one linear piece.
        order: order in which blocks are packed, see `first-fit`.
        unknown: n leaves each n-th block of a forecast out of the packing; 0 leaves out none.

    Attributes:
        serves_unforeseen: True: it refuses nothing because it was not foreseen.
    """

    name = "stalloc"
    granule = Granule(ROUND_BYTES, ranges=False)
    serves_unforeseen = True

    def __init__(self, memory: Memory, order: Order = "size", unknown: int = 0):
        if order not in get_args(Order) or not (unknown == 0 or size_of(unknown)):
            raise ConfigError(
                f"stalloc has no order {order!r} with unknown {unknown!r}",
                code="OOC-106",
                fix=f"order is one of {', '.join(get_args(Order))}, unknown a whole number from 0",
            )
        self.budget_bytes = memory.size_bytes // ROUND_BYTES * ROUND_BYTES
        self._base = memory.linear()
        self._books = Books(self.name, self.budget_bytes)
        self._order, self._unknown = order, unknown
        self._packing = Packing((), (), 0)
        self._places: dict[Name, list[int]] = {}  # turns of a round at which it is foreseen
        self._offsets: list[int] = []  # of each turn
        self._turn = 0  # the next one of the round
        self._taken: list[tuple[int, int]] = []  # (offset, end) of live foreseen blocks, by offset
        self._holes = Holes()  # of the rest, below its top
        self._top = 0  # nothing lies from here on

    def load_plan(self, forecast: Forecast) -> None:
        """Fixes the offsets of all that is foreseen. What else comes lies behind it.

        Raises:
            PlanMismatch: blocks are live already.
            OutOfDeviceMemory: the packing is larger than the arena.
        """
        if self._books.live:
            raise PlanMismatch(
                f"{self.name} has live blocks: a packing comes before the first",
                fix="free all blocks first, or pack with a new allocator",
            )
        known = _known(forecast, self._unknown)
        packing = pack(known, self.granule, self._order, 1)
        if packing.extent_bytes > self.budget_bytes:
            raise self._too_large(packing)
        self._packing, self._offsets, self._turn = packing, list(packing.offsets), 0
        self._places = {}
        for turn, life in enumerate(known.lifetimes):
            self._places.setdefault((life.tag, life.nbytes), []).append(turn)
        self._books.move(0, 0, packing.extent_bytes - self._top)
        self._top = packing.extent_bytes

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """The block at its packed offset; else the smallest hole behind the packing that takes it.

        Raises:
            OutOfDeviceMemory: not foreseen, and no hole takes it; the state is as before.

        Cost: O(log blocks) and a list insert.
        """
        nbytes = self._books.checked_size(nbytes)
        size = self.granule.granted(nbytes)
        offset, growth = self._planned(nbytes, size, tag), 0
        if offset is None:
            offset, growth = self._behind(nbytes, size, tag)
        self._books.move(nbytes, size, growth)
        return self._books.open(self._base + offset, nbytes, size, tag)

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Takes a block back. `after` is not needed here."""
        self._books.retire(block)
        lo, shrink = block.address - self._base, 0
        hi = lo + block.granted_bytes
        if lo < self._packing.extent_bytes:
            del self._taken[bisect_left(self._taken, (lo, hi))]
        else:
            lo, hi = self._holes.joined(lo, hi)
            if hi == self._top:
                shrink, self._top = hi - lo, lo
            else:
                self._holes.add(lo, hi - lo)
        self._books.move(-block.requested_bytes, -block.granted_bytes, -shrink)

    def stats(self) -> Stats:
        """The books; reserved is the packing's extent and all below the top of the rest."""
        end = self.budget_bytes - self._top
        return self._books.stats(max(end, self._holes.largest_bytes))

    def check(self) -> None:
        """Foreseen blocks are apart, within the packing; the others and the holes fill the rest."""
        extent = self._packing.extent_bytes
        planned: list[tuple[int, int]] = []
        pieces = [(offset, size, False) for size, offset in self._holes.by_size]
        for block in self._books.live.values():
            offset = block.address - self._base
            if offset < extent:
                planned.append((offset, offset + block.granted_bytes))
            else:
                pieces.append((offset, block.granted_bytes, True))
        assert self._taken == sorted(planned)
        assert all(end <= start for (_, end), (start, _) in pairwise(self._taken)), "overlap"
        assert not planned or self._taken[-1][1] <= extent, "a foreseen block leaves the packing"
        end, was_hole = extent, False
        for offset, size, live in sorted(pieces):
            assert offset == end, f"gap or overlap at {end}: next piece at {offset}"
            assert live or not was_hole, f"two holes touch at {offset}"
            end, was_hole = offset + size, not live
        assert end == self._top <= self.budget_bytes
        assert not was_hole, "a hole touches the end"
        self._holes.check()
        idle = extent - sum(hi - lo for lo, hi in self._taken)
        self._books.check(cached_bytes=idle + self._holes.total_bytes)

    def snapshot(self) -> dict[str, Any]:
        """Live blocks, the packing's extent and the holes behind it, as plain data."""
        packing = self._packing
        return ArenaSnapshot(
            {
                **self._books.layout(base=self._base),
                "holes": self._holes.listed(),
                "top": self._top,
                "pools": list(packing.pools),
                "least": packing.least_bytes,
                "turn": self._turn,
            }
        )

    def close(self) -> list[Block]:
        return self._books.close()

    def _planned(self, nbytes: int, size: int, tag: str) -> int | None:
        """The first free packed offset, from this turn on, or None."""
        turns = self._places.get((tag, nbytes), [])
        first = bisect_left(turns, self._turn)
        for turn in (*turns[first:], *turns[:first]):
            offset = self._offsets[turn]
            place = bisect_left(self._taken, (offset, 0))
            near = self._taken[max(0, place - 1) : place + 1]
            if all(end <= offset or offset + size <= start for start, end in near):
                self._taken.insert(place, (offset, offset + size))
                self._turn = turn + 1
                return offset
        return None

    def _behind(self, nbytes: int, size: int, tag: str) -> tuple[int, int]:
        """(offset, growth of the rest) of a block that was not foreseen."""
        hole = self._holes.smallest(size)
        if hole:
            self._holes.cut(hole[1], size)
            return hole[1], 0
        if self._top + size > self.budget_bytes:
            free, end = self.budget_bytes - self._books.granted, self.budget_bytes - self._top
            largest = max(end, self._holes.largest_bytes)
            raise self._books.refuse(nbytes, size, free, largest, tag, self.snapshot())
        self._top += size
        return self._top - size, size

    def _too_large(self, packing: Packing) -> OutOfDeviceMemory:
        self._books.counts["failures"] += 1
        extent, least = packing.extent_bytes, packing.least_bytes
        return OutOfDeviceMemory(
            "the packing of a whole step is larger than the arena",
            where=f"allocator {self.name}",
            numbers=f"the packing takes {extent} B, of which {extent - least} B are fragmentation; "
            f"budget {self.budget_bytes} B",
            fix=f"a --budget of {format_bytes(extent)}, or --allocator va",
            granted_bytes=least, free_bytes=self.budget_bytes,
            largest_bytes=self.budget_bytes - (extent - least), budget_bytes=self.budget_bytes,
            enough_bytes=extent,
        )  # fmt: skip


def _known(forecast: Forecast, unknown: int) -> Forecast:
    """The forecast without each `unknown`-th lifetime; what is carried over stays."""
    carried = {place for pair in forecast.carried for place in pair}
    kept = [
        place
        for place in range(len(forecast.lifetimes))
        if not unknown or (place + 1) % unknown or place in carried
    ]
    number = {place: new for new, place in enumerate(kept)}
    return Forecast(
        tuple(forecast.lifetimes[place] for place in kept),
        tuple((number[first], number[last]) for first, last in forecast.carried),
    )
