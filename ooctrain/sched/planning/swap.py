"""The common part of planners that swap: the gaps they choose from, and a plan of the chosen.

Where nothing is computed again, a planner's whole decision is a set of gaps; when things move is
decided by `lower.py`. The result is a `Plan`, or the refusal of a budget. Parameters and optimizer
slots rest on the device between steps; within a step they may leave like all others, except a
parameter's new value, which shares the old one's host slot. Read next: `sched/planners/belady.py`,
`sched/planners/greedy.py`; `rematerialise.py` for planners that also compute again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ooctrain.sched.planning.decisions import Decisions, Gap, movable_gaps, runs_once
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.planner import infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

#: A copy moves at most this fraction of the budget, or what is worth its latency if that is more.
PIECES = 128


def swap_gaps(trace: Trace) -> list[Gap]:
    """All gaps that a whole variable may spend on the host while each call runs once.

    Cost: O(uses).
    """
    return movable_gaps(trace, runs_once(trace))


def swap_plan(
    name: str, question: Question, gaps: Iterable[Gap], notes: Mapping[str, Any] | None = None
) -> Plan:
    """Lowers gaps to a plan.

    Raises:
        Infeasible: they do not fit the budget, or the host's.
    """
    return plan_of(name, question, Decisions(runs_once(question.trace), tuple(gaps)), notes)


def check_budget(name: str, question: Question, gaps: Iterable[Gap]) -> None:
    """Raises Infeasible where not even all of some gaps together make room enough.

    Args:
        gaps: as `swap_gaps` finds them.
    """
    least, witness = question.liveness.least_budget(runs_once(question.trace), gaps)
    if least > question.budget_bytes:
        raise infeasible(name, question.budget_bytes, least, witness)


def piece_bytes(budget_bytes: int, machine: Machine) -> int:
    """How large the pieces are in which a gap travels."""
    return max(budget_bytes // PIECES, machine.worth_its_latency_bytes, 1)
