"""Planted bugs of bands through norms: sums over too little, too much, or the wrong pixels.

`NORM_BAND_BUGS` is {name: a function that plants the bug with pytest's monkeypatch}. A norm of a
band looks like a norm of the image, so most of these give plausible numbers. Read next:
`test_norm_band_bugs.py`; `band_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from zoo.planting import plant, plant_everywhere

from ooctrain.layers import batch_norm
from ooctrain.layers.batch_norm import (
    BatchNormGradApply,
    BatchNormGradReduce,
    BatchNormStats,
    BatchNormUpdate,
)
from ooctrain.layers.instance_norm import InstanceNormGradApply
from ooctrain.layers.kernels.cpu import carried_sums as kernels
from ooctrain.layers.losses import MeanError, MeanErrorGrad
from ooctrain.layers.pooling import AdaptiveAvgPool2d, AdaptiveAvgPool2dGrad
from ooctrain.rewrite.tile import (
    band_rows,
    banded_calls,
    carried_sums,
    carried_totals,
    writer,
)

Plant = Callable[[pytest.MonkeyPatch], None]


def _slip(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    """Changes a piece of a function's text."""
    return lambda patch: plant(patch, owner, name, piece, wrong) and None


def _slip_everywhere(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant_everywhere(patch, owner, name, piece, wrong) and None


def _means_of_band_means(patch: pytest.MonkeyPatch) -> None:
    """Each band's mean counts alike, however many rows it has."""
    right = BatchNormStats.sums

    def wrong(op: Any, x: Any, *, scalars: Any) -> Any:
        return right(op, x, scalars=scalars) / x.shape[2] * 26 / 4

    patch.setattr(BatchNormStats, "sums", wrong)


def _statistics_that_move_with_each_band(patch: pytest.MonkeyPatch) -> None:
    """The update runs once for each of three bands."""
    right = writer.TraceWriter.copy

    def copy(self: Any, calls: Any) -> None:
        moved = [
            replace(call, op=replace(call.op, momentum=1 - (1 - call.op.momentum) ** 3))
            if isinstance(call.op, BatchNormUpdate)
            else call
            for call in calls
        ]
        right(self, moved)

    patch.setattr(writer.TraceWriter, "copy", copy)


NORM_BAND_BUGS: dict[str, Plant] = {
    "statistics per band": _slip_everywhere(
        carried_totals, "carry", "goes_on = call.id in run.states", "goes_on = False"
    ),
    "mean of band means": _means_of_band_means,
    "float32 sums of squares": _slip(
        batch_norm.Statistics, "sums", "x.astype(np.float64)", "x.astype(np.float32)"
    ),
    "running statistics moved three times": _statistics_that_move_with_each_band,
    "halo rows counted": _slip(
        banded_calls.BandedCalls, "of", "Span(*self.rows[call.id][band : band + 2])",
        "Span(max(self.rows[call.id][band] - bool(call.op.carries), 0), "
        "self.rows[call.id][band + 1])",
    ),
    "means of the two sums over the band": _slip(
        BatchNormGradApply, "_on_rows", "over=self.over or n * h * w", "over=0"
    ),
    "means of the two sums over one image": _slip(
        BatchNormGradApply, "_on_rows", "over=self.over or n * h * w", "over=h * w"
    ),
    "instance norm over the batch": _slip(
        InstanceNormGradApply, "_on_rows", "over=self.over or h * w", "over=place.full[0] * h * w"
    ),
    "statistics of the first image": _slip(
        band_rows.BandRows, "of_image", "(image, *(0", "(0, *(0"
    ),
    "sums of the first image": _slip(
        carried_sums.CarriedSum, "reference",
        "self.place[0] if self.op.carries == \"image\" else 0", "0",
    ),
    "the variance around zero": _slip_everywhere(
        batch_norm.Statistics, "from_sums", "square - mean * mean", "square"
    ),
    "instance norm divides by all images": _slip(
        carried_sums.CarriedTotal, "reference", "pixels = h * w if", "pixels = n * h * w if"
    ),
    "a barrier is missing": _slip_everywhere(
        carried_totals, "levels_of", "level + rules[call.id].reduces", "level"
    ),
    "sums going forward begin with rows that are not there": _slip(
        banded_calls, "_forward_rows", "upwards=False", "upwards=True"
    ),
    "sums going backward begin with rows that are not there": _slip_everywhere(
        banded_calls, "banded_calls", "upwards=True", "upwards=False"
    ),
    "the mask of a fused gradient is not cut": _slip(
        BatchNormGradReduce, "row_rule", "(SAME,) * self.mask", "(None,) * self.mask"
    ),
    "totals before the last image": _slip_everywhere(
        carried_totals, "finish_level", "run.states:", "run.states and not run.level:"
    ),
    "bands of earlier levels are forgotten": _slip(
        band_rows.BandPass, "begin", "in made if v in self.finished", "in made if v < 0"
    ),
    "bands of another image": _slip(
        band_rows.BandPass, "begin", "self.made.get(image, {})", "self.made.get(0, {})"
    ),
    "pixels of the first image": _slip(
        kernels, "add", "pixel + image * height * width, state", "pixel, state"
    ),
    "the state of the first image": _slip(
        kernels, "add", "_of_image(state, shape[0], image)", "_of_image(state, shape[0], 0)"
    ),
    "a sum that forgets what was summed": _slip(kernels, "add", "if old is None:", "if True:"),
}  # fmt: skip

#: Of losses and means; tests/properties/test_bands_of_losses.py kills them.
LOSS_BAND_BUGS: dict[str, Plant] = {
    "the mean of a loss over the band": _slip(
        MeanError, "row_rule", "over=size", "over=0"
    ),
    "the gradient of a mean over the band": _slip(
        MeanErrorGrad, "row_rule", "over=size", "over=0"
    ),
    "a loss of the last band": _slip_everywhere(
        carried_totals, "add_part", "add_up(v, part, run.steps, run.totals, run.phase)",
        "run.totals[v] = part",
    ),
    "a pooling that means over the band": _slip(
        AdaptiveAvgPool2d, "row_rule", "lambda place: mean", "lambda place: Sum((2, 3), 1 / 32)"
    ),
    "the gradient of a pooling without its share": _slip(
        AdaptiveAvgPool2dGrad, "row_rule", "1 / math.prod(self.size)", "1.0"
    ),
    "the pooled gradient of the first image": _slip(
        band_rows.BandRows, "of_image", "(image, *(0", "(0, *(0"
    ),
    "pooled into the first image": _slip_everywhere(
        carried_totals, "add_part", "InsertAdd((image, ", "InsertAdd((0, "
    ),
    "all images pooled together": _slip(
        AdaptiveAvgPool2d, "row_rule", "adds_images=False", "adds_images=True"
    ),
}  # fmt: skip

#: Those of the kernels; in the definition there are none.
OF_KERNELS = (
    "pixels of the first image", "the state of the first image",
    "a sum that forgets what was summed",
)  # fmt: skip
