"""Replay: an allocation log asked of any allocator, without bytes, before anything runs.

On a list the order of requests decides all addresses. So a replay shows within a second what an
allocator would have reserved, mapped and wasted in a run of hours. The result, `Replayed`, holds
the books, the mapping changes by step, and the request that failed, if one did. A static allocator
is given the whole log first, as it is given a schedule. Source: RMM's replay benchmark; paper 000,
figure 3 is a replay. Read next: `execution/placement.py`, which makes the same requests from a
schedule, in a replay and in a real run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ooctrain.alloc.base import Allocator, Block, RangedAllocator, Stats
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_dry
from ooctrain.alloc.replay.log import AllocationLog, Request, foresee, hold_whole
from ooctrain.alloc.replay.spanned import Spanned
from ooctrain.alloc.static import plannable
from ooctrain.errors import ConfigError, OutOfDeviceMemory
from ooctrain.units import BYTES, Granule, parse_bytes

_MOST_ARENA_FACTOR = 64
_LEAST_ARENA_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a replay ended early.

    Args:
        place: number of the request in the log.
        request: the request.
        step: number of the training step, where the log marks steps.
        text: the allocator's own words.
    """

    place: int
    request: Request
    step: int
    text: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """What an allocator made of a log.

    Args:
        allocator: by name.
        budget_bytes: of the arena.
        stats: its books in the end, peaks included.
        served: requests that it granted.
        maps_by_step: changes of mappings asked of the driver in each step; one number where the log
            marks none.
        held_whole: the log has ranges and the allocator has none, so blocks were held whole.
        failure: None if it served all.
        reserved_bytes: the most at one time, holes included: what its blocks span by their
            addresses, or what it says if that is more.
        granted_bytes: the most that its blocks held at one time.
        misbooked: what its books say otherwise, in words; "" for nothing.
    """

    allocator: str
    budget_bytes: int
    stats: Stats
    served: int
    maps_by_step: tuple[int, ...]
    held_whole: bool
    failure: Failure | None
    reserved_bytes: int
    granted_bytes: int
    misbooked: str = ""

    @property
    def external_share(self) -> float:
        """1 - peak granted / peak reserved: of what was reserved, the share that lay in holes."""
        return 1 - self.granted_bytes / self.reserved_bytes if self.reserved_bytes else 0.0

    @property
    def internal_share(self) -> float:
        """1 - peak requested / peak granted: of what was granted, the share that rounding cost."""
        granted = self.granted_bytes
        return 1 - self.stats.peak_requested_bytes / granted if granted else 0.0


def replay(
    log: AllocationLog | Sequence[Request] | str | Path, allocator: str | Allocator, *,
    budget: int | str | None = None,
) -> Replayed:  # fmt: skip
    """Asks an allocator for all that a log holds, in order, and stops where it refuses.

    Args:
        log: a log, its requests, or the path of its file.
        allocator: by name with parameters ("va:chunk=2MiB"), made here over memory without bytes;
            or an allocator, used as it is.
        budget: of the arena, bytes or "16GiB"; None: as much as it takes, and no more where the
            allocator has no holes. Not for an allocator that is made already.

    Raises:
        ConfigError: no such allocator, a file that is not a log, or a request that contradicts the
            log.

    Cost: some microseconds a request.
    """
    if isinstance(log, str | Path):
        log = AllocationLog.load(log)
    if not isinstance(log, AllocationLog):
        log = AllocationLog(log, "", Granule(), 0)
    if not isinstance(allocator, str):
        return _replay(log, Spanned(allocator), allocator.name)
    if budget is not None:
        return _replay(log, spanned_dry(allocator, parse_bytes(budget)), allocator)
    for arena_bytes in _arenas(log, allocator):
        found = _replay(log, spanned_dry(allocator, arena_bytes), allocator)
        if found.failure is None:
            break
    return found


