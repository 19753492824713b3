"""What a client may ask of an allocator, as plain data that can be printed, shrunk and repeated.

A `DrawnProgram`, drawn by `allocator_draws.py`, is a list of requests. A request names blocks by
their index among the live ones, modulo their number, so any part of a list of requests is again a
valid list, and a failing one shrinks to the few that matter. Read next: `allocator_client.py`,
which makes the requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ooctrain.units import Granule

Op = Literal[
    "punch",
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


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Args:
        op: what is asked.
        value: bytes, pieces, or which of the live blocks, modulo how many there are.
        stream: whose work it is.
        lo, count: granules of a reserved block, modulo its size; bytes of a block to punch.
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
        order: of the streams that can go on, which goes on; modulo how many there are.
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
    than a hole; one arrangement is asked for twice.

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
