"""What a notebook shows of our data: a picture instead of a wall of numbers.

Jupyter asks an object for `_repr_html_` and `_repr_svg_`. Traces, lists, plans, timelines and
arenas stand below the room that draws, and may not import it. So the function that draws is handed
down: the package's root stands above all rooms, and enters it here when the package is imported.
Nothing that draws is loaded before a notebook asks. Read next: `../report/notebook.py`, which
draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

Form = Literal["html", "svg"]


def _in_words(thing: object, form: Form) -> str:
    """Draws nothing."""
    return repr(thing) if form == "html" else ""


class Artist:
    """Who draws, for this process.

    Attributes:
        draw: (thing, "html" or "svg") to text.
    """

    draw: ClassVar[Callable[[object, Form], str]] = _in_words


def html_of(thing: object) -> str:
    """HTML with facts and the picture of a trace, list, plan, timeline or arena."""
    return Artist.draw(thing, "html")


def svg_of(thing: object) -> str:
    """The picture alone."""
    return Artist.draw(thing, "svg")
