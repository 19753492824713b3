"""What the rules look at, and how they report a problem.

A rule is a question about a state, without memory of its own. `State` is a trace, a list and its
ledger up to some instruction; `Problem` is the answer of a rule that is broken. Read next:
`shape.py`, then `residency.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ooctrain.sched.ledger import Ledger
from ooctrain.sched.schedule import Range, Schedule
from ooctrain.sched.spans import Spans
from ooctrain.step.trace import Trace

OTHER_TRACE = "the list was made for another trace"


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken rule in words: what, the numbers, what most likely mends it."""

    what: str
    numbers: str = ""
    fix: str = ""


@dataclass(slots=True)
class State:
    """What the rules look at: the list, the ledger up to here, and which calls have run.

    Args:
        budget_bytes, host_budget_bytes: None: not limited.
        ran: for each call how often it has run.
        next_call: the call whose first run is due.
    """

    trace: Trace
    schedule: Schedule
    ledger: Ledger
    budget_bytes: int | None = None
    host_budget_bytes: int | None = None
    ran: list[int] = field(default_factory=list)
    next_call: int = 0

    def name(self, variable: int) -> str:
        """Name of a variable, for messages."""
        return self.trace.variables[variable].name


def by_variable(ranges: Iterable[Range]) -> dict[int, list[tuple[int, int]]]:
    """Ranges by variable, ascending; empty ones left out."""
    found: dict[int, list[tuple[int, int]]] = {}
    for variable, lo, hi in sorted(ranges):
        if lo < hi:
            found.setdefault(variable, []).append((lo, hi))
    return found


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending ranges with touching ones made one."""
    spans: Spans[None] = Spans()
    for lo, hi in ranges:
        spans.put(lo, hi, None)
    return spans.ranges()


def spell(ranges: Iterable[tuple[int, int]]) -> str:
    """Ranges in words, the first four of them."""
    spelled = [f"[{lo}, {hi})" for lo, hi in ranges]
    return (
        ", ".join(spelled[:4]) + (f" and {len(spelled) - 4} more" if len(spelled) > 4 else "")
        or "nothing"
    )
