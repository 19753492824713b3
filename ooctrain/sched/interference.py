"""Times on a machine whose calls are slowed down while a copy runs.

From a walked list, its durations and the slowdown that copies cause, this file computes when each
instruction starts and when it is done. Under interference the end of a call depends on copies that
are listed after it, so no single pass over the list gives the times. Instead a clock advances from
each end of an instruction to the next. Source: measured on the cpu device, whose copies take
processor time (`machine/calibrate.py`). Read next: `simulate.py`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from ooctrain.sched.ledger import Issued, lane_of

if TYPE_CHECKING:
    from ooctrain.sched.network import NetworkLane


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
