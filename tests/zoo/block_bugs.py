"""Planted bugs of blocks: slips in how a tensor is cut, found by name, and read in pieces.

`BLOCK_BUGS` is {name: a function that plants the bug with pytest's monkeypatch}. Where each band
reads a single block most of them change nothing. Read next: `test_block_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from zoo.planting import plant, plant_everywhere

from ooctrain.rewrite.tile import bands, on_rows
from ooctrain.step import blocks as names

Plant = Callable[[pytest.MonkeyPatch], None]


def _slip(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant(patch, owner, name, piece, wrong) and None


def _known_slip(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    """Of a function that other modules have imported."""
    return lambda patch: plant_everywhere(patch, owner, name, piece, wrong) and None


BLOCK_BUGS: dict[str, Plant] = {
    "blocks bound in the wrong order": _known_slip(
        names, "value_of", "..., block.lo : block.hi, :]",
        "..., whole.shape[-2] - block.hi : whole.shape[-2] - block.lo, :]",
    ),
    "blocks of the first image bound": _known_slip(
        names, "value_of", "block.image : block.image + 1", "0:1"
    ),
    "results of all images in the first": _known_slip(
        names, "put_together", "whole[block.image, ...,", "whole[0, ...,"
    ),
    "a block overwritten before its second reader": _slip(
        bands, "_sparing", "if not blocks.intersection(call.reuse.values()):", "if True:"
    ),
    "rows of a block from its top": _slip(
        bands, "_pieces", "(0, a - block.lo, b - block.lo)", "(0, 0, b - a)"
    ),
    "pieces from below": _slip(bands, "_pieces", "return found", "return found[::-1]"),
    "a border stays whole for a reader with a rule": _slip(
        bands, "_put_together", "if alone and", "if not alone and"
    ),
    "a piece to its end": _slip(
        on_rows, "_overlaps", "min(span.hi - (end - height), height)", "height"
    ),
    "rows over a border copied to one place": _slip(
        on_rows, "_rows", "start += view.shape[1]", "start += 0"
    ),
    "a run of rows at the place of the first": _slip(
        on_rows.InPieces, "compute", "out[:, run.rows.lo : run.rows.hi]",
        "out[:, : run.rows.extent]",
    ),
    "of a weight gradient the last run": _slip(
        on_rows.InPieces, "compute", "[total, part], [total]", "[part, part], [part]"
    ),
    "copies on top of the scratch of kernels": _slip(
        on_rows._Space, "take", "self._end -= whole_lines(spec.nbytes)",
        "self._end = whole_lines(spec.nbytes)",
    ),
}  # fmt: skip
