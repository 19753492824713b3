"""Which segments of a network run in bands or tiles, of which height, and with which kind of halo.

From a step and the times of its calls this file makes offers, each the least work under one limit
of memory, by dynamic programming over the places where a network can be cut. A state at a cut holds
what the segments before it have stored. The next segment adds what it stores, needs its own room
while it runs backward, and costs what it computes twice. A way to a cut that stores more and costs
more than another is dropped. Limits of memory run down in steps, so there are offers above and
below a given budget: planners that swap need less than an offer says.

Source: ours; what a halo costs is paper 003's section 4.3 for tiles that compute it again, and
docs/tiling.md for bands that keep it. Read next: `banded.py`, which plans what is offered here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ooctrain.rewrite.tile.dimensions import DIMENSIONS
from ooctrain.rewrite.tile.offers import Moves, Offer, OperatorTimes
from ooctrain.rewrite.tile.operators import Operators
from ooctrain.rewrite.tile.rule_of_call import row_rule_of
from ooctrain.rewrite.tile.rules import rule_of
from ooctrain.rewrite.tile.sft import FtSegment, chain_of
from ooctrain.rewrite.tile.sft_planner import tile_bytes, tiled_ratios
from ooctrain.sched.budget import lasting_bytes
from ooctrain.step.machine import MINIMUM_CALL_NS, Machine, specs_of
from ooctrain.units import format_bytes

#: Bands of a segment's input; tiles in H and in W of its output.
BANDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GRIDS = (2, 4, 8, 16, 32)
#: No segment becomes more calls than this: planning them must not take longer than a step.
MOST_CALLS = 40_000
#: Limits of memory: the untiled step's need, times this again and again.
STEP, STEPS, STEPS_UP = 2**-0.5, 24, 9
#: Copies of kept rows beside own rows, as a share of the forward calls (docs/tiling.md).
COPIES = 0.06
#: A network is cut where its tensors are small, at this many places at most.
MOST_CUTS = 12


@dataclass(frozen=True, slots=True)
class SegmentChoice:
    """A way to run the operators from one cut to the next.

    Args:
        name: of the tiling; "": as they are.
        extra_ns: what it computes more than these operators do untiled.
        stored_bytes: what lies there from the forward pass to the backward one.
        room_bytes: what it needs besides, while it runs backward.
        kept_bytes: of what is stored, rows that bands keep for each other.
        once_ns: what it computes more if its forward calls run once.
        once_bytes: what then lies there between the passes.
        late_ns: by how much that takes longer to move than to compute, in both passes.
        blocks_bytes: of the room, gradients at borders, which lie in blocks: on either side.
    """

    name: str
    extra_ns: float
    stored_bytes: int
    room_bytes: int
    kept_bytes: int = 0
    once_ns: float = 0.0
    once_bytes: int = 0
    late_ns: float = 0.0
    blocks_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Costs:
    """What small calls and moved bytes cost on a machine.

    Args:
        call_ns: that a call takes, be it ever so small.
        byte_ns: to move a byte over the link.
    """

    call_ns: int
    byte_ns: float

    @classmethod
    def of(cls, machine: Machine) -> Costs:
        """Those of a machine."""
        least = max(round(machine.call_overhead_us * 1000), MINIMUM_CALL_NS)
        return cls(least, 1000 / machine.in_bytes_per_us)

    def moved_ns(self, size_bytes: int) -> float:
        """The time to move some bytes."""
        return size_bytes * self.byte_ns


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


Table = dict[tuple[int, int], list[SegmentChoice]]
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
    movable = {
        ends: [moved for choice in choices if (moved := _moved(choice))]
        for ends, choices in table.items()
    }
    lean = {
        ends: [replace(choice, stored_bytes=0) for choice in choices]
        for ends, choices in table.items()
    }
    kinds: tuple[tuple[Moves, Table], ...] = (
        ("nothing", table),
        ("borders", lean),
        ("all", movable),
    )
    lasting, places = lasting_bytes(operators.trace), range(len(operators.calls))
    most = lasting + sum(_stored_bytes(operators, i) for i in places)
    if not any(call.phase == "backward" for call in operators.trace.calls):
        # An evaluation stores nothing; what its calls need one by one is all that it has.
        most = lasting + max((_room_bytes(operators, i) for i in places), default=0)
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


# Where a network can be cut


def cuts_of(operators: Operators) -> list[int]:
    """Places before which segments may begin: nothing but one tensor leads across. Both ends, and
    of the others those with the smallest tensors.
    """
    count = len(operators.calls)
    inner = [
        place for place in range(1, count)
        if all(max(after, default=-1) <= place for after in operators.after[: place - 1])
        and operators.after[place - 1] and not any(operators.leaves[:place])
    ]  # fmt: skip
    variables = operators.trace.variables

    def crossing_bytes(place: int) -> tuple[int, int]:
        return variables[operators.calls[place - 1].outs[0]].nbytes, -place

    # Behind an activation its tensor is as large as before it: cut there, so that both stay in one.
    last_of_size = [
        p for p in inner
        if p + 1 not in inner or crossing_bytes(p)[0] != crossing_bytes(p + 1)[0]
    ]  # fmt: skip
    return [0, *sorted(sorted(last_of_size, key=crossing_bytes)[:MOST_CUTS]), count]


# What a way to run a segment costs


def choices_of(operators: Operators, times: OperatorTimes, machine: Machine) -> Table:
    """For each two cuts all ways to run what lies between them."""
    costs, cuts = Costs.of(machine), cuts_of(operators)
    table = {
        (i, j): _choices(operators, times, (cuts[i], cuts[j] - 1), costs)
        for i in range(len(cuts)) for j in range(i + 1, len(cuts))
    }  # fmt: skip
    for i in range(len(cuts) - 1):
        table[i, i + 1].append(_as_they_are(operators, (cuts[i], cuts[i + 1] - 1)))
    return table


def _choices(
    operators: Operators, times: OperatorTimes, ends: tuple[int, int], costs: Costs
) -> list[SegmentChoice]:
    """All ways to run the operators from the first to the last place fused and tiled."""
    segment = FtSegment(*ends, ())
    found: list[SegmentChoice] = []
    if not operators.nameable(*ends):
        return found
    if _has_row_rules(operators, ends):
        found += _bands(operators, times, ends, costs)
    tileable = all(_is_tileable(operators, place) for place in range(ends[0], ends[1] + 1))
    if tileable and chain_of(operators, segment) is not None:
        found += _tiles(operators, times, segment, costs)
    return found


def _as_they_are(operators: Operators, ends: tuple[int, int]) -> SegmentChoice:
    places = range(ends[0], ends[1] + 1)
    stored = sum(_stored_bytes(operators, place) for place in places)
    return SegmentChoice("", 0.0, stored, max(_room_bytes(operators, place) for place in places))


def _stored_bytes(operators: Operators, place: int) -> int:
    """What backward reads of an operator's outputs, or a later operator in place of it."""
    trace, call = operators.trace, operators.calls[place]
    return sum(
        trace.variables[v].nbytes for v in call.outs
        if v not in trace.taker and any(trace.calls[r].phase != "forward" for r in trace.readers[v])
    )  # fmt: skip


