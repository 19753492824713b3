"""Cases on which a law is always tried, before a search starts from there.

A search draws other cases as soon as another module is loaded too. So the cases that must be found
are written down once, for the test and for the planted bugs that the law has to kill. The decorator
gives them to a Hypothesis test. Read next: `strategies.py`.
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