def serve(
    requests: Iterable[Request],
    allocator: Allocator,
    on_request: Callable[[int], None] | None = None,
) -> Stats:
    """Makes requests of an allocator and returns its books.

    Args:
        on_request: called with the number of each request before it is made.

    Raises:
        OutOfDeviceMemory: it cannot serve one of them.
        ConfigError: ranges, and it has none.
    """
    blocks: dict[int, Block] = {}
    ranged = allocator if isinstance(allocator, RangedAllocator) else None
    for place, request in enumerate(requests):
        if on_request is not None:
            on_request(place)
        op = request.op
        if op == "allocate":
            blocks[request.key] = allocator.allocate(request.nbytes, request.tag)
        elif op == "free":
            allocator.free(blocks.pop(request.key))
        elif op in ("refused", "step"):
            continue
        elif ranged is None:
            raise ConfigError(
                f"allocator {allocator.name} has no ranges",
                code="OOC-108",
                fix="--allocator va for a log with parts of blocks",
            )
        elif op == "reserve":
            blocks[request.key] = ranged.reserve(request.nbytes, request.tag)
        elif op == "map":
            ranged.map_range(blocks[request.key], request.lo, request.hi)
        else:
            ranged.unmap_range(blocks[request.key], request.lo, request.hi)
    return allocator.stats()


def peak_bytes(requests: Iterable[Request], granule: Granule = BYTES) -> int:
    """The largest sum of what is asked for at one time, in granules: no allocator undercuts it."""
    sizes: dict[int, int] = {}
    held: dict[int, int] = {}
    now = most = 0
    for request in requests:
        key = request.key
        change = 0
        if request.op == "allocate":
            sizes[key] = request.nbytes
            change = held[key] = granule.granted(request.nbytes)
        elif request.op == "reserve":
            sizes[key], held[key] = request.nbytes, 0
        elif request.op == "map":
            change = granule.granted(min(request.hi, sizes[key]) - request.lo)
            held[key] += change
        elif request.op == "unmap":
            change = -granule.granted(min(request.hi, sizes[key]) - request.lo)
            held[key] += change
        elif request.op == "free":
            change = -held.pop(key)
        now += change
        most = max(most, now)
    return most


def made_dry(name: str, budget_bytes: int) -> Allocator:
    """An allocator over an arena without bytes. Raises ConfigError: unknown name or parameter."""
    return choose_dry(name, budget_bytes).make(DryMemory(budget_bytes))


def spanned_dry(name: str, budget_bytes: int) -> Spanned:
    """The same, counted from its blocks."""
    memory = DryMemory(budget_bytes)
    return Spanned(choose_dry(name, budget_bytes).make(memory), memory)


def _arenas(log: AllocationLog, allocator: str) -> Iterator[int]:
    """Arenas to try: what is granted at the peak, for allocators that need no more; then larger."""
    granule = made_dry(allocator, max(log.budget_bytes, _LEAST_ARENA_BYTES)).granule
    tight_bytes = max(peak_bytes(log.requests, granule), granule.size_bytes)
    if granule.ranges:
        yield tight_bytes
    factor = 2
    while factor <= _MOST_ARENA_FACTOR:
        yield max(log.budget_bytes, tight_bytes, _LEAST_ARENA_BYTES) * factor
        factor *= 2


def _replay(log: AllocationLog, allocator: Spanned, name: str) -> Replayed:
    requests = log.requests
    whole = not allocator.granule.ranges and any(r.op == "reserve" for r in requests)
    asked = hold_whole(requests) if whole else requests
    watch, failure = _Watch(asked, allocator), None
    try:
        planned = plannable(allocator.inner)
        if planned is not None:
            planned.load_plan(foresee(asked, log.parameters))
        serve(asked, allocator, watch.at)
    except OutOfDeviceMemory as error:
        failure = Failure(watch.place, asked[watch.place], len(watch.maps), str(error))
    served = watch.place if failure else len(asked)
    return Replayed(
        name, allocator.budget_bytes, allocator.stats(), served, watch.maps_by_step(), whole,
        failure, allocator.peak_reserved_bytes, allocator.peak_granted_bytes, allocator.misbooked,
    )  # fmt: skip


class _Watch:
    """Follows a replay: where it is, and how many maps each step made."""

    def __init__(self, requests: Sequence[Request], allocator: Allocator):
        self.place = 0
        self.maps: list[int] = []
        self._begins = frozenset(i for i, r in enumerate(requests) if r.op == "step")
        self._allocator = allocator

    def at(self, place: int) -> None:
        """Notes the place."""
        self.place = place
        if place in self._begins:
            self.maps.append(self._allocator.stats().maps)

    def maps_by_step(self) -> tuple[int, ...]:
        """Of each step; what comes before the first mark counts with it."""
        marks = [0, *self.maps[1:], self._allocator.stats().maps]
        return tuple(b - a for a, b in pairwise(marks))
