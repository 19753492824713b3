"""What moves of a search may change, made once for a question.

Read next: `moves.py`, which looks it up; `search.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from ooctrain.sched.planning.rematerialise import last_forward_use
from ooctrain.sched.search.moves import Field
from ooctrain.sched.search.tables import Tables, may_run_again
from ooctrain.step.trace import Trace

#: Gaps of values of at most this share of the budget are not turned.
SMALL = 0.002


def field_of(trace: Trace, t: Tables, budget_bytes: int, large_bytes: int | None) -> Field:
    """The field of a step.

    Args:
        large_bytes: from which size on staying is a choice; None: for no value.
    """
    values, calls = t.values.tolist(), len(trace.calls)
    of_use = _last_of_use(trace, t)
    end = [of_use[var] for var in values]
    middle = [last_forward_use(trace, var) for var in values]
    stop = [
        last if last > between else until
        for last, between, until in zip(t.last_use[values].tolist(), middle, end, strict=True)
    ]
    reads = np.zeros((len(values), calls + 2), np.bool_)
    for own, var in enumerate(values):
        reads[own, list(trace.readers[var])] = True
    near = _near(trace, values)
    turned = [own for own, var in enumerate(values) if t.granted[var] > SMALL * budget_bytes]
    kept = set(turned)
    rows = [[c for c in sorted(t.column[list(row)].tolist()) if c in kept] for row in near]
    places = [
        own for own, var in enumerate(values)
        if trace.variables[var].kind == "activation" and stop[own] > middle[own]
        and trace.calls[trace.producer[var] or 0].phase == "forward"
    ]  # fmt: skip
    linked = [
        (own, other)
        for own in places
        for other in t.column[list(_computed_from(trace, values[own]))]
        if other in set(places)
    ]
    large = _ints([] if large_bytes is None else _large(trace, large_bytes))
    return Field(
        t.producer[values] + 1, _ints(end), _ints(middle), _ints(stop), reads,
        _ints(places), np.array(linked, np.int64).reshape(-1, 2),
        _ints(turned), _ints(c for row in rows for c in row),
        _ints([0, *accumulate(map(len, rows))]), t.slot_at[large],
        t.slot_at[large + 1],
    )  # fmt: skip


def _last_of_use(trace: Trace, t: Tables) -> list[int]:
    """The last call for which each variable may be of use, as one from which others are computed
    again, too.
    """
    last = t.last_use.tolist()
    for call in reversed(trace.calls):
        if may_run_again(call):
            latest = max((last[out] for out in call.outs), default=-1)
            for var in call.ins:
                last[var] = max(last[var], latest)
    return last


def _computed_from(trace: Trace, var: int) -> dict[int, None]:
    """What is computed from a value, by a call or by two."""
    near = dict.fromkeys(out for call in trace.readers[var] for out in trace.calls[call].outs)
    for out in list(near):
        near |= dict.fromkeys(o for call in trace.readers[out] for o in trace.calls[call].outs)
    return near


def _near(trace: Trace, values: Sequence[int]) -> list[set[int]]:
    """Of each value those that are computed from it, or from which it is, by a call or by two."""
    near: dict[int, set[int]] = {v: set() for v in values}
    for var in values:
        for out in _computed_from(trace, var):
            if out in near and out != var:
                near[var].add(out)
                near[out].add(var)
    return [near[var] for var in values]


def _large(trace: Trace, large_bytes: int) -> list[int]:
    """Values for which staying is a choice: computed in the step, and no smaller than this."""
    return [
        variable.id
        for variable in trace.variables
        if trace.producer[variable.id] is not None
        and not variable.persistent
        and variable.nbytes >= large_bytes
    ]


def _ints(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), np.int64)
