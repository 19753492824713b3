"""What planners that compute again have in common: the plan of decisions, and how large pieces are.

In: `Decisions`. Out: their `Plan`. The one idea: once it is settled which calls run again, the rest
is the offloading problem that `sched/planners/belady.py` solves. Read next:
`sched/planners/prefix.py`, `sched/planners/combined.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ooctrain.sched.planning.decisions import Decisions
from ooctrain.sched.planning.lower import lower
from ooctrain.sched.planning.planner import make_plan
from ooctrain.sched.planning.swap import worth_its_latency_bytes
from ooctrain.sched.schedule import Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

#: A copy moves at most this fraction of the budget, or what is worth its latency if that is more.
PIECES = 128


def piece_bytes(budget_bytes: int, machine: Machine) -> int:
    """How large the pieces are in which a gap travels."""
    return max(budget_bytes // PIECES, worth_its_latency_bytes(machine), 1)


def plan_of(
    decisions: Decisions, trace: Trace, budget_bytes: int, machine: Machine, granule: Granule,
    notes: Mapping[str, Any],
) -> Plan:  # fmt: skip
    """The as-soon-as-possible plan of some decisions."""
    schedule = lower(decisions, trace, budget_bytes, machine, granule)
    return make_plan(schedule, trace, machine, notes)
