"""The parts of a run, in order, each with its seconds: three runs of at most ten minutes.

A GPU is lent for minutes at a time, so the most decisive parts come first: whether results are
right, then how fast kernels are, then whole steps. Each run begins with the machine as it finds it.
The user names one of the three runs, or parts, and minutes. Read next: `__main__.py`; docs/gpu.md
has the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

#: Failed checks of earlier runs, made again.
AGAIN = "again"
#: {run: {part: seconds of its own}}; what a part leaves over, the next ones may use.
RUNS: Mapping[int, Mapping[str, int]] = MappingProxyType({
    1: {"environment": 20, "smoke": 60, "kernels": 160, "networks": 170, "memory": 60},
    2: {"environment": 20, AGAIN: 60, "link": 30, "kernel_speed": 240, "counters": 170},
    3: {"environment": 20, "steps": 290, "mapping": 80, "calibration": 40, "sanitizer": 140},
})  # fmt: skip
#: Seconds in which a run has to be over; a process that is ended has a few to go.
MOST_S = 600


def all_parts() -> dict[str, int]:
    """Every part of all runs, once, in order."""
    return {part: s for run in RUNS.values() for part, s in run.items() if part != AGAIN}


def wanted(run: int, names: Sequence[str], minutes: float) -> dict[str, float]:
    """The parts with their seconds.

    Args:
        run: 1 to 3; 0: all parts.
        names: only these; empty: all of the run.
        minutes: that all of them have together; 0: as in the table.

    Raises:
        ValueError: no part has one of the names.
    """
    known = RUNS[run] if run else all_parts()
    for name in names:
        if name not in known:
            raise ValueError(f"no part is called {name!r}: {', '.join(known)}")
    chosen = {name: float(known[name]) for name in names or known}
    scale = minutes * 60 / sum(chosen.values()) if minutes else 1.0
    return {name: seconds * scale for name, seconds in chosen.items()}
