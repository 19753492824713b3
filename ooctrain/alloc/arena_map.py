"""The map of an arena: the place of each block, as one line of text.

An allocator's `snapshot()` becomes pieces in the order of their bytes, and a line that draws them.
The arena is a strip: each character of the line stands for a fixed number of bytes, and the few
largest blocks have a letter each. So an out-of-memory error shows at a glance whether the arena is
full or fragmented. For virtual addressing the strip is the physical memory, in which a block may
lie in many pieces. Read next: `../report/arena.py`, the same as a picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from ooctrain.step.shown import html_of, svg_of
from ooctrain.units import format_bytes

Snapshot = Mapping[str, Any]
LINE_WIDTH, LETTERS = 64, "ABCDE"
_OTHER, _HOLE, _END = "#", ".", " "


class ArenaSnapshot(dict[str, Any]):
    """An allocator's layout as plain data, which shows itself as a map of the arena."""

    def __repr__(self) -> str:
        blocks = len(self["blocks"])
        size = format_bytes(self["budget"])
        head = f"ArenaSnapshot({self['allocator']}, {blocks} block{'s' * (blocks != 1)}, {size})"
        return f"{head}\n{arena_text(self)}"

    def _repr_html_(self) -> str:
        return html_of(self)

    def _repr_svg_(self) -> str:
        return svg_of(self)


@dataclass(frozen=True, slots=True)
class ArenaPiece:
    """A piece of the arena.

    Args:
        lo, hi: bytes [lo, hi) of it.
        kind: "block"; "hole": free, but lower than something live; "end": free from there on.
        block: id of the block that has it, or 0.
        tag: name of its content.
    """

    lo: int
    hi: int
    kind: Literal["block", "hole", "end"]
    block: int = 0
    tag: str = ""


def pieces_of(snapshot: Snapshot) -> list[ArenaPiece]:
    """The arena from its first byte to its last.

    An allocator whose snapshot says neither where its arena begins ("base"), nor which chunks it
    uses ("chunks"), nor which "segments" it has, has no physical layout: its blocks
    are drawn one behind the other.
    """
    live = sorted(_live(snapshot), key=lambda piece: piece.lo)
    found: list[ArenaPiece] = []
    end = 0
    for piece in live:
        if end < piece.lo:
            found.append(ArenaPiece(end, piece.lo, "hole"))
        found.append(piece)
        end = piece.hi
    if end < snapshot["budget"]:
        found.append(ArenaPiece(end, snapshot["budget"], "end"))
    return found


def largest_holders(snapshot: Snapshot) -> dict[int, tuple[str, str, int]]:
    """{id of a block: (letter, tag, granted bytes)} of those that hold most."""
    blocks = sorted(snapshot["blocks"], key=lambda b: (-b["granted"], b["id"]))
    return {
        b["id"]: (letter, b["tag"] or f"block {b['id']}", b["granted"])
        for letter, b in zip(LETTERS, blocks, strict=False)
        if b["granted"]
    }


def arena_line(snapshot: Snapshot, width: int = LINE_WIDTH) -> str:
    """The arena in `width` characters; each shows what most of its bytes are.

    A letter is one of the largest holders, "#" another block, "." a hole, " " the free end.
    """
    letters = {block: letter for block, (letter, _, _) in largest_holders(snapshot).items()}
    budget, pieces = snapshot["budget"], pieces_of(snapshot)
    line, first = "", 0
    for cell in range(width):
        lo, hi = budget * cell // width, budget * (cell + 1) // width
        while first + 1 < len(pieces) and pieces[first].hi <= lo:
            first += 1
        share: dict[str, int] = {}
        for piece in pieces[first:]:
            if piece.lo >= hi:
                break
            sign = _sign(piece, letters)
            share[sign] = share.get(sign, 0) + min(hi, piece.hi) - max(lo, piece.lo)
        line += max(share, key=lambda sign: share[sign]) if share else _END
    return line


def arena_text(snapshot: Snapshot, width: int = LINE_WIDTH) -> str:
    """The line between bars, and below it what the letters mean and the sum of the holes."""
    holders = largest_holders(snapshot)
    names = [f"{letter} {tag} {format_bytes(size)}" for letter, tag, size in holders.values()]
    others = [b for b in snapshot["blocks"] if b["granted"] and b["id"] not in holders]
    if others:
        size = sum(b["granted"] for b in others)
        names.append(f"{_OTHER} {len(others)} others {format_bytes(size)}")
    pieces = pieces_of(snapshot)
    holes = [p.hi - p.lo for p in pieces if p.kind == "hole"]
    if holes:
        largest = format_bytes(max(holes))
        count = f"{len(holes)} hole{'s' * (len(holes) > 1)}"
        names.append(f"{_HOLE} {count} of {format_bytes(sum(holes))}, the largest {largest}")
    end = sum(p.hi - p.lo for p in pieces if p.kind == "end")
    names.append(f"free at the end {format_bytes(end)}")
    return f"|{arena_line(snapshot, width)}|\n" + ", ".join(names)


def _live(snapshot: Snapshot) -> Iterator[ArenaPiece]:
    tags = {b["id"]: b["tag"] for b in snapshot["blocks"]}
    if "chunks" in snapshot:
        size = snapshot["chunk"]
        for key, runs in snapshot["chunks"].items():
            for chunk, count in _joined(runs):
                lo = chunk * size
                yield ArenaPiece(lo, lo + count * size, "block", int(key), tags[int(key)])
        return
    if "segments" in snapshot:
        yield from _in_segments(snapshot)
        return
    end = 0
    for block in sorted(snapshot["blocks"], key=lambda b: b["address"]):
        lo = block["address"] - snapshot["base"] if "base" in snapshot else end
        end = lo + block["granted"]
        if block["granted"]:
            yield ArenaPiece(lo, end, "block", block["id"], block["tag"])


def _in_segments(snapshot: Snapshot) -> Iterator[ArenaPiece]:
    """The blocks of segments that are drawn one behind the other, in the order of their making."""
    start = 0
    for address, size, _ in snapshot["segments"]:
        for block in snapshot["blocks"]:
            lo = start + block["address"] - address
            if address <= block["address"] < address + size:
                yield ArenaPiece(lo, lo + block["granted"], "block", block["id"], block["tag"])
        start += size


def _joined(runs: list[list[int]]) -> Iterator[tuple[int, int]]:
    """(first chunk, count) of [slot, slot behind, chunk] entries, neighbours made one."""
    chunks = sorted(c + i for lo, hi, c in runs if c >= 0 for i in range(hi - lo))
    for _, group in groupby(enumerate(chunks), key=lambda pair: pair[1] - pair[0]):
        found = [chunk for _, chunk in group]
        yield found[0], len(found)


def _sign(piece: ArenaPiece, letters: Mapping[int, str]) -> str:
    if piece.kind == "block":
        return letters.get(piece.block, _OTHER)
    return _HOLE if piece.kind == "hole" else _END
