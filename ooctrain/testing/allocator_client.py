"""A client that remembers what an allocator gave it, to check that the allocator keeps to it.

The client makes requests of an allocator over a `Ground`, in the way the executor does: a claim
waits for every release listed before it, work on a block waits for the block's earlier work, and a
release names the events of its last uses. Any fault that remains is therefore the allocator's: two
blocks in one place, bytes that change, totals that do not add up, memory that is mapped too late or
not given back. The client then raises `Broken` with the law; laws P1 to P19 are stated in
`allocator_laws.py`. Read next: `check_allocator.py`.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from ooctrain.alloc.base import Allocator, Block, Event
from ooctrain.errors import ConfigError, DriverError, InvalidFree, OoctrainError, OutOfDeviceMemory
from ooctrain.testing.allocator_grounds import STREAMS, Ground
from ooctrain.testing.allocator_laws import MAPPED_ONCE, Answered, Ask, Broken, View, hold, own_laws

# A block that is held. A block of parts is a set of granules with a mark each; a whole block has
# one mark. Work on either is ordered by the events of its latest write and of the reads since.


@dataclass(slots=True, eq=False)
class Held:
    """A live block.

    Args:
        block: as the allocator gave it.
        unit: bytes of a granule.
        marks: marks of the granules that are held; None: the whole block has `mark`.
        mark: what was written last; before the first write the number of the block.
        wrote, reads: events of the latest write, and of the reads behind it.
    """

    block: Block
    unit: int
    marks: dict[int, int] | None
    mark: int = 0
    wrote: Event | None = None
    reads: list[Event] = field(default_factory=list)

    def uses(self) -> list[Event]:
        """The events of all work that may still use the block."""
        return [*self.reads, *([self.wrote] if self.wrote else [])]

    def bytes_of(self, granule: int) -> tuple[int, int]:
        """[lo, hi) of a granule."""
        lo = granule * self.unit
        return lo, min(lo + self.unit, self.block.requested_bytes)

    def ranges(self) -> list[tuple[int, int]]:
        """[lo, hi) of the bytes that are held."""
        if self.marks is None:
            return [(0, self.block.requested_bytes)]
        return [self.bytes_of(granule) for granule in sorted(self.marks)]


@contextmanager
def reaching(block: Block) -> Iterator[None]:
    """Work on a block that the driver refuses breaks P5."""
    try:
        yield
    except DriverError as error:
        hold("P5", False, f"{block.tag} cannot be used: {error.what} {error.numbers}")


def difference(before: Any, after: Any) -> str:
    """Where two nested values differ first."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            if before.get(key) != after.get(key):
                return f"{key}: {difference(before.get(key), after.get(key))}"
    if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        for left, right in zip(before, after, strict=True):
            if left != right:
                return difference(left, right)
    return f"{before!r} -> {after!r}"


# What must be refused, by an error of the right kind: an error from deep inside breaks the law just
# as serving the request does.

WRONG_SIZES: Sequence[Any] = (0, -1, 1.5, 2**63, None, True)
_FROM_INSIDE = (
    OoctrainError, LookupError, TypeError, ValueError, ArithmeticError, AssertionError,
)  # fmt: skip


def refuses_sizes(allocator: Allocator) -> None:
    """What is not a size is not served."""
    for wrong in WRONG_SIZES:
        _refuses(partial(allocator.allocate, wrong), ConfigError, "P10", f"allocate({wrong!r})")


def refuses_frees(allocator: Allocator, blocks: Sequence[Block]) -> None:
    """Blocks that are not live here are not taken back."""
    for block in blocks:
        _refuses(partial(allocator.free, block), InvalidFree, "P10", f"a free of dead {block.tag}")


def refuses_more(allocator: Allocator, nbytes: int) -> None:
    """More than the largest request that is promised is not served."""
    too_large = partial(allocator.allocate, nbytes, "too large")
    _refuses(too_large, OutOfDeviceMemory, "P9", f"{nbytes} B, more than is promised,")


def refuses_all(allocator: Allocator, dead: Block) -> None:
    """A closed allocator neither gives nor takes."""
    for act in (partial(allocator.allocate, 1), partial(allocator.free, dead)):
        _refuses(act, InvalidFree, "P10", f"{act.func.__name__} of a closed allocator")


