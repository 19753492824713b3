"""How much Python a call runs: lines and calls counted, which no load of the machine changes.

A test that reads a clock fails on a busy machine and passes on a fast one; this count does neither.
What runs in C, in numpy or in compiled code counts as the one call that it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


def lines_run(action: Callable[[], object]) -> int:
    """Lines of Python that `action` runs in this thread, a function's call being one more.

    Cost: some ten times the time of the call.
    """
    count = 0

    def seen(_frame, _event, _argument):
        nonlocal count
        count += 1
        return seen

    before = sys.gettrace()
    sys.settrace(seen)
    try:
        action()
    finally:
        sys.settrace(before)
    return count
