"""What planners that compute again have in common: from runs to decisions, and to a plan.

In: runs (from `rematerialise`). Out: `Decisions` that offload what is still too much for the
budget, and the `Plan` of decisions. The one idea: once it is settled which calls run again, the
rest is the offloading problem that `sched/planners/belady.py` solves. Read next:
`sched/planners/prefix.py`, `sched/planners/combined.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ooctrain.sched.planners.belady import evictions
from ooctrain.sched.planning.decisions import Decisions
from ooctrain.sched.planning.liveness import Liveness
from ooctrain.sched.planning.lower import lower
from ooctrain.sched.planning.planner import infeasible, make_plan
from ooctrain.sched.planning.swap import in_pieces, movable_gaps, worth_its_latency_bytes
from ooctrain.sched.schedule import Granule, Plan, Run
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

#: A copy moves at most this fraction of the budget, or what is worth its latency if that is more.
PIECES = 128


def offload(
    name: str, trace: Trace, runs: tuple[Run, ...], budget_bytes: int, machine: Machine,
    granule: Granule, stays: Collection[int] = (),
) -> Decisions:  # fmt: skip
    """The runs, and what Belady's rule sends to the host so that they fit.

    Args:
        name: of the planner, for what is raised.
        stays: variables that leave only when all others have left.

    Raises:
        Infeasible: the runs do not fit though all that can goes to the host.

    Cost: O(runs + gaps log gaps).
    """
    liveness, gaps = Liveness(trace, granule), movable_gaps(trace, runs)
    least, witness = liveness.least_budget(runs, gaps)
    if least > budget_bytes:
        raise infeasible(name, budget_bytes, least, witness)
    step = piece_bytes(budget_bytes, machine)
    gone = evictions(gaps, liveness.resident_bytes(runs), budget_bytes, granule, stays)
    return Decisions(runs, tuple(piece for gap in gone for piece in in_pieces(gap, step, granule)))


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
