"""The arena as a picture: which block lies where, in the terminal and as SVG.

Snapshots of allocators become coloured text, or the text of an SVG file without scripts or fonts of
its own. Arenas drawn one below the other on the same scale make allocators comparable: one has
holes (red) between its blocks where another has all free memory at the end. The largest holders
have a colour and a letter, the same in all rows; all others are grey. Read next:
`../alloc/arena_map.py`, which finds the pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape

from ooctrain.alloc.arena_map import (
    LETTERS,
    ArenaPiece,
    Snapshot,
    pieces_of,
)
from ooctrain.report import shapes
from ooctrain.report.shapes import WIDTH, box, document, words
from ooctrain.units import format_bytes

COLOURS = shapes.COLOURS[:5]
OTHER, HOLE, END = "#8d8d8d", "#f6c9c4", shapes.EMPTY
STRIP_HEIGHT, ROW_HEIGHT = 34, 76
MARGIN, RIGHT, _LETTER_WIDTH = 16, 16, 9


def arena_svg(snapshots: Mapping[str, Snapshot]) -> str:
    """Arenas under each other, in one scale.

    Args:
        snapshots: {title: what an allocator's `snapshot()` says}, from top to bottom.

    Returns:
        The text of an SVG file.
    """
    extent = max((s["budget"] for s in snapshots.values()), default=1)
    colours = _colours(snapshots)
    parts, y = [], 8
    for title, snapshot in snapshots.items():
        parts.append(_strip(title, snapshot, extent, colours, y))
        y += ROW_HEIGHT
    parts.append(_legend(colours, y))
    height = y + 20 * (1 + (len(colours) + 2) // 3) + 8
    return document(parts, height)


def _colours(snapshots: Mapping[str, Snapshot]) -> dict[str, tuple[str, str]]:
    """{tag: (letter, colour)} of the largest holders of all arenas."""
    held: dict[str, int] = {}
    for snapshot in snapshots.values():
        for block in snapshot["blocks"]:
            held[block["tag"]] = max(held.get(block["tag"], 0), block["granted"])
    largest = sorted(held, key=lambda tag: (-held[tag], tag))
    chosen = zip(largest, zip(LETTERS, COLOURS, strict=True), strict=False)
    return {tag: pair for tag, pair in chosen if held[tag]}


def _strip(
    title: str, snapshot: Snapshot, extent: int, colours: Mapping[str, tuple[str, str]], y: int
) -> str:
    pieces = pieces_of(snapshot)
    sums = {
        kind: sum(p.hi - p.lo for p in pieces if p.kind == kind)
        for kind in ("block", "hole", "end")
    }
    holes = sum(p.kind == "hole" for p in pieces)
    caption = (
        f"{format_bytes(sums['block'])} live, {format_bytes(sums['hole'])} in {holes} holes, "
        f"{format_bytes(sums['end'])} free at the end"
    )
    head = f'<tspan font-weight="600">{escape(title)}</tspan>  {caption}'
    parts = [f'<text x="{MARGIN}" y="{y + 14}">{head}</text>']
    parts += [_piece(piece, extent, colours, y + 22) for piece in pieces]
    return "\n".join(parts)


def _piece(piece: ArenaPiece, extent: int, colours: Mapping[str, tuple[str, str]], y: int) -> str:
    scale = (WIDTH - MARGIN - RIGHT) / extent
    x, width = MARGIN + piece.lo * scale, (piece.hi - piece.lo) * scale
    letter, colour = colours.get(piece.tag, ("", OTHER)) if piece.kind == "block" else ("", "")
    colour = colour or (HOLE if piece.kind == "hole" else END)
    name = piece.tag or f"block {piece.block}" if piece.kind == "block" else "free"
    tip = f"{name}: {format_bytes(piece.hi - piece.lo)} at {format_bytes(piece.lo)}"
    # A hair between neighbours, as long as there is room for one.
    drawn = width - 0.6 if width > 1.5 else max(width, 0.3)
    text = ""
    if letter and width > _LETTER_WIDTH + 4:
        text = (
            f'<text x="{x + width / 2:.1f}" y="{y + STRIP_HEIGHT / 2 + 4:.1f}" fill="#fff" '
            f'text-anchor="middle">{letter}</text>'
        )
    return box(x, y, drawn, STRIP_HEIGHT, colour, tip) + text


def _legend(colours: Mapping[str, tuple[str, str]], y: int) -> str:
    """Colours in columns of a third of the width."""
    entries = [(f"{letter} {tag}", colour) for tag, (letter, colour) in colours.items()]
    entries += [("another block", OTHER), ("hole", HOLE), ("free at the end", END)]
    column = (WIDTH - MARGIN - RIGHT) // 3
    parts = []
    for place, (text, colour) in enumerate(entries):
        x, row = MARGIN + place % 3 * column, y + place // 3 * 20
        parts += [box(x, row, 14, 12, colour), words(x + 20, row + 11, text, "start")]
    return "\n".join(parts)
