"""Random requests to an allocator: Hypothesis draws them, and shrinks a failing list.

The strategy draws `DrawnProgram`s from sizes, the size of the arena and the way the allocator
rounds. Single random requests seldom interact, so short sequences of related requests are drawn as
well: each is a way in which an allocator has gone wrong. Only the search imports this module, since
it loads Hypothesis. Read next: `allocator_laws.py`, `check_allocator.py`.
"""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from ooctrain.testing.allocator_laws import MOST_WORN, Ask, DrawnProgram, Op
from ooctrain.units import Granule

Row = tuple[Ask, ...]
_SELDOM = 8  # what takes long is drawn once in 2 * 8


def programs(granule: Granule, unit_bytes: int, units: int) -> st.SearchStrategy[DrawnProgram]:
    """Programs for an arena: single requests, and short rows of them that belong together.

    Args:
        granule: how the allocator rounds, and whether blocks can be held in parts.
        unit_bytes: what sizes are about multiples of, whole granules.
        units: how many the arena has.
    """
    size = granule.size_bytes
    sizes = st.builds(
        lambda whole, rest: max(1, whole * unit_bytes - rest),
        st.integers(1, max(2, units // 2)), st.sampled_from((0, 0, 1, size // 3, size, 2 * size)),
    )  # fmt: skip
    every_second = sum(1 << place for place in range(0, units, 2))
    masks = st.integers(0, (1 << units) - 1) | st.just(every_second)
    punch = st.builds(Ask, st.just("punch"), masks, count=st.just(unit_bytes))
    wear = st.builds(Ask, st.just("wear"), sizes, count=st.integers(1, MOST_WORN))
    rows = [
        _single(sizes, st.integers(0, units)), _used_again(sizes, unit_bytes),
        _between(sizes, size),
    ]  # fmt: skip
    if granule.ranges:
        rows += [_parts(sizes, st.integers(0, units)), _part_moves(sizes)]
    return st.builds(
        lambda first, rest, order: DrawnProgram((*first, *itertools.chain(*rest)), tuple(order)),
        st.one_of(*_SELDOM * [st.tuples(punch), st.just(())], st.tuples(wear)),
        st.lists(st.one_of(rows), max_size=14),
        st.lists(st.integers(0, 2), max_size=8),
    )  # fmt: skip


def _single(sizes: st.SearchStrategy[int], pick: st.SearchStrategy[int]) -> st.SearchStrategy[Row]:
    """One request of any kind that whole blocks know."""
    stream = st.integers(0, 2)

    def one(op: Op, **arguments: st.SearchStrategy[int]) -> st.SearchStrategy[Row]:
        return st.tuples(st.builds(Ask, st.just(op), **arguments))

    allocate, free = one("allocate", value=sizes, stream=stream), one("free", value=pick)
    return st.one_of(
        allocate, allocate, free, free, one("renew", value=pick, stream=stream),
        one("use", value=pick, stream=stream), one("write", value=pick, stream=stream),
        one("work", value=st.integers(1, 9)), one("largest", stream=stream), one("again"),
        one("nonsense"), one("refuse", value=st.integers(0, 4)),
    )  # fmt: skip


def _used_again(sizes: st.SearchStrategy[int], unit_bytes: int) -> st.SearchStrategy[Row]:
    """A block comes and goes, others take some of its memory, and it comes again; it is read on
    another stream meanwhile."""

    def row(large: int, other: int, stream: int, small_first: bool, small_goes: bool) -> Row:
        small = [Ask("allocate", unit_bytes, stream)] * small_first
        gone = [Ask("free", -2)] * (small_first and small_goes)
        return (
            Ask("allocate", large), Ask("use", -1, stream), Ask("renew", -1, stream),
            Ask("free", -1), *small, Ask("allocate", other), *gone,
            Ask("allocate", large, stream),
        )  # fmt: skip

    return st.builds(row, sizes, sizes, st.integers(0, 2), st.booleans(), st.booleans())


def _between(sizes: st.SearchStrategy[int], granule_bytes: int) -> st.SearchStrategy[Row]:
    """Two blocks go and the small one between them stays; then a granule less than the first is
    wanted, and as much as all three."""

    def row(left: int, small: int, right: int) -> Row:
        return (
            Ask("allocate", left), Ask("allocate", small), Ask("allocate", right),
            Ask("free", -3), Ask("free", -1),
            Ask("allocate", max(1, left - granule_bytes)),
            Ask("allocate", left + small + right),
        )  # fmt: skip

    return st.builds(row, sizes, st.integers(1, 2 * granule_bytes), sizes)


def _parts(sizes: st.SearchStrategy[int], pick: st.SearchStrategy[int]) -> st.SearchStrategy[Row]:
    """One request for a part of a block, or a new block for parts."""
    small, stream = st.integers(1, 3), st.integers(0, 2)
    part = {"value": pick, "lo": st.integers(0, 7), "count": small}
    return st.one_of(
        st.tuples(st.builds(Ask, st.just("reserve"), sizes)),
        st.tuples(st.builds(Ask, st.just("claim"), stream=stream, **part)),
        st.tuples(st.builds(Ask, st.just("release"), **part)),
    )


def _part_moves(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[Row]:
    """Parts that are read on two streams lose their memory to a block, and come again elsewhere."""

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
