"""How much of each gap fits on the host, so that a copy out can never block forever.

Slot s lasts from the start of run s - 1 to the start of run s. The copy of a gap must be on the
host from the slot after its last use, `after + 1`, to the slot before its next one, `before`: when
that run starts it is back, and its host bytes are free. `HostMargin` counts what is left of the
host budget in each slot; inputs wait on the host throughout. Choosing gaps takes bytes of it
(`sched/planners/belady.py`), and the engine lets a copy out begin earlier only where enough is left
until then (`lower.py`). `sched/search/evict.py` and `sched/search/play.py` do the same, compiled.
Source: ours, as the engine's rule for swap-ins, on the other side. Read next:
`sched/planners/belady.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ooctrain.sched.budget import input_bytes, trace_peak_bytes
from ooctrain.sched.planning.decisions import Gap
from ooctrain.sched.planning.planner import host_too_small
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.residency import alive_bytes
from ooctrain.units import format_bytes

UNLIMITED = 1 << 62


class HostMargin:
    """What is left of the host budget in each slot.

    Args:
        left_bytes: host budget without the inputs.
        runs: number of runs.
    """

    def __init__(self, left_bytes: int, runs: int):
        self.left_bytes = [left_bytes] * (runs + 1)

    def least(self, first: int, last: int) -> int:
        """What is left in all slots from `first` to `last`."""
        return min(self.left_bytes[first : last + 1], default=UNLIMITED)

    def take(self, first: int, last: int, size_bytes: int) -> None:
        """Takes bytes in all slots from `first` to `last`."""
        for slot in range(first, last + 1):
            self.left_bytes[slot] -= size_bytes


class HostGaps:
    """Takes host bytes for parts of gaps, which come in the order of `after`.

    Bytes that are on the host for an earlier gap of the same variable stay there until the later
    one ends, as they are not copied again.

    Args:
        left_bytes: host budget without the inputs.
        runs: number of runs.
        free: variables whose copies cost nothing, since they are on the host anyway.
    """

    def __init__(self, left_bytes: int, runs: int, free: frozenset[int]):
        self._margin, self._free = HostMargin(left_bytes, runs), free
        self._hosted: dict[int, tuple[int, int]] = {}  # by variable: (bytes, until this slot)
        self._before: dict[Gap, tuple[int, int]] = {}  # the same, when the gap was opened

    def open(self, gap: Gap) -> None:
        """Begins a gap; all earlier gaps of its variable are decided."""
        self._before[gap] = self._hosted.get(gap.var, (0, gap.after))

    def fitting(self, gap: Gap, taken: int, part: int) -> int:
        """How many of the bytes [taken, taken + part) of a gap fit on the host."""
        if gap.var in self._free:
            return part
        part = min(part, self._margin.least(gap.after + 1, gap.before))
        hosted, until = self._before[gap]
        shared = min(part, max(0, hosted - taken))
        return part if shared <= self._margin.least(until + 1, gap.after) else 0

    def take(self, gap: Gap, taken: int, part: int) -> None:
        """Takes bytes [taken, taken + part) of a gap."""
        if gap.var in self._free:
            return
        hosted, until = self._before[gap]
        shared = min(part, max(0, hosted - taken))
        self._margin.take(gap.after + 1, gap.before, part)
        self._margin.take(until + 1, gap.after, shared)
        whole = taken + part >= hosted
        self._hosted[gap.var] = max(hosted, taken + part), gap.before if whole else until


def is_short_of_host(question: Question) -> bool:
    """Whether host memory may be too small. Only live values have copies, and few copies last
    longer than their values: twice the peak is enough.
    """
    left_bytes = question.host_left_bytes
    return left_bytes is not None and left_bytes < 2 * trace_peak_bytes(question.trace)


def has_host_space(question: Question) -> bool:
    """Whether more than the inputs fits on the host."""
    left_bytes = question.host_left_bytes
    return left_bytes is None or left_bytes > 0


def is_host_tight(question: Question) -> bool:
    """Whether the host holds some, but not all, of what has to leave, so that every list computes
    something again.
    """
    left_bytes = question.host_left_bytes
    if left_bytes is None or left_bytes <= 0:
        return False
    return left_bytes < question.peak_bytes - question.budget_bytes


def without_host(question: Question) -> Question:
    """The same question without swap-outs: a search that may swap seldom finds the lists that
    compute everything again.
    """
    least = input_bytes(question.trace)
    host = question.host_budget_bytes
    return replace(question, host_budget_bytes=least if host is None else min(host, least))


def check_both_memories(planner: str, question: Question) -> None:
    """Whether device and host together hold what is alive, where the host has a limit.

    Raises:
        Infeasible: they do not, so no list runs each call once.

    Cost: O(uses).
    """
    host_bytes = question.host_budget_bytes
    assert host_bytes is not None
    away = alive_bytes(question.trace) - question.budget_bytes
    if away > host_bytes:
        raise host_too_small(
            planner, f"host budget {format_bytes(host_bytes)} ({host_bytes} bytes); where each "
            f"call runs once, {format_bytes(away)} ({away} bytes) must lie on the host",
        )  # fmt: skip
