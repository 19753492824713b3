"""Which rows of which tensor exist while bands run, and how a call gets the rows that it reads.

For a tensor, an image and a span of rows this file finds a value that holds the rows, and their
place in it. Rows are held in parts: the band's own, those kept for it, or a whole tensor. A call
reads a view of one part, or views of several (`on_rows.py`). Read next: `bands.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from ooctrain.errors import ConfigError
from ooctrain.layers.combine import Concat
from ooctrain.layers.regions import Slice
from ooctrain.rewrite.tile.banded_calls import row_count
from ooctrain.rewrite.tile.halo import row_axis, start_of, with_rows
from ooctrain.rewrite.tile.on_rows import View
from ooctrain.rewrite.tile.writer import TileCall, TraceWriter, Value
from ooctrain.step.op import Op, Spec
from ooctrain.step.rows import Span
from ooctrain.step.trace import ITEM_BYTES, Phase, Trace

#: a value, and the rows of it; None: all of it
Source = tuple[Value, View | None]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one image of a tensor, and the value that holds them, from its first row on.

    Args:
        image: image of the value; only a tensor that exists as a whole has more than image 0.
    """

    rows: Span
    value: Value
    image: int = 0


@dataclass(slots=True)
class BandPass:
    """What one pass over the bands has made so far.

    Args:
        phase: phase of its calls.
        mark: part of the names of what is made once more.
        steps: its calls.
        parts: {tensor: rows of it that the band at work can read}.
        kept: {band: {tensor: its rows that this band gets from those that ran before}}.
        made: {image: {tensor: all its bands}}.
        wholes: {tensor: the whole that its bands go into}, where a call outside reads it.
        totals: {gradient: its sum over the bands so far}.
        by_call: {(call, band): its step}.
        level: level of the calls through which bands run now (`carried_totals.py`).
        finished: tensors of earlier levels.
        states: {call that sums over all rows: its state so far}.
        vectors: {(vectors of all images, image): those of one}.
        whole: tensors of the calls that exist as wholes, made by another pass.
    """

    phase: Phase
    mark: str = ""
    steps: list[TileCall] = field(default_factory=list)
    parts: dict[int, list[Part]] = field(default_factory=dict)
    kept: dict[int, dict[int, Part]] = field(default_factory=dict)
    made: dict[int, dict[int, list[Part]]] = field(default_factory=dict)
    wholes: dict[int, Value] = field(default_factory=dict)
    totals: dict[int, Value] = field(default_factory=dict)
    by_call: dict[tuple[int, int], TileCall] = field(default_factory=dict)
    level: int = 0
    finished: set[int] = field(default_factory=set)
    states: dict[int, Value] = field(default_factory=dict)
    vectors: dict[tuple[int, int], Value] = field(default_factory=dict)
    whole: Collection[int] = ()

    @property
    def results(self) -> dict[int, Value]:
        """What others read of it."""
        return self.wholes | self.totals

    @property
    def cut_mark(self) -> str:
        """Part of the names of what is cut out of tensors, as each level may cut again."""
        return self.mark or (f".{self.level}" if self.level else "")

    def begin(self, band: int, image: int) -> None:
        """A band that has nothing yet but what was kept for it, and what earlier levels made."""
        kept = self.kept.get(band, {}).items()
        self.parts = {v: [part] for v, part in kept if v not in self.finished}
        made = self.made.get(image, {}).items()
        self.parts |= {v: list(parts) for v, parts in made if v in self.finished}

    def write(self, name: str, op: Op, ins: tuple[Value, ...], out: Value) -> Value:
        """Adds a step with one output."""
        self.steps.append(TileCall(name, op, ins, (out,), self.phase))
        return out


