"""Pixels as bytes become numbers: what an image of one byte a value goes through first.

In: (N, C, H, W) uint8. Out: (x - mean) / std, float32. The one idea: an image is stored, moved and
kept as bytes, a quarter of what floats take, and becomes floats on the device, where they are
read; so it is an operation like others, which may run again. One subtraction and one division, so
all devices give the same bits. Read next: `relu.py`; `../data/row_image.py`, where such images
come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.step.op import Op, Spec, Window, require


@dataclass(frozen=True, slots=True)
class FromBytes(Op):
    """y = (x - mean) / std; x is uint8 and has no gradient."""

    mean: float = 0.0
    std: float = 255.0
    name: ClassVar[str] = "from_bytes"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        fits = math.isfinite(self.mean) and math.isfinite(self.std) and self.std > 0
        require(fits, f"from_bytes: mean {self.mean}, std {self.std}", fix="a positive std")
        what = f"from_bytes wants uint8, got {x.dtype}"
        require(x.dtype == "uint8", what, x, fix="leave the operation out for float32 images")
        return (Spec(x.shape),)

    def reference(self, x, scalars):
        return ((x.astype(np.float32) - np.float32(self.mean)) / np.float32(self.std),)

    def vjp(self, tape, ins, outs, grads):
        return [None]

    def flops(self, ins, outs):
        return 2 * outs[0].size

    def window(self):
        return Window(), Window()
