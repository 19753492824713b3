"""What a client may ask of an allocator, as plain data that can be printed, cut down and repeated.

In: nothing; `allocator_draws.py` draws them. Out: `DrawnProgram`s. The one idea: a request names
blocks by their place among the live ones, modulo how many there are, so that any part of a list of
requests is a list of requests again, and a failing one shrinks to the few that matter. Read next:
`allocator_client.py`, which makes the requests.
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
    "nonsense": "ask for sizes that are none",
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
