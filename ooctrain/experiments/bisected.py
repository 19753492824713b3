"""The number at which a question's answer turns, by halving.

How machines are fitted to a paper: it prints a speed or a share; of which rate of the machine does
that follow? And how the largest batch is found that a method trains. Read next:
`paper_000/table1.py`.
"""

from __future__ import annotations

from collections.abc import Callable

STEPS = 30


def bisected(low: float, high: float, too_little: Callable[[float], bool]) -> float:
    """Where `too_little` turns from True to False; the nearer end where it does not turn."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_little(middle) else (low, middle)
    return low


def largest(does: Callable[[int], bool], below: int, first: int = 1) -> int:
    """The largest number below a bound that `does`, as all smaller ones do; 0: not even 1.

    Args:
        first: is tried first; then its double, as long as that does.
    """
    low, high = 0, first
    while high < below and does(high):
        low, high = high, 2 * high
    return between(does, low, min(high, below))


def between(does: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from `low`, which does, to `high`, which does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if does(middle) else (low, middle)
    return low
