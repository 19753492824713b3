"""Tile rules: how each operation is cut to a tile.

A tile rule turns an operation and the place of a tile in its image into the operation of the tile.
An operation over windows can be tiled if its padding has four independent sides: a tile keeps the
padding where it touches the border of the image and has none elsewhere. An operation without a rule
is refused, by name and with the reason. Source: paper 003, section 4.1 ("FT-compatible operators").
Read next: `segment.py`; `row_rules.py`, the rules of bands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ooctrain.layers.batch_norm import BatchNormApply
from ooctrain.layers.conv2d import Conv2d
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.layout import ConstantPad, Pad
from ooctrain.layers.pooling import AvgPool2d, MaxPool2d
from ooctrain.step.op import Op, Sides, Window


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tile lies in the image that an operation reads.

    Args:
        padding: rows and columns outside the image (top, bottom, left, right).
        start: first row and column that the tile reads.
        full: (N, C, H, W) of the whole image.
    """

    padding: Sides
    start: tuple[int, int]
    full: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class TileRule:
    """How operations of one kind are tiled in H and W.

    Args:
        windows: which rows and columns an output reads.
        cut: the operation for a tile; all but padding and place is kept.
    """

    windows: Callable[[Any], tuple[Window, Window]]
    cut: Callable[[Any, Place], Op]


def _own_windows(op: Op) -> tuple[Window, Window]:
    windows = op.window()
    assert windows is not None
    return windows


def _cut_dropout(op: Dropout, place: Place) -> Op:
    n, c, h, w = op.offset
    offset = (n, c, h + place.start[0], w + place.start[1])
    return replace(op, offset=offset, full=op.full or place.full)


def _pad_windows(op: Pad | ConstantPad) -> tuple[Window, Window]:
    top, bottom, left, right = op.padding
    return Window(pad_lo=top, pad_hi=bottom), Window(pad_lo=left, pad_hi=right)


PADDING = TileRule(_pad_windows, lambda op, place: replace(op, padding=place.padding))
POINTWISE = TileRule(_own_windows, lambda op, place: op)
WINDOWED = TileRule(
    _own_windows,
    lambda op, place: replace(op, geometry=replace(op.geometry, padding=place.padding)),
)
#: with running statistics, which stand still
STANDING = TileRule(lambda op: (Window(), Window()), lambda op, place: op)
#: an operation of a user's own, which has a method `with_padding((top, bottom, left, right))`
OWN_PADDING = TileRule(_own_windows, lambda op, place: op.with_padding(place.padding))
RULES: Mapping[type[Op], TileRule] = {
    Conv2d: WINDOWED,
    MaxPool2d: WINDOWED,
    AvgPool2d: WINDOWED,
    Pad: PADDING,
    ConstantPad: PADDING,
    Dropout: TileRule(lambda op: (Window(), Window()), _cut_dropout),
}

#: {name of an operation: why it cannot be tiled}, for messages
OBSTACLES: Mapping[str, str] = {
    "batch_norm": "its statistics need the whole batch at once",
    "channel_sum": "it adds images of one pixel in one block",
    "linear": "it reads all pixels of an image for each output",
    "adaptive_avg_pool2d": "its windows have no fixed stride",
    "reshape": "its output has no rows and columns of the image",
    "concat": "it joins several tensors",
    "add": "it joins several tensors",
    "subtract": "it joins several tensors",
    "multiply": "it joins several tensors",
    "divide": "it joins several tensors",
    "instance_norm": "its statistics need whole images at once",
    "sum": "it adds up pixels of the whole image",
    "spread": "it repeats what has no rows and columns of the image",
    "permute": "its output has the rows and columns elsewhere",
    "softmax": "it reads whole rows or columns of the image at once",
}


def rule_of(op: Any) -> TileRule | None:
    """The rule of an operation; None where it cannot be tiled exactly."""
    if type(op) in RULES:
        return RULES[type(op)]
    if isinstance(op, BatchNormApply):
        return None if op.batch_stats or op.residual or op.relu else STANDING
    windows = op.window() if isinstance(op, Op) else None
    if windows is None:
        return None
    if windows == (Window(), Window()):
        return POINTWISE
    return OWN_PADDING if hasattr(op, "with_padding") else None


def obstacle(op: Any) -> str:
    """Why an operation cannot be tiled, in words."""
    name = getattr(op, "name", type(op).__name__)
    known = (why for start, why in OBSTACLES.items() if name.startswith(start))
    return next(known, "it has no tile rule (`window`, and `with_padding` if it has windows)")
