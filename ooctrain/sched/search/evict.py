"""Which bytes spend which gaps on the host: Belady's rule in chunks, compiled.

The function walks an `ExpandedStep`. Where memory is short, the value that is needed last leaves,
only as many bytes as are missing, rounded up to chunks. For each gap it returns the bytes [0,
evicted) that are away, or else the bytes that are missing. Sources: Belady 1966; in bytes it is
optimal for offloading alone. Read next: `play.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.sched.search.jit import compiled
from ooctrain.sched.search.order import by_run, pop, push


@compiled
def evict(step, granted, stays, budget_bytes, chunk_bytes):
    """Bytes that each gap spends on the host.

    Args:
        step: ExpandedStep.
        granted: bytes of each variable.
        stays: for each variable, whether it leaves only when all others have left.
        budget_bytes: of the device.
        chunk_bytes: evictions are multiples of it; 0: whole variables.

    Returns:
        (evicted bytes of each gap, 0), or, where nothing helps, (..., the largest lack).

    Cost: O(runs + gaps log gaps).
    """
    runs, gaps = step.runs.size, step.gap_var.size
    evicted = np.zeros(gaps, np.int64)
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
            push(heap, opened, gap - gaps if stays[step.gap_var[gap]] else gap)
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
            evicted[gap] += size
            returns[step.gap_before[gap]] += size
            away += size
            short -= size
        lack = max(lack, short)
    return evicted, lack
