"""What planners that only swap have in common: the gaps they choose from, and a plan of the chosen.

In: a trace, then chosen gaps. Out: the least budget of a choice, and a `Plan`. The one idea: where
nothing is computed again, a planner's whole decision is a set of gaps; when things move is for
`lower.py`. Parameters and optimizer slots rest on the device between steps; within a step they may
leave like all others, except a parameter's new value, which shares the old one's host slot. Read
next: `belady.py`, `greedy.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ooctrain.cost import Machine
from ooctrain.sched.base import check_host, infeasible, make_plan
from ooctrain.sched.decisions import Decisions, Gap, possible_gaps, runs_once
from ooctrain.sched.lower import lower
from ooctrain.sched.profile import Table, tabulate
from ooctrain.sched.schedule import Granule, Plan
from ooctrain.trace import Trace


def swap_gaps(trace: Trace) -> list[Gap]:
    """All gaps in which a whole variable may be away while each call runs once.

    Cost: O(uses).
    """
    return [
        gap
        for gap in possible_gaps(trace, runs_once(trace))
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


def in_pieces(gap: Gap, piece_bytes: int, granule: Granule) -> Iterator[Gap]:
    """A gap cut at multiples of some bytes, rounded up to the granule; whole without ranges."""
    step = granule.granted(max(1, piece_bytes)) if granule.ranges else gap.hi
    for lo in range(gap.lo, gap.hi, step):
        yield Gap(gap.var, lo, min(lo + step, gap.hi), gap.after, gap.before)
