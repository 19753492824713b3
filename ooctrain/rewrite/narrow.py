"""Narrow: where a mask makes calls too wide, the masked gradient is written once, in place.

In: a trace after `fuse`, and how many bytes a call may hold by itself. Out: a trace with the same
bits, in which a ReLU's gradient of such calls is a call again. The one idea: `fuse` saves a pass
through memory, and pays with width. The two gradient calls of a batch norm, and the sum behind a
shortcut, read dy, the mask y and one array more, and in 7.5 times too little memory three such
arrays hold five sixths of it: beside such a call nothing can be fetched, and the GPU waits. dz = dy
where y > 0 can be written over dy, since nobody else reads dy; then each of these calls holds two
arrays, and y may leave before them. So the pass that `fuse` saved is paid for again, but only where
it buys time to copy. Where dy cannot be overwritten nothing would be gained, and nothing is done.
Source: ours; in place as paper 004, section 4.2. Read next: `fuse.py`, whose backward half this
undoes; `execution/compose.py`, which offers such steps to planners that choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from ooctrain.errors import ConfigError
from ooctrain.layers.batch_norm import BatchNormGradApply, BatchNormGradReduce
from ooctrain.layers.combine import Add, AddMasked
from ooctrain.layers.instance_norm import InstanceNormGradApply, InstanceNormGradReduce
from ooctrain.layers.kernels.tables import TABLES
from ooctrain.layers.relu import ReLUGrad
from ooctrain.rewrite.edit import with_calls
from ooctrain.sched.planning.planner import call_need_bytes
from ooctrain.sched.schedule import BYTES
from ooctrain.step.machine import specs_of
from ooctrain.step.trace import Call, Trace, Variable

NAME = "narrow"
#: A call that holds more than one part in so many of the budget is too wide: little of what the
#: calls around it need finds room beside it. Measured: docs/planners.md.
PARTS = 4


def narrow(trace: Trace, most_bytes: int) -> Trace:
    """Takes masks out of the calls that hold more than `most_bytes`, and of all that share them.

    Cost: O(calls).
    """
    before: dict[int, Call] = {}  # {call: the one that masks for it and for others}
    unmasked: dict[int, Call] = {}
    variables = list(trace.variables)
    for (dy, y), readers in _masking(trace).items():
        wide = any(call_need_bytes(call, trace, BYTES) > most_bytes for call in readers)
        if wide and _can_be_overwritten(trace, dy, readers):
            dz = replace(variables[dy], id=len(variables), name=f"{variables[dy].name}.masked")
            variables.append(dz)
            number = len(trace.calls) + len(before)
            before[readers[0].id] = _mask(trace, number, (dy, y), dz, readers[0])
            unmasked |= {call.id: _without_mask(call, dz.id) for call in readers}
    if not before:
        return trace
    calls = list[Call]()
    for call in trace.calls:
        calls += [before[call.id]] if call.id in before else []
        calls.append(unmasked.get(call.id, call))
    return with_calls(replace(trace, variables=tuple(variables)), calls)


def narrow_by_name(trace: Trace, name: str) -> Trace:
    """The rewrite "narrow:1073741824". Raises ConfigError: no number of bytes."""
    most = name.partition(":")[2]
    if not (most.isascii() and most.isdigit() and int(most) > 0):
        raise ConfigError(
            f"rewrite {name!r} has no size", code="OOC-106",
            fix=f"{NAME}:1073741824 makes calls narrower that hold more than 1 GiB",
        )  # fmt: skip
    return narrow(trace, int(most))


def narrower(trace: Trace, budget_bytes: int) -> dict[str, Trace]:
    """{name: the step after it} of the rewrite that makes calls narrow for a budget; none where
    that changes nothing.
    """
    name = f"{NAME}:{max(1, budget_bytes // PARTS)}"
    found = narrow_by_name(trace, name)
    return {} if found is trace else {name: found}


def _masking(trace: Trace) -> dict[tuple[int, int], list[Call]]:
    """{(gradient, output of the ReLU): the calls that mask the one by the other}."""
    found: dict[tuple[int, int], list[Call]] = {}
    for call in trace.calls:
        match call.op:
            case AddMasked():
                found.setdefault((call.ins[1], call.ins[2]), []).append(call)
            case (
                BatchNormGradReduce(mask=True) | BatchNormGradApply(mask=True)
                | InstanceNormGradReduce(mask=True) | InstanceNormGradApply(mask=True)
            ):  # fmt: skip
                found.setdefault((call.ins[0], call.ins[-1]), []).append(call)
    return found


def _can_be_overwritten(trace: Trace, dy: int, readers: Sequence[Call]) -> bool:
    """Whether nobody but these needs a gradient from the first of them on, and they once each."""
    asked = {call.id for call in readers}
    others = [reader for reader in trace.readers[dy] if reader not in asked]
    return (
        trace.producer[dy] is not None
        and dy not in trace.outputs.values()
        and dy not in trace.carries
        and dy not in trace.taker
        and all(reader < readers[0].id for reader in others)
        and all(call.ins.count(dy) == 1 for call in readers)
    )


def _mask(trace: Trace, number: int, ins: tuple[int, int], dz: Variable, reader: Call) -> Call:
    """dz = dy where y > 0, over dy."""
    op, (dy, y) = ReLUGrad(), ins
    specs = specs_of(trace, ins)
    workspace = TABLES[trace.device].workspace_bytes(op, specs, specs[:1], trace.threads or 1)
    return Call(
        number, f"{trace.variables[dy].name}.mask", op, ins, (dz.id,), workspace,
        MappingProxyType({dz.id: dy}), phase=reader.phase, forward_of=trace.producer[y],
    )  # fmt: skip


def _without_mask(call: Call, dz: int) -> Call:
    """A call that reads what is masked already."""
    if isinstance(call.op, AddMasked):
        return replace(call, op=Add(), ins=(call.ins[0], dz))
    return replace(call, op=replace(call.op, mask=False), ins=(dz, *call.ins[1:-1]))
