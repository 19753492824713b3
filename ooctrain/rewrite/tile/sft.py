"""Segmented fused-tiled execution: which operators are tiled together, along which dimensions.

A step and the bytes that may be used determine the segments and the size of each tensor's tile. An
operator whose input, output and gradient fit *may* be tiled; one for which they do not *must* be.
From each that must, a segment runs on to the first operator behind it that fits and through which
all paths lead; its output is the checkpoint. Within a segment a dimension can be cut if all loops
that it runs into, operator by operator, can be.

Source: paper 003, sections 4.2 and 4.3, listings 3 and 4, repaired: what each listing prints and
why that fails stands in docs/errata.md and runs in `tests/errata/test_errata_003.py`. Read next:
`dimensions.py` (section 4.1), `sft_planner.py`, which runs this.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ooctrain.rewrite.tile.dimensions import DIMENSIONS
from ooctrain.rewrite.tile.operators import Operators, post_dominators
from ooctrain.step.rows import RowsRead, Span, Window
from ooctrain.step.trace import Call


@dataclass(frozen=True, slots=True)
class FtSegment:
    """Operators that run fused and tiled.

    Args:
        start, end: places of the first and the last of them.
        dimensions: those of `DIMENSIONS` along which all of them can be cut.
    """

    start: int
    end: int
    dimensions: tuple[str, ...]


# Listing 3: segments


def need_bytes(operators: Operators, place: int) -> int:
    """What backward through an operator needs at once: input, output, and the output's gradient."""
    call, variables = operators.calls[place], operators.trace.variables
    read = sum(variables[v].nbytes for v in set(call.ins) if operators.flows(v))
    written = sum(variables[v].nbytes for v in call.outs)
    return read + written + variables[call.outs[0]].nbytes


def must_tile(operators: Operators, capacity_bytes: int) -> list[bool]:
    """For each operator whether it cannot run as a whole."""
    return [need_bytes(operators, i) > capacity_bytes for i in range(len(operators.calls))]


def find_segments(operators: Operators, capacity_bytes: int) -> tuple[FtSegment, ...]:
    """The partition of listing 3; operators outside of all segments run as a whole.

    A segment begins at an operator that must be tiled and ends with the first later one that fits
    and lies behind the post dominators of all before it, so that no way leads around it. The
    dominators of its operators then lie in it, or are checkpoints.
    """
    must, behind = must_tile(operators, capacity_bytes), post_dominators(operators)
    found, place, count = [], 0, len(operators.calls)
    while place < count:
        if not must[place]:
            place += 1
            continue
        end = _end_of_segment(place, must, behind)
        found.append(FtSegment(place, end, ft_dimensions(operators, place, end)))
        place = end + 1
    return tuple(found)


def _end_of_segment(start: int, must: Sequence[bool], behind: Sequence[int]) -> int:
    """Lines 7 to 18: the place of the last operator, which fits (or is the last of all)."""
    count, stop = len(must), start + 1
    queue = deque([start])
    while queue:
        place, before = queue.popleft(), stop
        if behind[place] >= stop:
            stop = min(behind[place], count)
            while stop < count and must[stop]:
                stop += 1
            queue.extend(range(before, stop))
    return min(stop, count - 1)


def ft_dimensions(operators: Operators, start: int, end: int) -> tuple[str, ...]:
    """The dimensions along which operators start to end can all be cut (FTdimsIntersect).

    Each dimension of the images that enter is followed from all edges that enter, not from those of
    the first operator alone. What enters without being an image (statistics of channels) binds
    nothing.
    """
    entering = list(_entering_edges(operators, start, end))
    return tuple(
        name
        for dimension, name in enumerate(DIMENSIONS)
        if entering and all(_runs_through(operators, edge, dimension, end) for edge in entering)
    )


def _entering_edges(operators: Operators, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(place of the reader, number of its input) of images that others give to the segment."""
    made = {v for call in operators.calls[start : end + 1] for v in call.outs}
    for place in range(start, end + 1):
        for position, v in enumerate(operators.calls[place].ins):
            is_image = len(operators.trace.variables[v].shape) == len(DIMENSIONS)
            if operators.flows(v) and v not in made and is_image:
                yield place, position


def _runs_through(operators: Operators, edge: tuple[int, int], dimension: int, end: int) -> bool:
    """Lines 29 to 40 for one edge: whether a cut along a dimension goes on up to the end."""
    queue = deque([(*edge, dimension)])
    seen = set(queue)
    while queue:
        place, position, dim = queue.popleft()
        nest = operators.nest(place)
        if nest is None or (position, dim) not in nest.connections():
            return False
        after = nest.connections()[position, dim]
        for reader in (r for r in operators.after[place] if r <= end):
            for at, v in enumerate(operators.calls[reader].ins):
                step = (reader, at, after)
                if v in operators.calls[place].outs[:1] and step not in seen:
                    seen.add(step)
                    queue.append(step)
    return True


# Listing 4: sizes of tiles


def tile_spans_of(
    operators: Operators, segment: FtSegment, outputs: Span, axis: int
) -> dict[int, Span]:
    """{variable: its rows (axis 2) or columns (3) that a tile needs}, so that the last operator can
    write `outputs`.

    Readers are asked from the last to the first; of what they read the union is taken, as intervals
    with their origins, where listing 4 takes the largest of the sizes.
    """
    variables = operators.trace.variables
    needed = dict.fromkeys(operators.calls[segment.end].outs, outputs)
    for place in reversed(range(segment.start, segment.end + 1)):
        call, nest = operators.calls[place], operators.nest(place)
        written = next((needed[v] for v in call.outs if v in needed), None)
        if written is None or nest is None:
            continue
        needed |= dict.fromkeys(call.outs, written)
        for v, tensor in zip(call.ins, nest.ins, strict=True):
            if tensor is None or len(tensor.loops) != len(DIMENSIONS):
                continue
            window = tensor.windows.get(axis, Window())
            rows = RowsRead(window, tensor.gathers)
            read = rows.read(written, variables[v].shape[axis]).inside
            known = needed.get(v, read)
            needed[v] = Span(min(known.lo, read.lo), max(known.hi, read.hi))
    return needed


def gathered_spans(inputs: Span, windows: Sequence[Window], extents: Sequence[int]) -> list[Span]:
    """What a tile of the segment's *input* gradient gathers, layer by layer (figure 7).

    The paper cuts the input, and gathers: the tile's gradient needs rows of the next one's gradient
    that belong to other tiles, and so on; all of these are then computed forward as well. With 4
    tiles of 256 rows through two convolutions and two poolings of 2, 64 rows become 66.

    Args:
        inputs: rows of the tile.
        windows: one for each layer.
        extents: rows of each layer's output.
    """
    found = []
    for window, extent in zip(windows, extents, strict=True):
        inputs = RowsRead(window, gathers=True).read(inputs, extent).inside
        found.append(inputs)
    return found


def chain_of(operators: Operators, segment: FtSegment) -> list[Call] | None:
    """The calls of a segment if each reads the image that the one before writes; else None."""
    calls = list(operators.calls[segment.start : segment.end + 1])
    for i, (one, other) in enumerate(itertools.pairwise(calls)):
        place = segment.start + i
        if operators.after[place] != (place + 1,) or other.ins[0] != one.outs[0]:
            return None
    return calls
