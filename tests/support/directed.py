"""Cases that a law is always tried on, before a search goes on from there.

In: a list of arguments. Out: a decorator for a Hypothesis test. The one idea: a search draws other
cases as soon as another module is loaded beside it, so what must be found is written down, once for
the test and for the planted bugs that the law has to kill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import example


def always(cases: Iterable[tuple[Any, ...]]) -> Callable[[Callable], Callable]:
    """`@example(*case)` for each case."""

    def add(test: Callable) -> Callable:
        for case in cases:
            test = example(*case)(test)
        return test

    return add
