"""Compares every result of a model in tiles with the untiled result, within its error bound.

Both steps run call by call on the same random numbers. Results for which tilings promise equal bits
must be equal to the bit; sums that are added in another order have a bound that is computed from
the sizes of their terms (`tiled_bounds.py`); for the few results with neither promise, the
definitions are compared in float64. A model, the shape of its images and names of tilings give a
`TiledReport`, one row for each result: y, dX, dW, db, statistics; or a `TiledFailure` that names
the first wrong one, and the place. Read next: docs/tiling.md; `testing/check_rewrite.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ooctrain.engine.incore import run_trace
from ooctrain.engine.module import Module
from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.nn.containers import tilings_wanted
from ooctrain.rewrite import apply_rewrites
from ooctrain.step.op import Scalars
from ooctrain.step.trace import Trace
from ooctrain.testing.tiled.gradient_step import gradient_step, random_values
from ooctrain.testing.tiled.tiled_bounds import Allowed, allowed_errors

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
        bound: of the element at `place`.
        place: of the element that is nearest to its bound.
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
        seed: of weights, images and the gradient of the output, all random.

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
    """The row of a result, at the element whose error is largest beside its bound."""
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
