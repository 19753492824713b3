"""How long a schedule takes on a machine, to the nanosecond.

A legal schedule, its trace and a machine become a `Timeline`. An instruction starts when the
previous one on its stream and all those it waits for are done (`ledger.py`), so one pass over the
list gives all times (`start_times`). Where copies slow down calls, a clock takes the place of this
pass (`interfered_times`); messages between ranks take time on a network (`NetworkLane`). All times
are whole ns. Source: docs/schedule.md; the link modes are paper 002's assumption A. Read next:
`planners/naive.py`; `timeline.py`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ooctrain.sched.ledger import Issued, lane_of, walk
from ooctrain.sched.schedule import Run, Schedule, SwapIn, SwapOut
from ooctrain.sched.timeline import Timeline, TimelineEvent, timeline_of
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.network import Message, Network
from ooctrain.step.trace import Trace


def simulate(schedule: Schedule, trace: Trace, machine: Machine) -> Timeline:
    """Times of every instruction on three streams.

    Args:
        schedule: legal for `trace`; of an illegal one the numbers mean nothing (`verify` first).
        machine: its link mode says whether D and H are one stream ("shared") or two ("duplex").

    Cost: O(n log n) for n instructions; about 20 us each.
    """
    issued = walk(trace, schedule)
    network = _network(schedule, trace, machine)
    start, done = times_ns(issued, schedule, trace, machine, network)
    messages = () if network is None else network.events(schedule, trace)
    return timeline_of(issued, schedule, trace, (start, done), messages)


def ends_at_us(
    issued: Sequence[Issued], schedule: Schedule, trace: Trace, machine: Machine
) -> float:
    """When the last instruction of a walked list ends."""
    _, done_ns = times_ns(issued, schedule, trace, machine)
    return max((done_ns[row.index] for row in issued if row.stream), default=0) / 1000


def _network(schedule: Schedule, trace: Trace, machine: Machine) -> NetworkLane | None:
    if all(getattr(call.op, "sends", None) is None for call in trace.calls):
        return None
    return lane_of_network(schedule, trace, machine)


def times_ns(
    issued: Sequence[Issued], schedule: Schedule, trace: Trace, machine: Machine,
    network: NetworkLane | None = None,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """(start, done) of a walked list's instructions on a machine, by list position."""
    network = network or _network(schedule, trace, machine)
    work, shared_link = durations_ns(schedule, trace, machine), machine.link == "shared"
    if machine.interference == 1.0:
        return start_times(issued, work, shared_link, network)
    return interfered_times(issued, work, shared_link, machine.slowdown, network)


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


# Calls that are slowed down while a copy runs. The end of a call then depends on copies that are
# listed after it, so no single pass gives the times: a clock advances from each end of an
# instruction to the next. Source: measured on the cpu device, whose copies take processor time
# (`machine/calibrate.py`).


def interfered_times(
    issued: Sequence[Issued],
    work_ns: Sequence[int],
    shared_link: bool,
    slowdown: Fraction,
    network: NetworkLane | None = None,
) -> tuple[list[int], list[int]]:
    """`start_times` on a machine whose calls take `slowdown` times as long while a copy runs.

    A call's work shrinks by whole ns between two events: by the time passed, or while a copy runs
    by floor(time / slowdown).
    """
    clock = _Clock(issued, list(work_ns), shared_link, slowdown, network)
    while clock.begin_what_can():
        clock.advance_to_next_end()
    start, done = clock.start, clock.done
    for row in issued:
        if not row.stream and not row.implied:
            start[row.index] = done[row.index] = max((done[w] for w in row.waits), default=0)
    return start, done


