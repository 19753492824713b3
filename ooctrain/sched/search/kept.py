"""What a search changes: what is kept from call to call, and what stays on the device.

A value that may be computed again has a column. For each call its column says whether it is wanted
as that call begins, if it is there by then: wanted, it is kept, on the device or on the host; not
wanted, it dies, and is computed again for the next call that reads it (`expand.py`). Which bytes
wait on the host is left to Belady's rule (`evict.py`), but for each time after a use it is said
whether the value stays while others can leave. So every list in which values come back just before
they are read is one `Kept`, however often a value comes back and however long it then stays.
Source: ours; the rows of Checkmate's S (Jain et al., MLSys 2020), read as wishes. Read next:
`moves.py`, which changes it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.jit import compiled, inner


class Kept(NamedTuple):
    """What is kept and what stays.

    Args:
        until: int32, for each column and call k the first call from k on as which begins the value
            is not wanted: k itself if it is not wanted then. A value that a run for call k makes
            is there until `until[column, k + 1]`.
        stays: int8, for each slot whether what can leave in it leaves only when all others have
            left.
    """

    until: np.ndarray
    stays: np.ndarray


def nothing_kept(columns: int, calls: int, slots: int) -> Kept:
    """No value is wanted at any call, and none stays."""
    rows = np.arange(calls + 2, dtype=np.int32)
    return Kept(np.tile(rows, (columns, 1)), np.zeros(slots, np.int8))


@inner
def copy(source, target):
    """target[:] = source. That itself compiles the words of its error, which takes two seconds."""
    for at in range(source.size):
        target[at] = source[at]


@inner
def want(kept, own, first, last, wanted):
    """A column is wanted as calls `first` to `last` begin, or is not."""
    row = kept.until[own]
    for call in range(last, first - 1, -1):
        row[call] = row[call + 1] if wanted else call
    call = first - 1
    while call >= 0 and row[call] > call:
        row[call] = row[first]
        call -= 1


@compiled
def want_all(kept, spans):
    """Columns are wanted during spans: rows (column, first call, last call)."""
    for place in range(spans.shape[0]):
        want(kept, spans[place, 0], spans[place, 1], spans[place, 2], True)


@inner
def is_wanted(kept, own, call):
    """Whether a column is wanted as a call begins."""
    return kept.until[own, call] > call


class SeenGaps(NamedTuple):
    """What comes of it, for moves that look for gaps.

    Args:
        there: for each column and call, whether the value is there as the call begins.
        touched: whether a run for the call reads or writes it.
        runs: of each call.
    """

    there: np.ndarray
    touched: np.ndarray
    runs: np.ndarray


def unseen(columns: int, calls: int) -> SeenGaps:
    """Room for what comes of a `Kept`."""
    return SeenGaps(
        np.zeros((columns, calls + 2), np.int8), np.zeros((columns, calls + 1), np.int8),
        np.zeros(calls, np.int64),
    )  # fmt: skip


@compiled
def look(t, kept, step, seen):
    """Writes what comes of a step that has been expanded. Cost: O(columns x calls + uses)."""
    seen.there[:, :] = 0
    seen.touched[:, :] = 0
    seen.runs[:] = 0
    for place in range(step.runs.size):
        run, call = step.runs[place], step.of[place]
        seen.runs[call] += 1
        for at in range(t.ins_at[run], t.ins_at[run + 1]):
            if t.column[t.ins[at]] >= 0:
                seen.touched[t.column[t.ins[at]], call] = 1
        for at in range(t.outs_at[run], t.outs_at[run + 1]):
            if t.column[t.outs[at]] >= 0:
                seen.touched[t.column[t.outs[at]], call] = 1
    for life in range(step.life_var.size):
        own = t.column[step.life_var[life]]
        if own >= 0:
            first = step.of[step.life_first[life]] + 1
            last = kept.until[own, first]
            if step.taken_over[life]:
                last = min(last, step.of[step.life_last[life]] + 1)
            seen.there[own, first:last] = 1
