"""Static placement: every block's offset is worked out before the first step.

A `Forecast` says which blocks a step will ask for, and when each of them lives; a `Packing` gives
an offset to each. Two blocks may have the same bytes if they never live at the same time, so a
block goes to the lowest offset that is free during its life. In list order this is first fit.
Placing large blocks first packs more tightly, since small blocks find room between large ones but
not the reverse. The packing is tighter still if, among blocks of about one size, those that live
longest go first. Optimal packing is NP-hard; its lower bound is the largest total that lives at one
time. The order "exact" searches for the optimum, with a bounded number of nodes.

Sources: paper 004, section 4.4 (first fit, list order, a pool of its own for parameters); for the
order by size, Pisarchyk and Lee, "Efficient memory management for deep neural net inference"
(2020); the classes of size are ours. Read next: `first_fit.py`, which serves from a packing;
`exact_packing.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import ModuleType
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from ooctrain.errors import ConfigError
from ooctrain.units import MAX_BYTES, Granule

Order = Literal["list", "size", "exact"]
Span = tuple[int, int]
_FEW = 256
#: The number of blocks from which a compiled search is worth its compilation.
MANY = 10_000
#: What the exact search may do: nodes times blocks. About twenty seconds.
EXACT_WORK = 400_000_000


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One block that will be asked for.

    Args:
        nbytes: as it will be asked for.
        tag: name of what will be requested.
        begin, end: it lives in [begin, end), counted in requests since the beginning.
        parameter: whether it belongs into the pool of parameters and their gradients.
    """

    nbytes: int
    tag: str
    begin: int
    end: int
    parameter: bool = False


@dataclass(frozen=True, slots=True)
class Forecast:
    """What will be asked for, in order, over and over.

    Args:
        lifetimes: those of one round (one training step, or two where updates are not in place).
        carried: (i, j): the block of lifetime i is asked for in the first round only; from the
            second on, the block of lifetime j of the round before stands in its place. So both need
            the same offset. i is j where a block simply stays.
    """

    lifetimes: tuple[Lifetime, ...]
    carried: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Packing:
    """Where everything goes.

    Args:
        offsets: one for each lifetime.
        pools: extent of each pool; they lie one behind the other.
        least_bytes: the most that lives at one time: no packing is smaller.
    """

    offsets: tuple[int, ...]
    pools: tuple[int, ...]
    least_bytes: int

    @property
    def extent_bytes(self) -> int:
        """What it takes of the arena."""
        return sum(self.pools)


def pack(
    forecast: Forecast, granule: Granule, order: Order, pools: int, work: int = EXACT_WORK
) -> Packing:
    """Packs a forecast.

    Args:
        granule: every block takes whole granules.
        order: "list": as they are asked for; "size": the largest first, or by powers of two of the
            size and then the longest life first, or as they are asked for, whichever gives the
            smallest pool; "exact": the smallest pool that a search from there on finds.
        pools: 2: parameters and their gradients in a pool of their own, before the others; 1: all
            in one.
        work: most work that the exact search may do for each pool, in nodes times blocks.

    Raises:
        ConfigError: all blocks together take 2**62 bytes or more.

    Cost: in list order O(n k log k) for n blocks of which k live at the same time, by size
        O(n (n + k log k)), both in NumPy: 0.1 s for 2000. From `MANY` blocks on O(n k log k) for
        both, compiled.
    """
    lifetimes = forecast.lifetimes
    sizes = [granule.granted(life.nbytes) for life in lifetimes]
    if sum(sizes) >= MAX_BYTES:
        raise ConfigError(
            "the blocks take more bytes than can be counted", code="OOC-102",
            numbers=f"{sum(sizes)} bytes", fix="blocks of less than 2**62 bytes all together",
        )  # fmt: skip
    spans: list[tuple[Span, ...]] = [((life.begin, life.end),) for life in lifetimes]
    leader = list(range(len(lifetimes)))
    for first, last in forecast.carried:
        # The place is taken from the very beginning: in later rounds its block is there already.
        spans[first] = ((0, lifetimes[first].end),)
        if last != first:
            spans[first] += spans[last]
            leader[last] = first
    offsets = [0] * len(lifetimes)
    extents: list[int] = []
    for members in _members(lifetimes, leader, pools):
        placed = _best_placed(members, sizes, spans, order)
        if order == "exact":
            placed = _exact(placed, sizes, spans, work)
        for i, offset in placed.items():
            offsets[i] = offset + sum(extents)
        extents.append(_extent(placed, sizes))
    return Packing(
        tuple(offsets[leader[i]] for i in range(len(offsets))),
        tuple(extents),
        most_alive(sizes, [(life.begin, life.end) for life in lifetimes]),
    )


def _members(
    lifetimes: Sequence[Lifetime], leader: Sequence[int], pools: int
) -> Iterator[list[int]]:
    """The lifetimes of each pool that need an offset of their own, in list order."""
    own = [i for i in range(len(lifetimes)) if leader[i] == i]
    if pools == 1:
        yield own
    else:
        yield [i for i in own if lifetimes[i].parameter]
        yield [i for i in own if not lifetimes[i].parameter]


