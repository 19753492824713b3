"""When everything happened: the result of a simulation, and of a measured step alike.

A `Timeline` is a walked list with the times of its instructions in whole nanoseconds, simulated or
measured. Reports, tests and people read it. Predicted and measured steps are the same kind of data,
so they can be laid over each other. Read next: `simulate.py`, then `report/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from ooctrain.sched.ledger import Issued, Stream, peaks, start_bytes
from ooctrain.sched.schedule import Instruction, Run, Schedule, SwapIn, SwapOut
from ooctrain.step.shown import html_of, svg_of
from ooctrain.step.trace import Trace
from ooctrain.units import format_bytes, format_us


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One instruction on its stream.

    Args:
        stream: "C" (calls), "D" (device to host), "H" (host to device), or "N": no stream of the
            list, but a message on its way between ranks.
        name: the call's or the variable's name.
        start_us, end_us: from the beginning of the step.
        index: position of the instruction in the list.
    """

    stream: Stream
    name: str
    start_us: float
    end_us: float
    index: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step in time.

    Args:
        makespan_us: end of the last instruction.
        peak_bytes, host_peak_bytes: largest values of the ledgers (simulated) or held (measured).
        bytes_out, bytes_in: copied to the host, to the device.
        compute_us: time in which a call runs.
        recompute_us: the part of it in calls that ran before in this step.
        stall_us: makespan less compute: time in which no call runs.
        events: by start time.
        ledger: (time_us, bytes on the device from then on), ascending; begins at time 0.
    """

    makespan_us: float
    peak_bytes: int
    host_peak_bytes: int
    bytes_out: int
    bytes_in: int
    compute_us: float
    recompute_us: float
    stall_us: float
    events: tuple[TimelineEvent, ...] = ()
    ledger: tuple[tuple[float, int], ...] = ()

    def busy_us(self, stream: Stream) -> float:
        """Time in which a stream works."""
        return sum(_length_ns(event) for event in self.events if event.stream == stream) / 1000

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and lists, for files and pictures."""
        return asdict(self)

    def __repr__(self) -> str:
        return (
            f"Timeline({format_us(self.makespan_us)}, stalled {format_us(self.stall_us)}, "
            f"peak {format_bytes(self.peak_bytes)}, out {format_bytes(self.bytes_out)}, "
            f"in {format_bytes(self.bytes_in)}, {len(self.events)} events)"
        )

    def _repr_html_(self) -> str:
        return html_of(self)

    def _repr_svg_(self) -> str:
        return svg_of(self)


def hidden_us(timeline: Timeline) -> float:
    """Time in which messages between ranks are on their way and nothing waits for them: a message
    that "bucket0.start" sends is waited for by "bucket0.finish", if that begins before it is there.
    """
    sent = [event for event in timeline.events if event.stream == "N"]
    messages = {event.name.removesuffix(".start"): event for event in sent}
    takes = [e for e in timeline.events if e.stream == "C" and e.name.endswith(".finish")]
    waited_us = 0.0
    for take in takes:
        message = messages.get(take.name.removesuffix(".finish"))
        if message is not None:
            waited_us += max(0.0, message.end_us - max(message.start_us, take.start_us))
    return timeline.busy_us("N") - waited_us


def instruction_times_us(timeline: Timeline) -> dict[int, tuple[float, float]]:
    """{list position: (start, end)} of what runs or copies. Messages are left out: each stands at
    the place of the call that sends it.
    """
    events = (event for event in timeline.events if event.stream != "N")
    return {event.index: (event.start_us, event.end_us) for event in events}


def ledger_curve(
    start_bytes: int, changes_ns: Iterable[tuple[int, int]]
) -> tuple[tuple[float, int], ...]:
    """(time_us, bytes) steps of what is held over time.

    Args:
        start_bytes: held before the step.
        changes_ns: (time in ns, change in bytes), in any order; at one time releases come first.
    """
    changes = sorted(changes_ns)
    held = accumulate((change for _, change in changes), initial=start_bytes)
    curve: list[tuple[float, int]] = []
    for time_ns, value in zip([0, *(time for time, _ in changes)], held, strict=True):
        if curve and curve[-1][0] == time_ns / 1000:
            curve.pop()
        if not curve or curve[-1][1] != value:
            curve.append((time_ns / 1000, value))
    return tuple(curve)


