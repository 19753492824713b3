"""The walk of the window over the calls: paper 000's figure 2.

From a variable sequence, a budget and how far the window reaches while each call runs
(`window_heads.py`) the walk writes the list into a `ListWriter`. At each call (a) variables that
enter the window are swapped in, (b) the walk waits for leaving variables only when their bytes are
needed, (c) variables that the call used and that are not in the window again leave. Source: paper
000, section 3; the authors' nnabla, src/nbla/lms/swap_in_out_scheduler.cpp. Read next:
`window_cyclic.py`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from ooctrain.sched.planners.window.window_heads import heads_of
from ooctrain.sched.planning.list_writer import ListWriter
from ooctrain.sched.planning.storages import VariableSequence
from ooctrain.step.trace import Call

Count = Literal["unique", "occurrence"]
Rank = Callable[["Walk", int], tuple[int, ...]]
#: Below this share of the budget no window is tried: nothing comes in ahead.
SMALLEST_SIZE = 2**-20


def walk(
    sequence: VariableSequence, budget_bytes: int, size: float, count: Count,
    rank: Rank | None = None,
) -> tuple[ListWriter, float]:  # fmt: skip
    """The list, and the size of the window that led to it.

    Args:
        sequence: the variables in order of use.
        budget_bytes: of the device; at least `sequence.largest_need()`.
        size: of the window, as a multiple of the budget; halved until all calls fit where each
            occurrence counts.
        count: as of `SlidingWindow`.
        rank: the order in which swap-outs are waited for, and in which a call's variables leave,
            ascending; None: the order in which the swap-outs began.

    Cost: O(uses); with a rank, what sorting costs besides.
    """
    counts_each = count == "occurrence"
    heads = heads_of(sequence, budget_bytes, size, counts_each=counts_each)
    while heads is None:
        size = size / 2 if size > SMALLEST_SIZE else 0.0
        heads = heads_of(sequence, budget_bytes, size, counts_each=counts_each)
    attempt = Walk(sequence, budget_bytes, heads, rank)
    for call in sequence.trace.calls:
        attempt.step(call)
    return attempt.writer, size


class Walk:
    """One walk of the window over the calls: paper 000's figure 2, steps (a), (b), (c).

    A storage is absent (not written yet, or on the host only), reserved (in the window, its memory
    claimed only when its call writes it), present, or leaving (swapped out, its bytes not yet
    waited for).

    Args:
        heads: as of `heads_of`.
        rank: as of `walk`.

    Attributes:
        head: first position of the sequence that is not in the window yet.
        in_window: for each storage, how often it occurs in the window.
        leaving: storages that are leaving, oldest first; at the start, what rests on the device and
            is not in the window yet.
    """

    def __init__(
        self, sequence: VariableSequence, budget_bytes: int, heads: Sequence[int],
        rank: Rank | None,
    ):  # fmt: skip
        self.sequence, self.budget_bytes, self.heads, self.rank = (
            sequence, budget_bytes, heads, rank,
        )  # fmt: skip
        self.writer = sequence.start()
        self.leaving = dict.fromkeys(sequence.resting)
        self.leaving_bytes = sum(sequence.size_bytes[v] for v in sequence.resting)
        self.present_bytes = self.writer.ledger_bytes - self.leaving_bytes
        self.head = 0
        self.in_window = [0] * len(sequence.storage)
        self.present: set[int] = set()
        self.reserved: set[int] = set()
        self.version = list(range(len(sequence.storage)))  # of each storage, the variable it holds

    def step(self, call: Call) -> None:
        """Lists a call, what comes in before it, and what leaves after it."""
        self._fill_window(call.id)
        sequence = self.sequence
        written = [root for root in sequence.touched[call.id] if root in self.reserved]
        written_bytes = sum(
            sequence.size_bytes[v] for v in written + sequence.fresh_pinned[call.id]
        )
        self._make_room(written_bytes + sequence.workspace_bytes[call.id])
        self.present_bytes += written_bytes
        self.reserved.difference_update(written)
        self.present.update(written)
        self.writer.run(call.id)
        for out in call.outs:
            self.version[sequence.storage[out]] = out
        self._leave(call)

    def _fill_window(self, call_id: int) -> None:
        """Step (a) of paper 000's figure 2."""
        order = self.sequence.order
        while self.head < self.heads[call_id]:
            root = order[self.head][1]
            if self.in_window[root] == 0:
                self._enter(root)
            self.in_window[root] += 1
            self.head += 1

    def _enter(self, root: int) -> None:
        """Brings a storage into the window."""
        size, variable = self.sequence.size_bytes[root], self.version[root]
        if root in self.leaving:
            del self.leaving[root]
            self.leaving_bytes -= size
            self.writer.cancel_swap_out(variable)
        elif variable in self.writer.hosted:
            self._make_room(size)
            self.writer.swap_in(variable)
        else:
            self.reserved.add(root)
            return
        self.present.add(root)
        self.present_bytes += size

    def _make_room(self, size_bytes: int) -> None:
        """Step (b): waits for swap-outs until enough bytes are free, the oldest first."""
        while self.present_bytes + self.leaving_bytes + size_bytes > self.budget_bytes:
            root = next(iter(self._ranked(self.leaving)))
            del self.leaving[root]
            self.leaving_bytes -= self.sequence.size_bytes[root]
            self.writer.swap_out(self.version[root])  # listed already, except for what rested here
            self.writer.free(self.version[root])

    def next_use(self, root: int) -> int:
        """Position of a storage's next use outside the window; past the end if it has no more."""
        positions = self.sequence.positions[root]
        after = bisect.bisect_left(positions, self.head)
        return positions[after] if after < len(positions) else len(self.sequence.order)

    def _ranked(self, roots: Collection[int]) -> Collection[int]:
        rank = self.rank
        return roots if rank is None else sorted(roots, key=lambda root: rank(self, root))

    def _leave(self, call: Call) -> None:
        """Step (c): what the call used and is not in the window again is freed or swapped out."""
        sequence = self.sequence
        parting = []
        for _, root in sequence.order[sequence.starts[call.id] : sequence.starts[call.id + 1]]:
            self.in_window[root] -= 1
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
