"""How far a result of a tiled step may lie from the untiled one: rounding errors, call by call.

For each variable of the untiled step, the result says whether tiling keeps its bits, or gives a
bound. Tiles compute the same values; only sums over rows are added in another order. A sum of n
products, in any order, is off by at most gamma(n) times the sum of their absolute values, with
u = 2^-24 and gamma(n) = n u / (1 - n u), so two orders differ by at most twice that. The bound of a
value computed from such a sum, by calls that are linear in it, takes a factor (1 + gamma) from each
call, and its size from the same calls on absolute values. Source: Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1. Read next: `check_tiled.py`; docs/tiling.md, which lists the
promise for each result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ooctrain.layers.combine import Add, Concat
from ooctrain.layers.conv2d import Conv2d, Conv2dGradInput, Conv2dGradWeight
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.layout import Pad, Reshape
from ooctrain.layers.linear import Linear, LinearGradInput, LinearGradWeight
from ooctrain.layers.permute import Permute
from ooctrain.layers.pooling import (
    AdaptiveAvgPool2d,
    AdaptiveAvgPool2dGrad,
    AvgPool2d,
    AvgPool2dGrad,
    MaxPool2dGrad,
)
from ooctrain.layers.reduction import ChannelSum, Spread, Sum
from ooctrain.layers.regions import Embed, Slice
from ooctrain.layers.relu import PointwiseGrad
from ooctrain.layers.resampling import Upsample, UpsampleGrad
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.tile.carried_sums import CARRIED
from ooctrain.rewrite.tile.grid import parse_name
from ooctrain.rewrite.tile.rules import row_rule_of
from ooctrain.step.machine import specs_of
from ooctrain.step.op import Scalars
from ooctrain.step.trace import Call, Trace

UNIT = 2.0**-24
#: Calls that are linear in each of their inputs: on absolute values they give the size of a sum.
LINEAR = (
    AdaptiveAvgPool2d, AdaptiveAvgPool2dGrad, Add, AvgPool2d, AvgPool2dGrad, ChannelSum, Concat,
    Conv2d, Conv2dGradInput, Conv2dGradWeight, ConvTranspose2d, Dropout, Embed, Linear,
    LinearGradInput, LinearGradWeight, Pad, Permute, Reshape, Slice, Spread, Sum, Upsample,
    UpsampleGrad,
)  # fmt: skip
#: Calls that are linear in their first input, where what decides, the others, is as untiled.
LINEAR_IN_FIRST = (PointwiseGrad, MaxPool2dGrad)
#: Transforms of the rows of a tile: rounding depends on where the tile begins.
PHASED = ("winograd2", "winograd4")
#: Additions and products of a call on single elements, at most.
POINTWISE_TERMS = 8


@dataclass(frozen=True, slots=True)
class Allowed:
    """How far a variable may lie from the untiled one: 2 `relative` times `size`, element by
    element.

    Args:
        relative: 0: equal to the bit; None: no bound is known, compare by definition, in float64.
        size: the same calls on absolute values.
    """

    relative: float | None = 0.0
    size: np.ndarray | None = None

    def bound(self, shape: Sequence[int]) -> np.ndarray:
        """For each element."""
        if self.size is None or not self.relative:
            return np.zeros(shape)
        return np.broadcast_to(2 * self.relative * self.size, shape)


BITS, BY_DEFINITION = Allowed(), Allowed(None)


def gamma(terms: float) -> float:
    """The error bound of a sum of products, relative to the sum of their absolute values."""
    return terms * UNIT / (1 - terms * UNIT)


def terms_of(trace: Trace, call: Call) -> int:
    """Products that are summed into one output, at most: never more than an input has elements."""
    ins = [trace.variables[v] for v in call.ins]
    if isinstance(call.op, Conv2d | Conv2dGradInput | ConvTranspose2d):
        k, c, r, s = ins[1].shape
        return r * s * max(k, c) + 1
    if isinstance(call.op, PointwiseGrad):
        return POINTWISE_TERMS
    if isinstance(call.op, Conv2dGradWeight):
        n, _, h, w = ins[1].shape
        return n * h * w
    return max(prod(v.shape) for v in ins)


def allowed_errors(
    trace: Trace, tilings: Sequence[str], values: Mapping[str, np.ndarray], scalars: Scalars
) -> dict[int, Allowed]:
    """For each variable of the untiled trace how far the tiled step's may lie from it.

    Args:
        values: of all variables of the untiled step, by name.
        scalars: of the step.
    """
    sums, found = resummed(trace, tilings), dict.fromkeys(trace.initial, BITS)
    for call in trace.calls:
        relative = _relative(trace, call, [found[v].relative for v in call.ins], sums)
        if relative == 0:
            found |= dict.fromkeys(call.outs, BITS)
            continue
        inexact = [i for i, v in enumerate(call.ins) if found[v].relative != 0]
        linear = isinstance(call.op, LINEAR) or (
            isinstance(call.op, LINEAR_IN_FIRST) and {*inexact} <= {0}
        )
        if relative is None or not linear:
            found |= dict.fromkeys(call.outs, BY_DEFINITION)
            continue
        arrays = []
        for i, v in enumerate(call.ins):
            size, array = found[v].size, values[trace.variables[v].name]
            decides = not isinstance(call.op, LINEAR) and i > 0
            arrays.append(array if decides else np.abs(array) if size is None else size)
        results = call.op.reference(*(a.astype("float64") for a in arrays), scalars=scalars)
        found |= {
            v: Allowed(relative, np.abs(np.asarray(result)))
            for v, result in zip(call.outs, results, strict=True)
        }
    return found


def _relative(
    trace: Trace, call: Call, relatives: Sequence[float | None], sums: Mapping[str, int | None]
) -> float | None:
    """(1 + that of each input) (1 + gamma) - 1; 0 where nothing is added in another order."""
    added = sums.get(call.name, 0)
    if added is None or None in relatives:
        return None
    if not added and not any(relatives):
        return 0.0
    factors = prod(1 + (relative or 0.0) for relative in relatives)
    return factors * (1 + gamma(terms_of(trace, call) + added)) - 1


def resummed(trace: Trace, tilings: Sequence[str]) -> dict[str, int | None]:
    """{call of the untiled trace that tiles sum in another order: numbers that they add up more};
    None: no bound is known.
    """
    found: dict[str, int | None] = {}
    for name in tilings:
        before = {call.name: call for call in trace.calls}
        after = apply_rewrites(trace, (name,))
        gone = before.keys() - {call.name for call in after.calls}
        for call in map(before.__getitem__, gone):
            more = _added(trace, call, name)
            if more != 0:
                found[call.name] = more
        trace = after
    return found


def _added(trace: Trace, call: Call, name: str) -> int | None:
    """How many numbers more a tiling adds up in a call; 0: it adds as the untiled step does."""
    if getattr(call.op, "algorithm", "") in PHASED:
        return None
    kind = name.partition(":")[0]
    if kind not in ("tile", "bands", "bands_again") or not call.ins:
        return 0  # it keeps the bits
    tiles = prod(parse_name(name).grid) * trace.variables[call.ins[0]].shape[0]
    if kind == "tile":
        return tiles if call.phase == "backward" else 0
    rule = row_rule_of(call.op, specs_of(trace, call.ins))
    reduces = rule is not None and rule.reduces and not isinstance(call.op, CARRIED)
    return tiles if reduces else 0
