"""The fastest of some lists, or plans, that keep to the host's budget.

In: what a planner came to in several ways. Out: one `Plan`. The one idea: no list is done before
its busiest stream, which is a sum; so lists are simulated in the order of that sum, until the next
one could not be faster any more. On a slow link that is the second or the third. Source: branch and
bound (Land and Doig 1960), without the branches. Read next: `hmms.py`, `lms_grid.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ooctrain.cost import Machine
from ooctrain.sched.base import check_host, make_plan
from ooctrain.sched.schedule import Plan, Run, Schedule, SwapIn, SwapOut
from ooctrain.sched.simulate import durations_ns
from ooctrain.trace import Trace


@dataclass(frozen=True, slots=True)
class Candidate:
    """A list and what its plan is to note."""

    schedule: Schedule
    notes: Mapping[str, Any]


def fastest_list(
    planner: str, candidates: Sequence[Candidate], trace: Trace, machine: Machine,
    host_budget_bytes: int | None,
) -> Plan:  # fmt: skip
    """The plan of the fastest of some legal lists within the host budget.

    Raises:
        Infeasible: no list keeps to the host budget.

    Cost: O(instructions) for each list, a simulation for those that may be the fastest.
    """
    ways = [
        (
            busiest_stream_us(candidate.schedule, trace, machine),
            partial(make_plan, candidate.schedule, trace, machine, candidate.notes),
        )
        for candidate in candidates
    ]
    return fastest_of(planner, (), ways, host_budget_bytes)


def fastest_of(
    planner: str, known: Iterable[Plan], ways: Iterable[tuple[float, Callable[[], Plan]]],
    host_budget_bytes: int | None,
) -> Plan:  # fmt: skip
    """The fastest of plans that are there and of plans that are made only while they may be it.

    Args:
        known: plans.
        ways: (the least time in us that its plan takes, what makes the plan).

    Raises:
        Infeasible: no plan keeps to the host budget.
    """
    plans = list(known)
    limit = math.inf if host_budget_bytes is None else host_budget_bytes
    within_us = (plan.makespan_us for plan in plans if plan.host_peak_bytes <= limit)
    best_us = min(within_us, default=math.inf)
    for least_us, make in sorted(ways, key=lambda way: way[0]):
        if least_us >= best_us:
            break
        plans.append(make())
        if plans[-1].host_peak_bytes <= limit:
            best_us = min(best_us, plans[-1].makespan_us)
    return fastest(planner, plans, host_budget_bytes)


def busiest_stream_us(schedule: Schedule, trace: Trace, machine: Machine) -> float:
    """What a list takes at least: all calls, or all copies that take turns."""
    busy_ns = {Run: 0, SwapOut: 0, SwapIn: 0}
    for instruction, took_ns in zip(
        schedule.instructions, durations_ns(schedule, trace, machine), strict=True
    ):
        if took_ns:
            busy_ns[type(instruction)] += took_ns  # what runs nowhere takes no time
    copies_ns = (busy_ns[SwapOut], busy_ns[SwapIn])
    link_ns = sum(copies_ns) if machine.link == "shared" else max(copies_ns)
    return max(busy_ns[Run], link_ns) / 1000


def fastest(planner: str, plans: Sequence[Plan], host_budget_bytes: int | None) -> Plan:
    """The plan with the smallest makespan among those within the host budget, the first of equals.

    Raises:
        Infeasible: no plan keeps to the host budget.
    """
    check_host(planner, min(plans, key=lambda plan: plan.host_peak_bytes), host_budget_bytes)
    limit = math.inf if host_budget_bytes is None else host_budget_bytes
    within = [plan for plan in plans if plan.host_peak_bytes <= limit]
    return min(within, key=lambda plan: plan.makespan_us)
