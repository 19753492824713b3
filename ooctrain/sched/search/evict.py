"""Which bytes spend which gaps on the host: Belady's rule in chunks, compiled.

In a walk over an `ExpandedStep`, where memory is short, the value that is needed last leaves, only
as many bytes as are missing, rounded up to chunks. For each gap the bytes [0, evicted) are away.
What stays leaves only when all others have left. Source: Belady (1966), whose rule is optimal in
bytes for offloading alone. The readable twin is `sched/planners/belady.py`, with
`sched/planning/host_gaps.py` where host memory is short. Read next: `play.py`, which times the
copies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.jit import compiled, inner
from ooctrain.sched.search.play import by_run, pop, push


class Shortage(NamedTuple):
    """Limits of `evict_within`.

    Args:
        chunk_bytes: evictions are multiples of it; 0: whole variables.
        grain_bytes: what is less than a chunk is a multiple of it.
        room: bytes left on the host, from the start of run s - 1 to that of run s; empty: enough.
        free: for each variable, whether it is on the host anyway.
    """

    budget_bytes: int
    chunk_bytes: int
    grain_bytes: int
    room: np.ndarray
    free: np.ndarray


class Hosting(NamedTuple):
    """What the gaps of a variable have on the host so far: bytes, until which slot; the same when
    each gap was opened; and what has been evicted of each gap.
    """

    evicted: np.ndarray
    bytes: np.ndarray
    until: np.ndarray
    bytes_before: np.ndarray
    until_before: np.ndarray


@compiled
def evict(step, granted, stays, budget_bytes, chunk_bytes):
    """`evict_within`, with host memory for all."""
    no_room, no_variables = np.empty(0, np.int64), np.empty(0, np.bool_)
    limits = Shortage(budget_bytes, chunk_bytes, 1, no_room, no_variables)
    return evict_within(step, granted, stays, limits)


@inner
def evict_within(step, granted, stays, limits):
    """Bytes that each gap spends on the host.

    Args:
        step: ExpandedStep.
        granted: bytes of each variable.
        stays: for each slot, whether what leaves in it leaves only when all others have left.
        limits: Shortage; its room is taken.

    Returns:
        (evicted bytes of each gap, 0), or, where nothing helps, (..., the largest lack).

    Cost: O(runs + gaps log gaps); where host memory is short O(runs) for each eviction besides.
    """
    budget_bytes, chunk_bytes = limits.budget_bytes, limits.chunk_bytes
    runs, gaps = step.runs.size, step.gap_var.size
    short_host = limits.room.size > 0
    no_host = short_host and limits.room.max() == 0
    variables = granted.size if short_host else 0
    evicted = np.zeros(gaps, np.int64)
    hosting = Hosting(
        evicted, np.zeros(variables, np.int64), np.zeros(variables, np.int64),
        np.zeros(gaps, np.int64), np.zeros(gaps, np.int64),
    )  # fmt: skip
    returns = np.zeros(runs + 1, np.int64)
    opening = by_run(step.gap_after, runs)
    heap = np.empty(gaps, np.int64)  # open gaps are numbered by their ends: the last one is on top
    opened = next_to_open = 0
    away = lack = 0
    while next_to_open < gaps and step.gap_after[opening[next_to_open]] < 0:
        gap = opening[next_to_open]  # inputs are on the host until they are read
        next_to_open += 1
        evicted[gap] = granted[step.gap_var[gap]]
        away += evicted[gap]
        returns[step.gap_before[gap]] += evicted[gap]
    for place in range(runs):
        away -= returns[place]
        while next_to_open < gaps and step.gap_after[opening[next_to_open]] < place:
            gap = opening[next_to_open]
            next_to_open += 1
            if no_host and not limits.free[step.gap_var[gap]]:
                continue
            if short_host:
                var = step.gap_var[gap]
                hosting.bytes_before[gap] = hosting.bytes[var]
                hosting.until_before[gap] = hosting.until[var]
            push(heap, opened, gap - gaps if stays[step.gap_slot[gap]] else gap)
            opened += 1
        short = step.resident[place] - away - budget_bytes
        while short > 0 and opened:
            gap = heap[0] % gaps
            left = granted[step.gap_var[gap]] - evicted[gap]
            if left == 0 or step.gap_before[gap] <= place:
                pop(heap, opened)
                opened -= 1
                continue
            size = min(left, -(-short // chunk_bytes) * chunk_bytes) if chunk_bytes else left
            if short_host:
                size = _hosted(step, gap, size, limits, hosting)
                if size == 0:
                    pop(heap, opened)
                    opened -= 1
            evicted[gap] += size
            returns[step.gap_before[gap]] += size
            away += size
            short -= size
        lack = max(lack, short)
    return evicted, lack


@inner
def _hosted(step, gap, wanted, limits, hosting):
    """How many more bytes of a gap the host has room for, `wanted` at most; takes it. The
    twin of `sched/planning/host_gaps.py`.
    """
    var, room, taken = step.gap_var[gap], limits.room, hosting.evicted[gap]
    first, last = step.gap_after[gap] + 1, step.gap_before[gap]
    if limits.free[var]:
        return wanted
    size = wanted
    for slot in range(first, last + 1):
        size = min(size, room[slot])
        if size == 0:
            return 0
    if size < wanted:
        size = size - size % limits.grain_bytes if limits.chunk_bytes and size > 0 else 0
    hosted, until = hosting.bytes_before[gap], hosting.until_before[gap]
    shared = min(size, max(0, hosted - taken))
    if shared:
        for slot in range(until + 1, first):
            if room[slot] < shared:
                return 0
        for slot in range(until + 1, first):
            room[slot] -= shared
    for slot in range(first, last + 1):
        room[slot] -= size
    if size:
        hosting.bytes[var] = max(hosted, taken + size)
        hosting.until[var] = last if taken + size >= hosted else until
    return size