def _room_bytes(operators: Operators, place: int) -> int:
    """Both gradients of an operator, and its scratch memory."""
    trace, call = operators.trace, operators.calls[place]
    images = [v for v in (*call.ins, call.outs[0]) if operators.flows(v)]
    return sum(trace.variables[v].nbytes for v in images) + call.workspace_bytes


def _borders_bytes(operators: Operators, ends: tuple[int, int]) -> tuple[int, int]:
    """(stored, room): the output of a segment; its gradient, and the input's where there is one."""
    trace = operators.trace
    source, target = operators.calls[ends[0]].ins[0], operators.calls[ends[1]].outs[0]
    is_image = trace.variables[source].kind == "input"
    room = trace.variables[target].nbytes + (0 if is_image else trace.variables[source].nbytes)
    return trace.variables[target].nbytes, room


def _bands(
    operators: Operators, times: OperatorTimes, ends: tuple[int, int], costs: Costs
) -> Iterator[SegmentChoice]:
    """Bands of whole rows, image after image; forward runs twice, no halo does."""
    variables = operators.trace.variables
    calls = operators.calls[ends[0] : ends[1] + 1]
    images, _, rows, _ = variables[calls[0].ins[0]].shape
    stored, room = _borders_bytes(operators, ends)
    kept_bytes = sum(_kept_bytes(operators, p) for p in range(ends[0], ends[1] + 1))
    each = [sum(variables[v].nbytes for v in call.outs if v not in call.reuse) for call in calls]
    places = range(ends[0], ends[1] + 1)
    made = sum(_stored_bytes(operators, place) for place in places)
    forward, backward = (
        sum(ns[place] for place in places) for ns in (times.forward, times.backward)
    )
    for bands in BANDS:
        parts = bands * images
        if parts == 1 or bands > rows or 3 * parts * len(calls) > MOST_CALLS:
            continue
        # A band is as high as its share, plus the rows that a skew of halos pushes into it.
        band = sum(each) // parts + kept_bytes // images
        gradients = 2 * max(each) // parts + kept_bytes // images
        small = sum(
            max(parts * costs.call_ns - ns, 0)
            for place in places
            for ns in (times.forward[place], times.forward[place], times.backward[place])
        )
        kept = (bands - 1) * kept_bytes
        moved = costs.moved_ns(made + kept)
        name = f"bands_again:{bands}:{calls[0].name}:{calls[-1].name}"
        yield SegmentChoice(
            name, forward + small, stored + kept, room + band + gradients, kept,
            COPIES * forward + small + costs.moved_ns(stored + room), made + kept,
            max(moved - forward, 0) + max(moved - backward, 0), room,
        )  # fmt: skip


