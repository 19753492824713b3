"""What a client may ask of an allocator, as plain data that can be printed, cut down and repeated.

In: nothing; `programs` draws them. Out: `DrawnProgram`s. The one idea: a request names blocks by
their place among the live ones, modulo how many there are, so that any part of a list of requests
is a list of requests again, and a failing one shrinks to the few that matter. Read next:
`allocator_client.py`, which makes the requests.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ooctrain.units import Granule

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

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


def programs(granule: Granule, unit_bytes: int, units: int) -> SearchStrategy[DrawnProgram]:
    """Programs for an arena: single requests, and short rows of them that belong together.

    Args:
        granule: how the allocator rounds, and whether blocks can be held in parts.
        unit_bytes: what sizes are about multiples of, whole granules.
        units: how many the arena has.
    """
    from hypothesis import strategies as st

    size = granule.size_bytes
    sizes = st.builds(
        lambda whole, rest: max(1, whole * unit_bytes - rest),
        st.integers(1, max(2, units // 2)), st.sampled_from((0, 0, 1, size // 3, size, 2 * size)),
    )  # fmt: skip
    every_second = sum(1 << place for place in range(0, units, 2))
    masks = st.integers(0, (1 << units) - 1) | st.just(every_second)
    punch = st.builds(Ask, st.just("punch"), masks, count=st.just(unit_bytes))
    rows = [
        _single(sizes, st.integers(0, units)), _used_again(sizes, unit_bytes),
        _between(sizes, size),
    ]  # fmt: skip
    if granule.ranges:
        rows += [_parts(sizes, st.integers(0, units)), _part_moves(sizes)]
    return st.builds(
        lambda first, rest, order: DrawnProgram((*first, *itertools.chain(*rest)), tuple(order)),
        st.one_of(st.tuples(punch), st.just(())), st.lists(st.one_of(rows), max_size=14),
        st.lists(st.integers(0, 2), max_size=8),
    )  # fmt: skip


Row = tuple[Ask, ...]


def _single(sizes: SearchStrategy[int], pick: SearchStrategy[int]) -> SearchStrategy[Row]:
    """One request of any kind that whole blocks know."""
    from hypothesis import strategies as st

    stream = st.integers(0, 2)

    def one(op: Op, **arguments: SearchStrategy[int]) -> SearchStrategy[Row]:
        return st.tuples(st.builds(Ask, st.just(op), **arguments))

    allocate, free = one("allocate", value=sizes, stream=stream), one("free", value=pick)
    return st.one_of(
        allocate, allocate, free, free, one("renew", value=pick, stream=stream),
        one("use", value=pick, stream=stream), one("write", value=pick, stream=stream),
        one("work", value=st.integers(1, 9)), one("largest", stream=stream), one("again"),
        one("nonsense"), one("refuse", value=st.integers(0, 4)),
    )  # fmt: skip


def _used_again(sizes: SearchStrategy[int], unit_bytes: int) -> SearchStrategy[Row]:
    """A block comes and goes, others take some of its memory, and it comes again; it is read on
    another stream meanwhile."""
    from hypothesis import strategies as st

    def row(large: int, other: int, stream: int, small_first: bool, small_goes: bool) -> Row:
        small = [Ask("allocate", unit_bytes, stream)] * small_first
        gone = [Ask("free", -2)] * (small_first and small_goes)
        return (
            Ask("allocate", large), Ask("use", -1, stream), Ask("renew", -1, stream),
            Ask("free", -1), *small, Ask("allocate", other), *gone,
            Ask("allocate", large, stream),
        )  # fmt: skip

    return st.builds(row, sizes, sizes, st.integers(0, 2), st.booleans(), st.booleans())


def _between(sizes: SearchStrategy[int], granule_bytes: int) -> SearchStrategy[Row]:
    """Two blocks go and the small one between them stays; then a granule less than the first is
    wanted, and as much as all three."""
    from hypothesis import strategies as st

    def row(left: int, small: int, right: int) -> Row:
        return (
            Ask("allocate", left), Ask("allocate", small), Ask("allocate", right),
            Ask("free", -3), Ask("free", -1),
            Ask("allocate", max(1, left - granule_bytes)),
            Ask("allocate", left + small + right),
        )  # fmt: skip

    return st.builds(row, sizes, st.integers(1, 2 * granule_bytes), sizes)


def _parts(sizes: SearchStrategy[int], pick: SearchStrategy[int]) -> SearchStrategy[Row]:
    """One request for a part of a block, or a new block for parts."""
    from hypothesis import strategies as st

    small, stream = st.integers(1, 3), st.integers(0, 2)
    part = {"value": pick, "lo": st.integers(0, 7), "count": small}
    return st.one_of(
        st.tuples(st.builds(Ask, st.just("reserve"), sizes)),
        st.tuples(st.builds(Ask, st.just("claim"), stream=stream, **part)),
        st.tuples(st.builds(Ask, st.just("release"), **part)),
    )


def _part_moves(sizes: SearchStrategy[int]) -> SearchStrategy[Row]:
    """Parts that are read on two streams lose their memory to a block, and come again elsewhere."""
    from hypothesis import strategies as st

    def row(nbytes: int, count: int, taken: int | None, stream: int, refused: int | None) -> Row:
        taking = Ask("largest") if taken is None else Ask("allocate", taken, stream)
        refuse = [] if refused is None else [Ask("refuse", refused)]
        return (
            Ask("reserve", nbytes), Ask("claim", -1, 0, 0, count), Ask("use", -1, 0),
            Ask("use", -1, stream), Ask("release", -1, 0, 0, count), taking,
            Ask("free", 0), *refuse, Ask("claim", -1, stream, 0, count),
        )  # fmt: skip

    return st.builds(
        row, sizes, st.integers(1, 4), st.none() | sizes, st.integers(0, 2),
        st.none() | st.integers(0, 3),
    )  # fmt: skip


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
