"""Replay: an allocation log served by any allocator, without bytes, before anything runs.

On a list the order of requests decides all addresses. So a replay shows within a second what an
allocator would have reserved, mapped and wasted in a run of hours. The result, `Replayed`, holds
the books, the mapping changes by step, and the request that failed, if one did; `block_lives` and
`snapshot_at_peak` give what a picture of it needs. A static allocator is given the whole log first,
as it is given a schedule. Source: RMM's replay benchmark; paper 000, figure 3 is a replay. Read
next: `execution/placement.py`, which makes the same requests from a schedule, in a replay and in a
real run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ooctrain.alloc.arena_map import pieces_of
from ooctrain.alloc.base import (
    Allocator,
    Block,
    Event,
    RangedAllocator,
    Stats,
    Wrapper,
    describe,
    innermost,
)
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.log import AllocationLog, Request, foresee, hold_whole
from ooctrain.alloc.registry import choose_dry
from ooctrain.alloc.static import Plannable
from ooctrain.alloc.wrappers import Checked
from ooctrain.errors import ConfigError, OutOfDeviceMemory, PlanMismatch
from ooctrain.units import BYTES, Granule, format_bytes, parse_bytes

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
        budget_bytes: size of the arena.
        stats: its books in the end, peaks included.
        served: requests that it granted.
        maps_by_step: changes of mappings asked of the driver in each step; one number where the log
            marks none.
        held_whole: the log has ranges and the allocator has none, so blocks were held whole.
        failure: None if it served all.
        reserved_bytes: the most at one time, holes included: what its blocks span by their
            addresses, or what it says if that is more.
        granted_bytes, requested_bytes: the most that its blocks held, and were asked for, at one
            time.
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
    requested_bytes: int
    misbooked: str

    @property
    def external_share(self) -> float:
        """1 - peak granted / peak reserved: of what was reserved, the share that lay in holes."""
        return 1 - self.granted_bytes / self.reserved_bytes if self.reserved_bytes else 0.0

    @property
    def internal_share(self) -> float:
        """1 - peak requested / peak granted: of what was granted, the share that rounding cost."""
        granted = self.granted_bytes
        return 1 - self.requested_bytes / granted if granted else 0.0


def replay(
    log: AllocationLog | Sequence[Request] | str | Path, allocator: str | Allocator, *,
    budget: int | str | None = None,
) -> Replayed:  # fmt: skip
    """Asks an allocator for all that a log holds, in order, and stops where it refuses.

    Args:
        log: a log, its requests, or the path of its file.
        allocator: by name with parameters ("va:chunk=2MiB"), made here over memory without bytes;
            or an allocator, used as it is.
        budget: size of the arena, bytes or "16GiB"; None: as much as it takes, and no more where
            the allocator has no holes. Not for an allocator that is made already.

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
        planned = innermost(allocator)
        if isinstance(planned, Plannable):
            planned.load_plan(foresee(asked, log.parameters))
        serve(asked, allocator, watch.at)
    except (OutOfDeviceMemory, PlanMismatch) as error:
        failure = Failure(watch.place, asked[watch.place], len(watch.maps), str(error))
    served = watch.place if failure else len(asked)
    return Replayed(
        name, allocator.budget_bytes, allocator.stats(), served, watch.maps_by_step(), whole,
        failure, allocator.peak_reserved_bytes, allocator.peak_granted_bytes,
        allocator.peak_requested_bytes, allocator.misbooked,
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


# What blocks span, counted from the blocks and not from an allocator's books. Where an allocator
# uses its memory as one piece, all from the first byte to the end of the highest block is reserved,
# holes included. Where it maps memory, wherever it lies, what its live blocks hold is reserved at
# least. So an allocator of one's own whose books leave the holes out is found, named, and counted
# right.


class Spanned(Wrapper):
    """Counts what blocks hold and span.

    Args:
        inner: the allocator.
        memory: what it stands on; None: not known, and its snapshot says where its arena begins.

    Attributes:
        granted_bytes, requested_bytes: of the live blocks now.
        peak_granted_bytes, peak_requested_bytes: the most at one time.
    """

    def __init__(self, inner: Allocator, memory: DryMemory | None = None):
        self._places = Checked(inner)
        super().__init__(self._places)
        self._memory = memory
        self._live: dict[int, tuple[Block, int, int]] = {}  # (block, requested, granted) by id
        self._given = 0
        self._shows_others = False
        self.granted_bytes = self.peak_granted_bytes = 0
        self.requested_bytes = self.peak_requested_bytes = 0

    @property
    def base(self) -> int | None:
        """Where its piece of memory begins; None where it has several, or maps."""
        if self.granule.ranges:
            return None
        if self._memory is not None:
            return self._memory.linear_address
        return self.inner.snapshot().get("base")

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that was reserved at one time: what the blocks span, or hold, or the books say,
        whichever is most, unless they say more than there is.
        """
        booked = self.inner.stats().peak_reserved_bytes
        return max(self.spanned_bytes, booked if booked <= self.budget_bytes else 0)

    @property
    def spanned_bytes(self) -> int:
        """What the blocks say: their extent in one piece of memory, or all that they hold."""
        end, base = self._places.highest_end, self.base
        return max(end - base if end and base is not None else 0, self.peak_granted_bytes)

    @property
    def misbooked(self) -> str:
        """What is wrong with the books, in words; "" for nothing."""
        stats, spanned = self.inner.stats(), self.spanned_bytes
        said = format_bytes(stats.peak_reserved_bytes)
        wrong = []
        # `Limited` books no more than its limit, which is of what is granted, wherever it lies.
        if stats.peak_reserved_bytes < min(spanned, self.budget_bytes):
            wrong.append(
                f"its books say that {said} are reserved at the peak, and its blocks span "
                f"{format_bytes(spanned)}, holes included"
            )
        if stats.peak_reserved_bytes > self.budget_bytes:
            wrong.append(
                f"its books say that {said} are reserved at the peak, and its arena has "
                f"{format_bytes(self.budget_bytes)}"
            )
        for word, booked, counted in (
            ("granted", stats.peak_granted_bytes, self.peak_granted_bytes),
            ("requested", stats.peak_requested_bytes, self.peak_requested_bytes),
        ):
            if booked != counted:
                wrong.append(
                    f"its books say that {format_bytes(booked)} are {word} at the peak, and of its "
                    f"blocks {format_bytes(counted)} are"
                )
        if self._shows_others:
            wrong.append("its snapshot shows other blocks, or other places, than it has given")
        return f"{self.name}: {'; '.join(wrong)}" if wrong else ""

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        block = self.inner.allocate(nbytes, tag)
        self._note(block, nbytes)
        self._given += 1
        if self._given.bit_count() == 1:  # 1, 2, 4, 8 ... blocks: a snapshot takes long
            self._look(self.inner.snapshot())
        return block

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        super().map_range(block, lo, hi)
        self._note(block, min(hi, block.requested_bytes) - lo)

    def unmap_range(self, block: Block, lo: int, hi: int, after: Sequence[Event] = ()) -> None:
        super().unmap_range(block, lo, hi, after)
        self._note(block, lo - min(hi, block.requested_bytes))

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        self.inner.free(block, after)
        _, requested, granted = self._live.pop(block.id, (block, 0, 0))
        self.requested_bytes -= requested
        self.granted_bytes -= granted

    def snapshot(self) -> dict[str, Any]:
        """The inner one's; in one piece of memory, with the blocks that it gave, where they are."""
        shot = self.inner.snapshot()
        known: dict[str, Any] = {"allocator": self.name, "budget": self.budget_bytes, "blocks": []}
        return type(shot)({**known, **shot, **self._true(shot)})

    def _note(self, block: Block, change: int) -> None:
        """That many bytes more are requested of a block; what it holds, it says."""
        _, requested, granted = self._live.get(block.id, (block, 0, 0))
        self._live[block.id] = block, requested + change, block.granted_bytes
        self.requested_bytes += change
        self.granted_bytes += block.granted_bytes - granted
        self.peak_requested_bytes = max(self.peak_requested_bytes, self.requested_bytes)
        self.peak_granted_bytes = max(self.peak_granted_bytes, self.granted_bytes)

    def _true(self, shot: Mapping[str, Any]) -> dict[str, Any]:
        """What the snapshot of an allocator in one piece of memory should show."""
        base = self.base
        if base is None or {"chunks", "segments"} & shot.keys():
            return {}
        return {"base": base, "blocks": describe(block for block, _, _ in self._live.values())}

    def _look(self, shot: Mapping[str, Any]) -> None:
        shown = {b.get("id"): (b.get("address"), b.get("granted")) for b in shot.get("blocks", ())}
        true = self._true(shot)
        places = {b["id"]: (b["address"], b["granted"]) for b in true.get("blocks", ())}
        moved = shot.get("base", true.get("base")) != true.get("base")
        self._shows_others |= bool(true) and (shown != places or moved)


# The lives of blocks: one `BlockLife` for each piece of memory that a block lies in (one, or
# several with virtual addressing). Drawn as rectangles, requests across and addresses up, lives
# show fragmentation at a glance.


@dataclass(frozen=True, slots=True)
class BlockLife:
    """A block in one piece of memory.

    Args:
        tag: what lies in it.
        begin, end: it lives in [begin, end), counted in claims and releases since the beginning.
        lo, hi: bytes [lo, hi) of the arena.
    """

    tag: str
    begin: int
    end: int
    lo: int
    hi: int


def block_lives(
    log: AllocationLog, allocator: str = "best-fit", arena_bytes: int | None = None
) -> list[BlockLife]:
    """Where and when the blocks of a log's first step lay.

    Args:
        log: what a step asks for.
        allocator: by name with parameters.
        arena_bytes: size of the arena; None: four times the log's budget, so that nothing is
            refused. Where it is too small, the lives end with the request that was refused.

    Cost: O(claims * live blocks).
    """
    steps = [n for n, request in enumerate(log.requests) if request.op == "step"]
    last = steps[1] if len(steps) > 1 else len(log.requests)
    watcher = _Watcher(made_dry(allocator, arena_bytes or 4 * log.budget_bytes))
    try:
        serve(log.requests[:last], watcher)
    except OutOfDeviceMemory:
        watcher.clock += 1
    for block in list(watcher.made):
        watcher.note(block)
    return sorted(watcher.lives, key=lambda life: (life.begin, life.lo))


class _Watcher(Wrapper):
    """Notes when and where each block lived."""

    def __init__(self, inner: Allocator):
        super().__init__(inner)
        self.clock = 0
        self.made: dict[int, tuple[int, str, list[tuple[int, int]]]] = {}
        self.lives: list[BlockLife] = []

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        block = super().allocate(nbytes, tag)
        pieces = pieces_of(self.inner.snapshot())
        places = [(piece.lo, piece.hi) for piece in pieces if piece.block == block.id]
        self.made[block.id] = (self.clock, tag, places)
        self.clock += 1
        return block

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        self.note(block.id)
        super().free(block, after)
        self.clock += 1

    def note(self, block_id: int) -> None:
        """A block's life ends now."""
        begin, tag, places = self.made.pop(block_id)
        self.lives += [BlockLife(tag, begin, self.clock, lo, hi) for lo, hi in places]


# The arena at its fullest: the `snapshot()` at the moment that decided how much an allocator needs,
# or at which it refused. This is when a block lies highest, or, where blocks may lie anywhere
# (virtual addressing), when most is granted. One more replay finds the request, another the
# snapshot after it.


def snapshot_at_peak(log: AllocationLog, found: Replayed) -> dict[str, Any]:
    """Replays a log on an arena of the same size, and looks at it when it matters.

    Args:
        log: the log that was replayed.
        found: the result of that replay.

    Cost: that of two replays.
    """
    first = _Watched(spanned_dry(found.allocator, found.budget_bytes))
    replay(log, first)
    if found.failure:
        return first.snapshot()
    again = _Watched(spanned_dry(found.allocator, found.budget_bytes), first.fullest)
    replay(log, again)
    return again.shot


class _Watched(Wrapper):
    """Counts claims, remembers the one behind which most is needed, and looks at one of them.

    Args:
        inner: the allocator that serves the requests.
        look_at: number of the claim at which to take the snapshot, from 1.

    Attributes:
        fullest: number of the claim behind which most is needed.
        shot: the snapshot.
    """

    def __init__(self, inner: Allocator, look_at: int = 0):
        super().__init__(inner)
        self.fullest, self.shot = 0, inner.snapshot()
        self._look_at = look_at
        self._has_places = "base" in self.shot
        self._claims = self._most = 0

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A claim."""
        block = self.inner.allocate(nbytes, tag)
        self._look(block.address + block.granted_bytes)
        return block

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """A claim."""
        super().map_range(block, lo, hi)
        self._look(0)

    def _look(self, end: int) -> None:
        self._claims += 1
        needed = end if self._has_places else self.inner.stats().granted_bytes
        if needed > self._most:
            self._most, self.fullest = needed, self._claims
        if self._claims == self._look_at:
            self.shot = self.inner.snapshot()
