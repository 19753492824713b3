"""Planning makes many objects and next to no garbage: the collector looks at them less often.

Python's collector walks new objects each time that 700 more have been made than freed, and now and
then all there are. A step in bands has a hundred thousand variables, calls and instructions, all of
which stay, so a third of its planning went by in walks that found nothing. While a step is planned
the collector waits for more new objects. Source: the documentation of Python's `gc`. Read next:
`execution/compose.py`, which plans so.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: New objects between two looks: some ten MiB.
RARELY = 50_000


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """As a `with` or above a function: meanwhile the collector waits for `RARELY` new objects.

    Where it waits for as many already, in a planner that is asked by another one or in two threads
    at once, nothing changes, so the last one to leave finds it as the first one did.
    """
    first, *others = gc.get_threshold()
    if not 0 < first < RARELY:
        yield
        return
    gc.set_threshold(RARELY, *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)
