"""The laws of allocators by number, over the requests that may break them.

A request is plain data that can be printed, shrunk and repeated. It names blocks by their index
among the live ones, modulo their number, so any part of a list of requests is again a valid list,
and a failing one shrinks to the few that matter; some lists are given, others drawn by
`allocator_draws.py`. Each law is stated once, in words, in `LAWS`, and its number is in every
message of `Broken`. Laws of a kind compare the allocator before and after a request with an oracle
that knows nothing of how the allocator finds its answer. Source: docs/allocators.md, "The laws";
P13, P14 and "pending" as docs/schedule.md reads them: a claim waits for all earlier releases, so
the allocator is responsible only for the unmapping of memory. Read next: `allocator_client.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from ooctrain.alloc.base import Allocator, Stats
from ooctrain.units import Granule

# Requests

Op = Literal[
    "punch",
    "wear",
    "allocate",
    "largest",
    "free",
    "renew",
    "use",
    "write",
    "reserve",
    "claim",
    "release",
    "again",
    "nonsense",
    "work",
    "refuse",
]
_TEXTS: dict[str, str] = {
    "punch": "fill the arena with blocks of {count} B, free those of {value:#b}",
    "wear": "allocate and free {count} blocks of {value} B, one after the other",
    "allocate": "allocate {value} B on stream {stream}",
    "largest": "allocate the largest block that stats() promises",
    "free": "free live block {value}",
    "renew": "free whole live block {value} and allocate as much again on stream {stream}",
    "use": "read live block {value} on stream {stream}",
    "write": "write live block {value} on stream {stream}",
    "reserve": "reserve {value} B",
    "claim": "claim {count} granules from {lo} of reserved block {value} on stream {stream}",
    "release": "release {count} granules from {lo} of reserved block {value}",
    "again": "free a block that is not live",
    "nonsense": "ask for invalid sizes",
    "work": "do {value} pieces of queued work",
    "refuse": "the driver refuses obtaining call {value} of the next request",
}


#: Blocks that come and go before the requests that count: a mistake may begin late.
MOST_WORN = 256
_EVERY_SECOND = int("01" * 48, 2)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Args:
        op: kind of the request.
        value: bytes, pieces, or which of the live blocks, modulo how many there are.
        stream: whose work it is.
        lo, count: granules of a reserved block, modulo its size; bytes of a block to punch; blocks
            that wear.
    """

    op: Op
    value: int = 0
    stream: int = 0
    lo: int = 0
    count: int = 1

    def __str__(self) -> str:
        return _TEXTS[self.op].format(
            value=self.value, stream=self.stream, lo=self.lo, count=self.count
        )


@dataclass(frozen=True, slots=True)
class DrawnProgram:
    """Requests, and in which order queued work is done.

    Args:
        requests: one after the other.
        order: which of the streams that can go on goes on; modulo how many there are.
    """

    requests: tuple[Ask, ...]
    order: tuple[int, ...] = ()


def fragmenting(granule: Granule, unit: int) -> DrawnProgram:
    """A program that cuts the arena to pieces, so that every kind of driver call is made.

    Args:
        unit: bytes of a piece, whole granules.
    """
    requests = (
        Ask("punch", 0b0101_0101_0101, count=unit), Ask("allocate", 3 * unit, 1),
        Ask("free", 0),
        Ask("renew", 2, 2), Ask("reserve", 6 * unit), Ask("claim", 0, 1, 1, 2),
        Ask("free", 3), Ask("claim", 0, 2, 4, 2), Ask("release", 0, 0, 1, 2),
        Ask("claim", 0, 1, 0, 3), Ask("release", 0, 0, 0, 3),
        Ask("allocate", unit, 1), Ask("claim", 0, 2, 0, 3),
        Ask("allocate", 2 * unit, 2), Ask("claim", 0, 0, 1, 1), Ask("use", 1, 2),
        Ask("largest", 0, 1),
    )  # fmt: skip
    parts = ("reserve", "claim", "release")
    return DrawnProgram(tuple(r for r in requests if granule.ranges or r.op not in parts))


