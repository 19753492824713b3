"""From a description of a tiling to a tiled trace.

A trace and a `Tiling` give the tiled trace. There are two kinds of tiles. With recomputed halos,
rows and columns are cut independently, and each pair of spans is a tile that reads all that it
needs of the image; where there are forks and joins, rows alone are cut. With kept halos, bands of
whole rows follow each other, and rows that two of them need are kept. Read next: `halo.py`,
`segment.py`, `weave.py`; then `frontier.py`, `banded_calls.py`,
`graph_tiles.py`, `bands.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Literal

from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.device_tables import TABLES
from ooctrain.layers.losses import (
    ClassLossGrad,
    ClassWeights,
    SoftmaxCrossEntropy,
    TotalLoss,
    WeightedCrossEntropy,
)
from ooctrain.rewrite.tile.banded_calls import banded_calls, forward_calls
from ooctrain.rewrite.tile.bands import handed_over_bytes, weave_bands, weave_tiles
from ooctrain.rewrite.tile.graph_tiles import graph_calls, is_graph
from ooctrain.rewrite.tile.halo import tile_spans
from ooctrain.rewrite.tile.segment import Segment, find_segment, named_calls
from ooctrain.rewrite.tile.weave import make_tiles, weave
from ooctrain.step.machine import specs_of
from ooctrain.step.op import Op, Spec
from ooctrain.step.rows import Span
from ooctrain.step.trace import ITEM_BYTES, Call, Kind, Trace, Variable

Halo = Literal["recompute", "keep"]


@dataclass(frozen=True, slots=True)
class Tiling:
    """The arguments of `ooctrain.rewrite.tile.tile`, which describes them."""

    grid: tuple[int, int]
    first: str | None = None
    last: str | None = None
    halo: Halo = "recompute"
    again: bool = True


#: {name of a rewrite: its kind of halo, whether forward calls run again}
NAMED: dict[str, tuple[Halo, bool]] = {
    "tile": ("recompute", True),
    "bands": ("keep", False),
    "bands_again": ("keep", True),
}
#: Digits of a number of bands or tiles; an image has fewer rows.
MOST_DIGITS = 20


def tile_trace(trace: Trace, tiling: Tiling) -> Trace:
    """See `ooctrain.rewrite.tile.tile`."""
    _check(tiling)
    if tiling.halo == "keep":
        trace = losses_apart(trace, tiling.last)
        calls = banded_calls(trace, tiling.grid[0], tiling.first, tiling.last)
        return weave_bands(trace, calls, tiling.again)
    if _forks(trace, tiling):
        calls = graph_calls(trace, tiling.first or "", tiling.last or "")
        return weave_tiles(trace, calls, int(tiling.grid[0]))
    segment = find_segment(trace, tiling.first, tiling.last)
    rows, columns = _spans(trace, segment, tiling.grid)
    return weave(trace, segment, make_tiles(trace, segment, rows, columns), tiling.again)


def least_alive_bytes(trace: Trace, tiling: Tiling) -> int:
    """What the tiled step holds between the passes at least, as far as that is known before the
    step is written: nothing of tiles, nor where the rewrite refuses.
    """
    try:
        _check(tiling)
        if tiling.halo == "recompute":
            return 0
        trace = losses_apart(trace, tiling.last)
        calls = banded_calls(trace, tiling.grid[0], tiling.first, tiling.last)
        return handed_over_bytes(trace, calls, tiling.again)
    except ConfigError:
        return 0


def _forks(trace: Trace, tiling: Tiling) -> bool:
    """Whether what is to be cut into tiles of rows has forks and joins between its two ends."""
    if tiling.grid[1] != 1 or not tiling.again or tiling.first is None or tiling.last is None:
        return False
    try:
        return is_graph(trace, forward_calls(trace, tiling.first, tiling.last))
    except ConfigError:
        return False  # `find_segment` says what is wrong


def _spans(
    trace: Trace, segment: Segment, grid: tuple[int, int]
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Rows and columns of tiles."""
    height, width = trace.variables[segment.source].shape[2:]
    windows = [stage.windows for stage in segment.stages]
    rows = tile_spans([w[0] for w in windows], height, grid[0])
    return rows, tile_spans([w[1] for w in windows], width, grid[1])


