"""A step as a Chrome trace, for ui.perfetto.dev and chrome://tracing: zoom, search, select.

The viewers drop slices of one thread that cross each other. A stream works in list order, so its
instructions never overlap, and each stream of a `Record` can be one thread of the viewer. The trace
is the object of a JSON file. An arrow leads from each swap out to the swap in of the same value.
Source: the Trace Event Format, in the part that both viewers read. Read next: `record.py`;
`snapshot.py`, the same for PyTorch's viewer of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ooctrain.report.holdings import group_curves
from ooctrain.report.record import Record
from ooctrain.report.stream_names import STREAM_NAMES, streams_of
from ooctrain.report.waits import waits_of
from ooctrain.sched.ledger import Stream
from ooctrain.sched.timeline import TimelineEvent

PROCESS = 1
COUNTERS = 0
#: {stream: its thread}, in the order in which the viewer shows them.
THREADS: Mapping[Stream, int] = MappingProxyType(
    {stream: number for number, stream in enumerate(STREAM_NAMES, 1)}
)
Entry = dict[str, Any]


def perfetto_trace(record: Record) -> dict[str, Any]:
    """The trace of a step; write it as JSON."""
    timed = [*_slices(record), *_waits(record), *_arrows(record), *_memory(record)]
    # A slice that begins with another and is longer must come before it.
    timed.sort(key=lambda entry: (entry["ts"], -entry.get("dur", 0.0)))
    return {"displayTimeUnit": "ms", "traceEvents": [*_names(record), *timed]}


def _names(record: Record) -> Iterator[Entry]:
    yield _about(COUNTERS, "process_name", name=record.title)
    for stream, name in streams_of(record.timeline).items():
        thread = THREADS[stream]
        yield _about(thread, "thread_name", name=name)
        yield _about(thread, "thread_sort_index", sort_index=thread)


def _about(thread: int, what: str, **facts: Any) -> Entry:
    return {"ph": "M", "pid": PROCESS, "tid": thread, "name": what, "args": facts}


def _slices(record: Record) -> Iterator[Entry]:
    phases = record.phases or {}
    for event in record.timeline.events:
        label = STREAM_NAMES[event.stream]
        yield {
            "ph": "X", "pid": PROCESS, "tid": THREADS[event.stream], "ts": event.start_us,
            "dur": event.end_us - event.start_us, "name": event.name,
            "cat": phases.get(event.name, label) if event.stream == "C" else label,
            "args": {"instruction": event.index},
        }  # fmt: skip


def _waits(record: Record) -> Iterator[Entry]:
    for wait in waits_of(record.timeline):
        name = f"waits {wait.length_us:.1f} us" + (f" for {wait.reason}" if wait.reason else "")
        yield {
            "ph": "i", "s": "t", "pid": PROCESS, "tid": THREADS["C"], "ts": wait.from_us,
            "name": name,
        }  # fmt: skip


def _arrows(record: Record) -> Iterator[Entry]:
    """From each swap out of a value to the swaps in of it that follow."""
    left: dict[str, TimelineEvent] = {}
    for event in record.timeline.events:
        if event.stream == "D":
            left[event.name] = event
        elif event.stream == "H" and event.name in left:
            arrow = {"pid": PROCESS, "name": "on the host", "cat": "swap", "id": event.index}
            out = left[event.name]
            yield {**arrow, "ph": "s", "tid": THREADS["D"], "ts": out.start_us}
            yield {**arrow, "ph": "f", "bp": "e", "tid": THREADS["H"], "ts": event.start_us}


def _memory(record: Record) -> Iterator[Entry]:
    """Bytes by group; the viewers want all keys at every change, and a last sample at the end."""
    times, curves = group_curves(record.holdings)
    samples = [
        (time_us, {group: curve[place] for group, curve in curves.items()})
        for place, time_us in enumerate(times)
    ]
    if not samples:
        samples = [(time_us, {"held": held}) for time_us, held in record.timeline.ledger]
    elif samples[-1][0] >= record.timeline.makespan_us:
        samples[-1] = (samples[-1][0], samples[max(0, len(samples) - 2)][1])
    for time_us, held in samples:
        yield _counter("device memory, bytes", time_us, held)
    if record.budget_bytes:
        for time_us in (0.0, record.timeline.makespan_us):
            yield _counter("budget, bytes", time_us, {"budget": record.budget_bytes})


def _counter(name: str, time_us: float, values: Mapping[str, int]) -> Entry:
    return {
        "ph": "C", "pid": PROCESS, "tid": COUNTERS, "ts": time_us, "name": name,
        "args": dict(values),
    }  # fmt: skip
