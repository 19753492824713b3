"""Which rows the tiles of a graph run over, if each computes its halo again.

A tile is a share of the rows of everything that others read: of the segment's output forward, of
the gradient of its input and of the sums of weight gradients backward. From there the rows that
each call has to write follow from the last call to the first; where several calls read a tensor,
the union of their rows is made: listing 4, on row rules, so that backward calls take part like
forward ones. Backward, the paper's gather, therefore has a double halo: gradients of the rows that
the tile's own gradient gathers, and forward values of the rows that those read. In exchange each
gradient row is made by one call from all its terms, and has the untiled bits; only weight gradients
are sums over tiles.

Source: paper 003, sections 4.2 and 4.3, listing 4, figure 7. Departure: rows alone are cut; chains
are cut in columns too (`weave.py`). Read next: `banded_calls.py`, which finds the calls, and
`bands.py`, which writes the tiles, and bands that compute no halo twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ooctrain.errors import ConfigError
from ooctrain.rewrite.tile.banded_calls import BandedCalls, banded_calls, row_count
from ooctrain.step.rows import Read, Span
from ooctrain.step.trace import Call, Phase, Trace


def graph_calls(trace: Trace, first: str, last: str) -> BandedCalls:
    """All calls on ways from what `first` reads to `last`, and backward through them.

    Raises:
        ConfigError: one has no row rule, or waits for all rows of another one, as a norm does.
    """
    calls = banded_calls(trace, 1, first, last)
    sums = {v for c in calls.forward if calls.rules[c.id].reduces for v in c.outs}
    waits = [call for call in calls.forward if not sums.isdisjoint((*call.ins, *call.outs))]
    totals = {v for c in calls.backward if calls.rules[c.id].reduces for v in c.outs}
    waits += [call for call in calls.backward if not totals.isdisjoint(call.ins)]
    if waits:
        raise ConfigError(
            f"{waits[0].name!r} needs all rows of an image at once, and no tile that computes its "
            "halo again has them",
            code="OOC-113",
            fix="bands:16 in place of tile:16x1: bands wait for each other; or freeze the norm",
        )
    return calls


def is_graph(trace: Trace, calls: Iterable[Call]) -> bool:
    """Whether some call reads an image that another one than the one before it has written."""
    for one, other in pairwise(calls):
        readers = [r for r in trace.readers[one.outs[0]] if trace.calls[r].phase != "backward"]
        if readers != [other.id] or other.ins[0] != one.outs[0]:
            return True
    return False


def rows_computed(
    trace: Trace, calls: BandedCalls, tiles: int
) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """How many times its rows each call computes: {call: forward}, and what backward runs."""
    rows = RowTiles(trace, calls, tiles)
    found: list[dict[int, float]] = []
    for phase in ("forward", "backward"):
        total: dict[int, float] = {}
        for tile in range(tiles):
            for call, span in rows.of(phase, tile).items():
                share = span.extent / rows.untiled(trace.calls[call])
                total[call] = total.get(call, 0.0) + share
        found.append(total)
    return found[0], found[1]


@dataclass(slots=True)
class _Demand:
    """Rows of tensors that one tile reads: {variable: rows}."""

    rows: dict[int, Span] = field(default_factory=dict)

    def add(self, v: int, rows: Span) -> None:
        """Of what several read, the union."""
        known = self.rows.get(v, rows)
        self.rows[v] = Span(min(known.lo, rows.lo), max(known.hi, rows.hi))


@dataclass(frozen=True, slots=True)
class RowTiles:
    """The tiles of an image: even shares of the rows of each tensor that others read.

    Args:
        calls: of `graph_calls`.
        tiles: how many.
    """

    trace: Trace
    calls: BandedCalls
    tiles: int

    @property
    def stored(self) -> frozenset[int]:
        """Forward results that exist as wholes, so that backward computes none of them again."""
        made = (v for call in self.calls.forward for v in call.outs)
        return self.calls.handed_out.intersection(made)

    def of(self, phase: Phase, tile: int) -> dict[int, Span]:
        """{call of a pass: rows that it runs over for one tile}; backward begins with forward calls
        whose results it reads.
        """
        stored = self.stored if phase == "backward" else frozenset[int]()
        demand, found = _Demand(), dict[int, Span]()
        for call in reversed(self._calls(phase)):
            if self.calls.rules[call.id].reduces:
                rows = self._share(self.untiled(call), tile)
                reads = self.calls.reads(self.trace, call, rows)
                if not rows.extent or any(read and not read.inside.extent for read in reads):
                    continue  # nothing but padding adds nothing
            else:
                outs = [v for v in call.outs if v not in stored]
                for v in self.calls.handed_out.intersection(outs):
                    if (own := self._share(row_count(self.trace, v), tile)).extent:
                        demand.add(v, own)
                asked = [demand.rows[v] for v in outs if v in demand.rows]
                if not asked:
                    continue
                rows = Span(min(a.lo for a in asked), max(a.hi for a in asked))
                rows, reads = self._that_read(call, rows)
            found[call.id] = rows
            for v, read in zip(call.ins, reads, strict=True):
                if read is not None:
                    demand.add(v, read.inside)
        return found

    def untiled(self, call: Call) -> int:
        """Over how many rows a call runs untiled: of its output, or of the last that it sums."""
        rule = self.calls.rules[call.id]
        if not rule.reduces:
            return row_count(self.trace, call.outs[0])
        images = [v for v, read in zip(call.ins, rule.reads, strict=True) if read is not None]
        return row_count(self.trace, images[-1])

    def _calls(self, phase: Phase) -> Sequence[Call]:
        forward = self.calls.forward
        return forward if phase == "forward" else (*forward, *self.calls.backward)

    def _share(self, extent: int, tile: int) -> Span:
        """Rows of a tile, in the same place of each tensor; none in some tiles of short ones."""
        return Span(extent * tile // self.tiles, extent * (tile + 1) // self.tiles)

    def _that_read(self, call: Call, rows: Span) -> tuple[Span, list[Read | None]]:
        """These rows, and if they read nothing but padding, more around them, so that something is
        read: no kernel runs on zero rows.
        """
        most = self.untiled(call)
        while any(
            read and not read.inside.extent for read in self.calls.reads(self.trace, call, rows)
        ):
            if (rows.lo, rows.hi) == (0, most):
                raise ConfigError(
                    f"{call.name!r} reads nothing but padding", code="OOC-113",
                    fix="end the segment before it",
                )  # fmt: skip
            rows = Span(max(rows.lo - 1, 0), min(rows.hi + 1, most))
        return rows, self.calls.reads(self.trace, call, rows)
