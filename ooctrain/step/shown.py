"""What a notebook shows of our data: a picture instead of a wall of numbers.

Jupyter asks an object for `_repr_html_` and `_repr_svg_`. Traces, lists, plans, timelines and
arenas stand below the room that draws, and may not import it. So they ask the package itself: its
root stands above all rooms and says where the drawing is. Nothing that draws is loaded before a
notebook asks. Read next: `../report/notebook.py`, which draws.
"""

from __future__ import annotations

import sys


def html_of(thing: object) -> str:
    """HTML with the picture of a trace, list, plan, timeline or arena."""
    return _drawn(thing, "html_of")


def svg_of(thing: object) -> str:
    """The picture alone."""
    return _drawn(thing, "svg_of")


def _drawn(thing: object, form: str) -> str:
    text: str = sys.modules["ooctrain"].drawn(thing, form)
    return text
