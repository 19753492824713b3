"""What each way to run a segment of a network costs: in bands, in tiles, or as it is.

A network is cut where a single small tensor leads across. For each two cuts this file says in which
ways the operators between them can run, and of each way three numbers: what it computes more than
they do untiled, what it stores between the passes, and the room that it needs besides while it runs
backward. They are estimates from shapes and times; nothing is written out for them. Bands keep
their halos and run image after image; tiles compute theirs again.

Source: ours; what a halo costs is paper 003's section 4.3 for tiles that compute it again, and
docs/tiling.md for bands that keep it. Read next: `choose.py`, which finds the best way through all
segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from ooctrain.rewrite.tile.dimensions import DIMENSIONS
from ooctrain.rewrite.tile.offers import OperatorTimes
from ooctrain.rewrite.tile.operators import Operators
from ooctrain.rewrite.tile.sft import FtSegment, chain_of
from ooctrain.rewrite.tile.sft_planner import tile_bytes, tiled_ratios
from ooctrain.step.machine import MINIMUM_CALL_NS, Machine, specs_of
from ooctrain.step.op import can_be_tiled, row_rule_of

#: Bands of a segment's input; tiles in H and in W of its output.
BANDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GRIDS = (2, 4, 8, 16, 32)
#: No segment becomes more calls than this: planning them must not take longer than a step.
MOST_CALLS = 40_000
#: Copies of kept rows next to own rows, as a share of the forward calls (docs/tiling.md).
COPIES = 0.06
#: A network is cut where its tensors are small, at this many places at most.
MOST_CUTS = 12


@dataclass(frozen=True, slots=True)
class SegmentChoice:
    """A way to run the operators from one cut to the next.

    Args:
        name: name of the tiling; "": as they are.
        extra_ns: what it computes more than these operators do untiled.
        stored_bytes: what lies there from the forward pass to the backward one.
        room_bytes: what it needs besides, while it runs backward.
        kept_bytes: part of what is stored: rows that bands keep for each other.
        once_ns: what it computes more if its forward calls run once.
        once_bytes: what then lies there between the passes.
        late_ns: by how much that takes longer to move than to compute, in both passes.
        blocks_bytes: part of the room: gradients at borders, which lie in blocks: on either side.
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
        call_ns: time of a call, however small it is.
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


#: For each two cuts all ways to run what lies between them.
Table = dict[tuple[int, int], list[SegmentChoice]]


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
        for i, j in combinations(range(len(cuts)), 2)
    }
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
    stored = sum(stored_bytes(operators, place) for place in places)
    return SegmentChoice("", 0.0, stored, max(room_bytes(operators, place) for place in places))


def stored_bytes(operators: Operators, place: int) -> int:
    """What backward reads of an operator's outputs, or a later operator in place of it."""
    trace, call = operators.trace, operators.calls[place]
    return sum(
        trace.variables[v].nbytes for v in call.outs
        if v not in trace.taker and any(trace.calls[r].phase != "forward" for r in trace.readers[v])
    )  # fmt: skip


def room_bytes(operators: Operators, place: int) -> int:
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
    made = sum(stored_bytes(operators, place) for place in places)
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
    return can_be_tiled(call.op) and _is_image(operators, call.ins[0])


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