def histories(granule: Granule, unit: int) -> tuple[DrawnProgram, ...]:
    """Short programs in which allocators have gone wrong, so that no search need come upon them.

    Blocks come, are read, go, and come again when something else has taken some of their memory;
    parts of a block lose theirs to another block, or to another part; blocks are a little smaller
    than a hole; one arrangement is requested twice; hundreds of blocks have come and gone, or
    dozens live at once.

    Args:
        unit: bytes of a piece, whole granules.
    """
    punched, full = Ask("punch", 0b0101_0101_0101, count=unit), Ask("punch", 0, count=unit)
    rows: list[tuple[Ask, ...]] = []
    for stream in (0, 1):
        for first in ((), (punched,)):
            for size, other in ((2, 3), (2, 1), (4, 1), (1, 1)):
                rows.append((*first, *_gone_and_back(size * unit, other * unit, stream)))
    rows += [_gone_and_back(unit, unit - 1, 0), (full,)]
    sizes = unit, unit - 1, max(1, unit - granule.size_bytes)
    rows += [(punched, Ask("allocate", size)) for size in sizes]
    rows += [
        (punched, Ask("allocate", unit), Ask("allocate", 2 * unit), Ask("renew", 7)),
        (full, Ask("free", 0), Ask("allocate", unit), Ask("free", 0), Ask("allocate", unit)),
        (full, Ask("allocate", unit), Ask("free", 0), Ask("allocate", unit)),
        (Ask("allocate", unit - 1),), (Ask("allocate", unit),),
        (Ask("wear", unit, count=MOST_WORN), punched, Ask("allocate", sizes[-1]),
         *_gone_and_back(2 * unit, unit - 1, 1)),
        (Ask("punch", _EVERY_SECOND, count=-(-unit // 8)), *_gone_and_back(unit, unit - 1, 1)),
    ]  # fmt: skip
    if granule.ranges:
        rows += [(Ask("reserve", unit), Ask("reserve", unit))]
        rows += [(first, *_part_lost(unit, stream)) for stream in (0, 1)
                 for first in (Ask("allocate", unit), punched)]  # fmt: skip
        rows += [_part_moved(2 * granule.size_bytes)]
    return tuple(map(DrawnProgram, rows))


def _gone_and_back(nbytes: int, other: int, stream: int) -> tuple[Ask, ...]:
    """A block is read, comes again and goes; another takes some of its memory; it is wanted."""
    return (
        Ask("allocate", nbytes), Ask("use", -1, stream), Ask("renew", -1, stream), Ask("free", -1),
        Ask("allocate", other), Ask("allocate", nbytes, stream),
    )  # fmt: skip


def _part_lost(nbytes: int, stream: int) -> tuple[Ask, ...]:
    """A part that was read twice loses its memory to the largest block, and is wanted again."""
    return (
        Ask("reserve", nbytes), Ask("claim", -1), Ask("use", -1), Ask("use", -1, stream),
        Ask("release", -1), Ask("largest"), Ask("free", 0), Ask("claim", -1),
    )  # fmt: skip


def _part_moved(nbytes: int) -> tuple[Ask, ...]:
    """The memory of a block's second granule serves its first one; then both are wanted."""
    return (
        Ask("reserve", nbytes), Ask("claim", -1, 0, 1), Ask("release", -1, 0, 1),
        Ask("claim", -1, 0, 0), Ask("release", -1, 0, 0), Ask("claim", -1, 0, 0, 2), Ask("use", -1),
    )  # fmt: skip


# Laws

#: Why a law is skipped that does not concern the allocator.
OF_OTHER_KINDS = "a law of other kinds of allocators"
LAWS: Mapping[str, str] = {
    "P1": "live blocks do not overlap",
    "P2": "a block is as large as requested, rounded as the granule says, and aligned",
    "P3": "no physical memory belongs to two live blocks",
    "P4": "a block keeps its bytes until it is freed, whatever order work is done in",
    "P5": "no work meets memory that is unmapped, inaccessible or another block's",
    "P6": "what is reserved never exceeds the budget",
    "P7": "the books are the sums: R, A, W, C and V, V = A + W + C, peaks, counts",
    "P8": "what is refused leaves everything as it was, and is served when it is requested again",
    "P9": "nothing is refused that stats() promises, or that the free chunks suffice for",
    "P10": "double, foreign and late frees, wrong sizes and wrong parts are refused",
    "P11": "in the end nothing of the driver is held, and close() names what was live",
    "P12": "in what order blocks are freed makes no difference in the end",
    "P13": "a block freed and requested again needs no mapping and no wait (va)",
    "P15": "the same requests give the same layout",
    "P16": "check() passes after every request, and after every refusal of the driver",
    "P17": "a free within an allocate is done afterwards, not lost (thread-safe wrappers)",
    "P18": "a snapshot is plain data",
    "P19": "what is reserved of one piece of memory reaches to its highest block: holes count",
    "B1": "blocks and holes tile the arena up to its top",
    "B2": "no two holes touch, and none touches the top",
    "B3": "the smallest hole that fits is taken, and the free end of the arena last",
    "B4": "what a block leaves of a hole stays a hole",
    "V1": "granted is the smallest number of chunks, so less than a chunk per block is lost",
    "V3": "a chunk has one live block at most; on va-paper it is mapped at most once",
    "V4": "mappings are made only where none will do",
    "V5": "nothing is lost to external fragmentation",
    "S1": "blocks that live at the same time have different bytes",
    "S2": "a packing is between the most that lives at a time and the sum of all",
    "S3": "the same forecast gives the same packing",
    "S4": "a block is at the bottom of its pool or on top of one that lives when it does",
    "S5": "what was not foreseen is refused with PlanMismatch, or lies behind the plan; once it is "
    "gone nothing has changed",
}


#: Laws that keep one value out of another's bytes, the gravest first: safety.
SAFETY = ("P1", "P3", "P4", "P5", "P2", "P6")


@dataclass(slots=True)
class Verdicts:
    """Which laws end a run where they do not hold, and what was found of the others.

    Args:
        tried: the numbers of those that end it; "" for errors that no law names.
        found: {number: what was said first}, of all that did not hold; the run went on.
        lists, cut: how many lists of requests were tried, and how many of them an error that no law
            names has cut short, so that they say little of other laws.
    """

    tried: Collection[str] = ()
    found: dict[str, str] = field(default_factory=dict)
    lists: int = 0
    cut: int = 0

    def note(self, law: str, detail: str) -> None:
        """A law does not hold."""
        self.found.setdefault(law, detail)


#: Of the run in this context; None: each law ends it.
_VERDICTS: ContextVar[Verdicts | None] = ContextVar("ooctrain_law_verdicts", default=None)


@contextmanager
def judged(verdicts: Verdicts) -> Iterator[None]:
    """Within it, laws that are not tried are noted where they do not hold, and the run goes on: so
    a law is judged though a graver or a smaller one is broken before it.
    """
    before = _VERDICTS.set(verdicts)
    try:
        yield
    finally:
        _VERDICTS.reset(before)


class Broken(AssertionError):
    """A law is broken.

    Attributes:
        law: its number.
    """

    def __init__(self, law: str, detail: str):
        super().__init__(f"{law} ({LAWS[law]}): {detail}")
        self.law = law


def hold(law: str, kept: bool, detail: str) -> None:
    """Raises Broken unless the law is kept, or is only noted (`judged`)."""
    if kept:
        return
    broken, verdicts = Broken(law, detail), _VERDICTS.get()
    if verdicts is None or law in verdicts.tried:
        raise broken
    verdicts.note(law, str(broken))


@dataclass(frozen=True, slots=True)
class View:
    """What an allocator shows of itself at one time."""

    layout: Mapping[str, Any]
    stats: Stats


@dataclass(frozen=True, slots=True)
class Answered:
    """One request, with what was before and after it."""

    request: Ask
    allocator: Allocator
    before: View
    after: View


Law = Callable[[Answered], None]


def best_fit_laws(step: Answered) -> None:
    """B1 to B4, by scans over the snapshot. (B5: there is one segment; B6 is in check().)"""
    layout = step.after.layout
    base, top = layout["base"], layout["top"]
    blocks = sorted((b["address"] - base, b["granted"], True) for b in layout["blocks"])
    pieces = sorted(blocks + [(offset, size, False) for offset, size in layout["holes"]])
    ends = [0, *(offset + size for offset, size, _ in pieces)]
    hold("B1", ends == [*(offset for offset, _, _ in pieces), top], f"pieces {pieces}, top {top}")
    pairs = pairwise([*pieces, (top, 0, False)])
    hold("B2", all(left[2] or right[2] for left, right in pairs), f"pieces {pieces}, top {top}")
    if step.request.op != "allocate":
        return
    known = {b["id"] for b in step.before.layout["blocks"]}
    for block in (b for b in layout["blocks"] if b["id"] not in known):
        size, holes = block["granted"], step.before.layout["holes"]
        fitting = [(n, offset) for offset, n in holes if n >= size]
        hole, place = min(fitting) if fitting else (size, step.before.layout["top"])
        hold("B3", block["address"] - base == place, f"{size} B at {block['address'] - base}, "
             f"the best place is {place}")  # fmt: skip
        rest = [[place + size, hole - size]] if hole > size else []
        left = sorted([h for h in map(list, holes) if h[0] != place or not fitting] + rest)
        hold("B4", sorted(map(list, layout["holes"])) == left, f"holes {layout['holes']}")


def chunk_laws(step: Answered) -> None:
    """V1, V3 and V5: of all that give any free chunk to any request."""
    stats, chunk = step.after.stats, step.allocator.granule.size_bytes
    live = len(step.after.layout["blocks"])
    hold("V1", 0 <= stats.internal_bytes < max(1, live * chunk), f"{stats.internal_bytes} B lost "
         f"in {live} blocks of {chunk} B chunks")  # fmt: skip
    hold("V5", stats.external_bytes <= 0, f"{stats.external_bytes} B of external fragmentation")
    held: Counter[int] = Counter()
    for pieces in step.after.layout["chunks"].values():
        for lo, hi, first in pieces:
            held.update(range(first, first + hi - lo))
    twice = [number for number, count in held.items() if count > 1]
    hold("V3", not twice, f"chunks {twice} have two live blocks")


def reuse_laws(step: Answered) -> None:
    """P13 and V4: of va, which keeps what is mapped."""
    before, after = step.before.stats, step.after.stats
    if step.request.op == "renew":
        hold("P13", after.host_waits == before.host_waits, "the host waited")
        hold("V4", after.maps == before.maps, f"{after.maps - before.maps} mappings were made")
    elif step.request.op not in ("allocate", "largest", "claim", "punch", "wear"):
        hold("V4", after.maps == before.maps, f"{step.request.op} makes mappings")


_OWN: Mapping[str, Sequence[Law]] = {
    "best-fit": (best_fit_laws,),
    "gmlake": (chunk_laws,),
    "va": (chunk_laws, reuse_laws),
    "va-nnabla": (chunk_laws,),
    "va-paper": (chunk_laws,),
}


#: Allocators that never show memory at two addresses.
MAPPED_ONCE = ("va-paper", "passthrough")


def own_laws(name: str) -> Sequence[Law]:
    """The laws of one kind of allocator, beyond those of all."""
    return _OWN.get(name, ())
