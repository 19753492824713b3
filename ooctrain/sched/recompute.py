"""What planners that compute again have in common: a choice of dropped values becomes a plan.

In: runs (from `rematerialise`). Out: a `Plan` whose memory is made up by offloading what is still
too much. The one idea: once it is settled which calls run again, the rest is the offloading problem
that `belady.py` solves. Read next: `prefix.py`, `combined.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ooctrain.cost import Machine
from ooctrain.sched.base import infeasible, make_plan
from ooctrain.sched.belady import evictions
from ooctrain.sched.decisions import Decisions, Gap, possible_gaps
from ooctrain.sched.in_core import Liveness
from ooctrain.sched.lower import lower
from ooctrain.sched.schedule import Granule, Plan, Run
from ooctrain.sched.swap import in_pieces
from ooctrain.trace import Trace

#: A copy moves at most this fraction of the budget.
PIECES = 128
#: And at least this many times what passes the link during its latency: 5 % are lost to it.
LATENCIES_PER_PIECE = 20


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


def movable_gaps(trace: Trace, runs: Sequence[Run]) -> list[Gap]:
    """Gaps that a whole variable may spend on the host. As `swap.swap_gaps`, for any runs."""
    return [
        gap
        for gap in possible_gaps(trace, runs)
        if gap.after >= 0 and gap.before - gap.after > 1 and gap.var not in trace.carries
    ]


def piece_bytes(budget_bytes: int, machine: Machine) -> int:
    """How large the pieces are in which a gap travels."""
    rate = max(machine.in_bytes_per_us, machine.out_bytes_per_us)
    return max(budget_bytes // PIECES, int(LATENCIES_PER_PIECE * machine.latency_us * rate), 1)


def plan_of(
    decisions: Decisions, trace: Trace, budget_bytes: int, machine: Machine, granule: Granule,
    notes: Mapping[str, Any],
) -> Plan:  # fmt: skip
    """The as-soon-as-possible plan of some decisions."""
    schedule = lower(decisions, trace, budget_bytes, machine, granule)
    return make_plan(schedule, trace, machine, notes)
