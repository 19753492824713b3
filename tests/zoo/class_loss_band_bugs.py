"""Planted bugs of bands through losses of class numbers, and through images in other sizes.

`CLASS_LOSS_BUGS` and `SCALED_BUGS` are {name: a function that plants the bug with pytest's
monkeypatch}. A mean over the band looks like any other loss, and weights of the band's own size
like any other weights, so only the untiled bits show the bug. Read next:
`test_class_loss_band_bugs.py`; `norm_band_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from zoo.planting import plant, plant_everywhere

from ooctrain.layers.kernels.cpu import carried_sums as kernels
from ooctrain.layers.resampling import Upsample, UpsampleGrad
from ooctrain.rewrite.tile import banded_calls, carried_totals, tiling
from ooctrain.step.rows import ScaledRows

Plant = Callable[[pytest.MonkeyPatch], None]


def _slip(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    """Changes a piece of a function's text."""
    return lambda patch: plant(patch, owner, name, piece, wrong) and None


def _slip_everywhere(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant_everywhere(patch, owner, name, piece, wrong) and None


CLASS_LOSS_BUGS: dict[str, Plant] = {
    "the gradient divides by the labels of the band": _slip_everywhere(
        tiling, "losses_apart", "(*call.ins, parts.divisors[call.forward_of])", "call.ins"
    ),
    "the divisor of the last band": _slip(
        kernels, "add_losses", "weight[0] += valid_rows", "weight[0] = valid_rows"
    ),
    "a block forgets what the band before has added": _slip(
        kernels, "add_losses", "partials, lanes, weight = _loss_parts(state, rows)",
        "partials, lanes, weight = _loss_parts(state, rows); lanes[:] = 0",
    ),
    "the total of each band": _slip_everywhere(
        carried_totals, "carry", "goes_on = call.id in run.states", "goes_on = False"
    ),
    "rows of two bands both counted": _slip(
        banded_calls.BandedCalls, "of", "Span(*self.rows[call.id][band : band + 2])",
        "Span(max(self.rows[call.id][band] - bool(call.op.carries), 0), "
        "self.rows[call.id][band + 1])",
    ),
    "pixels of the first image": _slip(
        kernels, "add", "(place[0] * shape[1] + place[1])", "(place[1])"
    ),
    "labels count alike, whatever their class weighs": _slip(
        kernels, "add_losses", "op.counts and len(others) > 1", "op.counts < 0"
    ),
    "a mean without weights": _slip(
        tiling._Parts, "of", "(each, labels, *weighted) if", "(each, labels) if"
    ),
    "a sum is divided": _slip(
        tiling._Parts, "of", 'op.reduction == "mean" and not given', "not given"
    ),
    "a mean is none": _slip(
        tiling._Parts, "of", 'op.reduction == "mean" and not given', "False"
    ),
}  # fmt: skip

SCALED_BUGS: dict[str, Plant] = {
    "odd start of an upsampled band": _slip(
        Upsample, "row_rule",
        "after + place.rows.lo, whole", "(after + place.rows.lo) // 2 * 2, whole"
    ),
    "what a band reads begins with row 0": _slip(
        Upsample, "row_rule", "first = before + read.first(place.rows.lo, rows)", "first = before"
    ),
    "weights of the band's own size": _slip(
        Upsample, "row_rule", "place=(first, size, after + place.rows.lo, whole)", "place=()"
    ),
    "the row below is not read": _slip(
        ScaledRows, "_stop_of", "lower + 2", "lower + 1"
    ),
    "the gradient of the band's first rows": _slip(
        UpsampleGrad, "row_rule", "(before + place.rows.lo, size", "(before, size"
    ),
    "gradients from row 0 on": _slip(
        UpsampleGrad, "row_rule", "first = after + read.read(place.rows, outputs).inside.lo",
        "first = after",
    ),
    "one reader fewer above": _slip(
        ScaledRows, "read", "before + rows.lo, key", "before + rows.lo + 1, key"
    ),
    "one reader fewer below": _slip(
        ScaledRows, "read", "before + rows.hi, key", "before + rows.hi - 1, key"
    ),
}  # fmt: skip
