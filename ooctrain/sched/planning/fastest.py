"""The fastest of some lists, or plans, that keep to the host's budget.

A planner often has to choose one `Plan` among several lists or plans. A lower bound on a list's
makespan (`least_us`) is found ten times faster than the makespan itself. So lists are simulated in
ascending order of their bounds, until the bound of the next one is no less than the best makespan
found; often that is the second or the third. Source: branch and bound (Land and Doig 1960), without
the branches. Read next: `sched/planners/hmms.py`, `sched/planners/lms.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ooctrain.sched.planning.planner import check_host, make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import End, Plan, Run, Schedule, SwapIn, SwapOut
from ooctrain.sched.simulate import durations_ns
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class Candidate:
    """A list, and the notes that its plan is to have."""

    schedule: Schedule
    notes: Mapping[str, Any]


def fastest_list(planner: str, question: Question, candidates: Sequence[Candidate]) -> Plan:
    """The plan of the fastest of some legal lists within the host budget; of equals the one with
    the least to do on its busiest stream, then the first.

    Raises:
        Infeasible: no list keeps to the host budget.

    Cost: O(instructions) for each list, a simulation for those that may be the fastest.
    """

    trace, machine = question.trace, question.machine

    def busiest_us(candidate: Candidate) -> float:
        return busiest_stream_us(candidate.schedule, trace, machine)

    ways = [
        (
            least_us(candidate.schedule, trace, machine),
            partial(make_plan, candidate.schedule, trace, machine, candidate.notes),
        )
        for candidate in sorted(candidates, key=busiest_us)
    ]
    return fastest_of(planner, (), ways, question.host_budget_bytes)


def fastest_of(
    planner: str, known: Sequence[Plan], ways: Iterable[tuple[float, Callable[[], Plan]]],
    host_budget_bytes: int | None,
) -> Plan:  # fmt: skip
    """The fastest of some plans, and of others that are made only while they may be the fastest.

    Of equals the first is taken, `known` before `ways`.

    Args:
        known: plans.
        ways: for each plan that can be made (a lower bound on its makespan in us, what makes it).

    Raises:
        Infeasible: no plan keeps to the host budget.
    """
    limit = math.inf if host_budget_bytes is None else host_budget_bytes
    within_us = (plan.makespan_us for plan in known if plan.host_peak_bytes <= limit)
    best = min(within_us, default=math.inf), -1  # (us, place among the ways)
    made: dict[int, Plan] = {}
    for place, (bound_us, make) in sorted(enumerate(ways), key=lambda way: (way[1][0], way[0])):
        if (bound_us, place) >= best:
            break
        made[place] = make()
        if made[place].host_peak_bytes <= limit:
            best = min(best, (made[place].makespan_us, place))
    return fastest(planner, [*known, *(made[place] for place in sorted(made))], host_budget_bytes)


def least_us(schedule: Schedule, trace: Trace, machine: Machine) -> float:
    """A lower bound on a list's makespan, in O(instructions).

    It counts that every stream works in list order, that a call waits until what it reads has come
    in, and that what comes in waits for the calls listed before it, whose memory it may take.
    """
    shared_link = machine.link == "shared"
    calls_ns = in_ns = out_ns = 0  # when what has been listed for each stream is done
    ended_ns = 0  # the latest call that has ended
    arrives_ns: dict[int, int] = {}
    for instruction, took_ns in zip(
        schedule.instructions, durations_ns(schedule, trace, machine), strict=True
    ):
        match instruction:
            case Run(number):
                call, ended_ns = trace.calls[number], calls_ns
                inputs_ns = [arrives_ns.get(variable, 0) for variable in call.ins]
                calls_ns = max(calls_ns, *inputs_ns, 0) + took_ns
            case End():
                ended_ns = calls_ns
            case SwapIn(variable):
                in_ns = arrives_ns[variable] = max(in_ns, ended_ns) + took_ns
            case SwapOut() if shared_link:
                in_ns += took_ns
            case SwapOut():
                out_ns += took_ns
    return max(calls_ns, in_ns, out_ns) / 1000


def busiest_stream_us(schedule: Schedule, trace: Trace, machine: Machine) -> float:
    """A weaker bound: the time of all calls, or of all copies that take turns."""
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
