"""The network in a simulated step: messages that are under way while the list goes on.

Given the times at which sending calls are done and receiving calls begin, this file computes how
long the receiving calls wait. In the list a message is two calls on the compute stream. Between
these calls the message has the network to itself, one message after the other, and a call that
receives it too early waits. So the list needs no further stream; only the timeline gets a lane.
Read next: `simulate.py`, which asks; `../distributed/calls.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ooctrain.sched.schedule import Run, Schedule
from ooctrain.sched.timeline import Event
from ooctrain.step.machine import Machine
from ooctrain.step.network import Message, Network
from ooctrain.step.trace import Trace


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

    def events(self, schedule: Schedule, trace: Trace) -> list[Event]:
        """All messages, for a timeline of the list."""
        return events_of(self.spans, schedule, trace)


def events_of(
    spans_ns: Mapping[int, tuple[int, int]], schedule: Schedule, trace: Trace
) -> list[Event]:
    """Messages as events of a timeline; the index of each is that of the call that sends it.

    Args:
        spans_ns: {number of a message: (begin, end) since the step began}.
    """
    return [
        Event(
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