def _kept_bytes(operators: Operators, place: int) -> int:
    """Rows of what an operator reads that two neighbouring bands both need, of all images."""
    call, variables = operators.calls[place], operators.trace.variables
    rule = row_rule_of(call.op, specs_of(operators.trace, call.ins))
    found = 0
    for read, v in zip(rule.reads if rule else (), call.ins, strict=True):
        if read is not None:
            found += variables[v].nbytes * read.overlap // max(variables[v].shape[2], 1)
    return found


def _tiles(
    operators: Operators, times: OperatorTimes, segment: FtSegment, costs: Costs
) -> Iterator[SegmentChoice]:
    """Tiles that compute their halos again, in all three passes."""
    variables = operators.trace.variables
    calls = operators.calls[segment.start : segment.end + 1]
    extents = variables[calls[-1].outs[0]].shape[2:]
    stored, room = _borders_bytes(operators, (segment.start, segment.end))
    for tiles in GRIDS:
        if min(extents) < tiles or 3 * tiles**2 * len(calls) > MOST_CALLS:
            continue
        rows, columns = tiled_ratios(operators, segment, (tiles, tiles))
        extra = 0.0
        for place, r, c in zip(range(segment.start, segment.end + 1), rows, columns, strict=True):
            forward, backward = times.forward[place], times.backward[place]
            least = tiles**2 * costs.call_ns
            more = [max(ns * r * c, least) for ns in (forward, forward, backward)]
            extra += sum(more) - forward - backward
        size = tile_bytes(operators, segment, (tiles, tiles))
        name = f"tile:{tiles}x{tiles}:{calls[0].name}:{calls[-1].name}"
        yield SegmentChoice(name, extra, stored, room + size)


def _is_tileable(operators: Operators, place: int) -> bool:
    call = operators.calls[place]
    return rule_of(call.op) is not None and _is_image(operators, call.ins[0])


def _is_image(operators: Operators, variable: int) -> bool:
    return len(operators.trace.variables[variable].shape) == len(DIMENSIONS)


def _has_row_rules(operators: Operators, ends: tuple[int, int]) -> bool:
    """Whether all calls of a segment, backward ones too, can run in bands."""
    trace = operators.trace
    forward = {call.id for call in operators.calls[ends[0] : ends[1] + 1]}
    calls = [c for c in trace.calls if c.id in forward or c.forward_of in forward]
    return all(row_rule_of(c.op, specs_of(trace, c.ins)) is not None for c in calls)


def without_rule(operators: Operators) -> Sequence[str]:
    """Names of forward calls that no bands can contain."""
    return [
        call.name
        for place, call in enumerate(operators.calls)
        if not _has_row_rules(operators, (place, place))
    ]
