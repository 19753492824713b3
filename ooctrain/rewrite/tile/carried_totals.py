"""The calls of a carried sum: of a band's rows, and the total when all bands have run.

In: a call that sums over all rows, and how far a pass over the bands has come. Out: operations and
steps. The one idea: the last thing that a level does is to make totals of its states; from then on
they stand for what the untiled call has written. Read next: `bands.py`.
"""

from __future__ import annotations

from ooctrain.rewrite.tile.band_rows import BandPass
from ooctrain.rewrite.tile.barriers import Level
from ooctrain.rewrite.tile.carried_sums import CarriedSum, CarriedTotal, state_bytes
from ooctrain.rewrite.tile.steps import TileCall, Value
from ooctrain.rewrite.tile.writer import TraceWriter
from ooctrain.step.machine import specs_of
from ooctrain.step.op import Spec
from ooctrain.step.trace import Call, Trace


def carried_sum(trace: Trace, call: Call, place: tuple[int, int], goes_on: bool) -> CarriedSum:
    """The sum of a call that goes on at this image and row."""
    ins, outs = specs_of(trace, call.ins), specs_of(trace, call.outs)
    size_bytes = state_bytes(call.op, ins, outs, trace.device)
    return CarriedSum(call.op, ins[0].shape, place, size_bytes, goes_on)


def finish_level(run: BandPass, level: Level, writer: TraceWriter) -> None:
    """Ends a level: its sums become totals, its tensors exist in all bands."""
    for call in level:
        if call.id in run.states:
            _write_total(run, call, writer)
    run.finished.update(v for call in level for v in call.outs)
    run.level += 1


def _write_total(run: BandPass, call: Call, writer: TraceWriter) -> None:
    variables = writer.trace.variables
    shape = variables[call.ins[0]].shape
    op = CarriedTotal(call.op, shape, tuple(variables[v].shape for v in call.outs))
    vectors = [writer.value_of(v) for v in call.ins if len(variables[v].shape) < len(shape)]
    old = [variables[v] for v in call.outs]
    outs = tuple(Value(one.name, Spec(one.shape, one.dtype), one.kind) for one in old)
    ins = run.states.pop(call.id), *vectors
    run.steps.append(TileCall(call.name, op, ins, outs, run.phase))
    for v, value in zip(call.outs, outs, strict=True):
        run.totals[v] = value
        writer.becomes(v, value)
