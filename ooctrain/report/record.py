"""What a command keeps of a step so that it can be drawn later: times, holders, and the budget.

A `Record` is made from a plan, from a run of it, or from a file that `plan`, `simulate` or `train`
wrote with `--json`. A picture needs no network and no planner, only when each instruction ran and
which value held which memory. These are plain numbers in a file, and every picture is a function of
them. Read next: `holdings.py`; `step.py`, `page.py`, `perfetto.py`, `snapshot.py`, which draw a
record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from ooctrain.errors import ConfigError
from ooctrain.report.holdings import Group, Holding, holdings
from ooctrain.report.listing import ListedStep, list_from_json, list_to_json
from ooctrain.sched.schedule import Plan
from ooctrain.sched.timeline import Timeline, TimelineEvent
from ooctrain.step.schema import Count, Duration, FileKind, Finite, Misfit

#: Stands for `drawing` where there is no step to draw.
NOT_DRAWN: Mapping[str, None] = MappingProxyType(
    dict.fromkeys(("planned_by", "remarks", "timeline", "phases", "holdings", "list"))
)
#: What the name of a network has in a record where it trains in patches (Split-CNN).
SPLIT = " split ("
_SUMS = (
    "makespan_us", "peak_bytes", "host_peak_bytes", "bytes_out", "bytes_in", "compute_us",
    "recompute_us", "stall_us",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """A step that can be drawn.

    Args:
        title: what was planned or run, in words.
        timeline: its times and its memory curve.
        budget_bytes: that it had to stay within; None: unknown.
        phases: {call: "forward", "loss", "backward" or "update"}.
        holdings: which value held how much; empty where only the curve is known.
        listed: its list, line by line; None: only what ran is known.
    """

    title: str
    timeline: Timeline
    budget_bytes: int | None = None
    phases: Mapping[str, str] | None = None
    holdings: tuple[Holding, ...] = ()
    listed: ListedStep | None = None


class _EventFile(msgspec.Struct):
    """An event in a record."""

    stream: Literal["C", "D", "H", "N"]
    name: str
    start_us: Finite
    end_us: Finite
    index: Count


class _TimelineFile(msgspec.Struct):
    """The times in a record."""

    makespan_us: Duration
    peak_bytes: Count
    host_peak_bytes: Count
    bytes_out: Count
    bytes_in: Count
    compute_us: Duration
    recompute_us: Duration
    stall_us: Duration
    events: tuple[_EventFile, ...]
    ledger: tuple[tuple[Duration, Count], ...]


class _RecordFile(msgspec.Struct):
    """What a record holds of the numbers of a command; the rest is for others."""

    timeline: _TimelineFile | None
    budget_bytes: Count | None = None
    phases: dict[str, str] | None = None
    holdings: list[tuple[str, Group, Count, Finite, Finite]] | None = None
    listed: Any = msgspec.field(default=None, name="list")
    model: Any = None
    batch: Any = None
    planner: Any = None
    planned_by: Any = None
    machine: Any = None


_RECORD = FileKind(
    _RecordFile, "is not a record", "OOC-118",
    "`ooctrain simulate MODEL --json FILE` writes one; so do plan and train",
)  # fmt: skip


def drawing(plan: Plan, timeline: Timeline, predicted: Timeline | None = None) -> dict[str, Any]:
    """The part of a command's numbers that `read_record` needs, as plain data.

    Args:
        predicted: for a measured step, when it should have run.
    """
    held = holdings(plan.trace, plan.schedule, timeline)
    return {
        "planned_by": plan.notes.get("chosen") or plan.notes.get("planner"),
        "remarks": [*plan.notes.get("remarks", ())],
        "timeline": timeline.to_json(),
        "phases": {call.name: call.phase for call in plan.trace.calls},
        "holdings": [list(asdict(one).values()) for one in held],
        "list": list_to_json(plan, predicted),
    }


def read_record(path: str) -> Record:
    """Reads what a command wrote with `--json`.

    Raises:
        ConfigError: not there, not such a file, or one of a step that was never planned.
    """
    data = _RECORD.plain(path)
    if isinstance(data, dict) and "schedule" in data:
        raise _RECORD.refused(
            path, "it is a plan file, which holds a list, and neither names nor times",
            "`ooctrain simulate MODEL --plan FILE --json RECORD` gives it both",
        )  # fmt: skip
    if not isinstance(data, dict) or "timeline" not in data:
        raise _RECORD.refused(path, "it has no time line")
    if data["timeline"] is None:
        why = str(data.get("error") or "there was no plan").splitlines()[0]
        raise _RECORD.refused(
            path, f"it holds no step: {why}", "mend that first, and write the file again"
        )
    try:
        return _record(_RECORD.made(data, path))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        misfit = error if isinstance(error, Misfit) else repr(error)
        raise _RECORD.refused(path, misfit) from error


def _record(file: _RecordFile) -> Record:
    assert file.timeline is not None, "it was looked at before"
    rows = tuple(
        Holding(*row) for place, row in enumerate(file.holdings or ())
        if _in_order(f"$.holdings[{place}]", *row[3:])
    )  # fmt: skip
    phases = {str(call): str(phase) for call, phase in (file.phases or {}).items()}
    listed = list_from_json(file.listed) if file.listed else None
    if listed and any(event.index >= len(listed.lines) for event in file.timeline.events):
        raise ValueError("an instruction ran that the list does not have")
    return Record(_title(file), _timeline(file.timeline), file.budget_bytes, phases, rows, listed)


def _title(file: _RecordFile) -> str:
    words = [str(file.model or "a step")]
    if SPLIT in words[0]:
        words.append("another network than the whole one")
    facts = {"batch": file.batch, "planner": file.planned_by or file.planner}
    words += [f"{key} {value}" for key, value in facts.items() if value]
    where = f" on {file.machine}" if file.machine else ""
    return ", ".join(words) + where


def _timeline(file: _TimelineFile) -> Timeline:
    sums = {name: getattr(file, name) for name in _SUMS}
    events = tuple(
        TimelineEvent(row.stream, row.name, row.start_us, row.end_us, row.index)
        for place, row in enumerate(file.events)
        if _in_order(f"$.timeline.events[{place}]", row.start_us, row.end_us)
    )
    return Timeline(**sums, events=events, ledger=file.ledger)


def _in_order(place: str, from_us: float, until_us: float) -> bool:
    """True. Raises Misfit: a stretch of time ends before it begins."""
    if until_us < from_us:
        raise Misfit(place, f"expected an end at {from_us} us or later, got {until_us} us")
    return True
