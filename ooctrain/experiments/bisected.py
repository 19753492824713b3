"""The number at which a question's answer turns, by halving: how machines are fitted to a paper.

A paper prints a speed or a share; of which rate of the machine does it follow? Where the answer to
"is this too little?" turns from yes to no, between two ends. Read next: `paper_000/table1.py`.
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
