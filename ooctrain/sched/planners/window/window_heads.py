"""How far the window reaches while each call runs, decided before anything is listed.

From a variable sequence, a budget and the size of the window comes, for each call, the position of
the sequence at which the window ends. Whether a variable may enter depends on the call and on the
window's end alone: what is in the window and has been written is on the device, all else has left
or will leave in time. So the end is found in one pass over the calls, in which nothing moves. Where
a call does not fit together with what was prefetched for later ones, those prefetches are taken
back, the one that entered last first: then the window ended before them in all earlier calls, too.
Sources: paper 000, section 3; the authors' nnabla, src/nbla/lms/swap_in_out_scheduler.cpp, which
cancels the prefetches and walks again. Read next: `window_walk.py`, which lists what follows.
"""

from __future__ import annotations

from itertools import accumulate

from ooctrain.sched.planning.storages import VariableSequence


def heads_of(
    sequence: VariableSequence, budget_bytes: int, size: float, *, counts_each: bool = False
) -> list[int] | None:
    """For each call the first position of the sequence that is not in the window while it runs.

    Args:
        sequence: the variables in order of use.
        budget_bytes: of the device; at least `sequence.largest_need()`.
        size: of the window, as a multiple of the budget beside what is pinned.
        counts_each: whether the window counts each occurrence of a variable, and not it alone.

    Returns:
        Ascending positions; None where a call does not fit beside what was prefetched and each
        occurrence counts, in which case nothing is taken back.

    Cost: O(uses), and O(1) for each prefetch that is taken back.
    """
    reach, found = _Reach(sequence, budget_bytes, size, counts_each), list[int]()
    for call in range(len(sequence.trace.calls)):
        reach.fill(call)
        missing_bytes = reach.missing_bytes(call)
        if missing_bytes > 0:
            if counts_each:
                return None
            reach.take_back(call, missing_bytes)
        found.append(reach.head)
        reach.run(call)
    # What is taken back at a call has not entered before it.
    return list(accumulate(reversed(found), min))[::-1]


class _Reach:
    """The window's end, and what it means in bytes, before or during a call.

    Attributes:
        head: the first position that is not in the window.
        in_window: for each storage, how often it occurs in the window.
        window_bytes: of what is in the window.
        present_bytes: on the device, without what is leaving.
        written: for each storage, whether there is a value of it, on either side.
    """

    def __init__(
        self, sequence: VariableSequence, budget_bytes: int, size: float, counts_each: bool
    ):
        self.sequence, self.budget_bytes, self.counts_each = sequence, budget_bytes, counts_each
        initial = set(sequence.trace.initial)
        pinned_bytes = sum(sequence.size_bytes[v] for v in initial & sequence.pinned)
        self.most_in_window = size * (budget_bytes - pinned_bytes)
        self.present_bytes, self.window_bytes, self.head = pinned_bytes, 0, 0
        self.in_window = [0] * len(sequence.storage)
        self.written = [v in initial for v in range(len(sequence.storage))]

    def fill(self, call_id: int) -> None:
        """Step (a) of paper 000's figure 2; a call's own variables enter even a smaller window."""
        order, size_bytes = self.sequence.order, self.sequence.size_bytes
        while self.head < len(order):
            user, root = order[self.head]
            entering = self.in_window[root] == 0
            counted = size_bytes[root] if entering or self.counts_each else 0
            if user > call_id and self.window_bytes + counted > self.most_in_window:
                break
            if entering and not self._enters(root):
                break
            self.window_bytes += counted
            self.in_window[root] += 1
            self.head += 1

    def _enters(self, root: int) -> bool:
        """Whether the budget lets a storage in; it takes bytes once it is written."""
        size = self.sequence.size_bytes[root]
        if self.present_bytes + size > self.budget_bytes:
            return False
        if self.written[root]:
            self.present_bytes += size
        return True

    def missing_bytes(self, call_id: int) -> int:
        """What a call lacks beside what is there; no more than 0 where it fits."""
        claimed = self._claimed_bytes(call_id) + self.sequence.workspace_bytes[call_id]
        return self.present_bytes + claimed - self.budget_bytes

    def _claimed_bytes(self, call_id: int) -> int:
        """Of the storages that a call is the first to write."""
        sequence = self.sequence
        fresh = [
            v for v in sequence.touched[call_id] if v not in sequence.pinned and not self.written[v]
        ]
        return sum(sequence.size_bytes[v] for v in fresh + sequence.fresh_pinned[call_id])

    def take_back(self, call_id: int, missing_bytes: int) -> None:
        """Takes entries off the window's end until the call fits."""
        order, size_bytes = self.sequence.order, self.sequence.size_bytes
        first_of_others = self.sequence.starts[call_id + 1]
        while missing_bytes > 0 and self.head > first_of_others:
            self.head -= 1
            root = order[self.head][1]
            self.in_window[root] -= 1
            if self.in_window[root] == 0:
                self.window_bytes -= size_bytes[root]
                if self.written[root]:
                    self.present_bytes -= size_bytes[root]
                    missing_bytes -= size_bytes[root]

    def run(self, call_id: int) -> None:
        """What the call wrote is there; what it used and is outside the window leaves."""
        sequence = self.sequence
        size_bytes = sequence.size_bytes
        self.present_bytes += self._claimed_bytes(call_id)
        for root in sequence.touched[call_id]:
            self.written[root] = True
            if root in sequence.pinned and sequence.last_use[root] <= call_id:
                self.present_bytes -= size_bytes[root]
        for _, root in sequence.order[sequence.starts[call_id] : sequence.starts[call_id + 1]]:
            self.in_window[root] -= 1
            left = self.in_window[root] == 0
            if left or self.counts_each:
                self.window_bytes -= size_bytes[root]
            if left:
                self.present_bytes -= size_bytes[root]