def _refuses(act: Callable[[], object], refusal: type[OoctrainError], law: str, what: str) -> None:
    try:
        act()
    except refusal:
        return
    except _FROM_INSIDE as error:
        hold(law, False, f"{what} had to be refused, and meets {error!r}")
        return
    hold(law, False, f"{what} had to be refused, and is served")


# Work on blocks: nothing is ordered but what the executor orders, so an allocator that relies on
# more order is exposed as `Broken`.

_MARKS = 250


class Queues:
    """What a client queues.

    Args:
        ground: whose streams do it.
    """

    def __init__(self, ground: Ground):
        self._ground = ground
        self._releases: list[Event] = []
        self._waited = [0] * STREAMS  # how many of the releases each stream waits for already

    def claim(self, stream: int) -> None:
        """A claim waits for all releases listed before it."""
        for event in self._releases[self._waited[stream] :]:
            self._ground.wait(stream, event)
        self._waited[stream] = len(self._releases)

    def released(self, held: Held) -> None:
        """A block, or a part of it, is given back; its uses may still go on."""
        self._releases += held.uses()

    def put(self, held: Held, ranges: Sequence[tuple[int, int]], stream: int) -> None:
        """Queues a write of ranges of a block behind all that uses it, then a check of all of
        it."""
        for event in held.uses():
            self._ground.wait(stream, event)
        # A mark of its own for each write, so that bytes of another one are never taken for it.
        held.mark = held.mark % _MARKS + 1
        with reaching(held.block):
            for lo, hi in ranges:
                self._ground.fill(held.block.address + lo, hi - lo, held.mark, stream)
                if held.marks is not None:
                    held.marks[lo // held.unit] = held.mark
        held.reads.clear()
        held.wrote = self._ground.event(stream)
        self._read(held, stream)

    def use(self, held: Held, stream: int) -> None:
        """Queues a check of a block, behind the latest write; nothing if there was none."""
        if held.wrote is not None:
            self._ground.wait(stream, held.wrote)
            self._read(held, stream)

    def complain(self) -> None:
        """Does all that is queued, and says what was read wrong."""
        problem = self._ground.finish()
        hold("P4", not problem, problem)

    def _read(self, held: Held, stream: int) -> None:
        for lo, hi in held.ranges():
            mark = held.mark if held.marks is None else held.marks[lo // held.unit]
            address, what = held.block.address + lo, f"bytes [{lo}, {hi}) of {held.block.tag}"
            with reaching(held.block):
                self._ground.expect(address, hi - lo, mark, stream, what)
        held.reads.append(self._ground.event(stream))


# The client.

ALIGN_BYTES = 64  # kernels use vector instructions on whole cache lines


class _Memory:
    """The ground's memory; it remembers where it begins if it is requested in one piece."""

    def __init__(self, memory: Any):
        self._memory = memory
        self.base: int | None = None

    def linear(self) -> int:
        address = self.base = self._memory.linear()
        return address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)


class Client:
    """Makes requests of one allocator.

    Args:
        make: makes it over the ground's memory.
        ground: fresh; `close` closes it.
        thorough: also check what takes longer, after each request.
    """

    def __init__(self, make: Callable[[Any], Allocator], ground: Ground, *, thorough: bool = True):
        self._ground, self._queues, self._thorough = ground, Queues(ground), thorough
        self._before = ground.held()
        self._memory = _Memory(ground.memory)
        self.allocator = make(self._memory)
        self._fresh_bytes = self.allocator.stats().largest_bytes
        self._laws = own_laws(self.allocator.name)
        self._unit = self.allocator.granule.size_bytes
        self.live: list[Held] = []
        self._dead: list[Block] = []
        self._made = 0
        self._shown: View | None = None
        self._refusal: int | None = None
        self._peak = (0, 0, 0)

    # Requests.

    def serve(self, request: Ask) -> None:
        """Makes one request and checks what can be seen from outside."""
        if request.op == "refuse":
            self._refusal = request.value
            return
        before = self._seen() if self._thorough else None
        if self._refusal is not None:
            self._ground.refuse(self._refusal)
        getattr(self, f"_{request.op}")(request)
        if self._refusal is not None:
            self._ground.take_back()
        self._refusal = None
        self._check_books()
        if before is not None:
            for law in self._laws:
                law(Answered(request, self.allocator, before, self._seen()))

    def _punch(self, request: Ask) -> None:
        count = self.allocator.budget_bytes // request.count
        first = len(self.live)
        for place in range(count):
            self._allocate(Ask("allocate", request.count, place % STREAMS))
        for place in reversed(range(first, len(self.live))):
            if request.value >> (place - first) & 1:
                self._free(Ask("free", place))

    def _wear(self, request: Ask) -> None:
        for number in range(request.count):
            self._allocate(Ask("allocate", request.value, number % STREAMS))
            self._free(Ask("free", -1))

    def _allocate(self, request: Ask) -> None:
        nbytes = request.value
        block = self._obtain(nbytes, lambda: self.allocator.allocate(nbytes, f"b{self._made}"))
        if block is None:
            return
        granted = self.allocator.granule.granted(nbytes)
        hold("P2", block.granted_bytes == granted >= nbytes, f"{block.granted_bytes} B granted "
             f"for {nbytes} B, the granule says {granted} B")  # fmt: skip
        held = Held(block, self._unit, None)
        self._welcome(held)
        self._queues.claim(request.stream)
        self._queues.put(held, [(0, nbytes)], request.stream)

    def _largest(self, request: Ask) -> None:
        largest = self.allocator.stats().largest_bytes // self._unit * self._unit
        if largest:
            self._refuses(largest + 1)
            before = len(self.live)
            self._allocate(Ask("allocate", largest, request.stream))
            hold("P9", len(self.live) > before, f"{largest} B were promised, and are refused")

    def _refuses(self, nbytes: int) -> None:
        """More than the largest that is promised."""
        with self._unchanged("P8", "a request without room changed something"):
            refuses_more(self.allocator, nbytes)

    def _reserve(self, request: Ask) -> None:
        ranged: Any = self.allocator
        nbytes = request.value
        # As the blocks of one variable, some have the same name.
        block = self._obtain(0, lambda: ranged.reserve(nbytes, f"{nbytes} bytes"))
        if block is not None:
            hold("P2", block.granted_bytes == 0, "a reserved block holds something")
            self._welcome(Held(block, self._unit, {}))

    def _claim(self, request: Ask) -> None:
        found = self._part(request)
        if found is None:
            return
        ranged: Any = self.allocator
        held, granules, (lo, hi) = found
        assert held.marks is not None
        taken = [g for g in granules if g in held.marks]
        try:
            done = self._obtain(hi - lo, lambda: [ranged.map_range(held.block, lo, hi)])
        except ConfigError:
            hold("P10", bool(taken), "a claim is refused though nothing of it is held")
            return
        if done is None:
            return
        hold("P10", not taken, "a part that is held already is given again")
        self._queues.claim(request.stream)
        self._queues.put(held, [held.bytes_of(g) for g in granules], request.stream)

    def _release(self, request: Ask) -> None:
        found = self._part(request)
        if found is None:
            return
        ranged: Any = self.allocator
        held, granules, (lo, hi) = found
        assert held.marks is not None
        missing = [g for g in granules if g not in held.marks]
        before = held.block.granted_bytes
        try:
            self._shown = None
            ranged.unmap_range(held.block, lo, hi, held.uses())
        except ConfigError:
            hold("P10", bool(missing), "a release is refused though all of it is held")
            return
        hold("P10", not missing, "a part that is not held is taken back")
        hold("P7", held.block.granted_bytes == before - len(granules) * self._unit,
             "a release gives back another number of granules")  # fmt: skip
        self._queues.released(held)
        for granule in granules:
            del held.marks[granule]

    def _free(self, request: Ask) -> None:
        if not self.live:
            return
        held = self.live.pop(request.value % len(self.live))
        self._shown = None
        self.allocator.free(held.block, held.uses())
        self._queues.released(held)
        self._dead.append(held.block)

    def _renew(self, request: Ask) -> None:
        """Frees a whole block and requests as much again."""
        whole = [place for place, held in enumerate(self.live) if held.marks is None]
        if whole:
            place = whole[request.value % len(whole)]
            nbytes = self.live[place].block.requested_bytes
            self._free(Ask("free", place))
            self._allocate(Ask("allocate", nbytes, request.stream))

    def _use(self, request: Ask) -> None:
        held = self._pick(request)
        if held is not None:
            self._queues.use(held, request.stream)

    def _write(self, request: Ask) -> None:
        held = self._pick(request)
        if held is not None and held.wrote is not None:
            self._queues.put(held, held.ranges(), request.stream)

    def _again(self, request: Ask) -> None:
        foreign = Block(1, ALIGN_BYTES, 1, self._unit, "foreign")
        with self._unchanged("P10", "a refused free changed something"):
            refuses_frees(self.allocator, [foreign, *self._dead[-2:]])

    def _nonsense(self, request: Ask) -> None:
        with self._unchanged("P10", "a refused size changed something"):
            refuses_sizes(self.allocator)

    def _work(self, request: Ask) -> None:
        self._ground.work(request.value)

    # The end.

    def finish(self, *, backwards: bool = False) -> dict[str, Any]:
        """Reads and frees everything; returns the last layout, and checks that nothing is left."""
        for held in self.live:
            self._queues.use(held, 0)
        self._queues.complain()
        for _ in range(len(self.live)):
            self._free(Ask("free", -1 if backwards else 0))
            self._check()
        stats, last = self.allocator.stats(), self.allocator.snapshot()
        hold("P7", stats.granted_bytes == stats.requested_bytes == 0, "books of nothing are not 0")
        hold("P12", stats.largest_bytes == self._fresh_bytes, f"{self._fresh_bytes} B could be had "
             f"in the beginning, {stats.largest_bytes} B when all is free again")  # fmt: skip
        hold("P18", json.loads(json.dumps(last)) is not None, "the snapshot is no plain data")
        self._whole_again()
        live = self.allocator.close()
        hold("P11", live == [], f"close() returns {len(live)} blocks, none is live")
        kept = self._ground.held().get("reservations", 0) - self._before.get("reservations", 0)
        # Memory that is used in one piece keeps that piece's addresses until it is closed.
        hold("P11", kept <= (not self.allocator.granule.ranges), f"{kept} address ranges are kept")
        refuses_all(self.allocator, self._dead[-1])
        left = {k: n for k, n in self._ground.close().items() if n}
        hold("P11", not left, f"not given back: {left}")
        return last

    def abandon(self) -> None:
        """Closes the allocator while blocks are live: it names them, and nothing is left."""
        self._queues.complain()
        live = sorted(held.block.id for held in self.live)
        named = [block.id for block in self.allocator.close()]
        hold("P11", named == live, f"close() names {named}, live are {live}")
        left = {k: n for k, n in self._ground.close().items() if n}
        hold("P11", not left, f"not given back: {left}")

    def _whole_again(self) -> None:
        """What was freed can be had again, in the largest piece that is promised."""
        self._largest(Ask("largest"))
        largest = self.live[0].block.granted_bytes if self.live else 0
        hold("P12", largest * 2 > self.allocator.budget_bytes,
             f"of an empty arena {largest} B can be had")  # fmt: skip
        while self.live:
            self._free(Ask("free"))
        self._queues.complain()

    # Claims.

    def _obtain(self, nbytes: int, ask: Callable[[], Any]) -> Any:
        """What is requested; None: there is no room for `nbytes`. Refusals of the driver change
        nothing, and the same request is served when it is made again."""
        look = self._thorough or self._refusal is not None
        before = (self._view(), self._ground.held()) if look else None
        for _ in range(2):
            try:
                self._shown = None
                return ask()
            except DriverError as error:
                if "injected" not in error.numbers:
                    hold("P5", False, f"a wrong call: {error.what} {error.numbers}")
                    return None
                assert before is not None
                after = (self._view(), self._ground.held())
                # What was in the way of a refused mapping may be gone, but nothing may be added.
                for key, count in before[1].items():
                    after[1][key] = max(after[1][key], count)
                hold("P8", after == before, f"a refused {error.call} leaves something behind: "
                     f"{difference(before, after)}")  # fmt: skip
                self._check()
            except OutOfDeviceMemory:
                self._check_refusal(nbytes)
                if before is not None:
                    hold("P8", self._view() == before[0], "a request without room changed things")
                return None
            except (LookupError, ArithmeticError, TypeError, ValueError, AttributeError) as error:
                if isinstance(error, ConfigError):
                    raise
                hold("P9", False, f"{error!r} where a block could be had")
                return None
        raise AssertionError("unreachable: a driver refuses once")

    def _check_refusal(self, nbytes: int) -> None:
        stats, granted = self.allocator.stats(), self.allocator.granule.granted(nbytes)
        hold("P9", granted > stats.largest_bytes,
             f"{granted} B are refused, {stats.largest_bytes} B were promised")  # fmt: skip
        if self.allocator.granule.ranges:
            free = self.allocator.budget_bytes - sum(h.block.granted_bytes for h in self.live)
            hold("P9", granted > free - stats.pending_bytes,
                 f"{granted} B are refused, {free} B are free")  # fmt: skip

    def _welcome(self, held: Held) -> None:
        """A new block: its address is good, and apart from all others."""
        block = held.block
        hold("P2", block.address > 0 and block.address % min(ALIGN_BYTES, self._unit) == 0,
             f"address {block.address:#x} is not aligned")  # fmt: skip
        self._made += 1
        held.mark = self._made
        self.live.append(held)
        spans = sorted((h.block.address, h.block.requested_bytes, h.block.tag) for h in self.live)
        for (address, size, tag), (behind, _, other) in pairwise(spans):
            hold("P1", address + size <= behind, f"{tag} and {other} overlap")

    # Sizes.

    def _pick(self, request: Ask) -> Held | None:
        return self.live[request.value % len(self.live)] if self.live else None

    def _part(self, request: Ask) -> tuple[Held, range, tuple[int, int]] | None:
        """A reserved block, granules of it, and their bytes."""
        reserved = [held for held in self.live if held.marks is not None]
        if not reserved:
            return None
        held = reserved[request.value % len(reserved)]
        slots = -(-held.block.requested_bytes // self._unit)
        first = request.lo % slots
        granules = range(first, min(slots, first + request.count))
        lo, hi = granules[0] * self._unit, held.bytes_of(granules[-1])[1]
        return held, granules, (lo, hi)

    # Books.

    def _seen(self) -> View:
        """What the allocator shows; looked at once between two calls that may change it."""
        if self._shown is None:
            self._shown = View(self.allocator.snapshot(), self.allocator.stats())
        return self._shown

    def _view(self) -> tuple[Any, ...]:
        """What a refused request must not change. (What was pending may be free now.)"""
        view = self._seen()
        stats = view.stats
        return view.layout, (
            stats.requested_bytes, stats.granted_bytes, stats.cached_bytes, stats.largest_bytes,
            stats.peak_reserved_bytes, stats.allocations, stats.frees,
        )  # fmt: skip

    @contextmanager
    def _unchanged(self, law: str, complaint: str) -> Iterator[None]:
        """The allocator shows the same before and after."""
        before = self._view()
        self._shown = None
        yield
        hold(law, self._view() == before, complaint)

    def _check(self) -> None:
        try:
            self.allocator.check()
        except Broken:
            raise
        except AssertionError as error:
            line = traceback.extract_tb(error.__traceback__)[-1].line
            hold("P16", False, f"check() fails: {str(error) or line}")

    def _check_books(self) -> None:
        self._check()
        stats = self.allocator.stats()
        granted = sum(h.block.granted_bytes for h in self.live)
        wanted = sum(hi - lo for h in self.live for lo, hi in h.ranges())
        hold("P7", stats.granted_bytes == granted, f"granted {stats.granted_bytes} B, the blocks "
             f"have {granted} B")  # fmt: skip
        hold("P7", stats.requested_bytes == wanted, f"requested {stats.requested_bytes} B, the "
             f"blocks were requested with {wanted} B")  # fmt: skip
        if self.allocator.name in MAPPED_ONCE:
            hold("V3", self._ground.aliases() == 0, "memory is mapped at two addresses")
        total = stats.granted_bytes + stats.pending_bytes + stats.cached_bytes
        hold("P7", stats.reserved_bytes == total, "V is not A + W + C")
        hold("P6", stats.peak_reserved_bytes <= self.allocator.budget_bytes, "V was over budget")
        base = self._memory.base
        if base is not None and self.live:
            reach = max(h.block.address + h.block.granted_bytes for h in self.live) - base
            # A limit below the arena's size is of what is granted, wherever it lies.
            reach = min(reach, self.allocator.budget_bytes)
            hold("P19", stats.reserved_bytes >= reach, f"the blocks reach over {reach} B of the "
                 f"arena, and {stats.reserved_bytes} B are said to be reserved")  # fmt: skip
        peak = (stats.peak_requested_bytes, stats.peak_granted_bytes, stats.peak_reserved_bytes)
        self._peak = tuple(map(max, zip(self._peak, (wanted, granted, total), strict=True)))  # type: ignore[assignment]
        hold("P7", all(a <= b for a, b in zip(self._peak, peak, strict=True)), "a peak is too low")