def _best_placed(
    members: Sequence[int], sizes: Sequence[int], spans: Sequence[tuple[Span, ...]], order: Order
) -> dict[int, int]:
    """The lowest of the placements in the ways to sort the members; of equals the first."""
    best, extent = dict[int, int](), MAX_BYTES
    for key in _KEYS[order]:
        placed = _place(
            sorted(members, key=lambda i: key(sizes[i], spans[i])), sizes, spans, extent
        )
        if placed is not None and _extent(placed, sizes) < extent:
            best, extent = placed, _extent(placed, sizes)
    return best


def _place(
    members: Sequence[int], sizes: Sequence[int], spans: Sequence[tuple[Span, ...]],
    below: int = MAX_BYTES,
) -> dict[int, int] | None:  # fmt: skip
    """Gives each member, in this order, the lowest offset that is free during all of its spans.

    Args:
        below: many blocks are given up (None) once one of them ends there or above.
    """
    if len(members) >= MANY:
        found = _searches()[0].places_of_many(
            [sizes[i] for i in members], [spans[i] for i in members], below
        )
        return None if found is None else dict(zip(members, found, strict=True))
    placed = np.zeros((4, sum(len(spans[i]) for i in members)), np.int64)
    begin, end, start, stop = placed
    first = np.array([min(lo for lo, _ in spans[i]) for i in members], np.int64)
    earliest = np.minimum.accumulate(first[::-1])[::-1]  # that any of the members left begins
    offsets: dict[int, int] = {}
    filled = needed = 0
    for i, horizon in zip(members, earliest, strict=True):
        if filled > 2 * needed + _FEW:
            # A block that ended before all remaining ones begin is no longer in the way.
            alive = end[:filled] > horizon
            needed = int(alive.sum())
            placed[:, :needed] = placed[:, :filled][:, alive]
            filled = needed
        overlapping = np.zeros(filled, bool)
        for lo, hi in spans[i]:
            overlapping |= (begin[:filled] < hi) & (end[:filled] > lo)
        offset = offsets[i] = _gap_between(
            start[:filled][overlapping], stop[:filled][overlapping], sizes[i]
        )
        for lo, hi in spans[i]:
            begin[filled], end[filled] = lo, hi
            start[filled], stop[filled] = offset, offset + sizes[i]
            filled += 1
    return offsets


def _exact(
    known: dict[int, int], sizes: Sequence[int], spans: Sequence[tuple[Span, ...]], work: int
) -> dict[int, int]:
    """The best packing that the search finds, which is never above the known one.

    What lives at no time overlaps nothing, and lies at the bottom.
    """
    members = sorted(i for i in known if any(begin < end for begin, end in spans[i]))
    mine = [sizes[i] for i in members]
    lives = [spans[i] for i in members]
    flat = [(size, span) for size, own in zip(mine, lives, strict=True) for span in own]
    least = most_alive([size for size, _ in flat], [span for _, span in flat])
    extent = _extent(known, sizes)
    if least == extent or not members:
        return known
    nodes = max(1, work // len(members))
    found = _searches()[1].exact_places(mine, lives, least, extent, nodes)
    if found.offsets is None:
        return known
    return dict.fromkeys(known, 0) | dict(zip(members, found.offsets, strict=True))


def _searches() -> tuple[ModuleType, ModuleType]:
    # Late: packing a step needs no compiler, which they would load.
    from ooctrain.alloc import exact_packing, many_places

    return many_places, exact_packing


def _gap_between(starts: np.ndarray, stops: np.ndarray, size_bytes: int) -> int:
    """`sched/spans.lowest_gap` in NumPy, of what lies in any order."""
    order = np.argsort(starts)
    reached = np.concatenate(([0], np.maximum.accumulate(stops[order])))
    fits = starts[order] - reached[:-1] >= size_bytes
    return int(reached[np.argmax(fits) if fits.any() else -1])


def _extent(offsets: Mapping[int, int], sizes: Sequence[int]) -> int:
    return max((offset + sizes[i] for i, offset in offsets.items()), default=0)


def _as_asked(size: int, spans: tuple[Span, ...]) -> tuple[int, ...]:
    return (spans[0][0],)


def _by_size(size: int, spans: tuple[Span, ...]) -> tuple[int, ...]:
    return (-size, spans[0][0])


def _by_class_and_life(size: int, spans: tuple[Span, ...]) -> tuple[int, ...]:
    return (-size.bit_length(), -sum(end - begin for begin, end in spans), spans[0][0])


_KEYS: Mapping[Order, Sequence[Callable[[int, tuple[Span, ...]], tuple[int, ...]]]] = {
    "list": (_as_asked,),
    "size": (_by_size, _by_class_and_life, _as_asked),
    "exact": (_by_size, _by_class_and_life, _as_asked),
}


def most_alive(sizes: Sequence[int], spans: Sequence[Span]) -> int:
    """The largest sum of sizes that live at one time."""
    change: dict[int, int] = {}
    for size, (begin, end) in zip(sizes, spans, strict=True):
        change[begin] = change.get(begin, 0) + size
        change[end] = change.get(end, 0) - size
    return max(accumulate(change[time] for time in sorted(change)), default=0)


@runtime_checkable
class Plannable(Protocol):
    """An allocator that wants to know all requests before the first."""

    granule: Granule

    def load_plan(self, forecast: Forecast) -> None:
        """Fixes every offset; afterwards requests must come as foreseen."""
