"""The cases of an experiment, spread over the cores.

In: a function and its cases. Out: its results, in the order of the cases, each as soon as it and
those before it are there. The one idea: planning and replaying are pure functions of plain data, so
a case may run in any process. Read next: `paper_000/fragmentation.py`.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from ooctrain.step.presets import usable_cores

Case = TypeVar("Case")
Result = TypeVar("Result")


def spread(
    work: Callable[[Case], Result], cases: Sequence[Case], processes: int | None = None
) -> Iterator[Result]:
    """Calls `work` for each case.

    Args:
        work: a function of a module, or a partial of one: it travels to other processes.
        processes: None: as many as this process may use cores; 1: this one.
    """
    count = min(processes or usable_cores(), len(cases))
    if count <= 1:
        yield from map(work, cases)
        return
    # "spawn": a fork would inherit locks of threads that do not exist in the child.
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(work, cases)
