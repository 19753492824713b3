"""How much a search may do: a number of evaluations, interrupted by a clock.

A planner that searches ends after a number of evaluations. A count is the same on every machine,
however busy, and so is the plan. A caller in a hurry sets a time limit as well: a `Deadline`, which
the planner looks at between two evaluations. What it cuts short depends on the machine, so the
plan's notes then say `cut_short`. Source: ours. Read next: `sched/planners/combined.py`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

#: Default number of evaluations of a command's or a program's search: two seconds for 600 calls.
EVALUATIONS = 10_000


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

    def or_earlier(self, other: Deadline) -> Deadline:
        """The earlier of two deadlines."""
        ends = [each.at_s for each in (self, other) if each.at_s is not None]
        return Deadline(min(ends, default=None))

    def keeping(self, share: float) -> Deadline:
        """An earlier deadline, which keeps this share of the time that is left."""
        return self.earlier(share * (self.left_s() or 0.0))


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a search may do.

    Args:
        evaluations: what a search may cost, for a planner that was not given a number itself;
            None: its own.
        deadline: interrupts it.
        at_once: whether there is a plan is all that counts; a planner that asks others asks only
            those that answer at once.
    """

    evaluations: int | None = None
    deadline: Deadline = Deadline()
    at_once: bool = False

    @classmethod
    def within(cls, limit_s: float | None, evaluations: int | None = None) -> Effort:
        """An effort whose time begins now; None: there is no limit."""
        return cls(evaluations, Deadline.after(limit_s))

    @classmethod
    def none(cls, evaluations: int | None = None) -> Effort:
        """An effort whose time is over, on any clock: `at_once`."""
        return cls(evaluations, Deadline(-math.inf), at_once=True)

    def share(self, share: float) -> Effort:
        """A part of the evaluations and of the time that is left."""
        number = None if self.evaluations is None else int(share * self.evaluations)
        return replace(self, evaluations=number, deadline=self.deadline.keeping(1 - share))


#: As many evaluations as the planner makes by itself, and no deadline.
UNHURRIED = Effort()


def searches(planner: object) -> bool:
    """Whether a planner searches, and so loads the compiled search: it has a parameter
    `evaluations`.
    """
    return hasattr(planner, "evaluations")
