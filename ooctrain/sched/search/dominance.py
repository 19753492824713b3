"""The states worth following: those that no other is at least as good as; compiled.

States come with the best first. A row need only be compared with the rows that stay: a row that
excludes another is also at least as good as all that the other would exclude. Source: Kung, Luccio
and Preparata, On finding the maxima of a set of vectors (1975), by its plain method. Read next:
`sched/planners/pofo/pofo_search.py`, which asks.
"""

from __future__ import annotations

import numpy as np

from ooctrain.sched.search.jit import compiled


@compiled
def undominated(kept, unsent, unfetched, kind):
    """Rows that no earlier row of their kind is at least as good as.

    Args:
        kept, unsent, unfetched: float64, for each row; less is better.
        kind: float64, for each row; only rows of one kind are compared.

    Cost: O(rows x rows that stay).
    """
    found = np.empty(kind.size, np.int64)
    count = 0
    for row in range(kind.size):
        place = 0
        while place < count:
            other = found[place]
            if (
                kind[other] == kind[row]
                and kept[other] <= kept[row]
                and unsent[other] <= unsent[row]
                and unfetched[other] <= unfetched[row]
            ):
                break
            place += 1
        if place == count:
            found[count] = row
            count += 1
    return found[:count]
