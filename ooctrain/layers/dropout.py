"""Dropout whose mask can be drawn again, by a re-run, by the gradient, by a tile.

For x (N, C, H, W) or (N, C) the output is x / (1 - p) where an element is kept, else 0. No mask is
stored and no generator has a state. A hash of (seed, step, number of the call, the element's index
in the whole variable, in logical order) decides whether an element is kept. So backward is the same
operation applied to dy, and both devices drop the same elements. Source: counter-based generators,
Salmon et al. 2011; the mixing function is splitmix64 (Steele, Lea, Flood 2014). Read next:
`losses.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ooctrain.step.op import Op, Scalars, Spec, elements_apart, require, require_float
from ooctrain.step.rows import PIXEL, SAME, RowPlace, RowRule

Index = tuple[int, int, int, int]
# splitmix64; kernels take these as they are.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
S27, S30, S31, S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
MASK_64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Dropout(Op):
    """y = x / (1 - p) where kept, else 0; each element is dropped with probability p.

    Args:
        p: probability to drop, in [0, 1].
        call: number of the original call, kept by re-runs, gradients and tiles.
        offset: logical index (n, c, h, w) of this block in the whole variable.
        full: logical shape of the whole variable; None: this is the whole.
    """

    p: float
    call: int
    offset: Index = (0, 0, 0, 0)
    full: Index | None = None
    name: ClassVar[str] = "dropout"
    reuses: ClassVar[Mapping[int, int]] = {0: 0}

    @property
    def scalar_names(self) -> tuple[str, ...]:
        return ("seed", "step")

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        require(len(x.shape) in (2, 4), "dropout: wants (N, C) or (N, C, H, W)", x)
        require(0 <= self.p <= 1, f"dropout: probability {self.p} is not in [0, 1]")
        return (x,)

    def reference(self, x, scalars):
        kept = self.kept(x.shape, scalars)
        return (np.where(kept, x / (1 - self.p) if self.p < 1 else 0 * x, 0 * x),)

    def kept(self, shape: tuple[int, ...], scalars: Scalars) -> np.ndarray:
        """Which elements of a block of a logical shape are kept."""
        block = (*shape, 1, 1)[:4]
        _, c, h, w = (np.uint64(extent) for extent in self.full or block)
        at = np.ogrid[tuple(slice(a, a + n) for a, n in zip(self.offset, block, strict=True))]
        n_at, c_at, h_at, w_at = (index.astype(np.uint64) for index in at)
        z = (((n_at * c + c_at) * h + h_at) * w + w_at) * GOLDEN + np.uint64(self.key(scalars))
        z = (z ^ (z >> S30)) * MIX_1
        z = (z ^ (z >> S27)) * MIX_2
        z = z ^ (z >> S31)
        return ((z >> S32) >= self.threshold).reshape(shape)

    def key(self, scalars: Scalars) -> int:
        """64 bits for this call in this step: three numbers mixed one after the other."""
        key = 0
        for part in (int(scalars["seed"]), int(scalars["step"]), self.call):
            key = _mix((key ^ part) & MASK_64)
        return key

    @property
    def threshold(self) -> int:
        """An element is dropped where the upper 32 bits of its hash are below."""
        return round(self.p * 2**32)

    @property
    def scale(self) -> float:
        """What is kept is multiplied by this."""
        return 0.0 if self.p >= 1 else 1.0 / (1.0 - self.p)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(self, grads, of=ins)

    def flops(self, ins, outs):
        return 8 * outs[0].size

    def window(self):
        return PIXEL

    def on_tile(self, place):
        n, c, h, w = self.offset
        offset = (n, c, h + place.start[0], w + place.start[1])
        return replace(self, offset=offset, full=self.full or place.full)

    def row_rule(self, ins):
        return RowRule((SAME,), self._on_rows)

    def _on_rows(self, place: RowPlace) -> Dropout:
        (n, c, h, w), (images, channels, height, width) = self.offset, place.full
        full = self.full or (images, channels, height, width)
        return replace(self, offset=(n + place.image, c, h + place.rows.lo, w), full=full)

    def samples_apart(self, read, ins, outs, count):
        return elements_apart(read, ins)


def _mix(value: int) -> int:
    """splitmix64 on a Python integer."""
    z = (value + int(GOLDEN)) & MASK_64
    z = ((z ^ (z >> 30)) * int(MIX_1)) & MASK_64
    z = ((z ^ (z >> 27)) * int(MIX_2)) & MASK_64
    return z ^ (z >> 31)
