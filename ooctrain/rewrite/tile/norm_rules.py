"""Row rules of normalisation: sums over all rows, and their use row by row.

Once mean and deviation are known, a batch or instance norm is pointwise, with vectors that all rows
read, so recomputation in backward needs no barrier. Only the sums need all rows first: the
statistics going forward, two sums going backward. Each of them is a barrier between bands
(`barriers.py`), and all bands together give the bits of the untiled sum (`carried_sums.py`).
Source: ours; docs/tiling.md. Read next: `carried_sums.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ooctrain.layers.batch_norm import (
    BatchNormApply,
    BatchNormGradApply,
    BatchNormGradReduce,
    BatchNormStats,
)
from ooctrain.layers.instance_norm import (
    InstanceNormApply,
    InstanceNormGradApply,
    InstanceNormGradReduce,
    InstanceNormStats,
)
from ooctrain.rewrite.tile.row_rules import SAME, MakeRule, RowPlace, RowRule
from ooctrain.step.op import Op, Spec


def _stats(op: BatchNormStats | InstanceNormStats, ins: Sequence[Spec]) -> RowRule | None:
    """None where an image is one pixel: blocks of the sum then hold pixels of several images."""
    _, _, h, w = ins[0].shape
    return RowRule((SAME,), _as_it_is, reduces=True) if h * w > 1 else None


def _batch_apply(op: BatchNormApply, ins: Sequence[Spec]) -> RowRule:
    return RowRule((SAME, None, None, None, None, *(SAME,) * op.residual), _as_it_is)


def _batch_grad_reduce(op: BatchNormGradReduce, ins: Sequence[Spec]) -> RowRule | None:
    if not _stats(BatchNormStats(), ins):
        return None
    return RowRule((SAME, SAME, None, None, *(SAME,) * op.mask), _as_it_is, reduces=True)


def _batch_grad_apply(op: BatchNormGradApply, ins: Sequence[Spec]) -> RowRule:
    vectors = (None,) * (3 + 2 * op.batch_stats)
    return RowRule((SAME, SAME, *vectors, *(SAME,) * op.mask), _over_the_batch)


def _instance_apply(op: InstanceNormApply, ins: Sequence[Spec]) -> RowRule:
    vectors = (None,) * (2 + 2 * op.affine)
    return RowRule((SAME, *vectors, *(SAME,) * op.residual), _as_it_is, of_image=(1, 2))


def _instance_grad_reduce(op: InstanceNormGradReduce, ins: Sequence[Spec]) -> RowRule:
    mask = (SAME,) * op.mask
    return RowRule((SAME, SAME, None, None, *mask), _as_it_is, reduces=True, of_image=(2, 3))


def _instance_grad_apply(op: InstanceNormGradApply, ins: Sequence[Spec]) -> RowRule:
    vectors = (None,) * (4 + op.affine)
    sums = 4 + op.affine, 5 + op.affine
    return RowRule(
        (SAME, SAME, *vectors, *(SAME,) * op.mask), _over_the_image, of_image=(2, 3, *sums)
    )


NORM_RULES: Mapping[type[Op], MakeRule] = {
    BatchNormStats: _stats,
    BatchNormApply: _batch_apply,
    BatchNormGradReduce: _batch_grad_reduce,
    BatchNormGradApply: _batch_grad_apply,
    InstanceNormStats: _stats,
    InstanceNormApply: _instance_apply,
    InstanceNormGradReduce: _instance_grad_reduce,
    InstanceNormGradApply: _instance_grad_apply,
}


def _as_it_is(op: Any, place: RowPlace) -> Any:
    return op


def _over_the_batch(op: BatchNormGradApply, place: RowPlace) -> Op:
    """The means of the two sums are over all pixels, not those of the band."""
    n, _, h, w = place.full
    return replace(op, over=op.over or n * h * w)


def _over_the_image(op: InstanceNormGradApply, place: RowPlace) -> Op:
    _, _, h, w = place.full
    return replace(op, over=op.over or h * w)
