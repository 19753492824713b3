"""Pictures that move: layers of an SVG that are shown from one frame to another, over and over.

A layer is a few elements with the frames in which they are seen. The file moves by CSS alone, so it
needs no script and moves in an `<img>` too. Who asks for less motion, and who prints, gets one
frame that stands still and says the most: it is what is drawn, and motion is added only `@media
screen and (prefers-reduced-motion: no-preference)`. Read next: `moving_memory.py`, which draws with
it; `shapes.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ooctrain.report import shapes

MOVING = "@media screen and (prefers-reduced-motion: no-preference)"
#: How many times the last frame is repeated at the end, to be looked at.
_PAUSE = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """Elements that are seen in the frames [first, last).

    Args:
        parts: SVG elements.
        first, last: frames; None: to the end.
    """

    parts: Sequence[str]
    first: int
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Film:
    """What a moving picture is made of.

    Args:
        ground: elements that are always seen.
        layers: the others, drawn in order over the ground.
        frames: how many there are.
        still: the frame for print and for who asks for less motion.
        height: in pixels.
    """

    ground: Sequence[str]
    layers: Sequence[Layer]
    frames: int
    still: int
    height: float


def moving_svg(film: Film, *, frame_s: float = 0.5) -> str:
    """A film as the text of one SVG file.

    Args:
        film: what is seen, and when.
        frame_s: seconds that a frame lasts.
    """
    spans = sorted({_span(layer, film) for layer in film.layers})
    parts = [_style(spans, film, frame_s), *film.ground]
    for layer in film.layers:
        first, last = _span(layer, film)
        body = "\n".join(layer.parts)
        parts.append(f'<g class="f{first}-{last}">\n{body}\n</g>')
    return shapes.document(parts, film.height)


def _span(layer: Layer, film: Film) -> tuple[int, int]:
    return layer.first, film.frames if layer.last is None else layer.last


def _style(spans: Sequence[tuple[int, int]], film: Film, frame_s: float) -> str:
    """The classes: what stands still first, then the motion, in a media query of its own."""
    whole = film.frames + _PAUSE
    hidden = [f".f{a}-{b}" for a, b in spans if not a <= film.still < b]
    lines = [f"{', '.join(hidden)} {{opacity: 0}}"] if hidden else []
    lines.append(f"{MOVING} {{")
    for first, last in spans:
        end = whole if last == film.frames else last
        steps = {0.0: 0, 100 * first / whole: 1, 100 * end / whole: 0 if end < whole else 1}
        frames = " ".join(f"{at:.4g}% {{opacity: {shown}}}" for at, shown in sorted(steps.items()))
        name = f"f{first}-{last}"
        lines.append(
            f".{name} {{animation: {name} {whole * frame_s:g}s step-end infinite}} "
            f"@keyframes {name} {{{frames}}}"
        )
    lines.append("}")
    return "<style>\n" + "\n".join(lines) + "\n</style>"