def remark_on(trace: Trace, tiling: Tiling) -> str:
    """How a tiling differs from the wanted one, by fewer tiles; "": not at all.

    Args:
        trace: before it is tiled.
    """
    name, wanted = name_of(tiling), tuple(map(int, tiling.grid))
    if tiling.halo == "keep" or _forks(trace, tiling):
        first = forward_calls(trace, tiling.first, tiling.last)[0]
        rows = trace.variables[first.ins[0]].shape[2]
        if wanted[0] <= rows:
            return ""
        what = "bands" if tiling.halo == "keep" else "tiles"
        return f"{name} makes {rows} {what}: the input of {first.name!r} has {rows} rows"
    segment = find_segment(trace, tiling.first, tiling.last)
    found = tuple(map(len, _spans(trace, segment, tiling.grid)))
    if found == wanted:
        return ""
    last, (h, w) = segment.stages[-1].forward, trace.variables[segment.target].shape[2:]
    made = f"{name} makes {found[0]} x {found[1]} tiles"
    return f"{made}: the output of {last.name!r} has {h} rows and {w} columns"


def _check(tiling: Tiling) -> None:
    if not _is_grid(tiling.grid):
        raise ConfigError(
            f"a grid is two numbers of tiles, not {tiling.grid!r}",
            code="OOC-113",
            fix="grid=(4, 1), rows and columns of tiles",
        )
    if tiling.halo not in ("recompute", "keep"):
        raise ConfigError(
            f"halo {tiling.halo!r} is neither 'recompute' nor 'keep'",
            code="OOC-113",
            fix="halo='recompute' for tiles, halo='keep' for bands",
        )
    if tiling.halo == "keep" and tiling.grid[1] != 1:
        raise ConfigError(
            f"bands that keep their halos are as wide as the image, not 1/{tiling.grid[1]} of it",
            code="OOC-113",
            fix=f"grid=({tiling.grid[0] * tiling.grid[1]}, 1), or halo='recompute'",
        )


def _is_grid(grid: object) -> bool:
    """Whether it is two whole numbers of 1 or more."""
    return (
        isinstance(grid, Sequence) and len(grid) == 2
        and all(
            isinstance(n, Integral) and not isinstance(n, bool) and int(n) >= 1 for n in grid
        )
    )  # fmt: skip


def name_of(tiling: Tiling) -> str:
    """The name of a tiling among rewrites, such as `parse_name` reads."""
    kinds = [kind for kind, how in NAMED.items() if how == (tiling.halo, tiling.again)]
    ends = f":{tiling.first or ''}:{tiling.last or ''}".rstrip(":")
    size = tiling.grid[0] if tiling.halo == "keep" else f"{tiling.grid[0]}x{tiling.grid[1]}"
    return f"{kinds[0] if kinds else 'tile'}:{size}{ends}"


def parse_name(name: str) -> Tiling:
    """The tiling that "tile:4x4", "tile:4x2:conv1", "bands:16:conv1:pool2" and the like mean.

    Raises:
        ConfigError: the name is not of this form.
    """
    kind, _, rest = name.partition(":")
    size, *ends = rest.split(":")
    h, _, w = size.partition("x") if kind == "tile" else (size, "", "1")
    whole = all(number.isdecimal() and len(number) <= MOST_DIGITS for number in (h, w))
    if kind not in NAMED or not whole or len(ends) > 2:
        what = "" if whole else f"{size!r} is none of 1, 2, 3 and so on"
        raise ConfigError(
            f"{name!r} is not a tiling",
            code="OOC-113",
            numbers=what if kind.startswith("bands") else "",
            fix="tile:4x4, tile:4x4:conv1:pool2, bands:16:conv1:pool2 or bands_again:16",
        )
    if min(int(h), int(w)) < 1:
        what = "bands" if NAMED[kind][0] == "keep" else "tiles"
        raise ConfigError(
            f"{name!r} asks for 0 {what}, and there is 1 at least",
            code="OOC-113",
            fix="bands:4" if what == "bands" else "tile:4x4",
        )
    first, last = (*(end or None for end in ends), None, None)[:2]
    return Tiling((int(h), int(w)), first, last, *NAMED[kind])


