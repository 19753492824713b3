"""Which bytes spend which gaps on the host: Belady's rule in chunks, compiled.

In: a `Step` and a budget. Out: for each gap the bytes [0, evicted) that are away, or the bytes that
are lacking. The one idea: walk the step; where memory is short, what is needed last goes, no more
of it than is lacking, rounded up to chunks. Sources: Belady 1966; in bytes it is optimal for
offloading alone (notes on planners, section 0). Read next: `play.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.sched.search.jit import compiled


@compiled
def evict(step, granted, budget_bytes, chunk_bytes):
    """Bytes that each gap spends on the host.

    Args:
        step: Step.
        granted: bytes of each variable.
        budget_bytes: of the device.
        chunk_bytes: evictions are multiples of it; 0: whole variables.

    Returns:
        (evicted bytes of each gap, 0), or, where nothing helps, (..., the largest lack).

    Cost: O(runs + gaps + runs short of memory x gaps open there).
    """
    runs, gaps = step.runs.size, step.gap_var.size
    evicted = np.zeros(gaps, np.int64)
    returns = np.zeros(runs + 1, np.int64)
    opening = np.argsort(step.gap_after, kind="mergesort")
    is_open = np.empty(gaps, np.int64)
    opened = next_to_open = 0
    away = lack = 0
    for gap in range(gaps):  # inputs are on the host until they are read
        if step.gap_after[gap] < 0:
            size = granted[step.gap_var[gap]]
            evicted[gap] = size
            away += size
            returns[step.gap_before[gap]] += size
    for place in range(runs):
        away -= returns[place]
        while next_to_open < gaps and step.gap_after[opening[next_to_open]] < place:
            gap = opening[next_to_open]
            next_to_open += 1
            if step.gap_after[gap] >= 0:
                is_open[opened] = gap
                opened += 1
        short = step.resident[place] - away - budget_bytes
        if short <= 0:
            continue
        left = 0
        for row in range(opened):
            if step.gap_before[is_open[row]] > place:
                is_open[left] = is_open[row]
                left += 1
        opened = left
        while short > 0:
            best = -1
            for row in range(opened):
                gap = is_open[row]
                if evicted[gap] < granted[step.gap_var[gap]] and (
                    best < 0 or step.gap_before[gap] > step.gap_before[best]
                ):
                    best = gap
            if best < 0:
                break
            size = granted[step.gap_var[best]] - evicted[best]
            if chunk_bytes:
                size = min(size, -(-short // chunk_bytes) * chunk_bytes)
            evicted[best] += size
            returns[step.gap_before[best]] += size
            away += size
            short -= size
        lack = max(lack, short)
    return evicted, lack