def make_timeline(
    events: Sequence[TimelineEvent], *, rerun: frozenset[int], copied_bytes: tuple[int, int],
    peak_bytes: tuple[int, int], ledger: tuple[tuple[float, int], ...] = (),
) -> Timeline:  # fmt: skip
    """A timeline with its sums worked out.

    Args:
        events: in any order.
        rerun: list positions of Runs that repeat a call.
        copied_bytes: to the host, to the device.
        peak_bytes: peaks of the device and the host.
    """
    length_ns = {event.index: _length_ns(event) for event in events if event.stream == "C"}
    compute_ns = sum(length_ns.values())
    end_us = max((event.end_us for event in events), default=0.0)
    return Timeline(
        makespan_us=end_us,
        peak_bytes=peak_bytes[0],
        host_peak_bytes=peak_bytes[1],
        bytes_out=copied_bytes[0],
        bytes_in=copied_bytes[1],
        compute_us=compute_ns / 1000,
        recompute_us=sum(length_ns[index] for index in rerun if index in length_ns) / 1000,
        stall_us=(round(end_us * 1000) - compute_ns) / 1000,
        events=tuple(sorted(events, key=lambda event: (event.start_us, event.index))),
        ledger=ledger,
    )


def _length_ns(event: TimelineEvent) -> int:
    """In whole nanoseconds, so that equal steps give equal sums."""
    return round(event.end_us * 1000) - round(event.start_us * 1000)


def timeline_of(
    issued: Sequence[Issued], schedule: Schedule, trace: Trace,
    times_ns: tuple[list[int], list[int]], messages: Sequence[TimelineEvent] = (),
) -> Timeline:  # fmt: skip
    """The timeline of a walked list whose times are known or measured.

    Args:
        times_ns: by list position, when each instruction starts, and when it is done.
        messages: between ranks, besides.
    """
    start, done = times_ns
    events = [
        TimelineEvent(
            row.stream, _name_of(row.instruction, trace), start[row.index] / 1000,
            done[row.index] / 1000, row.index,
        )
        for row in issued
        if row.stream
    ]  # fmt: skip
    return make_timeline(
        [*events, *messages],
        rerun=_runs_again(issued),
        copied_bytes=(_bytes_copied(issued, SwapOut), _bytes_copied(issued, SwapIn)),
        peak_bytes=peaks(issued, schedule),
        ledger=ledger_curve(start_bytes(schedule)[0], _ledger_changes(issued, start, done)),
    )


def _name_of(instruction: Instruction, trace: Trace) -> str:
    """Of the call that runs, or of the variable that is copied."""
    if isinstance(instruction, Run):
        return trace.calls[instruction.call].name
    assert isinstance(instruction, SwapOut | SwapIn), "nothing else has a stream"
    return trace.variables[instruction.var].name


def _runs_again(issued: Sequence[Issued]) -> frozenset[int]:
    """List positions of runs of calls that have run before."""
    seen: set[int] = set()
    again: set[int] = set()
    for row in issued:
        if isinstance(row.instruction, Run):
            if row.instruction.call in seen:
                again.add(row.index)
            seen.add(row.instruction.call)
    return frozenset(again)


def _bytes_copied(issued: Sequence[Issued], kind: type[SwapOut] | type[SwapIn]) -> int:
    copies = (row.instruction for row in issued if isinstance(row.instruction, kind))
    return sum(copy.hi - copy.lo for copy in copies)


def _ledger_changes(
    issued: Sequence[Issued], start: list[int], done: list[int]
) -> list[tuple[int, int]]:
    """(ns, bytes): a claim when its work starts, a release when all that it waits for is done."""
    changes = []
    for row in issued:
        if row.release_bytes:
            changes.append((max((done[w] for w in row.waits), default=0), -row.release_bytes))
        if row.stream and row.claim_bytes:
            changes.append((start[row.index], row.claim_bytes))
    return changes
