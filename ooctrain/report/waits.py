"""The moments that decide a step: where most memory is held, and where the calls have to wait.

The duration of a step is that of its calls and of its waits. A reader who wants a faster step looks
at the longest wait and at the copy that ended it; one who wants a smaller step looks at the peak.
So a timeline, simulated or measured, gives its `Peak`, and its `Wait`s, the longest first.
Read next: `step.py`, `page.py`, `perfetto.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ooctrain.report.stream_names import STREAM_NAMES
from ooctrain.sched.timeline import Timeline, TimelineEvent


@dataclass(frozen=True, slots=True)
class Peak:
    """Where most memory is held.

    Args:
        time_us: the first such moment.
        size_bytes: held then; a list's own peak may be larger, as it counts in list order.
        call: that runs then, or next.
    """

    time_us: float
    size_bytes: int
    call: str


@dataclass(frozen=True, slots=True)
class Wait:
    """A stretch in which no call runs.

    Args:
        from_us, until_us: its ends.
        call: that runs next; "" at the end of the step.
        reason: the copy that ended last in it, such as "swap in of conv2.out", or "".
    """

    from_us: float
    until_us: float
    call: str
    reason: str

    @property
    def length_us(self) -> float:
        """How long no call runs."""
        return self.until_us - self.from_us


def peak_of(timeline: Timeline) -> Peak:
    """The first moment at which most is held."""
    time_us, size_bytes = max(timeline.ledger, key=lambda entry: entry[1], default=(0.0, 0))
    call = next((e.name for e in _calls(timeline) if e.end_us > time_us), "the end of the step")
    return Peak(time_us, size_bytes, call)


def waits_of(timeline: Timeline) -> list[Wait]:
    """All waits of the compute stream, the longest first."""
    copies = sorted(
        (event for event in timeline.events if event.stream != "C"),
        key=lambda event: (event.end_us, event.stream),
    )
    starts = [(event.start_us, event.end_us, event.name) for event in _calls(timeline)]
    found, free_us = [], 0.0
    for start_us, end_us, call in [*starts, (timeline.makespan_us, timeline.makespan_us, "")]:
        if start_us > free_us:
            found.append(Wait(free_us, start_us, call, _reason(copies, free_us, start_us)))
        free_us = max(free_us, end_us)
    return sorted(found, key=lambda wait: -wait.length_us)


def _calls(timeline: Timeline) -> list[TimelineEvent]:
    return [event for event in timeline.events if event.stream == "C"]


def _reason(copies: Sequence[TimelineEvent], from_us: float, until_us: float) -> str:
    """The last of the copies, sorted by their ends, that ended within a stretch of time."""
    behind = bisect_right(copies, until_us, key=lambda event: event.end_us)
    if not behind or copies[behind - 1].end_us <= from_us:
        return ""
    last = copies[behind - 1]
    return f"{STREAM_NAMES[last.stream]} of {last.name}"
