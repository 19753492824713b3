"""What planners that swap have in common: the gaps they choose from, and a plan of the chosen.

In: a trace, then chosen gaps. Out: the least budget of a choice, and a `Plan`. The one idea: where
nothing is computed again, a planner's whole decision is a set of gaps; when things move is for
`lower.py`. Parameters and optimizer slots rest on the device between steps; within a step they may
leave like all others, except a parameter's new value, which shares the old one's host slot. Read
next: `sched/planners/belady.py`, `sched/planners/greedy.py`; `recompute.py` for planners that also
compute again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ooctrain.sched.planning.decisions import Decisions, Gap, possible_gaps, runs_once
from ooctrain.sched.planning.lower import lower
from ooctrain.sched.planning.pieces import Table, tabulate
from ooctrain.sched.planning.planner import check_host, infeasible, make_plan
from ooctrain.sched.schedule import Granule, Plan, Run
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

#: A copy of this many times its latency loses 5 % to it.
LATENCIES_PER_PIECE = 20


def swap_gaps(trace: Trace) -> list[Gap]:
    """All gaps that a whole variable may spend on the host while each call runs once.

    Cost: O(uses).
    """
    return movable_gaps(trace, runs_once(trace))


def movable_gaps(trace: Trace, runs: Sequence[Run]) -> list[Gap]:
    """All gaps that a whole variable may spend on the host, for any runs.

    Left out are gaps before the first use, those between two neighbouring runs, and a parameter's
    new value, whose host slot is the old one's.

    Cost: O(uses by the runs).
    """
    return [
        gap
        for gap in possible_gaps(trace, runs)
        if gap.after >= 0 and gap.before - gap.after > 1 and gap.var not in trace.carries
    ]


def swap_table(trace: Trace, gaps: Iterable[Gap], machine: Machine, granule: Granule) -> Table:
    """What some gaps mean for memory, call by call."""
    return tabulate(Decisions(runs_once(trace), tuple(gaps)), trace, machine, granule)


def least_budget(table: Table, trace: Trace) -> tuple[int, str]:
    """(bytes, call): the least budget in which the gaps of a table can be lowered, and who needs
    it.
    """
    rows = zip(
        table.resident_bytes, (trace.calls[run.call].name for run in table.runs), strict=True
    )
    return max([(table.start_bytes, "the start"), *rows], key=lambda row: row[0])


def swap_plan(
    name: str, trace: Trace, gaps: Iterable[Gap], budget_bytes: int, machine: Machine,
    granule: Granule, host_budget_bytes: int | None, notes: Mapping[str, Any] | None = None,
) -> Plan:  # fmt: skip
    """Lowers gaps to a plan.

    Raises:
        Infeasible: they do not fit the budget, or the host's.
    """
    decisions = Decisions(runs_once(trace), tuple(gaps))
    plan = make_plan(lower(decisions, trace, budget_bytes, machine, granule), trace, machine, notes)
    check_host(name, plan, host_budget_bytes)
    return plan


def check_budget(
    name: str, trace: Trace, gaps: Iterable[Gap], budget_bytes: int, machine: Machine,
    granule: Granule,
) -> None:  # fmt: skip
    """Raises Infeasible where not even all of some gaps together make room enough."""
    least, witness = least_budget(swap_table(trace, gaps, machine, granule), trace)
    if least > budget_bytes:
        raise infeasible(name, budget_bytes, least, witness)


def worth_its_latency_bytes(machine: Machine) -> int:
    """The size from which a copy loses little to its latency."""
    rate = max(machine.in_bytes_per_us, machine.out_bytes_per_us)
    return int(LATENCIES_PER_PIECE * machine.latency_us * rate)


def in_pieces(gap: Gap, piece_bytes: int, granule: Granule) -> Iterator[Gap]:
    """A gap cut at multiples of `piece_bytes`, rounded up to the granule.

    Where the allocator has no ranges, variables move as a whole, and the gap stays one.
    """
    step = granule.granted(max(1, piece_bytes)) if granule.ranges else gap.hi
    for lo in range(gap.lo, gap.hi, step):
        yield Gap(gap.var, lo, min(lo + step, gap.hi), gap.after, gap.before)
