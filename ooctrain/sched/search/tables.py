"""A trace as arrays, for compiled code.

`Tables` holds a trace, a machine and a granule. A list of lists becomes one flat array and the
places where each inner list begins; everything else is a number per call or per variable. Read
next: `expand.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ooctrain.sched.planning.list_writer import last_uses
from ooctrain.sched.schedule import Granule
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Call, Trace

COMPUTED, PERSISTENT, INPUT = 0, 1, 2


class Tables(NamedTuple):
    """What the search looks up.

    Args:
        ins, ins_at: distinct variables that call c reads: `ins[ins_at[c] : ins_at[c + 1]]`.
        outs, outs_at: likewise those it writes.
        reused: for each variable the input whose storage it takes over; -1: none.
        origin: `COMPUTED`, `PERSISTENT` (on the device before the step), `INPUT` (on the host).
        producer: the call that writes it; -1: none.
        last_use: the last call that touches it; the number of calls if the next step needs it.
        slot_at: variable v has the slots [slot_at[v], slot_at[v + 1]), one for the time after each
            call that touches it, in order; one where no call does.
        movable: whether it may spend a gap on the host: a parameter's new value may not, as it
            shares the old one's host slot.
        granted: bytes that the allocator grants it.
        duration_ns, workspace, pure: one for each call.
        column: for each variable its row of what is kept; -1: it cannot be computed again, and
            stays as long as it is of use.
        values: the variable of each column.
    """

    ins: np.ndarray
    ins_at: np.ndarray
    outs: np.ndarray
    outs_at: np.ndarray
    reused: np.ndarray
    origin: np.ndarray
    producer: np.ndarray
    last_use: np.ndarray
    slot_at: np.ndarray
    movable: np.ndarray
    granted: np.ndarray
    duration_ns: np.ndarray
    workspace: np.ndarray
    pure: np.ndarray
    column: np.ndarray
    values: np.ndarray


def tables_of(trace: Trace, machine: Machine, granule: Granule) -> Tables:
    """The arrays of a trace. Cost: O(calls + uses)."""
    ins, ins_at = _flat([dict.fromkeys(call.ins) for call in trace.calls])
    outs, outs_at = _flat([call.outs for call in trace.calls])
    reused = [-1] * len(trace.variables)
    for call in trace.calls:
        for out, source in call.reuse.items():
            reused[out] = source
    values = sorted(columns_of(trace), key=lambda v: (trace.producer[v] or 0, v))
    column = [-1] * len(trace.variables)
    for own, value in enumerate(values):
        column[value] = own
    return Tables(
        ins, ins_at, outs, outs_at, _ints(reused),
        _ints([_origin(trace, v.id) for v in trace.variables]),
        _ints([-1 if call is None else call for call in trace.producer]),
        _ints(last_uses(trace)),
        _ints([0, *accumulate(max(1, len(uses)) for uses in trace.uses)]),
        np.array([v.id not in trace.carries for v in trace.variables], np.bool_),
        _ints([granule.granted(v.nbytes) for v in trace.variables]),
        _ints(call_durations_ns(trace, machine)),
        _ints([granule.granted(call.workspace_bytes) for call in trace.calls]),
        _ints([call.pure for call in trace.calls]), _ints(column), _ints(values),
    )  # fmt: skip


def columns_of(trace: Trace) -> Iterator[int]:
    """The values that may be computed again."""
    last = last_uses(trace)
    for variable in trace.variables:
        made = trace.producer[variable.id]
        if made is None or not variable.nbytes or last[variable.id] >= len(trace.calls):
            continue
        if may_run_again(trace.calls[made]):
            yield variable.id


def may_run_again(call: Call) -> bool:
    """Whether a search may run a call more than once."""
    return call.pure and call.phase in ("forward", "loss")


def _origin(trace: Trace, var: int) -> int:
    if trace.producer[var] is not None:
        return COMPUTED
    return PERSISTENT if trace.variables[var].persistent else INPUT


def _flat(rows: Sequence[Iterable[int]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.zeros(len(rows) + 1, np.int64)
    values: list[int] = []
    for place, row in enumerate(rows):
        values += row
        starts[place + 1] = len(values)
    return _ints(values), starts


def _ints(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), np.int64)
