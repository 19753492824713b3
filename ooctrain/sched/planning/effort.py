"""How much a search may do: a number of evaluations, interrupted by a clock.

A planner that searches ends after a number of evaluations. A count is the same on every machine,
however busy, and so is the plan. A caller in a hurry sets a time limit as well: a `Deadline`, which
the planner looks at between two evaluations. What it cuts short depends on the machine, so the
plan's notes then say `cut_short`. Planning makes many objects but next to no garbage, so Python's
collector runs rarely meanwhile (`collecting_rarely`). Source: ours. Read next:
`sched/planners/combined.py`.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ooctrain.errors import ConfigError
from ooctrain.sched.planning.planner import Planner

#: Default number of evaluations of a command's or a program's search: two seconds for 600 calls.
EVALUATIONS = 10_000
#: New objects between two looks of the garbage collector: some ten MiB. Python's own 700 mean that
#: all calls, variables and instructions of a long step are walked again and again, and all stay.
RARELY = 50_000


@runtime_checkable
class SearchingPlanner(Planner, Protocol):
    """A planner whose search ends after a number of evaluations."""

    def with_evaluations(self, evaluations: int) -> Planner:
        """The same planner, with this number of evaluations where it was not given one itself."""
        ...


def check_evaluations(planner: str, evaluations: object) -> None:
    """Checks that `evaluations` is a finite number of 0 or more; None: the planner's own."""
    if evaluations is None:
        return
    is_switch = isinstance(evaluations, bool)
    if is_switch or not isinstance(evaluations, int | float) or not 0 <= evaluations < math.inf:
        raise ConfigError(
            f"{planner}: evaluations={evaluations!r} is not a finite number of 0 or more",
            code="OOC-105",
            fix=f"such as {planner}:evaluations=20000, or leave it out",
        )


def with_effort(planner: Planner, evaluations: int | None) -> Planner:
    """The planner, limited to `evaluations` choices; one that does not search stays as it is.

    Args:
        evaluations: None: the planner's own number.
    """
    if evaluations is None or not isinstance(planner, SearchingPlanner):
        return planner
    return planner.with_evaluations(evaluations)


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a time limit ends, on the monotonic clock; without a limit `at_s` is None."""

    at_s: float | None = None

    @staticmethod
    def after(limit_s: float | None) -> Deadline:
        """The end of a time limit that begins now; None: there is no limit."""
        return Deadline(None if limit_s is None else time.monotonic() + limit_s)

    def left_s(self) -> float | None:
        """Seconds that are left, 0 once it is over; None: unlimited."""
        return None if self.at_s is None else max(0.0, self.at_s - time.monotonic())

    def passed(self) -> bool:
        """Whether it is over."""
        return self.left_s() == 0

    def earlier(self, seconds: float) -> Deadline:
        """A deadline `seconds` earlier."""
        return Deadline(None if self.at_s is None else self.at_s - seconds)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Context manager or decorator: meanwhile the collector waits for `RARELY` new objects.

    Where it waits for as many already, in nested planners or in two threads at once, nothing
    changes, so the last one to leave finds it as the first one did.
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
