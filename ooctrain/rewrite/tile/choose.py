"""Which segments of a network run in bands or tiles, of which height, and with which kind of halo.

From a step and the times of its calls this file makes offers, each the least work under one limit
of memory, by dynamic programming over the places where a network can be cut. A state at a cut holds
what the segments before it have stored. The next segment adds what it stores, needs its own room
while it runs backward, and costs what it computes twice. A way to a cut that stores more and costs
more than another is dropped. Limits of memory run down in steps, so there are offers above and
below a given budget: planners that swap need less than an offer says.

Source: ours. Read next: `segment_costs.py` for what a segment costs; `banded.py`, which plans what
is offered here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ooctrain.rewrite.tile.offers import Moves, Offer, OperatorTimes
from ooctrain.rewrite.tile.operators import Operators
from ooctrain.rewrite.tile.segment_costs import (
    SegmentChoice,
    Table,
    choices_of,
    room_bytes,
    stored_bytes,
)
from ooctrain.sched.budget import lasting_bytes
from ooctrain.step.machine import Machine
from ooctrain.units import format_bytes

#: Limits of memory: the untiled step's need, times this again and again.
STEP, STEPS, STEPS_UP = 2**-0.5, 24, 9


@dataclass(frozen=True, slots=True)
class TilingWay:
    """A way through the operators up to a cut."""

    extra_ns: float = 0.0
    stored_bytes: int = 0
    choices: tuple[SegmentChoice, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of its tilings."""
        return tuple(choice.name for choice in self.choices if choice.name)

    def and_then(self, choice: SegmentChoice) -> TilingWay:
        """And one segment more."""
        return TilingWay(
            self.extra_ns + choice.extra_ns, self.stored_bytes + choice.stored_bytes,
            (*self.choices, choice),
        )  # fmt: skip


MOVED: Mapping[Moves, str] = MappingProxyType(
    {
        "nothing": "without swapping",
        "borders": "if borders of segments and kept rows are swapped",
        "all": "if all that backward reads is swapped or run again",
    }
)


def tilings_of(operators: Operators, times: OperatorTimes, machine: Machine) -> list[Offer]:
    """The least work under ever lower limits of memory, each way once; the most memory first.

    For each limit there are up to three offers. One needs no more without swapping: its bands run
    again in backward. One needs no more if what it stores between the passes, borders of segments
    and kept rows, is swapped. One needs no more if all that backward reads is swapped or run again,
    as its planner likes: its bands are written once.
    """
    table = choices_of(operators, times, machine)
    lean = {
        ends: [replace(choice, stored_bytes=0) for choice in choices]
        for ends, choices in table.items()
    }
    kinds: tuple[tuple[Moves, Table], ...] = (
        ("nothing", table),
        ("borders", lean),
        ("all", movable_choices(table)),
    )
    lasting, places = lasting_bytes(operators.trace), range(len(operators.calls))
    most = lasting + sum(stored_bytes(operators, i) for i in places)
    if not any(call.phase == "backward" for call in operators.trace.calls):
        # An evaluation stores nothing; what its calls need one by one is all that it has.
        most = lasting + max((room_bytes(operators, i) for i in places), default=0)
    found: dict[tuple[str, ...], Offer] = {}
    for limit in _limits(most):
        for moves, kind in kinds:
            if limit >= most and any(offer.moves == moves for offer in found.values()):
                continue
            way = best_way(kind, limit - lasting, limit - lasting)
            if way and way.names:
                kept = sum(choice.kept_bytes for choice in way.choices)
                work = times.work(way.extra_ns)
                why = f"the least work of all that need {format_bytes(limit)} {MOVED[moves]}"
                found.setdefault(way.names, Offer(way.names, work, kept, limit, moves, why))
    return sorted(found.values(), key=lambda offer: -offer.need_bytes)


def movable_choices(table: Table) -> Table:
    """The choices of a planner that moves, or runs again, all that backward reads."""
    return {
        ends: [moved for choice in choices if (moved := _moved(choice))]
        for ends, choices in table.items()
    }


def _limits(most_bytes: int) -> Iterator[int]:
    """Down from what the untiled step stores; then up from there, for short networks, whose tiles
    need as much room as all that is stored.
    """
    limit = most_bytes
    for _ in range(STEPS):
        limit = int(limit * STEP)
        yield limit
    for step in range(STEPS_UP):
        yield int(most_bytes * STEP ** (-step / 2))


def _moved(choice: SegmentChoice) -> SegmentChoice | None:
    """The same operators where nothing stays that a planner can move; None of what runs again."""
    if choice.name.startswith("tile:"):
        return None
    name = choice.name.replace("bands_again:", "bands:")
    return SegmentChoice(name, choice.once_ns, 0, choice.room_bytes, choice.kept_bytes)


def best_way(table: Table, device_bytes: int, all_bytes: int) -> TilingWay | None:
    """The way through all operators with the least extra work; None where none keeps to the
    limits.

    Args:
        device_bytes: for the room of each segment, without what lies in blocks.
        all_bytes: for the room and all that is stored by then.
    """
    cuts = 1 + max(end for _, end in table)
    ways: list[list[TilingWay]] = [[TilingWay()], *([] for _ in range(cuts - 1))]
    for j in range(1, cuts):
        reached = [
            way.and_then(choice)
            for i in range(j) for way in ways[i] for choice in table[i, j]
            if choice.room_bytes - choice.blocks_bytes <= device_bytes
            and way.stored_bytes + choice.stored_bytes + choice.room_bytes <= all_bytes
        ]  # fmt: skip
        for way in sorted(reached, key=lambda way: (way.extra_ns, way.stored_bytes)):
            if not ways[j] or way.stored_bytes < ways[j][-1].stored_bytes:
                ways[j].append(way)
    return ways[-1][0] if ways[-1] else None