class BandRows:
    """The rows of a trace's tensors.

    Args:
        inner: tensors that exist in bands; all others are there as a whole.
        images: how many a batch has.
    """

    def __init__(
        self, trace: Trace, writer: TraceWriter, inner: Collection[int], images: int
    ) -> None:
        self.trace, self.writer, self.inner, self.images = trace, writer, inner, images

    def keep(self, run: BandPass, v: int, image: int, rows: Span, band: int) -> None:
        """Cuts rows out for another band of the same image."""
        if rows.extent:
            part = Part(rows, self._cut(run, v, image, rows, "kept"))
            run.kept.setdefault(band, {})[v] = part

    def source(
        self, run: BandPass, v: int, image: int, rows: Span, in_pieces: bool = False
    ) -> list[Source]:
        """Values that hold rows of a tensor, one below the other: one value, unless they may lie
        `in_pieces`.
        """
        for part in self._parts(run, v, image):
            within = part.rows.lo <= rows.lo and rows.hi <= part.rows.hi
            if within and self._can_be_viewed(v, part, rows):
                return [_view(part, rows)]
        if in_pieces:
            return [_view(part, piece) for part, piece in self._covering(run, v, image, rows)]
        joined = Part(rows, self._cut(run, v, image, rows, "read"))
        run.parts[v] = [*run.parts.get(v, []), joined]
        return [(joined.value, None)]

    def of_image(self, run: BandPass, v: int, image: int) -> Value:
        """What belongs to one image of vectors (N, C) or (N, C, 1, 1)."""
        whole = self.writer.value_of(v)
        n, *rest = whole.spec.shape
        if n == 1:
            return whole
        if (v, image) not in run.vectors:
            place = f"{run.cut_mark}[n {image}]"
            out = Value(f"{whole.name}{place}", Spec((1, *rest), whole.spec.dtype), whole.kind)
            op = Slice((n, *rest), (image, *(0 for _ in rest)), (1, *rest))
            run.vectors[v, image] = run.write(f"{whole.name}.slice{place}", op, (whole,), out)
        return run.vectors[v, image]

    def in_whole_groups(self, variables: Iterable[int]) -> bool:
        """Whether each row of these images begins where a device's kernels can begin: a GPU's want
        whole groups of four elements.
        """
        shapes = [self.trace.variables[v].shape for v in variables]
        of_row = (math.prod(with_rows(shape, 1)) for shape in shapes)
        return self.trace.device == "cpu" or all(elements % 4 == 0 for elements in of_row)

    def _can_be_viewed(self, v: int, part: Part, rows: Span) -> bool:
        return (
            _view(part, rows)[1] is None
            or self.in_whole_groups([v])
            or (rows.lo - part.rows.lo) * self.spec(v, Span(0, 1)).size % 4 == 0
        )

    def _parts(self, run: BandPass, v: int, image: int) -> list[Part]:
        """What holds rows of a tensor now, in the order of their first rows."""
        if v in self.inner and v not in run.whole:
            return sorted(run.parts[v], key=_first_row)
        whole = Part(Span(0, row_count(self.trace, v)), self.writer.value_of(v), image)
        return [*run.parts.get(v, []), whole]

    def _cut(self, run: BandPass, v: int, image: int, rows: Span, label: str) -> Value:
        """Rows of a tensor as a value of their own: a slice of a part, or several joined."""
        pieces = [
            self._slice(run, v, image, part, piece, label)
            for part, piece in self._covering(run, v, image, rows)
        ]
        if len(pieces) == 1:
            return pieces[0]
        self._check_copies(v)
        place = self.label(image, rows)
        out = self.value(v, f"{run.cut_mark}.{label}{place}", self.spec(v, rows))
        name = f"{self.trace.variables[v].name}.join{run.cut_mark}{place}"
        return run.write(name, Concat(row_axis(out.spec.shape)), tuple(pieces), out)

    def _covering(
        self, run: BandPass, v: int, image: int, rows: Span
    ) -> Iterator[tuple[Part, Span]]:
        """Parts that hold rows of a tensor, and the rows that are taken from each: of several that
        hold a row the one that begins last, so that kept rows come from where they were kept.
        """
        start = rows.lo
        while start < rows.hi:
            holding = [p for p in self._parts(run, v, image) if p.rows.lo <= start < p.rows.hi]
            assert holding, f"rows {start}:{rows.hi} of {self.trace.variables[v].name!r}"
            part = max(holding, key=_first_row)
            yield part, Span(start, min(rows.hi, part.rows.hi))
            start = min(rows.hi, part.rows.hi)

    def _slice(
        self, run: BandPass, v: int, image: int, part: Part, rows: Span, label: str
    ) -> Value:
        shape = part.value.spec.shape
        if rows == part.rows and shape[0] == 1:
            return part.value
        self._check_copies(v)
        place = self.label(image, rows)
        out = self.value(v, f"{run.cut_mark}.{label}{place}", self.spec(v, rows))
        op = Slice(shape, start_of(shape, part.image, rows.lo - part.rows.lo), out.spec.shape)
        name = f"{self.trace.variables[v].name}.slice{run.cut_mark}{place}"
        return run.write(name, op, (part.value,), out)

    def _check_copies(self, v: int) -> None:
        """Raises ConfigError: a GPU copies words of four bytes, and a pixel of this has others."""
        old = self.trace.variables[v]
        pixel_bytes = math.prod(old.shape[1 : row_axis(old.shape)]) * ITEM_BYTES[old.dtype]
        if self.trace.device == "cuda" and pixel_bytes % 4:
            raise ConfigError(
                f"rows of {old.name!r} cannot be copied on a GPU: a pixel has {pixel_bytes} bytes",
                code="OOC-113",
                fix="a multiple of 4 channels, windows that do not overlap, or a shorter segment",
            )

    def spec(self, v: int, rows: Span) -> Spec:
        """Shape and type of some rows of one image of a tensor."""
        whole = self.trace.variables[v]
        return Spec(with_rows(whole.shape, rows.extent), whole.dtype)

    def label(self, image: int, rows: Span) -> str:
        """As in names: "[h 4:9]", of several images "[n 1, h 4:9]"."""
        return f"[h {rows}]" if self.images == 1 else f"[n {image}, h {rows}]"

    def value(self, v: int, mark: str, spec: Spec) -> Value:
        """A value named after a tensor; what is cut out of an input is not an input."""
        old = self.trace.variables[v]
        kind = "activation" if old.kind == "input" else old.kind
        return Value(f"{old.name}{mark}", spec, kind)


def _view(part: Part, rows: Span) -> Source:
    """Rows of a part."""
    if part.rows == rows and part.value.spec.shape[0] == 1:
        return part.value, None
    return part.value, (part.image, rows.lo - part.rows.lo, rows.hi - part.rows.lo)


def _first_row(part: Part) -> int:
    return part.rows.lo
