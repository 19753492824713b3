"""The pictures that a user may draw, in one place: `oc.pictures`.

A step is drawn as lanes over time, as areas over addresses, as strips or as curves. Each function
takes plain numbers or a `Timeline` and returns SVG as text. Read next: `svg.py` for lanes,
`charts.py` for the other three, `moving_memory.py` for pictures that move.
"""

from ooctrain.report.charts import (
    Area,
    Curve,
    Piece,
    areas_svg,
    curves_svg,
    side_by_side_svg,
    stacked_svg,
    strips_svg,
)
from ooctrain.report.moving_memory import Film, Layer, moving_svg
from ooctrain.report.one_step import step_svg
from ooctrain.report.svg import timelines_svg

__all__ = [
    "Area",
    "Curve",
    "Film",
    "Layer",
    "Piece",
    "areas_svg",
    "curves_svg",
    "moving_svg",
    "side_by_side_svg",
    "stacked_svg",
    "step_svg",
    "strips_svg",
    "timelines_svg",
]  # fmt: skip
