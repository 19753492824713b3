"""Compares every result of a model in tiles with the untiled result, within its error bound.

Both steps run call by call on the same random numbers. Results for which tilings promise equal bits
must be equal to the bit; sums that are added in another order have a bound that is computed from
the sizes of their terms; for the few results with neither promise, the
definitions are compared in float64. A model, the shape of its images and names of tilings give a
`TiledReport`, one row for each result: y, dX, dW, db, statistics; or a `TiledFailure` that names
the first wrong one, and the place.

The bound: tiles compute the same values, and only sums over rows are added in another order. A sum
of n products, in any order, is off by at most gamma(n) times the sum of their absolute values, with
u = 2^-24 and gamma(n) = n u / (1 - n u), so two orders differ by at most twice that. The bound of a
value computed from such a sum, by calls that are linear in it, takes a factor (1 + gamma) from each
call, and its size from the same calls on absolute values. Source: Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1. Read next: docs/tiling.md, which lists the promise for each
result; `testing/check_rewrite.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from ooctrain.engine.backward import record_backward
from ooctrain.engine.incore import run_trace
from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tape, Tensor, use_tape
from ooctrain.engine.trace_runner import TraceRunner
from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.layers.combine import Add, Concat
from ooctrain.layers.conv2d import Conv2d, Conv2dGradInput, Conv2dGradWeight
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.extremes import MaxAlongGrad
from ooctrain.layers.layout import Pad, Reshape
from ooctrain.layers.linear import Linear, LinearGradInput, LinearGradWeight, MatMul
from ooctrain.layers.permute import Permute
from ooctrain.layers.pooling import (
    AdaptiveAvgPool2d,
    AdaptiveAvgPool2dGrad,
    AvgPool2d,
    AvgPool2dGrad,
    MaxPool2dGrad,
)
from ooctrain.layers.reduction import ChannelSum, Spread, Sum
from ooctrain.layers.regions import Embed, Slice, StridedEmbed, StridedSlice
from ooctrain.layers.relu import PointwiseGrad
from ooctrain.layers.resampling import Upsample, UpsampleGrad
from ooctrain.nn.containers import tilings_wanted
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.tile.tiling import parse_name
from ooctrain.step.machine import specs_of
from ooctrain.step.op import Scalars, row_rule_of
from ooctrain.step.trace import Call, Trace
from ooctrain.tracing import image_spec

# The step has no loss: with a random gradient of the output, terms do not cancel, as they do behind
# a loss that is a mean.


def gradient_step(
    model: Module, image: Sequence[int], *, conv_algorithm: str = "auto", threads: int = 2,
    image_gradient: bool = True,
) -> Trace:  # fmt: skip
    """Forward and backward of a model from a given output gradient, without a loss.

    Args:
        image: (N, C, H, W) of the input "x"; the output gradient "dy" is an input, too.
        image_gradient: whether "x" needs a gradient, which images of bytes have not.
    """
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    names |= {buffer: name for name, buffer in model.named_buffers()}
    runner = TraceRunner(threads, names)
    tape = Tape(runner, conv_algorithm=conv_algorithm)
    with use_tape(tape):
        for parameter, name in names.items():
            parameter.name, parameter.grad = name, None
        x = runner.input("x", image_spec(model, tuple(image)))
        x.requires_grad = image_gradient and x.dtype == "float32"
        y = model(x)
        if y.requires_grad:
            record_backward(tape, y, runner.input("dy", y.spec))
    outputs = {"y": y} | {f"grad:{t.name}": t.grad for t in (x, *names) if t.grad is not None}
    runner.builder.outputs = {name: tensor.variable for name, tensor in outputs.items()}
    return runner.builder.build()


def random_values(
    trace: Trace, seed: int = 0, *, integers: int | None = 2
) -> dict[str, np.ndarray]:
    """Values of all initial variables: whole numbers up to `integers`, or normal if None."""
    rng = np.random.default_rng(seed)
    values = {}
    for variable in (trace.variables[v] for v in trace.initial):
        drawn = rng.standard_normal(variable.shape)
        if integers is not None:
            drawn = rng.integers(-integers, integers + 1, variable.shape).astype("float64")
        of_size = variable.kind == "state" or variable.dtype == "uint8"  # variances, counts, bytes
        values[variable.name] = (abs(drawn) if of_size else drawn).astype(variable.dtype)
    return values


# How far a result of a tiled step may lie from the untiled one, call by call

UNIT = 2.0**-24
#: Calls that are linear in each of their inputs: on absolute values they give the size of a sum.
LINEAR = (
    AdaptiveAvgPool2d, AdaptiveAvgPool2dGrad, Add, AvgPool2d, AvgPool2dGrad, ChannelSum, Concat,
    Conv2d, Conv2dGradInput, Conv2dGradWeight, ConvTranspose2d, Dropout, Embed, Linear,
    LinearGradInput, LinearGradWeight, MatMul, Pad, Permute, Reshape, Slice, Spread, StridedEmbed,
    StridedSlice, Sum, Upsample, UpsampleGrad,
)  # fmt: skip
#: Calls that are linear in their first input, where what decides, the others, is as untiled.
LINEAR_IN_FIRST = (PointwiseGrad, MaxPool2dGrad, MaxAlongGrad)
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
        values: values of all variables of the untiled step, by name.
        scalars: scalars of the step.
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
    reduces = rule is not None and rule.reduces and not call.op.carries
    return tiles if reduces else 0


SCALARS: Scalars = {"lr": 0.5, "step": 3, "seed": 7}
THREADS = 2
#: By definition, in float64: so much of the largest value of a result; where that is itself
#: rounding, as of a bias in front of a norm, so much of the largest value of all results.
NEAR, CANCELLED = 1e-9, 1e-12
Promise = Literal["bits", "bound", "definition"]


class TiledFailure(OoctrainError, AssertionError):
    """A result of a tiled step is not that of the untiled one."""

    default_code = "OOC-293"


@dataclass(frozen=True, slots=True)
class TiledRow:
    """A result: where it is nearest to its bound, or farthest beyond it.

    Args:
        name: "y", "grad:x", "grad:<parameter>", or a statistic.
        promise: "bits", equal to the untiled one; "bound", near it; "definition", near it where
            both steps are run by definition, in float64.
        error: the largest difference of an element.
        bound: bound of the element at `place`.
        place: place of the element that is nearest to its bound.
        expected, got: that element, untiled and tiled.
    """

    name: str
    promise: Promise
    error: float
    bound: float
    place: tuple[int, ...]
    expected: float
    got: float

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return abs(self.got - self.expected) <= self.bound  # false of what is not a number


@dataclass(frozen=True, slots=True, repr=False)
class TiledReport:
    """What `check_tiled` found; printed, a table.

    Args:
        tilings: their names.
        rows: one for each result.
    """

    tilings: tuple[str, ...]
    rows: tuple[TiledRow, ...]

    def __repr__(self) -> str:
        exact = sum(row.promise == "bits" for row in self.rows)
        near = [row for row in self.rows if row.promise != "bits"]
        closest = max(near, key=lambda row: row.error / (row.bound or 1), default=None)
        more = f", the largest error {closest.error:.2g} ({closest.name})" if closest else ""
        within = f"{exact} results to the bit, {len(near)} within bounds{more}"
        return f"TiledReport({', '.join(self.tilings)}: {within})"

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [f"{'result':<{width}}  {'promise':<10}  {'error':>9}  {'bound':>9}"]
        lines += [
            f"{row.name:<{width}}  {row.promise:<10}  {row.error:>9.2g}  {row.bound:>9.2g}"
            for row in self.rows
        ]
        return "\n".join([", ".join(self.tilings), *lines])


def check_tiled(
    model: Module, input_shape: Sequence[int], tilings: str | Sequence[str] = (), *,
    conv_algorithm: str = "direct", seed: int = 0,
) -> TiledReport:  # fmt: skip
    """Runs forward and backward of a model, untiled and tiled, and compares all results.

    Args:
        input_shape: (N, C, H, W); small images of odd sizes find most.
        tilings: names such as "bands:4" or "tile:2x2:conv1:pool2", in order; none: what parts of
            the model want (`nn.Sequential.tiled`).
        conv_algorithm: "direct" and "im2col" are compared to the bit; "winograd2" and "winograd4",
            which round otherwise in each tile, by definition.
        seed: seed of weights, images and the gradient of the output, all random.

    Raises:
        TiledFailure: a result is not what is promised.
        ConfigError: no tiling is named, or an operation cannot be tiled.

    Cost: that of two steps, and of those calls that have bounds by definition; all is in memory.
    """
    trace = gradient_step(model, input_shape, conv_algorithm=conv_algorithm, threads=THREADS)
    names = (tilings,) if isinstance(tilings, str) else tuple(tilings)
    names = names or tilings_wanted(trace, model)
    if not names:
        raise ConfigError(
            "nothing is tiled", code="OOC-113",
            fix='check_tiled(model, shape, "bands:4"), or model.tiled(4)',
        )  # fmt: skip
    report = TiledReport(names, compared(trace, names, random_values(trace, seed, integers=None)))
    wrong = next((row for row in report.rows if not row.holds), None)
    if wrong is not None:
        raise _failure(report, wrong)
    return report


def compared(
    trace: Trace, tilings: Sequence[str], values: Mapping[str, np.ndarray]
) -> tuple[TiledRow, ...]:
    """A row for each result of the step."""
    tiled = apply_rewrites(trace, tilings)
    wanted = [v.name for v in trace.variables]
    known = run_trace(trace, values, SCALARS, wanted=wanted, threads=THREADS)
    allowed = allowed_errors(trace, tilings, known, SCALARS)
    results = {**trace.outputs} | {trace.variables[v].name: n for n, v in trace.carries.items()}
    expected, got = (run_trace(t, values, SCALARS, threads=THREADS) for t in (trace, tiled))
    rows = {
        name: _row(name, allowed[v], expected[name], got[name])
        for name, v in results.items() if allowed[v].relative is not None
    }  # fmt: skip
    if len(rows) < len(results):
        expected, got = (run_trace(t, values, SCALARS, "reference") for t in (trace, tiled))
        largest = {name: np.abs(expected[name]).max(initial=0) for name in results}
        cancelled = CANCELLED * max(largest.values())
        for name in results.keys() - rows.keys():
            near = np.full(expected[name].shape, max(NEAR * largest[name], cancelled))
            rows[name] = _worst(name, "definition", near, expected[name], got[name])
    return tuple(rows[name] for name in results)


def _row(name: str, allowed: Allowed, expected: np.ndarray, got: np.ndarray) -> TiledRow:
    promise: Promise = "bound" if allowed.relative else "bits"
    return _worst(name, promise, allowed.bound(expected.shape), expected, got)


def _worst(
    name: str, promise: Promise, bound: np.ndarray, expected: np.ndarray, got: np.ndarray
) -> TiledRow:
    """The row of a result, at the element whose error is largest relative to its bound."""
    error = np.abs(got.astype("float64") - expected)
    over = np.where(error > bound, np.inf, 0) + np.divide(
        error, bound, out=np.zeros_like(error), where=bound > 0
    )
    at = np.unravel_index(np.argmax(np.nan_to_num(over, nan=np.inf)), error.shape)
    place = tuple(map(int, at))
    largest, there = float(error.max(initial=0)), float(bound[at])
    return TiledRow(name, promise, largest, there, place, float(expected[at]), float(got[at]))


def _failure(report: TiledReport, row: TiledRow) -> TiledFailure:
    difference = abs(row.got - row.expected)
    return TiledFailure(
        f"{row.name!r} is not that of the untiled step", where=f"at {row.place}",
        numbers=f"expected {row.expected!r}, got {row.got!r}, off by {difference:.3g}; allowed: "
        + (f"{row.bound:.3g}" if row.bound else "the same bits"),
        fix=f"the row rule of an operation in {', '.join(report.tilings)}: `window`, "
        "`with_padding`; a smaller model tells which",
    )  # fmt: skip
