"""The walk of the window over the calls: paper 000's figure 2, with cancel and restart.

From a variable sequence, a budget and the size of the window the walk writes the list into a
`ListWriter`. At each call (a) variables that enter the window are swapped in as far as the budget
allows, (b) the walk waits for leaving variables only when their bytes are needed, (c) variables
that the call used and that are not in the window again leave. Where a call does not fit together
with what was prefetched for later ones, those prefetches are forbidden until it has run, and the
walk goes back. Source: paper 000, section 3; the authors' nnabla,
src/nbla/lms/swap_in_out_scheduler.cpp. Read next: `window_cyclic.py`.
"""

from __future__ import annotations

import bisect
import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from ooctrain.sched.planning.planner import ListWriter
from ooctrain.sched.planning.storages import VariableSequence
from ooctrain.step.trace import Call

Count = Literal["unique", "occurrence"]
Rank = Callable[["Walk", int], tuple[int, ...]]
SMALLEST_SIZE = 2**-20
#: Calls; a restart repeats half as many for nothing, a copy costs as much as a few.
SAVE_EVERY = 32
#: Copies of a walk, each of which takes bytes in proportion to the variables.
MOST_SAVED = 64


def walk(
    sequence: VariableSequence, budget_bytes: int, size: float, count: Count,
    rank: Rank | None = None,
) -> tuple[ListWriter, float]:  # fmt: skip
    """The list, and the size of the window that led to it.

    Each restart forbids at least one more prefetch, so the walk comes to an end. It goes back no
    further than to the call at which the forbidden prefetch entered the window.

    Args:
        sequence: the variables in order of use.
        budget_bytes: of the device; at least `sequence.largest_need()`.
        size: of the window, as a multiple of the budget.
        count: as of `Window`.
        rank: the order in which swap-outs are waited for, and in which a call's variables leave,
            ascending; None: the order in which the swap-outs began.
    """
    not_before, entered_at = [0] * len(sequence.order), [0] * len(sequence.order)

    def start() -> Walk:
        manner = Manner(size, count == "occurrence", rank)
        return Walk(sequence, budget_bytes, manner, not_before, entered_at)

    save_every = max(SAVE_EVERY, len(sequence.trace.calls) // MOST_SAVED)
    saved = [start()]  # walks that stand before calls 0, save_every, 2 save_every, ..
    while True:
        attempt = saved[-1].fork()
        if attempt.reaches_the_end(saved, save_every):
            return attempt.writer, size
        if count == "unique":
            changed = attempt.forbid_prefetches()
            del saved[changed // save_every + 1 :]
        else:
            size = size / 2 if size > SMALLEST_SIZE else 0.0
            saved = [start()]


@dataclass(frozen=True, slots=True)
class Manner:
    """How a walk goes.

    Args:
        size: of the window, as a multiple of the budget.
        counts_each: whether the window counts each occurrence of a variable, and not it alone.
        rank: as of `walk`.
    """

    size: float
    counts_each: bool
    rank: Rank | None


class Walk:
    """One walk of the window over the calls: paper 000's figure 2, steps (a), (b), (c).

    A storage is absent (not written yet, or on the host only), reserved (in the window, its memory
    claimed only when its call writes it), present, or leaving (swapped out, its bytes not yet
    waited for).

    Attributes:
        next_call: the call before which the walk stands.
        head: first position of the sequence that is not in the window yet.
        entered_at: for each position before it, during which call it entered the window.
        in_window: for each storage, how often it occurs in the window.
        leaving: storages that are leaving, oldest first; at the start, what rests on the device and
            is not in the window yet.
    """

    def __init__(
        self, sequence: VariableSequence, budget_bytes: int, manner: Manner,
        not_before: list[int], entered_at: list[int],
    ):  # fmt: skip
        self.sequence, self.budget_bytes, self.manner = sequence, budget_bytes, manner
        self.not_before, self.entered_at = not_before, entered_at
        self.writer = sequence.start()
        self.leaving = dict.fromkeys(sequence.resting)
        self.leaving_bytes = sum(sequence.size_bytes[v] for v in sequence.resting)
        self.present_bytes = self.writer.ledger_bytes - self.leaving_bytes
        self.window_bytes = 0
        self.most_in_window = manner.size * (budget_bytes - self.present_bytes)
        self.head = self.next_call = 0
        self.in_window = [0] * len(sequence.storage)
        self.present: set[int] = set()
        self.reserved: set[int] = set()
        self.version = list(range(len(sequence.storage)))  # of each storage, the variable it holds
        self.stuck_at, self.missing_bytes = -1, 0

    def fork(self) -> Walk:
        """A walk that stands where this one does, and may go on differently."""
        other = copy.copy(self)
        other.writer = self.writer.fork()
        other.in_window, other.version = list(self.in_window), list(self.version)
        other.leaving = dict(self.leaving)
        other.present, other.reserved = set(self.present), set(self.reserved)
        return other

    def reaches_the_end(self, saved: list[Walk], save_every: int) -> bool:
        """Walks all calls from here; False where one does not fit beside what was prefetched.

        Args:
            saved: gets a copy of the walk on the way, before each `save_every`-th call.
        """
        calls = self.sequence.trace.calls
        while self.next_call < len(calls):
            if self.next_call == len(saved) * save_every:
                saved.append(self.fork())
            if not self._step(calls[self.next_call]):
                return False
            self.next_call += 1
        return True

    def _step(self, call: Call) -> bool:
        self._fill_window(call.id)
        sequence = self.sequence
        written = [root for root in sequence.touched[call.id] if root in self.reserved]
        written_bytes = sum(
            sequence.size_bytes[v] for v in written + sequence.fresh_pinned[call.id]
        )
        workspace_bytes = sequence.workspace_bytes[call.id]
        if not self._make_room(written_bytes + workspace_bytes):
            self.stuck_at = call.id
            self.missing_bytes = (
                self.present_bytes + written_bytes + workspace_bytes - self.budget_bytes
            )
            return False
        self.present_bytes += written_bytes
        self.reserved.difference_update(written)
        self.present.update(written)
        self.writer.run(call.id)
        for out in call.outs:
            self.version[sequence.storage[out]] = out
        self._leave(call)
        return True

    def _fill_window(self, call_id: int) -> None:
        """Step (a) of paper 000's figure 2; a call's own variables enter even a smaller window."""
        order, size_bytes = self.sequence.order, self.sequence.size_bytes
        while self.head < len(order) and self.not_before[self.head] <= call_id:
            user, root = order[self.head]
            entering = self.in_window[root] == 0
            counted = size_bytes[root] if entering or self.manner.counts_each else 0
            if user > call_id and self.window_bytes + counted > self.most_in_window:
                break
            if entering and not self._enter(root):
                break
            self.window_bytes += counted
            self.in_window[root] += 1
            self.entered_at[self.head] = call_id
            self.head += 1

    def _enter(self, root: int) -> bool:
        """Brings a storage into the window if the budget allows."""
        size, variable = self.sequence.size_bytes[root], self.version[root]
        if self.present_bytes + size > self.budget_bytes:
            return False
        if root in self.leaving:
            del self.leaving[root]
            self.leaving_bytes -= size
            self.writer.cancel_swap_out(variable)
        elif variable in self.writer.hosted:
            if not self._make_room(size):
                return False
            self.writer.swap_in(variable)
        else:
            self.reserved.add(root)
            return True
        self.present.add(root)
        self.present_bytes += size
        return True

    def _make_room(self, size_bytes: int) -> bool:
        """Step (b): waits for swap-outs until enough bytes are free, the oldest first."""
        while self.present_bytes + self.leaving_bytes + size_bytes > self.budget_bytes:
            if not self.leaving:
                return False
            root = next(iter(self._ranked(self.leaving)))
            del self.leaving[root]
            self.leaving_bytes -= self.sequence.size_bytes[root]
            self.writer.swap_out(self.version[root])  # listed already, except for what rested here
            self.writer.free(self.version[root])
        return True

    def next_use(self, root: int) -> int:
        """Position of a storage's next use outside the window; past the end if it has no more."""
        positions = self.sequence.positions[root]
        after = bisect.bisect_left(positions, self.head)
        return positions[after] if after < len(positions) else len(self.sequence.order)

    def _ranked(self, roots: Collection[int]) -> Collection[int]:
        rank = self.manner.rank
        return roots if rank is None else sorted(roots, key=lambda root: rank(self, root))

    def _leave(self, call: Call) -> None:
        """Step (c): what the call used and is not in the window again is freed or swapped out."""
        sequence = self.sequence
        parting = []
        for _, root in sequence.order[sequence.starts[call.id] : sequence.starts[call.id + 1]]:
            self.in_window[root] -= 1
            if self.manner.counts_each or self.in_window[root] == 0:
                self.window_bytes -= sequence.size_bytes[root]
            if self.in_window[root] == 0:
                parting.append(root)
        for root in self._ranked(parting):
            self._part_with(root, call.id)
        for root in sequence.touched[call.id]:
            if root in sequence.pinned and sequence.last_use[root] <= call.id:
                self.writer.free(self.version[root])
                self.present_bytes -= sequence.size_bytes[root]

    def _part_with(self, root: int, call_id: int) -> None:
        size = self.sequence.size_bytes[root]
        self.present.remove(root)
        self.present_bytes -= size
        if self.sequence.last_use[root] <= call_id:
            self.writer.free(self.version[root])
        else:
            self.writer.swap_out(self.version[root])
            self.leaving[root] = None
            self.leaving_bytes += size

    def forbid_prefetches(self) -> int:
        """Takes entries off the window's head until the stuck call fits; they wait until it ran.

        Returns:
            The first call during which that makes a difference.
        """
        occurrences = list(self.in_window)
        first_of_others = position = self.sequence.starts[self.stuck_at + 1]
        for position in range(self.head - 1, first_of_others - 1, -1):
            root = self.sequence.order[position][1]
            self.not_before[position] = self.stuck_at + 1
            occurrences[root] -= 1
            if occurrences[root] == 0 and root in self.present:
                self.missing_bytes -= self.sequence.size_bytes[root]
            if self.missing_bytes <= 0:
                break
        return self.entered_at[position - 1] if position else 0
