"""The list of a step in the file of `--json`: its lines, what calls use, and what was predicted.

The key `list` holds what a reader needs to step through the list without the network: its lines
(`listing.py`), the variables that each call reads and writes, and beside a measured step the times
that the simulator had predicted. Read next: `record.py`, which reads the rest of the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from ooctrain.report.listing import NOBODY, WHYS, ListedLine, ListedWait, listing
from ooctrain.sched.ledger import LANES
from ooctrain.sched.schedule import Plan
from ooctrain.sched.timeline import Timeline

Times = tuple[float, float]  # start and end in us


@dataclass(frozen=True, slots=True)
class ListedStep:
    """A list that can be stepped through.

    Args:
        lines: in list order.
        uses: {call: (variables that it reads, variables that it writes)}, by name.
        predicted: {place in the list: (start_us, end_us)} beside a measured step; else empty.
    """

    lines: tuple[ListedLine, ...]
    uses: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    predicted: Mapping[int, Times]


def list_to_json(plan: Plan, predicted: Timeline | None) -> dict[str, Any]:
    """What stands under `list` in the file."""
    names = [variable.name for variable in plan.trace.variables]
    times = predicted.events if predicted else ()
    return {
        "lines": [_row(line) for line in listing(plan.trace, plan.schedule)],
        "uses": {
            call.name: [[names[v] for v in ids] for ids in (call.ins, call.outs)]
            for call in plan.trace.calls
        },
        "predicted": [
            [event.index, event.start_us, event.end_us] for event in times if event.stream != "N"
        ],
    }


def list_from_json(data: Mapping[str, Any]) -> ListedStep:
    """The list of a file. Raises KeyError, TypeError or ValueError if it holds no list."""
    rows = data["lines"]
    uses = {
        str(call): (tuple(map(str, reads)), tuple(map(str, writes)))
        for call, (reads, writes) in data["uses"].items()
    }
    predicted = {}
    for index, start_us, end_us in data["predicted"]:
        if not start_us <= end_us < math.inf:
            raise ValueError(f"{start_us} to {end_us} us is not a stretch of time")
        predicted[_place(index, len(rows))] = (float(start_us), float(end_us))
    return ListedStep(tuple(_line(place, row) for place, row in enumerate(rows)), uses, predicted)


def _row(line: ListedLine) -> list[Any]:
    *told, waits = astuple(line)
    return [*told, [list(wait) for wait in waits]]


def _line(place: int, row: Any) -> ListedLine:
    text, name, stream, claim, held, host, waits = row
    if stream and stream not in LANES:
        raise ValueError(f"no stream is called {stream!r}")
    claim, held, host = (_place(size, math.inf) for size in (claim, held, host))
    found = tuple(_wait(place, *wait) for wait in waits)
    return ListedLine(str(text), str(name), stream, claim, held, host, found)


def _wait(place: int, index: Any, why: Any, giver: Any) -> ListedWait:
    if why not in WHYS:
        raise ValueError(f"nothing waits for {why!r}")
    return ListedWait(
        _place(index, place), why, NOBODY if giver == NOBODY else _place(giver, place)
    )


def _place(value: Any, behind: float) -> int:
    """A whole number from 0 to below `behind`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < behind:
        raise ValueError(f"{value!r} is no place in the list, and no number of bytes")
    return value
