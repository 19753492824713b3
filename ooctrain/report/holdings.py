"""Which values hold device memory, from when to when: the parts of the memory curve.

The input is a trace, a list for it, and the times of its instructions, simulated or measured. A
`Holding` is a stretch of time in which a value (or a part of it, or a workspace) is on the device;
at every moment the sum of the holdings is the timeline's memory curve. The table of
`sched/ledger.py` says when an instruction claims memory and when it gives memory back, and the list
says for which value. Read next: `record.py`, which keeps them in a file; `step.py`, which draws
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ooctrain.alloc.base import Block
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.sched.ledger import Issued, walk
from ooctrain.sched.schedule import End, Free, Run, Schedule, SwapIn
from ooctrain.sched.spans import Spans
from ooctrain.sched.timeline import Timeline, instruction_times_us
from ooctrain.step.trace import Call, Trace
from ooctrain.units import MAX_BYTES

Group = Literal["parameters", "activations", "gradients", "workspace"]
#: What a reader asks of memory, from the ground up, and the kinds of variables that belong to it.
GROUPS: Mapping[Group, tuple[str, ...]] = MappingProxyType(
    {
        "parameters": ("param", "state", "region"),
        "activations": ("input", "activation", "stat", "aux"),
        "gradients": ("grad", "wgrad"),
        "workspace": ("workspace",),
    }
)
GROUP_OF = {kind: group for group, kinds in GROUPS.items() for kind in kinds}
SMALL_OBJECTS = "small objects"


@dataclass(frozen=True, slots=True)
class Holding:
    """Bytes on the device for one purpose.

    Args:
        name: name of the variable, or of the call whose workspace it is.
        group: one of `GROUPS`.
        size_bytes: as granted.
        from_us, until_us: within the step.
    """

    name: str
    group: str
    size_bytes: int
    from_us: float
    until_us: float


def holdings(trace: Trace, schedule: Schedule, timeline: Timeline) -> tuple[Holding, ...]:
    """Everything that the device holds in a step, by the time from which it does.

    Args:
        timeline: timeline of just this list.
    """
    books = _Books(trace, schedule, timeline)
    for row in walk(trace, schedule):
        books.take(row)
    return books.closed()


def held_at(found: Iterable[Holding], time_us: float) -> list[Holding]:
    """What is held at a moment, the largest first."""
    live = [one for one in found if one.from_us <= time_us < one.until_us]
    return sorted(live, key=lambda one: (-one.size_bytes, one.name))


def group_curves(found: Sequence[Holding]) -> tuple[list[float], dict[str, list[int]]]:
    """(times, {group: bytes from each of these times on}), all groups at all times."""
    times = sorted({one.from_us for one in found} | {one.until_us for one in found})
    place = {time: number for number, time in enumerate(times)}
    curves: dict[str, list[int]] = {}
    for group in GROUPS:
        changes = [0] * len(times)
        for one in found:
            if one.group == group:
                changes[place[one.from_us]] += one.size_bytes
                changes[place[one.until_us]] -= one.size_bytes
        held = 0
        curves[group] = [held := held + change for change in changes]
    return times, curves


def held_at_peak(trace: Trace, schedule: Schedule, timeline: Timeline) -> dict[str, int]:
    """{group: bytes} at the first moment at which most is held."""
    _, curves = group_curves(holdings(trace, schedule, timeline))
    whole = [sum(sizes) for sizes in zip(*curves.values(), strict=True)]
    place = whole.index(max(whole)) if whole else None
    return {group: 0 if place is None else curve[place] for group, curve in curves.items()}


class _Books:
    """Which value is on the device since when, while a list is walked."""

    def __init__(self, trace: Trace, schedule: Schedule, timeline: Timeline):
        self.trace, self.granted = trace, schedule.granule.granted
        self.end_us = timeline.makespan_us
        times = instruction_times_us(timeline)
        self.start_us = {index: start_us for index, (start_us, _) in times.items()}
        self.done_us = {index: end_us for index, (_, end_us) in times.items()}
        self.since: defaultdict[int, Spans[float]] = defaultdict(Spans)
        self.until_end: list[tuple[str, str, int, float]] = []
        self.found: list[Holding] = []
        for variable, lo, hi in schedule.start_device:
            self.since[variable].put(lo, hi, 0.0)
        if schedule.granule.fixed_bytes:
            region = schedule.granule.fixed_bytes
            self.found.append(Holding(SMALL_OBJECTS, "parameters", region, 0.0, self.end_us))

    def take(self, row: Issued) -> None:
        """Books one instruction."""
        released_us = max((self.done_us[index] for index in row.waits), default=0.0)
        match row.instruction:
            case Run(call, keep):
                self._run(self.trace.calls[call], keep, self.start_us[row.index])
            case End():
                self._end(released_us)
            case SwapIn(variable, lo, hi):
                self.since[variable].put(lo, hi, self.start_us[row.index])
            case Free(variable, lo, hi):
                self._leave(variable, lo, hi, released_us)

    def closed(self) -> tuple[Holding, ...]:
        """All holdings; what is still there stays to the end of the step."""
        for variable in list(self.since):
            self._leave(variable, 0, self.trace.variables[variable].nbytes, self.end_us)
        return tuple(sorted(self.found, key=lambda one: (one.from_us, one.name, one.until_us)))

    def _run(self, call: Call, keep: tuple[int, ...] | None, start_us: float) -> None:
        workspace_bytes = self.granted(call.workspace_bytes)
        self.until_end = [(call.name, "workspace", workspace_bytes, start_us)]
        for out in call.outs:
            described = self.trace.variables[out]
            if out in call.reuse:  # the storage goes on under another name
                source = call.reuse[out]
                self._leave(source, 0, self.trace.variables[source].nbytes, start_us)
            if keep is None or out in keep:
                self.since[out].put(0, described.nbytes, start_us)
            else:
                size_bytes = self.granted(described.nbytes)
                group = GROUP_OF[described.kind]
                self.until_end.append((described.name, group, size_bytes, start_us))

    def _end(self, released_us: float) -> None:
        for name, group, size_bytes, since_us in self.until_end:
            self._hold(name, group, size_bytes, since_us, released_us)
        self.until_end = []

    def _leave(self, variable: int, lo: int, hi: int, now_us: float) -> None:
        described = self.trace.variables[variable]
        for start, stop, since_us in self.since[variable].over(lo, hi):
            size_bytes = self.granted(stop - start)
            self._hold(described.name, GROUP_OF[described.kind], size_bytes, since_us, now_us)
        self.since[variable].drop(lo, hi)

    def _hold(
        self, name: str, group: str, size_bytes: int, from_us: float, until_us: float
    ) -> None:
        if size_bytes and until_us > from_us:
            self.found.append(Holding(name, group, size_bytes, from_us, until_us))


# Where the holdings lie in the arena. A list leaves the addresses to an allocator, so a picture of
# the arena needs one: the holdings are given to best fit in the order of time, and each has the
# same address for as long as it lives. Another allocator gives other addresses; `ooctrain replay
# LOG --picture` draws those.


def placed(found: Sequence[Holding], end_us: float) -> Iterator[tuple[int, Block, bool]]:
    """(number of the holding, its block, whether it comes), in time; at one time what goes does so
    first, and what stays until `end_us` never goes.
    """
    arena = BestFit(DryMemory(MAX_BYTES))
    live: dict[int, Block] = {}
    for number, comes in _in_time(found, end_us):
        if comes:
            live[number] = arena.allocate(found[number].size_bytes, found[number].name)
            yield number, live[number], True
        else:
            block = live.pop(number)
            arena.free(block)
            yield number, block, False


def offsets(found: Sequence[Holding], end_us: float) -> list[int]:
    """The first byte of each holding, counted from the beginning of the arena."""
    address = {number: block.address for number, block, comes in placed(found, end_us) if comes}
    base = min(address.values(), default=0)
    return [address[number] - base for number in range(len(found))]


def _in_time(found: Sequence[Holding], end_us: float) -> Iterator[tuple[int, bool]]:
    moments = [(one.from_us, 1, number) for number, one in enumerate(found)]
    moments += [(one.until_us, 0, number) for number, one in enumerate(found)
                if one.until_us < end_us]  # fmt: skip
    for _, comes, number in sorted(moments):
        yield number, bool(comes)
