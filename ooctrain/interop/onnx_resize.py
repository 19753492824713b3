"""ONNX's Resize along one axis, as a matrix.

Every output pixel is a weighted sum of input pixels: of the nearest one, of two (linear) or of four
(cubic), more of them where `antialias` spreads the weights over what one output pixel covers. Row i
of the matrix has the weights of output pixel i, so an image is resized by two products. Pixels
beyond the border count as the outermost ones, or, by `exclude_outside`, not at all.

Source: onnx.ai/onnx/operators/onnx__Resize.html. Read next: `onnx_ops.py`, where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ooctrain.errors import ConfigError

_CENTRED = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
_REACH = {"linear": 1, "cubic": 2}


@dataclass(frozen=True, slots=True)
class Axis:
    """How an axis is resized; the names are those of ONNX's attributes.

    Args:
        mode: "nearest", "linear" or "cubic".
        transformation: where an output pixel lies in the input.
        rounding: of "nearest".
        a: the cubic's coefficient.
    """

    mode: str
    transformation: str
    rounding: str
    a: float
    exclude_outside: bool
    antialias: bool

    def kernel(self, axes: Sequence[tuple[int, int, float]]) -> tuple[str, bool | None] | None:
        """(mode, align_corners) of `functional.interpolate` where that is the same; None: nowhere.

        Args:
            axes: (extent, extent of the output, factor) of rows and of columns.
        """
        if self.antialias or any(abs(n * by - out) > 1e-4 for n, out, by in axes):
            return None
        centred = self.transformation in _CENTRED and min(out for _, out, _ in axes) > 1
        if self.mode == "linear":
            corners = self.transformation == "align_corners"
            return (
                ("bilinear", corners) if (centred or corners) and not self.exclude_outside else None
            )
        whole = all(out % n == 0 for n, out, _ in axes)
        first = self.transformation == "asymmetric" and self.rounding == "floor"
        middle = centred and self.rounding.startswith("round")
        return ("nearest", None) if self.mode == "nearest" and whole and (first or middle) else None


def matrix_of(how: Axis, extent: int, out: int, factor: float) -> np.ndarray:
    """(out, extent) weights."""
    at = [_place(how.transformation, i, extent, out, factor) for i in range(out)]
    matrix = np.zeros((out, extent))
    if how.mode == "nearest":
        for i, x in enumerate(at):
            matrix[i, min(max(_rounded(how.rounding, x), 0), extent - 1)] = 1.0
        return matrix
    if how.mode not in _REACH:
        raise _unknown(f"mode={how.mode}")
    spread = min(factor, 1.0) if how.antialias else 1.0
    reach = _REACH[how.mode] / spread
    for i, x in enumerate(at):
        places = range(math.floor(x - reach), math.ceil(x + reach) + 1)
        weights = {j: _weight(how, (j - x) * spread) for j in places}
        if how.exclude_outside:
            weights = {j: w for j, w in weights.items() if 0 <= j < extent}
        whole = sum(weights.values())
        for j, weight in weights.items():
            matrix[i, min(max(j, 0), extent - 1)] += weight / whole
    return matrix


def _place(transformation: str, i: int, extent: int, out: int, factor: float) -> float:
    """Where output pixel i lies, in pixels of the input."""
    length = factor * extent
    if transformation == "align_corners":
        return 0.0 if length == 1 else i * (extent - 1) / (length - 1)
    if transformation == "asymmetric":
        return i / factor
    if transformation == "pytorch_half_pixel" and length == 1:
        return -0.5
    if transformation not in _CENTRED:
        raise _unknown(f"coordinate_transformation_mode={transformation}")
    middle = extent / 2 * (1 - out / length) if transformation == _CENTRED[2] else 0.0
    return middle + (i + 0.5) / factor - 0.5


def _rounded(rounding: str, x: float) -> int:
    x = round(x, 6)  # an asymmetric place such as 3 / 0.6 is whole
    ways = {"floor": math.floor, "ceil": math.ceil,
            "round_prefer_floor": lambda v: math.ceil(v - 0.5),
            "round_prefer_ceil": lambda v: math.floor(v + 0.5)}  # fmt: skip
    if rounding not in ways:
        raise _unknown(f"nearest_mode={rounding}")
    return ways[rounding](x)


def _weight(how: Axis, distance: float) -> float:
    """Of a pixel in this distance."""
    d = abs(distance)
    if how.mode == "linear":
        return max(1 - d, 0.0)
    if d <= 1:
        return ((how.a + 2) * d - (how.a + 3)) * d * d + 1
    return how.a * (((d - 5) * d + 8) * d - 4) if d < 2 else 0.0


def _unknown(what: str) -> ConfigError:
    return ConfigError(what, code="OOC-190", fix="the network without it")
