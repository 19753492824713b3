"""Host memory of a schedule: when each byte of it is held, and at which offset of the pinned slab.

In: a trace and a schedule. Out: what every copy claims and releases on the host (`host_life`), and
a slab layout (`host_slots`). The one idea: a byte of a host slot is held from the first SwapOut
that writes it (or the start) to the last listed copy that touches it; what the next step's start
needs is held throughout. Both variables of a carry (W and its update W') share one slot. Offsets
are given offline, first fit in list order; a copy that claims waits for all host releases before
it, so whatever offset becomes free in list order is safe to use. Source: DESIGN section 4. Read
next: `ledger.py`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ooctrain.sched.schedule import Schedule, SwapIn, SwapOut
from ooctrain.sched.spans import Spans
from ooctrain.trace import Trace

SLOT_ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class HostLife:
    """What the copies of a list claim and release on the host.

    Args:
        claims: {index of a SwapOut: bytes that it claims at issue}.
        releases: {index of a copy: bytes released when it is done}.
    """

    claims: Mapping[int, int]
    releases: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class HostSlots:
    """Where host copies lie in the slab.

    Args:
        offsets: {index of a SwapOut or SwapIn: offset of its first byte}; each copy is contiguous.
        start_offsets: offset of each range of `Schedule.start_host`, in its order.
        extent_bytes: size of the slab.
    """

    offsets: Mapping[int, int]
    start_offsets: tuple[int, ...]
    extent_bytes: int


@dataclass(frozen=True, slots=True)
class _Slot:
    lo: int
    hi: int
    first: int
    last: int
    copies: tuple[tuple[int, int], ...]  # (index or ~position in start_host, lo)


def host_life(trace: Trace, schedule: Schedule) -> HostLife:
    """Claims and releases of host bytes. Cost: O(copies), times the chunks of a variable."""
    claims: dict[int, int] = {}
    releases: dict[int, int] = {}
    for pieces in _lives(trace, schedule).values():
        for lo, hi, (first, last) in pieces.items:
            if first >= 0:
                claims[first] = claims.get(first, 0) + hi - lo
                releases[last] = releases.get(last, 0) + hi - lo
    return HostLife(claims, releases)


def host_slots(
    trace: Trace, schedule: Schedule, *, align_bytes: int = SLOT_ALIGN_BYTES
) -> HostSlots:
    """Offsets of all host copies by first fit in list order.

    Copies that share bytes share a slot, so that each is contiguous. A slot is free again when its
    last copy is done; slots of the start keep their place, step after step.

    Args:
        align_bytes: every slot starts at a multiple of it.

    Cost: O(slots x slots held at a time).
    """
    held: list[tuple[int, int, int]] = []  # (offset, end, last), by offset
    offsets: dict[int, int] = {}
    extent = 0
    for slot in sorted(_slots(trace, schedule), key=lambda s: (s.first, s.copies)):
        held = [entry for entry in held if entry[2] >= slot.first]
        offset = _first_fit(held, slot.hi - slot.lo, align_bytes)
        insort(held, (offset, offset + slot.hi - slot.lo, slot.last))
        extent = max(extent, offset + slot.hi - slot.lo)
        for key, lo in slot.copies:
            offsets[key] = offset + lo - slot.lo
    start = tuple(offsets.pop(~position) for position in range(len(schedule.start_host)))
    return HostSlots(offsets, start, extent)


def slot_of(trace: Trace, variable: int) -> int:
    """The variable that names the host slot: the older one of a carry."""
    return trace.carries.get(variable, variable)


def _copies(trace: Trace, schedule: Schedule) -> Iterator[tuple[int, int, int, int]]:
    """(slot, index, lo, hi) of all start ranges (index ~position, below 0) and copies, in order."""
    for position, (variable, lo, hi) in enumerate(schedule.start_host):
        yield slot_of(trace, variable), ~position, lo, hi
    for index, instruction in enumerate(schedule.instructions):
        if type(instruction) is SwapOut or type(instruction) is SwapIn:
            yield slot_of(trace, instruction.var), index, instruction.lo, instruction.hi


def _lives(trace: Trace, schedule: Schedule) -> dict[int, Spans[tuple[int, int]]]:
    """By slot: ranges with (first, last) index of the copies that touch them; -1: the start."""
    lives: dict[int, Spans[tuple[int, int]]] = {}
    end = len(schedule.instructions)
    for slot, index, lo, hi in _copies(trace, schedule):
        spans = lives.setdefault(slot, Spans())
        known = spans.over(lo, hi)
        for start, stop in spans.gaps(lo, hi):
            spans.put(start, stop, (max(index, -1), end if index < 0 else index))
        for start, stop, (first, last) in known:
            spans.put(start, stop, (first, max(last, index)))
    return lives


def _slots(trace: Trace, schedule: Schedule) -> Iterator[_Slot]:
    """The copies of a variable (or carry), grouped so that those with common bytes are together."""
    lives = _lives(trace, schedule)
    by_slot: dict[int, list[tuple[int, int, int]]] = {}
    for slot, index, lo, hi in _copies(trace, schedule):
        by_slot.setdefault(slot, []).append((lo, hi, index))
    for slot, copies in by_slot.items():
        for group in _touching(sorted(copies)):
            lo, hi = group[0][0], max(copy[1] for copy in group)
            life = [value for _, _, value in lives[slot].over(lo, hi)] or [
                (group[0][2], group[-1][2])
            ]
            keys = tuple((index, start) for start, _, index in group)
            yield _Slot(lo, hi, min(f for f, _ in life), max(last for _, last in life), keys)


def _touching(copies: list[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Sorted copies in groups: a copy belongs to the group whose bytes it shares."""
    group: list[tuple[int, int, int]] = []
    end = -1
    for copy in copies:
        if group and copy[0] >= end and copy[1] > copy[0]:
            yield group
            group = []
        group.append(copy)
        end = max(end, copy[1]) if len(group) > 1 else copy[1]
    if group:
        yield group


def _first_fit(held: list[tuple[int, int, int]], size_bytes: int, align_bytes: int) -> int:
    """The lowest aligned offset with room for `size_bytes` between the slots held (by offset)."""
    offset = 0
    for start, end, _ in held:
        if start - offset >= size_bytes:
            break
        offset = max(offset, -(-end // align_bytes) * align_bytes)
    return offset
