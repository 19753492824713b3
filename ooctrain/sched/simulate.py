"""How long a schedule takes on a machine, to the nanosecond.

The simulator turns a legal schedule, its trace and a machine into a `Timeline`. An instruction
starts when the previous one on its stream and all those it waits for are done (`ledger.py`), so one
pass over the list gives all times. Where copies slow down calls, `interference.py` takes the place
of this pass. All times are whole ns. Source: docs/schedule.md; the link modes are paper 002's
assumption A. Read next: `planners/naive.py`; `timeline.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from ooctrain.sched.ledger import Issued, lane_of, walk
from ooctrain.sched.schedule import Run, Schedule, SwapIn, SwapOut
from ooctrain.sched.timeline import Timeline, timeline_of
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace

if TYPE_CHECKING:
    from ooctrain.sched.network import NetworkLane


def simulate(schedule: Schedule, trace: Trace, machine: Machine) -> Timeline:
    """Times of every instruction on three streams.

    Args:
        schedule: legal for `trace`; of an illegal one the numbers mean nothing (`verify` first).
        machine: its link mode says whether D and H are one stream ("shared") or two ("duplex").

    Cost: O(n log n) for n instructions; about 20 us each.
    """
    return time_issued(walk(trace, schedule), schedule, trace, machine)


def time_issued(
    issued: Sequence[Issued], schedule: Schedule, trace: Trace, machine: Machine
) -> Timeline:
    """`simulate` for a list that has been walked already."""
    network = _network(schedule, trace, machine)
    start, done = times_ns(issued, schedule, trace, machine, network)
    messages = () if network is None else network.events(schedule, trace)
    return timeline_of(issued, schedule, trace, (start, done), messages)


def _network(schedule: Schedule, trace: Trace, machine: Machine) -> NetworkLane | None:
    if all(getattr(call.op, "sends", None) is None for call in trace.calls):
        return None
    return _rare()[0].lane_of_network(schedule, trace, machine)


def _rare() -> tuple[ModuleType, ModuleType]:
    # Late: only a step of several ranks, or a measured machine, needs one of them, and what
    # proves a plan needs little.
    from ooctrain.sched import interference, network

    return network, interference


def times_ns(
    issued: Sequence[Issued], schedule: Schedule, trace: Trace, machine: Machine,
    network: NetworkLane | None = None,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """(start, done) of a walked list's instructions on a machine, by list position."""
    network = network or _network(schedule, trace, machine)
    work, shared_link = durations_ns(schedule, trace, machine), machine.link == "shared"
    if machine.interference == 1.0:
        return start_times(issued, work, shared_link, network)
    return _rare()[1].interfered_times(issued, work, shared_link, machine.slowdown, network)


def durations_ns(schedule: Schedule, trace: Trace, machine: Machine) -> list[int]:
    """Duration of each instruction, undisturbed; 0 for those that run nowhere.

    A Run begins with the issue of what was listed since the last one, itself included.
    """
    calls, issue_ns = call_durations_ns(trace, machine), round(machine.issue_us * 1000)
    copy_issue_ns = round(machine.copy_issue_us * 1000)
    durations, unpaid_ns = [], 0
    for instruction in schedule.instructions:
        unpaid_ns += issue_ns
        match instruction:
            case Run(call):
                durations.append(calls[call] + unpaid_ns)
                unpaid_ns = 0
            case SwapOut(_, lo, hi):
                durations.append(machine.transfer_ns(hi - lo, "out"))
                unpaid_ns += copy_issue_ns
            case SwapIn(_, lo, hi):
                durations.append(machine.transfer_ns(hi - lo, "in"))
                unpaid_ns += copy_issue_ns
            case _:
                durations.append(0)
    return durations


def start_times(
    issued: Sequence[Issued],
    work_ns: Sequence[int],
    shared_link: bool,
    network: NetworkLane | None = None,
) -> tuple[list[int], list[int]]:
    """(start, done) in ns by list position, with the durations given and no interference.

    For Free, End and Fence both are the time at which what they wait for is done.
    """
    start, done = [0] * len(work_ns), [0] * len(work_ns)
    free_from: dict[str, int] = {}
    for row in issued:
        if row.implied:
            continue
        begin, work = max((done[w] for w in row.waits), default=0), work_ns[row.index]
        if row.stream:
            lane = lane_of(row, shared_link)
            begin = max(begin, free_from.get(lane, 0))
            if network is not None:
                work += network.wait_ns(row.index, begin)
                network.send(row.index, begin + work)
            free_from[lane] = begin + work
        start[row.index], done[row.index] = begin, begin + work
    return start, done
