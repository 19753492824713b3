"""The layout of the pinned host slab: an offset for every copy.

`HostSlots` gives each copy of a schedule its offset in the slab. Offsets are assigned offline,
first fit in list order. This is safe because a SwapOut that claims host memory waits for all host
releases listed before it: an offset that is free in list order is also free in time. A host budget
is of the slab: what its slots hold, and the gaps between them, which planners do not see. Sources:
docs/schedule.md, "Ledgers"; paper 004, section 4.4 (the host's pool). Read next: `ledger.py`,
`spans.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from ooctrain.sched.ledger import Ledger, copies, lives
from ooctrain.sched.schedule import Plan, Schedule
from ooctrain.sched.spans import FirstGaps
from ooctrain.step.trace import Trace

SLOT_ALIGN_BYTES = 64


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
    """Bytes [lo, hi) of a variable in one place, from list position `claimed` to `released`."""

    lo: int
    hi: int
    claimed: int
    released: int
    copies: tuple[tuple[int, int], ...]  # (index, or ~position in start_host; lo)


def host_slots(
    trace: Trace, schedule: Schedule, *, align_bytes: int = SLOT_ALIGN_BYTES
) -> HostSlots:
    """Offsets of all host copies by first fit in list order.

    Copies that share bytes share a slot, so that each is contiguous. Slots of the start keep their
    place, step after step.

    Args:
        align_bytes: every slot starts at a multiple of it.

    Cost: O(slots x gaps between those held at a time).
    """
    gaps = FirstGaps()
    held: list[tuple[int, int, int]] = []  # heap of (released, offset, end)
    offsets: dict[int, int] = {}
    extent = 0
    for slot in sorted(_slots(trace, schedule), key=lambda s: (s.claimed, s.copies)):
        while held and held[0][0] <= slot.claimed:
            gaps.give(*heappop(held)[1:])
        size = slot.hi - slot.lo
        offset = gaps.take(-(-size // align_bytes) * align_bytes)
        heappush(held, (slot.released, offset, offset - (-size // align_bytes) * align_bytes))
        extent = max(extent, offset + size)
        for key, lo in slot.copies:
            offsets[key] = offset + lo - slot.lo
    start = tuple(offsets.pop(~position) for position in range(len(schedule.start_host)))
    return HostSlots(offsets, start, extent)


def slab_excess(plan: Plan, host_bytes: int, align_bytes: int) -> tuple[int, int]:
    """The length of a plan's slab, and by how much it is beyond a host budget.

    What slots are aligned by is not counted, neither here nor by planners.

    Args:
        align_bytes: alignment of slots.
    """
    found = host_slots(plan.trace, plan.schedule, align_bytes=align_bytes)
    slots = len({*found.offsets.values(), *found.start_offsets})
    return found.extent_bytes, found.extent_bytes - host_bytes - align_bytes * slots


def _slots(trace: Trace, schedule: Schedule) -> Iterator[_Slot]:
    """The copies of a variable (or carry), grouped so that those with common bytes are together."""
    released = _released_at(trace, schedule)
    life_of = lives(trace, schedule)
    by_slot: dict[int, list[tuple[int, int, int]]] = {}
    for slot, index, lo, hi in copies(trace, schedule):
        by_slot.setdefault(slot, []).append((lo, hi, index))
    for slot, found in by_slot.items():
        for group in _touching(sorted(found)):
            lo, hi = group[0][0], max(copy[1] for copy in group)
            life = [value for _, _, value in life_of[slot].over(lo, hi)] or [(-1, -1)]
            keys = tuple((index, start) for start, _, index in group)
            end = max(released.get(last, len(schedule.instructions)) for _, last in life)
            yield _Slot(lo, hi, min(first for first, _ in life), end, keys)


def _released_at(trace: Trace, schedule: Schedule) -> Mapping[int, int]:
    """{index of a last copy: list position from which on its host bytes are free}."""
    ledger = Ledger(trace, schedule)
    for index, instruction in enumerate(schedule.instructions):
        ledger.issue(index, instruction)
    return ledger.host_released_at


def _touching(ranges: list[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Sorted (lo, hi, index) in groups: a copy belongs to the group whose bytes it shares."""
    group: list[tuple[int, int, int]] = []
    end = 0
    for copy in ranges:
        if group and copy[0] >= end and copy[0] < copy[1]:
            yield group
            group = []
        end = max(end, copy[1])
        group.append(copy)
    if group:
        yield group
