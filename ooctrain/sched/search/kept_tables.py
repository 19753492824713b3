"""What the searches over what is kept from call to call look up, made once for a question.

A value that may be computed again has a column. Any other has none, since it stays as long as it is
of use: it counts among the bytes that are there as a call begins, or that the call claims. Beside a
column stand the calls from which, and up to which, it is of use, and its neighbours: the columns
that are computed from it, or from which it is. Read next: `kept_walk.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ooctrain.sched.planning.question import Question
from ooctrain.sched.search.tables import COMPUTED, INPUT, Tables, tables_of
from ooctrain.step.trace import Call, Trace


class KeptTables(NamedTuple):
    """What a walk looks up.

    Args:
        step: the calls and variables.
        budget_bytes: of the device.
        values: those that may be computed again, a column for each, and are not too small to
            matter.
        column: of each variable; -1: it has none, and stays as long as it is of use.
        until: the last call for which a variable without a column can be read.
        size: bytes of each column.
        claim: of each call: workspace, inputs, and outputs without a column.
        base: bytes of variables without a column as each call begins.
        first, end: of each column the first and the last call as which begins it is of use.
        near, near_at: columns that are computed from column c, or from which it is, by a call or by
            two: `near[near_at[c] : near_at[c + 1]]`.
    """

    step: Tables
    budget_bytes: int
    values: np.ndarray
    column: np.ndarray
    until: np.ndarray
    size: np.ndarray
    claim: np.ndarray
    base: np.ndarray
    first: np.ndarray
    end: np.ndarray
    near: np.ndarray
    near_at: np.ndarray


def _may_run(call: Call) -> bool:
    """Whether a call runs again here."""
    return call.pure and call.phase in ("forward", "loss")


def kept_tables(question: Question, small: float) -> KeptTables:
    """The tables of a question.

    Args:
        question: the host budget is not looked at.
        small: values of at most this share of the budget have no column; below 0: all have one.
    """
    trace = question.trace
    t = tables_of(trace, question.machine, question.granule)
    until, calls = _until(trace, t), len(trace.calls)
    values = [
        v for v, made in enumerate(trace.producer)
        if made is not None and _may_run(trace.calls[made]) and t.last_use[v] < calls
        and t.granted[v] > small * question.budget_bytes
    ]  # fmt: skip
    values.sort(key=lambda v: (trace.producer[v] or 0, v))
    column = np.full(len(trace.variables), -1, np.int64)
    column[values] = np.arange(len(values))
    for var, taker in trace.taker.items():
        if column[var] < 0:
            until[var] = min(until[var], taker)
    near = _near(trace, values)
    claim, base = _others(trace, t, column, until)
    return KeptTables(
        t, question.budget_bytes, _ints(values), column, _ints(until), t.granted[values],
        claim, base, t.producer[values] + 1, _ints([until[v] for v in values]),
        _ints([column[v] for row in near for v in row]),
        _ints([0, *accumulate(len(row) for row in near)]),
    )  # fmt: skip


def _until(trace: Trace, t: Tables) -> list[int]:
    """The last call for which each variable may be of use."""
    until = t.last_use.tolist()
    for call in reversed(trace.calls):
        if _may_run(call):
            last = max((until[out] for out in call.outs), default=-1)
            for var in call.ins:
                until[var] = max(until[var], last)
    return [len(trace.calls) if t.origin[v] == INPUT else last for v, last in enumerate(until)]


def _others(
    trace: Trace, t: Tables, column: np.ndarray, until: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """What each call claims, and what is there as it begins, of variables without a column."""
    claim, base = t.workspace.copy(), np.zeros_like(t.workspace)
    for var in np.flatnonzero(column < 0).tolist():
        size_bytes, made = t.granted[var], trace.producer[var]
        if t.origin[var] == INPUT:
            claim[list(trace.readers[var])] += size_bytes
            continue
        if t.reused[var] < 0 and made is not None:
            claim[made] += size_bytes
        if t.last_use[var] >= 0:
            first = 0 if t.origin[var] != COMPUTED or made is None else made + 1
            base[first : until[var] + 1] += size_bytes
    return claim, base


def _near(trace: Trace, values: Sequence[int]) -> list[list[int]]:
    """Of each value those that are computed from it, or from which it is, by a call or by two."""
    near: dict[int, set[int]] = {v: set() for v in values}
    for var in values:
        outs = {out for call in trace.readers[var] for out in trace.calls[call].outs}
        outs |= {o for v in outs for call in trace.readers[v] for o in trace.calls[call].outs}
        for out in outs.intersection(values):
            near[var].add(out)
            near[out].add(var)
    return [sorted(near[v].difference([v])) for v in values]


def _ints(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int64)
