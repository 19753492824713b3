"""Operations are those that were known: what they compute, cost, read and are cut into.

No result of a step shows a wrong count of work, for a count only decides how long a call is thought
to take and how large an arena is; and the tests that compare a definition with its kernels compile
them. So of every sample of `support/op_samples.py` the numbers stand in a table: work, bytes,
scratch, the definition's results to four digits, and the rules of bands and tiles for a few places.
Counts that have a definition are held to it in `test_kernels_conv.py` and `test_models.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from itertools import groupby

import numpy as np
import pytest
from support import known
from support.op_samples import SAMPLES

from ooctrain.errors import OoctrainError, ShapeError
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.step.op import Op, Spec, can_be_tiled, row_rule_of, why_untiled
from ooctrain.step.rows import RowPlace, Span, TilePlace

SCALARS = {"lr": 0.5, "step": 3, "seed": 7, "momentum": 0.25, "beta1": 0.75, "beta2": 0.875}
KINDS = {
    kind: [sample for _, sample in found]
    for kind, found in groupby(
        sorted(enumerate(SAMPLES), key=lambda pair: (type(pair[1][0]).__name__, pair[0])),
        key=lambda pair: type(pair[1][0]).__name__,
    )
}
#: (rows, first row, padding above and below) of bands of a result of so many rows.
BANDS = ((0, 1, 0, 0), (0, 2, 1, 0), (1, 3, 0, 0), (2, 4, 0, 2), (3, 5, 1, 1))


def cost(op: Op, ins: list[Spec], outs: tuple[Spec, ...]) -> known.Row:
    cpu, cuda = (table.workspace_bytes(op, ins, outs, 2) for table in (CPU, CUDA))
    return op.flops(ins, outs), op.bytes_moved(ins, outs), cpu, cuda


def results(op: Op, arrays: tuple[np.ndarray, ...]) -> str:
    """The definition on float64, to four digits of the largest value."""
    given = [np.array(a, np.float64 if np.asarray(a).dtype == np.float32 else None) for a in arrays]
    found = op.reference(*given, scalars=SCALARS)
    scaled = [np.asarray(a, np.float64) / (np.abs(a).max(initial=0) or 1) for a in found]
    return known.digest([(np.shape(a), np.abs(a).max(initial=0), (np.round(b, 4) + 0.0).tolist())
                         for a, b in zip(found, scaled, strict=True)])  # fmt: skip


def rows_of(op: Op, ins: list[Spec], outs: tuple[Spec, ...]) -> list[object]:
    """What bands of rows read, and what is run on them."""
    rule = row_rule_of(op, ins)
    if rule is None:
        return ["none"]
    found: list[object] = [rule.reduces, rule.of_image, rule.adds_images]
    full = outs[0].shape if len(outs[0].shape) == 4 else ins[0].shape
    for lo, hi, above, below in BANDS:
        hi = min(hi, full[2] if len(full) == 4 else 1)
        if lo >= hi:
            continue
        for read, spec in zip(rule.reads, ins, strict=False):
            if read is not None and len(spec.shape) == 4:
                extent = spec.shape[2]
                found += [read.read(Span(lo, hi), extent), read.first(lo, extent), read.overlap,
                          read.stop(hi, extent)]  # fmt: skip
                with suppress(AttributeError):
                    found.append([read.computable(rows, extent) for rows in (1, 2, extent)])
        with suppress(AttributeError, ValueError):
            found.append(rule.cut(RowPlace(0, Span(lo, hi), above, below, full)))
    return found


def tiles_of(op: Op, ins: list[Spec]) -> list[object]:
    if not can_be_tiled(op) or len(ins[0].shape) != 4:
        return [why_untiled(op)]
    return [op.window(), op.on_tile(TilePlace((1, 0, 0, 2), (1, 3), ins[0].shape))]


def row_of(op: Op, arrays: tuple[np.ndarray, ...]) -> known.Row:
    ins = [Spec(np.shape(array), str(np.asarray(array).dtype)) for array in arrays]
    outs = op.infer(*ins)
    shapes = " ".join("x".join(map(str, spec.shape)) for spec in outs)
    others = dict(op.reusable()), op.window(), op.pure, op.scalar_names, op.verb, op.out_names
    cut = (rows_of(op, ins, outs), tiles_of(op, ins)) if ins else ()
    return (op, shapes, *cost(op, ins, outs), results(op, arrays), known.digest(others),
            known.digest(cut))  # fmt: skip


def changed(spec: Spec) -> Iterator[Spec]:
    """Shapes and types that nearly are those of a sample."""
    yield from (replace(spec, dtype=other) for other in ("float32", "int64", "uint8"))
    yield replace(spec, shape=spec.shape[:-1])
    yield replace(spec, shape=(*spec.shape, 1))
    for axis, size in enumerate(spec.shape):
        for other in sorted({1, size - 1, size + 1} - {size}):
            yield replace(spec, shape=(*spec.shape[:axis], other, *spec.shape[axis + 1 :]))


def changed_fields(thing: Op) -> Iterator[Op]:
    """Operations whose numbers nearly are those of a sample."""
    for field in fields(thing):
        value = getattr(thing, field.name)
        others: Iterable[object] = ()
        if is_dataclass(value):
            others = changed_fields(value)
        elif isinstance(value, tuple):
            others = (
                (*value[:place], other, *value[place + 1 :])
                for place, one in enumerate(value) for other in changed_numbers(one)
            )  # fmt: skip
        else:
            others = changed_numbers(value)
        with suppress(OoctrainError):
            yield from [replace(thing, **{field.name: other}) for other in others]


def changed_numbers(value: object) -> list[int]:
    return [-1, 0, value + 1, 99] if type(value) is int else []


def inferred(op: Op, ins: list[Spec]) -> str:
    """The shapes of its results; of what it refuses the numbers."""
    try:
        return str(op.infer(*ins))
    except ShapeError as refusal:
        return f"{refusal.code} {refusal.numbers}"
    except (IndexError, TypeError, ValueError, ZeroDivisionError) as error:
        return type(error).__name__


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_are_refused_and_inferred_as_they_were(kind):
    """Of what is refused the numbers are those of the first input that does not fit."""
    rows = []
    for op, arrays in KINDS[kind]:
        ins = [Spec(np.shape(array), str(np.asarray(array).dtype)) for array in arrays]
        found = [
            inferred(op, [*ins[:place], other, *ins[place + 1 :]])
            for place, spec in enumerate(ins) for other in changed(spec)
        ]  # fmt: skip
        found += [inferred(op, ins[:-1]), inferred(op, [*ins, *ins[:1]])]
        found += [inferred(other, ins) for other in changed_fields(op)]
        refused = sum(each.startswith("OOC") for each in found)
        rows.append((len(found), refused, known.digest(found)))
    known.check_rows("shapes", kind, rows)


@pytest.mark.parametrize("kind", KINDS)
def test_an_operation_is_the_one_that_was_known(kind):
    known.check_rows("operations", kind, [row_of(op, arrays) for op, arrays in KINDS[kind]])


def test_every_row_is_of_an_operation():
    assert known.whose("operations") == known.whose("shapes") == set(KINDS)
