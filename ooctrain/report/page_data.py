"""The numbers of a step for the script of its page: columns of whole numbers, as short as may be.

A step may have 50,000 instructions and the page is one file, so each instruction is a number in
each of a few lists: its name by its place among all names, its times in whole nanoseconds as
differences from the line before. `page.js` puts them together again. The text goes into the page as
JSON in which no sign of HTML is left, so a name such as `</script>` stays a name. Read next:
`page.js`; `html.py`, the page around both.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ooctrain.report.addresses import offsets
from ooctrain.report.holdings import GROUPS
from ooctrain.report.list_file import ListedStep, Times
from ooctrain.report.listing import WHYS, ListedLine, earliest_us
from ooctrain.report.lists_compared import mates
from ooctrain.report.record import Record
from ooctrain.report.streams import STREAM_NAMES
from ooctrain.report.svg import PHASES
from ooctrain.sched.ledger import Stream
from ooctrain.sched.timeline import instruction_times_us

_VERB: Mapping[Stream, str] = MappingProxyType({"C": "run", "D": "out", "H": "in"})
#: Why a line waits for another one, in words. "order" and "link" follow from the times.
_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "data": "it needs what this makes or brings",
        "storage": "this copies the bytes that an output of it takes over",
        "memory": "it needs memory that is given back when this is done",
        "use": "this uses what is given back here",
        "host": "it needs the place on the host that this uses",
        "fence": "there is a fence between the two",
        "order": "it is before it on the same stream",
        "link": "both directions share one link",
    }
)
#: Signs that mean something to a reader of HTML.
_ESCAPED = MappingProxyType({ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"})


def data_text(record: Record, against: Record | None = None) -> str:
    """All numbers of a page as JSON that may stand within HTML.

    Args:
        against: the run to compare with.
    """
    runs = [record] if against is None else [record, against]
    listed = [listed_of(one) for one in runs]
    content: dict[str, Any] = {
        "runs": [_run(one, step) for one, step in zip(runs, listed, strict=True)],
        "groups": list(GROUPS),
        "phases": list(PHASES),
        "lanes": dict(STREAM_NAMES),
        "whys": WHYS,
        "words": dict(_WORDS),
    }
    if against is not None:
        ours, theirs = ([line.text for line in step.lines] for step in listed)
        content["mates"] = [mates(ours, theirs), mates(theirs, ours)]
    return json.dumps(content, separators=(",", ":")).translate(_ESCAPED)


def listed_of(record: Record) -> ListedStep:
    """The list of a record; where its file holds none, the instructions that ran."""
    if record.listed is not None:
        return record.listed
    curve = record.timeline.ledger
    lines = []
    for event in sorted(record.timeline.events, key=lambda event: event.index):
        if event.stream == "N":
            continue
        place = bisect_right(curve, event.start_us, key=lambda entry: entry[0])
        held = curve[place - 1][1] if place else 0
        text = f"{_VERB[event.stream]} {event.name}"
        lines.append(ListedLine(text, event.name, event.stream, 0, held, 0))
    return ListedStep(tuple(lines), {}, {})


@dataclass(slots=True)
class _Names:
    """Each name once, by its number."""

    known: dict[str, int]

    def __call__(self, name: str) -> int:
        return self.known.setdefault(name, len(self.known))


def _run(record: Record, listed: ListedStep) -> dict[str, Any]:
    names, timeline, lines = _Names({}), record.timeline, listed.lines
    times = _times(record, lines)
    return {
        "title": record.title,
        "budget": record.budget_bytes,
        "end": _ns(timeline.makespan_us),
        "complete": record.listed is not None,
        "lanes": "".join(line.stream or "-" for line in lines),
        "name": [names(line.name) for line in lines],
        **_texts(lines),
        "start": _steps(_ns(start) for start, _ in times),
        "length": [_ns(end) - _ns(start) for start, end in times],
        "claim": [line.claim_bytes for line in lines],
        "ledger": _steps(line.ledger_bytes for line in lines),
        "host": _steps(line.host_ledger_bytes for line in lines),
        "needs": [_waits(place, line) for place, line in enumerate(lines)],
        "predicted": _predicted(listed),
        "idle": _idle(lines, times),
        "messages": [
            [names(event.name), _ns(event.start_us), _ns(event.end_us)]
            for event in timeline.events
            if event.stream == "N"
        ],
        "phase": _phases(record, lines),
        "curve": [[_ns(time_us), held] for time_us, held in timeline.ledger],
        "hold": _holdings(record, names),
        "uses": {
            names(call): [[names(name) for name in part] for part in parts]
            for call, parts in listed.uses.items()
        },
        "names": list(names.known),
    }


def _times(record: Record, lines: Sequence[ListedLine]) -> list[Times]:
    """When each line ran; a line that runs nowhere, when all that it waits for was done."""
    ran = instruction_times_us(record.timeline)
    if record.listed is None:  # the lines are the events
        return [ran[index] for index in sorted(ran)]
    earliest = earliest_us(lines, {index: end for index, (_, end) in ran.items()})
    return [ran.get(place, (time, time)) for place, time in enumerate(earliest)]


def _texts(lines: Sequence[ListedLine]) -> dict[str, Any]:
    """A line is its verb, its name, and the rest: few verbs and rests, which stand once."""
    verbs, rests, odd = _Names({}), _Names({}), {}
    columns: tuple[list[int], list[int]] = ([], [])
    for place, line in enumerate(lines):
        verb = line.text.partition(" ")[0]
        plain = f"{verb} {line.name}" if line.name else verb
        if not line.text.startswith(plain):  # a quoted name
            odd[place] = line.text
        rest = line.text.removeprefix(plain) if place not in odd else ""
        columns[0].append(verbs(verb))
        columns[1].append(rests(rest))
    return {
        "verbs": list(verbs.known), "verb": columns[0], "rests": list(rests.known),
        "rest": columns[1], "odd": odd,
    }  # fmt: skip


def _waits(place: int, line: ListedLine) -> list[int]:
    """Three numbers for each: how far before, why, and how far before the giver is (0: none)."""
    return [
        number
        for wait in line.waits
        for number in (
            place - wait.index, WHYS.index(wait.why), place - wait.giver if wait.giver >= 0 else 0,
        )
    ]  # fmt: skip


def _predicted(listed: ListedStep) -> dict[str, list[int]] | None:
    """Starts and ends of the lines, -1 of one without; None: nothing was predicted."""
    if not listed.predicted:
        return None
    times = [listed.predicted.get(place) for place in range(len(listed.lines))]
    return {
        "start": [_ns(pair[0]) if pair else -1 for pair in times],
        "end": [_ns(pair[1]) if pair else -1 for pair in times],
    }


def _idle(lines: Sequence[ListedLine], times: Sequence[Times]) -> list[int]:
    """The calls before which no call runs, behind the longest such wait first."""
    idle: dict[int, float] = {}
    free_us = 0.0
    for place, (line, (start_us, end_us)) in enumerate(zip(lines, times, strict=True)):
        if line.stream == "C":
            idle[place], free_us = start_us - free_us, end_us
    waited = [place for place, length_us in idle.items() if length_us > 0]
    return sorted(waited, key=lambda place: -idle[place])


def _phases(record: Record, lines: Sequence[ListedLine]) -> str:
    """For each line the number of its phase; the loss is drawn as a forward call."""
    order, phases = list(PHASES), record.phases or {}
    found = (phases.get(line.name, "") if line.stream == "C" else "" for line in lines)
    return "".join(str(order.index(phase) if phase in order else 0) for phase in found)


def _holdings(record: Record, names: _Names) -> dict[str, Any]:
    found, order = record.holdings, list[str](GROUPS)
    return {
        "name": [names(one.name) for one in found],
        "group": "".join(str(order.index(one.group)) for one in found),
        "size": [one.size_bytes for one in found],
        "from": _steps(_ns(one.from_us) for one in found),
        "length": [_ns(one.until_us) - _ns(one.from_us) for one in found],
        "at": offsets(found, record.timeline.makespan_us),
    }


def _steps(values: Iterable[int]) -> list[int]:
    """Each value less the one before it."""
    return list(_differences(values))


def _differences(values: Iterable[int]) -> Iterator[int]:
    before = 0
    for value in values:
        yield value - before
        before = value


def _ns(time_us: float) -> int:
    return round(time_us * 1000)
