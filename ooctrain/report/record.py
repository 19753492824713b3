"""What a command keeps of a step so that it can be drawn later: times, holders, and the budget.

A `Record` is made from a plan, from a run of it, or from a file that `plan`, `simulate` or `train`
wrote with `--json`. A picture needs no network and no planner, only when each instruction ran and
which value held which memory. These are plain numbers in a file, and every picture is a function of
them. Read next: `holdings.py`; `step.py`, `html.py`, `perfetto.py`, `snapshot.py`, which draw a
record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from ooctrain.errors import ConfigError, reason
from ooctrain.report.holdings import GROUPS, Holding, holdings
from ooctrain.report.list_file import ListedStep, list_from_json, list_to_json
from ooctrain.report.streams import STREAM_NAMES
from ooctrain.sched.schedule import Plan
from ooctrain.sched.timeline import Event, Timeline
from ooctrain.step.foreign import parse_json

#: What stands in the place of `drawing` where there is no step to draw.
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
        holdings: who held what; none where only the curve is known.
        listed: its list, line by line; None: only what ran is known.
    """

    title: str
    timeline: Timeline
    budget_bytes: int | None = None
    phases: Mapping[str, str] | None = None
    holdings: tuple[Holding, ...] = ()
    listed: ListedStep | None = None


def drawing(plan: Plan, timeline: Timeline, predicted: Timeline | None = None) -> dict[str, Any]:
    """The part of a command's numbers that `read_record` needs, as plain data.

    Args:
        predicted: of a step that was measured, when it should have run.
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
    try:
        with open(path, encoding="utf-8") as file:
            data = parse_json(file.read())
    except (OSError, ValueError) as error:
        raise _refuse(f"{path} is no record: {reason(error)}") from error
    if isinstance(data, dict) and "schedule" in data:
        raise _refuse(
            f"{path} is a plan file: it holds a list, and neither names nor times",
            "`ooctrain simulate MODEL --plan FILE --json RECORD` gives it both",
        )
    if not isinstance(data, dict) or "timeline" not in data:
        raise _refuse(f"{path} is no record: it has no time line")
    if data["timeline"] is None:
        why = str(data.get("error") or "there was no plan").splitlines()[0]
        raise _refuse(f"{path} holds no step: {why}", "mend that first, and write the file again")
    try:
        return _record(data)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _refuse(f"{path} is no record: {error!r}") from error


def _record(data: Mapping[str, Any]) -> Record:
    listed = list_from_json(data["list"]) if data.get("list") else None
    if listed and any(row["index"] >= len(listed.lines) for row in data["timeline"]["events"]):
        raise ValueError("an instruction ran that the list does not have")
    phases = data.get("phases") or {}
    budget = data.get("budget_bytes")
    return Record(
        _title(data),
        _timeline(data["timeline"]),
        None if budget is None else _whole(budget),
        {str(call): str(phase) for call, phase in phases.items()},
        tuple(_holding(row) for row in data.get("holdings") or ()),
        listed,
    )


def _title(data: Mapping[str, Any]) -> str:
    words = [str(data.get("model") or "a step")]
    if SPLIT in words[0]:
        words.append("another network than the whole one")
    told = {"batch": data.get("batch"), "planner": data.get("planned_by") or data.get("planner")}
    words += [f"{key} {value}" for key, value in told.items() if value]
    where = f" on {data['machine']}" if data.get("machine") else ""
    return ", ".join(words) + where


def _timeline(data: Mapping[str, Any]) -> Timeline:
    sums = {name: (_time if name.endswith("_us") else _whole)(data[name]) for name in _SUMS}
    return Timeline(
        **sums,  # type: ignore[arg-type]
        events=tuple(_event(row) for row in data["events"]),
        ledger=tuple((_time(time_us), _whole(held)) for time_us, held in data["ledger"]),
    )


def _event(row: Mapping[str, Any]) -> Event:
    if row["stream"] not in STREAM_NAMES:
        raise ValueError(f"no stream is called {row['stream']!r}")
    return Event(
        row["stream"], str(row["name"]), *_stretch(row["start_us"], row["end_us"]),
        _whole(row["index"]),
    )  # fmt: skip


def _holding(row: Any) -> Holding:
    name, group, size_bytes, from_us, until_us = row
    if group not in GROUPS:
        raise ValueError(f"no group of memory is called {group!r}")
    return Holding(str(name), group, _whole(size_bytes), *_stretch(from_us, until_us))


def _stretch(from_us: Any, until_us: Any) -> tuple[float, float]:
    """The two ends of a stretch of time."""
    first, last = _time(from_us), _time(until_us)
    if last < first:
        raise ValueError(f"{last} us is before {first} us")
    return first, last


def _time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no time")
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number of bytes or place in a list")
    return value


def _refuse(what: str, fix: str = "") -> ConfigError:
    return ConfigError(
        what, code="OOC-118",
        fix=fix or "`ooctrain simulate MODEL --json FILE` writes one; so do plan and train",
    )  # fmt: skip