# A loss of class numbers, taken apart for bands, with the same bits: a mean over pixels is two
# calls, the loss of each pixel, which is computed row by row, and their total with its divisor, a
# sum over all rows that goes on from band to band. The gradient of a mean divides by a number that
# is known only after the last band, so it reads that number from the total. Source: ours;
# docs/tiling.md.


def losses_apart(trace: Trace, last: str | None) -> Trace:
    """The trace with the losses of class numbers per pixel taken apart that `last` names.

    Cost: O(calls).
    """
    if last is None:
        return trace
    named = [call for call in named_calls(trace, last, ("forward", "loss")) if _can_be(trace, call)]
    if not named:
        return trace
    parts = _Parts(trace, list(trace.variables))
    ids = {call.id for call in named}
    calls: list[Call] = []
    for call in trace.calls:
        if call.id in ids:
            calls += parts.of(call)
        elif call.forward_of in parts.divisors and isinstance(call.op, ClassLossGrad):
            calls.append(replace(call, ins=(*call.ins, parts.divisors[call.forward_of])))
        else:
            calls.append(call)
    return replace(trace, variables=tuple(parts.variables)).with_calls(calls)


def _can_be(trace: Trace, call: Call) -> bool:
    """Whether a call is the mean or sum of a loss of each pixel."""
    if not isinstance(call.op, SoftmaxCrossEntropy | WeightedCrossEntropy):
        return False
    return call.op.reduction != "none" and len(trace.variables[call.ins[0]].shape) == 4


@dataclass(slots=True)
class _Parts:
    """The calls that losses are taken apart into.

    Args:
        variables: those of the trace, and those in between.
        divisors: {loss: the variable that its mean is divided by}, where bands find that out.
        calls: how many there are.
    """

    trace: Trace
    variables: list[Variable]
    divisors: dict[int, int] = field(default_factory=dict)
    calls: int = 0

    def of(self, call: Call) -> Iterator[Call]:
        """The calls in place of one."""
        op, (logits, labels, *rest), (loss, lse) = call.op, call.ins, call.outs
        smoothing, base = 0.0, call.name.removesuffix(".fwd")
        if isinstance(op, WeightedCrossEntropy):
            smoothing, weights, *given = op.label_smoothing, *rest
        else:
            given = rest
            one = ClassWeights((1.0,) * self.trace.variables[logits].shape[1])
            weights = self._variable(f"{base}.weights", one.infer()[0], "aux")
            yield self._call(call, f"{base}.ones", one, (), (weights,))
        each_op = WeightedCrossEntropy(op.ignore_index, smoothing, "none")
        each = self._variable(f"{base}.each", self._spec(lse), "activation")
        yield replace(
            self._call(call, call.name, each_op, (logits, labels, weights), (each, lse)), id=call.id
        )
        counts = op.reduction == "mean" and not given
        total = TotalLoss(op.ignore_index, counts)
        weighted = (weights,) if isinstance(op, WeightedCrossEntropy) else ()
        ins = (each, labels, *weighted) if counts else (each, *given)
        outs: tuple[int, ...] = (loss,)
        if counts:
            _, divisor = total.infer(*specs_of(self.trace, (lse,)), self._spec(labels))
            self.divisors[call.id] = self._variable(f"{base}.divisor", divisor, "stat")
            outs = loss, self.divisors[call.id]
        yield self._call(call, f"{base}.total", total, ins, outs)

    def _call(
        self, like: Call, name: str, op: Op, ins: tuple[int, ...], outs: tuple[int, ...]
    ) -> Call:
        trace = replace(self.trace, variables=tuple(self.variables))
        scratch = TABLES[trace.device].workspace_bytes(
            op, specs_of(trace, ins), specs_of(trace, outs), trace.threads or 1
        )
        self.calls += 1
        number = len(self.trace.calls) + self.calls
        return replace(
            like, id=number, name=name, op=op, ins=ins, outs=outs, workspace_bytes=scratch, reuse={}
        )

    def _spec(self, variable: int) -> Spec:
        (spec,) = specs_of(self.trace, (variable,))
        return spec

    def _variable(self, name: str, spec: Spec, kind: Kind) -> int:
        number = len(self.variables)
        size = spec.size * ITEM_BYTES[spec.dtype]
        self.variables.append(Variable(number, name, spec.shape, spec.dtype, size, kind))
        return number
