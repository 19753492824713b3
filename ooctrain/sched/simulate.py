"""How long a schedule takes on a machine, to the nanosecond.

In: a legal schedule, its trace, a machine. Out: a `Timeline`. The one idea: an instruction starts
when its stream's previous and everything it waits for are done (`ledger.py`); so one pass over the
list gives all times. Where copies slow down calls (`Machine.interference`) a call's end depends on
copies listed after it, and a clock that jumps from end to end takes the place of the pass. All
times are whole ns. Source: docs/schedule.md; the link modes are paper 002's assumption A. Read
next: `bounds/closed.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from fractions import Fraction

from ooctrain.sched.ledger import Issued, peaks, start_bytes, walk
from ooctrain.sched.schedule import Instruction, Run, Schedule, SwapIn, SwapOut
from ooctrain.sched.timeline import Event, Timeline, ledger_curve, make_timeline
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace


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
    start, done = times_ns(issued, schedule, trace, machine)
    return timeline_of(issued, schedule, trace, start, done)


def times_ns(
    issued: Sequence[Issued], schedule: Schedule, trace: Trace, machine: Machine
) -> tuple[list[int], list[int]]:
    """(start, done) of a walked list's instructions on a machine, by list position."""
    work, shared_link = durations_ns(schedule, trace, machine), machine.link == "shared"
    if machine.interference == 1.0:
        return start_times(issued, work, shared_link)
    slowdown = Fraction(machine.interference).limit_denominator(1000)
    return interfered_times(issued, work, shared_link, slowdown)


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
    issued: Sequence[Issued], work_ns: Sequence[int], shared_link: bool
) -> tuple[list[int], list[int]]:
    """(start, done) in ns by list position, with the durations given and no interference.

    For Free, End and Fence both are the time at which what they wait for is done.
    """
    start, done = [0] * len(work_ns), [0] * len(work_ns)
    free_from: dict[str, int] = {}
    for row in issued:
        if row.implied:
            continue
        begin = max((done[w] for w in row.waits), default=0)
        if row.stream:
            lane = _lane(row, shared_link)
            begin = max(begin, free_from.get(lane, 0))
            free_from[lane] = begin + work_ns[row.index]
        start[row.index], done[row.index] = begin, begin + work_ns[row.index]
    return start, done


def interfered_times(
    issued: Sequence[Issued], work_ns: Sequence[int], shared_link: bool, slowdown: Fraction
) -> tuple[list[int], list[int]]:
    """`start_times` on a machine whose calls take `slowdown` times as long while a copy runs.

    A call's work shrinks by whole ns between two events: by the time passed, or while a copy runs
    by floor(time / slowdown).
    """
    clock = _Clock(issued, list(work_ns), shared_link, slowdown)
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
        self, issued: Sequence[Issued], left_ns: list[int], shared_link: bool, slowdown: Fraction
    ):
        self.left_ns, self.slowdown, self.now_ns = left_ns, slowdown, 0
        self.start, self.done = [0] * len(left_ns), [0] * len(left_ns)
        self.finished = [False] * len(left_ns)
        self.running: dict[str, Issued] = {}
        self.queues: dict[str, deque[Issued]] = {}
        for row in issued:
            if row.stream:
                self.queues.setdefault(_lane(row, shared_link), deque()).append(row)

    def begin_what_can(self) -> bool:
        """Starts the head of every free queue whose waits are over; False when all is done."""
        for lane, queue in self.queues.items():
            if lane in self.running or not queue:
                continue
            if all(self.finished[w] for w in queue[0].waits):
                self.running[lane] = queue.popleft()
                self.start[self.running[lane].index] = self.now_ns
        return bool(self.running)

    def advance_to_next_end(self) -> None:
        """Lets everything work until the first of those that run is done."""
        copying = any(lane != "C" for lane in self.running)
        # By lane: how many ns pass for one ns of work.
        pace = {
            lane: self.slowdown if lane == "C" and copying else Fraction(1) for lane in self.running
        }
        needed = {
            lane: _ceil(self.left_ns[row.index] * pace[lane]) for lane, row in self.running.items()
        }
        span = min(needed.values())
        self.now_ns += span
        for lane, row in list(self.running.items()):
            if needed[lane] == span:
                self.done[row.index], self.finished[row.index] = self.now_ns, True
                del self.running[lane]
            else:
                self.left_ns[row.index] -= int(span / pace[lane])


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def _lane(row: Issued, shared_link: bool) -> str:
    """The queue an instruction stands in: on a shared link both directions are one."""
    return "link" if shared_link and row.stream != "C" else row.stream


def timeline_of(
    issued: Sequence[Issued], schedule: Schedule, trace: Trace, start: list[int], done: list[int]
) -> Timeline:
    """The timeline of a walked list whose times, by list position in ns, are known or measured."""
    events = [
        Event(
            row.stream, _name_of(row.instruction, trace), start[row.index] / 1000,
            done[row.index] / 1000, row.index,
        )
        for row in issued
        if row.stream
    ]  # fmt: skip
    return make_timeline(
        events,
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
