"""Host memory of a schedule: which copy claims which bytes, and which is the last to touch them.

`HostLife` records how long each byte of host memory is held. A byte of a host slot is held from the
first SwapOut that writes it (or from the start) to the last listed copy that touches it. A byte
that the start of the next step needs is held throughout. Both variables of a carry (W and its
update W') share one slot. Source: docs/schedule.md, "Ledgers". Read next: `ledger.py`, then
`host.py` for the addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ooctrain.sched.schedule import Schedule, SwapIn, SwapOut
from ooctrain.sched.spans import Spans
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class HostLife:
    """What the copies of a list claim on the host, and where it ends.

    Args:
        claims: {index of a SwapOut: bytes that it claims at issue}.
        last: {index of a copy: bytes that no later copy touches}.
    """

    claims: Mapping[int, int]
    last: Mapping[int, int]


def host_life(trace: Trace, schedule: Schedule) -> HostLife:
    """Claims and ends of host bytes. Cost: O(copies), times the chunks of a variable."""
    claims: dict[int, int] = {}
    ends: dict[int, int] = {}
    for pieces in lives(trace, schedule).values():
        for lo, hi, (first, last) in pieces.items:
            if first >= 0:
                claims[first] = claims.get(first, 0) + hi - lo
                ends[last] = ends.get(last, 0) + hi - lo
    return HostLife(claims, ends)


def slot_of(trace: Trace, variable: int) -> int:
    """The variable that names the host slot: the older one of a carry."""
    return trace.carries.get(variable, variable)


def copies(trace: Trace, schedule: Schedule) -> Iterator[tuple[int, int, int, int]]:
    """(slot, index, lo, hi) of all start ranges (index ~position, below 0) and copies, in order."""
    for position, (variable, lo, hi) in enumerate(schedule.start_host):
        yield slot_of(trace, variable), ~position, lo, hi
    for index, instruction in enumerate(schedule.instructions):
        if type(instruction) is SwapOut or type(instruction) is SwapIn:
            yield slot_of(trace, instruction.var), index, instruction.lo, instruction.hi


def lives(trace: Trace, schedule: Schedule) -> dict[int, Spans[tuple[int, int]]]:
    """By slot: ranges with (first, last) index of the copies that touch them; -1: the start."""
    lives: dict[int, Spans[tuple[int, int]]] = {}
    end = len(schedule.instructions)
    for slot, index, lo, hi in copies(trace, schedule):
        spans = lives.setdefault(slot, Spans())
        known = spans.over(lo, hi)
        for start, stop in spans.gaps(lo, hi):
            spans.put(start, stop, (max(index, -1), end if index < 0 else index))
        for start, stop, (first, last) in known:
            spans.put(start, stop, (first, max(last, index)))
    return lives