class _Clock:
    """Streams with their queues; jumps from one end of an instruction to the next."""

    def __init__(
        self, issued: Sequence[Issued], left_ns: list[int], shared_link: bool, slowdown: Fraction,
        network: NetworkLane | None,
    ):  # fmt: skip
        self.network = network
        #: by list position: until when an instruction that has begun waits for a message
        self.waits_until: dict[int, int] = {}
        self.left_ns, self.slowdown, self.now_ns = left_ns, slowdown, 0
        self.start, self.done = [0] * len(left_ns), [0] * len(left_ns)
        self.finished = [False] * len(left_ns)
        self.running: dict[str, Issued] = {}
        self.queues: dict[str, deque[Issued]] = {}
        for row in issued:
            if row.stream:
                self.queues.setdefault(lane_of(row, shared_link), deque()).append(row)

    def begin_what_can(self) -> bool:
        """Starts the head of every free queue whose waits are over; False when all is done."""
        for lane, queue in self.queues.items():
            if lane in self.running or not queue:
                continue
            if all(self.finished[w] for w in queue[0].waits):
                row = self.running[lane] = queue.popleft()
                self.start[row.index] = self.now_ns
                if self.network is not None:
                    wait_ns = self.network.wait_ns(row.index, self.now_ns)
                    self.waits_until[row.index] = self.now_ns + wait_ns
        return bool(self.running)

    def advance_to_next_end(self) -> None:
        """Lets everything work until the first of those that run is done."""
        copying = any(lane != "C" for lane in self.running)
        # By lane: how many ns pass for one ns of work.
        pace = {
            lane: self.slowdown if lane == "C" and copying else Fraction(1) for lane in self.running
        }
        # A message that has not come yet is waited for; the work comes behind it.
        waiting = {
            lane: max(0, self.waits_until.get(row.index, 0) - self.now_ns)
            for lane, row in self.running.items()
        }
        needed = {
            lane: waiting[lane] or math.ceil(self.left_ns[row.index] * pace[lane])
            for lane, row in self.running.items()
        }
        span = min(needed.values())
        self.now_ns += span
        for lane, row in list(self.running.items()):
            if waiting[lane]:
                continue
            if needed[lane] == span:
                self.done[row.index], self.finished[row.index] = self.now_ns, True
                if self.network is not None:
                    self.network.send(row.index, self.now_ns)
                del self.running[lane]
            else:
                self.left_ns[row.index] -= int(span / pace[lane])


# Messages between ranks. In the list a message is two calls on the compute stream; between them it
# has the network to itself, one message after the other, and a call that receives it too early
# waits. So the list needs no further stream; only the timeline gets a lane.


@dataclass
class NetworkLane:
    """Messages one after the other.

    Args:
        network: how long they take.
        sends: {list position: message that is under way when it is done}.
        awaits: {list position: number of the message that it takes}.
    """

    network: Network
    sends: Mapping[int, Message]
    awaits: Mapping[int, int]
    #: {number: (begin, end) in ns}
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    free_from_ns: int = 0

    def wait_ns(self, index: int, now_ns: int) -> int:
        """How long an instruction that begins now waits for its message."""
        arrived = self.spans[self.awaits[index]][1] if index in self.awaits else now_ns
        return max(0, arrived - now_ns)

    def send(self, index: int, now_ns: int) -> None:
        """An instruction is done; what it sends is under way."""
        if index in self.sends:
            message, begin = self.sends[index], max(now_ns, self.free_from_ns)
            self.free_from_ns = begin + self.network.message_ns(message)
            self.spans[message.number] = begin, self.free_from_ns

    def events(self, schedule: Schedule, trace: Trace) -> list[TimelineEvent]:
        """All messages, for a timeline of the list."""
        return events_of(self.spans, schedule, trace)


def events_of(
    spans_ns: Mapping[int, tuple[int, int]], schedule: Schedule, trace: Trace
) -> list[TimelineEvent]:
    """Messages as events of a timeline; the index of each is that of the call that sends it.

    Args:
        spans_ns: {number of a message: (begin, end) since the step began}.
    """
    return [
        TimelineEvent(
            "N", trace.calls[call].name, spans_ns[number][0] / 1000, spans_ns[number][1] / 1000, i
        )
        for i, call, number in _sending(schedule, trace)
        if number in spans_ns
    ]


def lane_of_network(schedule: Schedule, trace: Trace, machine: Machine) -> NetworkLane:
    """The network between ranks, for a list that has messages."""
    calls = {
        index: trace.calls[run.call].op
        for index, run in enumerate(schedule.instructions)
        if isinstance(run, Run)
    }
    sends = {index: getattr(op, "sends", None) for index, op in calls.items()}
    awaits = {index: getattr(op, "awaits", None) for index, op in calls.items()}
    return NetworkLane(
        Network(machine.network_bytes_per_us, machine.network_latency_us),
        {index: message for index, message in sends.items() if message is not None},
        {index: number for index, number in awaits.items() if number is not None},
    )


def _sending(schedule: Schedule, trace: Trace) -> list[tuple[int, int, int]]:
    """(list position, call, number of the message) of each Run that sends one."""
    return [
        (index, run.call, trace.calls[run.call].op.sends.number)
        for index, run in enumerate(schedule.instructions)
        if isinstance(run, Run) and getattr(trace.calls[run.call].op, "sends", None) is not None
    ]
