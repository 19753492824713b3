"""Shared parts of all benchmarks: fair timing on a machine with other users, and plain tables.

The speed of a shared machine wanders by more than the differences to be measured. So the functions
to be timed take turns in every round, and only medians, in milliseconds, and ratios of times from
one round are compared. Read next: `bench_steps.py`.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

#: OpenMP's threads spin for milliseconds after a parallel region and would take a core from whoever
#: is measured next; a pause lets them fall asleep.
PAUSE_S = 0.05


def interleaved_ms(
    contestants: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 2
) -> dict[str, list[float]]:
    """Milliseconds of each round, by contestant; all run once in each round, in turn."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for run in range(warm_up + rounds):
        for name, contestant in contestants.items():
            time.sleep(PAUSE_S)
            started = time.perf_counter()
            contestant()
            if run >= warm_up:
                samples[name].append((time.perf_counter() - started) * 1e3)
    return samples


def threads_here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_facts() -> dict[str, Any]:
    """What a result must be read beside: date, processor, versions, load."""
    import numba

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": processor_name(),
        "cores": threads_here(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "load_before": load,
    }


def processor_name() -> str:
    """As the system names it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How many times as fast as theirs ours is: the median over rounds of theirs / ours."""
    return median(b / a for a, b in zip(ours, theirs, strict=True))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines with aligned columns; the first is to the left, the others to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    shown = []
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        shown.append("  ".join(cells).rstrip())
    return "\n".join(shown)


def verdict(ok: bool) -> str:
    """For the last column."""
    return "ok" if ok else "MISSED"
