"""Checkpoints: the values that stay, and the segment that depends on each until the next.

Given the kinds of operation whose outputs stay, this file numbers the checkpoints of a trace and
finds the values of each one's segment. Convolutions are expensive and the calls after them are
cheap, so a network falls into segments that begin with the output of an expensive call. A value
belongs to the latest checkpoint it is made from without another in between. Batch statistics belong
to none: they take almost no memory to keep, and a pass over the values to compute.

Sources: Chen et al., Training deep nets with sublinear memory cost; paper 001, sections 2.2 and
3.2, whose numbers these are. Departure: TensorFlow's batch norm is one node, so there statistics
are computed again too. Read next: `sched/planners/superneurons.py`,
`sched/planners/tflms_hybrid.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ooctrain.sched.planning.rematerialise import droppable
from ooctrain.step.trace import Trace

#: Owner of what is made from inputs and parameters alone.
NO_CHECKPOINT = -1


@dataclass(frozen=True, slots=True)
class SegmentCheckpoint:
    """A value that stays while those of its segment may be computed again.

    Args:
        id: its number, from 1, in order of production.
        var: the variable.
        name, size_bytes: of the variable.
    """

    id: int
    var: int
    name: str
    size_bytes: int


def checkpoints_by_types(trace: Trace, types: Collection[str]) -> tuple[SegmentCheckpoint, ...]:
    """The outputs of the forward calls of some types, numbered.

    Args:
        types: names of operations, such as "Conv2d"; TensorFlow's "Conv2D" will do.
    """
    wanted = {name.lower() for name in types}
    found = [
        out
        for call in trace.calls
        if call.phase == "forward" and type(call.op).__name__.lower() in wanted
        for out in call.outs
    ]
    variables = [trace.variables[var] for var in found]
    return tuple(SegmentCheckpoint(k, v.id, v.name, v.nbytes) for k, v in enumerate(variables, 1))


def segments(trace: Trace, checkpoints: Collection[int]) -> Mapping[int, tuple[int, ...]]:
    """{checkpoint: the values of its segment that may be dropped}, `NO_CHECKPOINT` among them.

    Args:
        checkpoints: variables.

    Cost: O(uses).
    """
    stay = frozenset(checkpoints)
    order = {out: call.id for call in trace.calls for out in call.outs}
    owner: dict[int, int] = {}
    for call in trace.calls:
        if call.phase == "forward":
            sources = [owner[var] for var in call.ins if var in owner]
            latest = max(sources, key=lambda var: order.get(var, -1), default=NO_CHECKPOINT)
            owner.update({out: out if out in stay else latest for out in call.outs})
    found: dict[int, list[int]] = {var: [] for var in (NO_CHECKPOINT, *sorted(stay))}
    for var in droppable(trace):
        if var not in stay and trace.variables[var].kind != "stat":
            found[owner[var]].append(var)
    return {checkpoint: tuple(values) for checkpoint, values in found.items()}
