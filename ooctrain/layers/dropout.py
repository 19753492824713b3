"""Dropout whose mask can be drawn again, by a re-run, by the gradient, by a tile.

In: x (N, C, H, W) or (N, C). Out: x / (1 - p) where kept, else 0. The one idea: no mask is stored
and no generator has a state. Whether an element is kept is a hash of (seed, step, number of the
call, its index in the whole variable); so backward is the same operation applied to dy. Source:
counter-based generators, Salmon et al. 2011. Read next: `regression_loss.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooctrain.step.op import Op, Spec, require, require_float, to_logical, to_physical

Index = tuple[int, int, int, int]


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

    @property
    def scalar_names(self) -> tuple[str, ...]:
        return ("seed", "step")

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require_float(self, x)
        require(len(x.shape) in (2, 4), "dropout: wants (N, C) or (N, C, H, W)", x)
        require(0 <= self.p <= 1, f"dropout: probability {self.p} is not in [0, 1]")
        return (x,)

    def reference(self, x, scalars):
        # The mask is defined by the kernel alone; a second definition here could only disagree.
        from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool

        ones = np.ones(to_physical(x).shape, np.float32)
        mask = np.empty_like(ones)
        self.cpu(ThreadPool(1), [ones], [mask], np.empty(0, np.uint8), scalars)
        kept = to_logical(mask) != 0
        return (np.where(kept, x / (1 - self.p) if self.p < 1 else 0 * x, 0 * x),)

    def cpu(self, pool, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cpu import dropout

        key = int(scalars["seed"]), int(scalars["step"]), self.call
        dropout.dropout(pool, ins[0], outs[0], self.p, *key, offset=self.offset, full=self.full)

    def cuda(self, launcher, ins, outs, workspace, scalars):
        from ooctrain.layers.kernels.cuda import dropout

        key = int(scalars["seed"]), int(scalars["step"]), self.call
        dropout.dropout(launcher, ins[0], outs[0], self.p, *key, self.offset, self.full)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(self, grads, of=ins)

    def flops(self, ins, outs):
        return 8 * outs[0].size

    def reusable(self):
        return {0: 0}
