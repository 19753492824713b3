"""A step as one page that any browser shows, alone, without a network.

A picture shows when something happens and a table shows which value is responsible, so the page of
a `Record` has both: the step drawn, the values that hold the memory when it is fullest, and the
longest waits with the copies that ended them. That still page is what paper and a browser without
scripts show. With scripts a live one replaces it, in which a reader goes through the list and sees
the memory at each instruction. Script, style and numbers are in the file, and nothing is loaded
from elsewhere, so it can be mailed, and read in ten years. Read next: `page.js`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from ooctrain.report.holdings import GROUPS, held_at, offsets
from ooctrain.report.listing import WHYS, ListedLine, ListedStep, Times, earliest_us
from ooctrain.report.lists_compared import first_difference_at, mates
from ooctrain.report.record import Record
from ooctrain.report.step import GROUP_COLOURS, step_svg
from ooctrain.report.stream_names import STREAM_NAMES, streams_of
from ooctrain.report.svg import PHASES
from ooctrain.report.text import share, timeline_rows
from ooctrain.report.waits import peak_of, waits_of
from ooctrain.sched.ledger import Stream
from ooctrain.sched.timeline import instruction_times_us
from ooctrain.units import format_bytes, format_us

# The still page, and both together.

MOST_HOLDERS, MOST_WAITS = 12, 10
#: Runs before anything is drawn, so that no picture flashes up and goes.
_SCRIPTED = '<script>document.documentElement.className = "live"</script>'


def step_page(record: Record, against: Record | None = None) -> str:
    """The page of a step.

    Args:
        against: a run to compare it with.
    """
    title = escape(record.title if against is None else f"{record.title}, against {against.title}")
    live = live_part(record, against) if listed_of(record).lines else ""
    still = [*_picture(record), *_holders(record), *_waits_section(record)]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{resource('page.css')}</style>\n{_SCRIPTED if live else ''}</head>\n"
        f"<body>\n<main>\n"
        f"<h1>{title}</h1>\n{_facts(record)}\n"
        f'<section class="still">\n{chr(10).join(still)}\n</section>\n'
        f"{live}\n</main>\n</body>\n</html>\n"
    )


def _facts(record: Record) -> str:
    rows = timeline_rows(record.timeline)
    if record.budget_bytes:
        rows.append(("budget", format_bytes(record.budget_bytes)))
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in rows
    )
    return f'<dl class="facts">{shown}</dl>'


def _picture(record: Record) -> list[str]:
    return [
        "<h2>The step</h2>",
        "<p>Three streams that work at the same time, and what the device holds meanwhile. Names "
        "and sizes appear where the pointer rests.</p>",
        step_svg(record),
    ]


def _holders(record: Record) -> list[str]:
    peak = peak_of(record.timeline)
    held = held_at(record.holdings, peak.time_us)
    if not held:
        return []
    whole = sum(one.size_bytes for one in held)
    rows = [
        (f'<i style="background:{GROUP_COLOURS[one.group]}"></i>{escape(one.name)}', one.group,
         format_bytes(one.size_bytes), share(one.size_bytes, whole))
        for one in held[:MOST_HOLDERS]
    ]  # fmt: skip
    rest = held[MOST_HOLDERS:]
    if rest:
        rest_bytes = sum(one.size_bytes for one in rest)
        rows.append((f"{len(rest)} others", "", format_bytes(rest_bytes), share(rest_bytes, whole)))
    return [
        f"<h2>What holds {format_bytes(peak.size_bytes)} at {format_us(peak.time_us)}, "
        f"{escape(peak.call)}</h2>",
        _table_section(("what", "kind", "size", "share"), rows, numbers=(2, 3)),
    ]


def _waits_section(record: Record) -> list[str]:
    waits = waits_of(record.timeline)
    if not waits:
        return ["<h2>No call waits</h2>"]
    rows = [
        (format_us(wait.from_us), format_us(wait.length_us),
         escape(wait.call or "the end of the step"), escape(wait.reason or "-"))
        for wait in waits[:MOST_WAITS]
    ]  # fmt: skip
    total_us = sum(wait.length_us for wait in waits)
    count = "The only wait" if len(waits) == 1 else f"The longest of {len(waits)} waits"
    return [
        f"<h2>{count}, {format_us(total_us)} in all</h2>",
        _table_section(("at", "for", "before", "the last copy to end in it"), rows, numbers=(0, 1)),
    ]


def _table_section(
    heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int]
) -> str:
    """Rows of cells that are HTML already; those of `numbers` stand to the right."""
    lines = ["<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    for row in rows:
        cells = (
            f'<td class="number">{cell}</td>' if place in numbers else f"<td>{cell}</td>"
            for place, cell in enumerate(row)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"


# The numbers of a step for the script: columns of whole numbers, as short as may be. A step may
# have 50,000 instructions and the page is one file, so each instruction is a number in each of a
# few lists: its name by its place among all names, its times in whole nanoseconds as differences
# from the line before. `page.js` puts them together again. The text goes into the page as JSON in
# which no sign of HTML is left, so a name such as `</script>` stays a name.

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


# The live part: what `page.js` fills. The script draws and answers; the frame of controls and
# panels is HTML, so that each has its name, its place in the order of the Tab key, and a heading.
# What never changes while the reader steps (two runs next to each other, what took longer than
# predicted) is written here once.

MOST_LATE = 10
KEYS = (
    "Arrow keys: one instruction; Page Up and Page Down: twenty; Home and End: first and last. "
    "Plus and minus: zoom; 0: the whole step; square brackets: earlier and later."
)
#: (id, text, what it says to those who do not see it), in the order of the Tab key.
_STEPS = (("back", "◀", "Previous instruction"), ("on", "▶", "Next instruction"))
_VIEWS = (
    ("closer", "+", "Zoom in"), ("wider", "−", "Zoom out"), ("earlier", "«", "Show earlier"),  # noqa: RUF001
    ("later", "»", "Show later"), ("whole", "Whole step", ""), ("wait", "Longest wait", ""),
)  # fmt: skip


def resource(name: str) -> str:
    """The script or the style sheet of the page."""
    return files("ooctrain.report").joinpath(name).read_text(encoding="utf-8")


def live_part(record: Record, against: Record | None) -> str:
    """The section that the script takes over; the reader of a page without scripts sees none of it.

    Args:
        against: the run to compare with.
    """
    listed = listed_of(record)
    panels = [
        _panel("line", "Instruction", _LINE, title_id="line-title"),
        _panel("lists", "The list around it", _lists(against)),
        _panel("arena", "Addresses at the cursor", _ARENA),
        _panel("holders", "What holds memory at the cursor", _HOLDERS),
        _panel("life", "The life of a variable", _LIFE),
    ]
    if listed.predicted:
        panels.append(_panel("late", "Predicted and measured", _late(record, listed)))
    if against is not None:
        panels.insert(0, _panel("runs", "Two runs", _runs(record, against)))
    return (
        f'<section class="app" aria-label="The step, live">\n{_controls(listed)}\n{_plot(record)}\n'
        f'<div class="panels">\n{"".join(panels)}</div>\n</section>\n'
        f'<script type="application/json" id="step-data">{data_text(record, against)}</script>\n'
        f'<script type="module">\n{resource("page.js")}</script>'
    )


def _controls(listed: ListedStep) -> str:
    last = max(0, len(listed.lines) - 1)
    fullest = max(range(last + 1), key=lambda i: listed.lines[i].ledger_bytes, default=0)
    return (
        '<div class="bar" role="group" aria-label="Step through the list">'
        + _buttons(_STEPS)
        + f'<input type="range" id="scrub" min="0" max="{last}" value="0" aria-label="Instruction">'
        f'<label>instruction <input type="number" id="number" min="0" max="{last}" value="0">'
        f"</label> of {len(listed.lines)}" + _go(fullest, "Most held", plain=False) + "</div>\n"
        '<div class="bar" role="group" aria-label="View and search">'
        + _buttons(_VIEWS)
        + '<label>find <input type="search" id="search" placeholder="part of a name"></label>'
        "</div>\n"
        '<p id="found-said" role="status"></p><ul class="plain" id="found"></ul>\n'
        '<p id="said" role="status" aria-live="polite"></p>'
    )


def _buttons(buttons: Iterable[tuple[str, str, str]]) -> str:
    return "".join(
        f'<button type="button" id="{name}"'
        + (f' aria-label="{label}" title="{label}"' if label else "")
        + f">{text}</button>"
        for name, text, label in buttons
    )


def _go(place: int, text: str, *, plain: bool = True) -> str:
    """A button that moves the cursor."""
    kind = ' class="jump"' if plain else ""
    return f'<button type="button"{kind} data-go="{place}">{escape(text)}</button>'


def _plot(record: Record) -> str:
    shown = [*PHASES, *(STREAM_NAMES[s] for s in streams_of(record.timeline) if s != "C"), *GROUPS]
    variable = {"swap out": "out", "swap in": "in", "network": "net"}
    entries = "".join(
        f'<li><i style="background:var(--{variable.get(name, name)})"></i>{name}</li>'
        for name in shown
    )
    return (
        f'<p id="keys">Drag to move, turn the wheel to zoom, click for an instruction. {KEYS}</p>\n'
        '<canvas id="plot" tabindex="0" role="application" aria-label="Time line: streams and '
        'memory" aria-describedby="keys"></canvas>\n'
        '<canvas id="map" role="img" aria-label="The whole step, small: click to go there">'
        f'</canvas>\n<ul class="legend">{entries}</ul>'
    )


def _panel(name: str, title: str, content: str, *, title_id: str = "") -> str:
    head = title_id or f"{name}-title"
    return (
        f'<section class="panel-{name}" aria-labelledby="{head}">'
        f'<h2 id="{head}">{title}</h2>\n{content}\n</section>\n'
    )


_LINE = '<dl id="line"></dl>\n<p id="idle"></p>\n<ul class="plain" id="waits"></ul>'
_HOLDERS = (
    '<p id="held"></p>\n<table><thead><tr><th>what</th><th>kind</th><th>size</th>'
    '<th>share</th><th>address</th></tr></thead>\n<tbody id="holders"></tbody></table>'
)
_ARENA = (
    '<canvas id="arena" role="img" aria-label="The arena from its first byte to its last; the '
    'table of holders has the addresses"></canvas>\n<p>Where best fit puts what is held: a list '
    "leaves addresses to an allocator. The red line is the budget.</p>"
)
_LIFE = (
    '<p id="life-said"></p>\n<button type="button" id="forget">None</button>\n'
    '<ul class="plain" id="life"></ul>'
)


def _lists(against: Record | None) -> str:
    if against is None:
        return '<div class="lists" id="lists"><div><ol id="list"></ol></div></div>'
    return (
        "<p>The line of B is the same instruction, or the last before it that both have. A line "
        "with a bar is in one run only.</p>\n"
        '<div class="lists" id="lists"><div><h3>A</h3><ol id="list"></ol></div>'
        '<div><h3>B</h3><ol id="list-b"></ol></div></div>'
    )


def _runs(record: Record, against: Record) -> str:
    """Where two lists part, and their sums."""
    ours, theirs = (
        [line.text for line in listed_of(one).lines] for one in (record, against)
    )  # fmt: skip
    at = first_difference_at(ours, theirs)
    if at is None:
        said = "<p>The two lists are equal.</p>"
    else:
        one, other = (
            escape(texts[at]) if at < len(texts) else "(the list ends)" for texts in (ours, theirs)
        )
        said = (
            f"<p>The first {at} instructions are equal. Instruction {at} is <code>{one}</code> "
            f"in A and <code>{other}</code> in B. "
            + _go(min(at, len(ours) - 1), "First difference")
            + "</p>"
        )
    rows = [
        [escape(name or other), escape(value), escape(their_value)]
        for (name, value), (other, their_value) in zip_longest(
            timeline_rows(record.timeline), timeline_rows(against.timeline), fillvalue=("", "")
        )
    ]
    titles = "".join(
        f"<dt>{letter}</dt><dd>{escape(one.title)}</dd>"
        for letter, one in (("A", record), ("B", against))
    )
    return f"<dl>{titles}</dl>{said}" + _table(("", "A", "B"), rows)


def _late(record: Record, listed: ListedStep) -> str:
    """The instructions whose duration was predicted worst."""
    measured = {e.index: e.end_us - e.start_us for e in record.timeline.events if e.stream != "N"}
    over = {
        place: measured[place] - (end_us - start_us)
        for place, (start_us, end_us) in listed.predicted.items()
        if place in measured
    }
    worst = sorted(over, key=lambda place: -abs(over[place]))[:MOST_LATE]
    rows = [
        [_go(place, f"{place} {listed.lines[place].text}"),
         format_us(measured[place] - over[place]), format_us(measured[place]),
         ("+" if over[place] >= 0 else "") + format_us(over[place])]
        for place in worst
    ]  # fmt: skip
    predicted_us = max(end_us for _, end_us in listed.predicted.values())
    step = f"{format_us(predicted_us)} predicted, {format_us(record.timeline.makespan_us)} measured"
    heads = ("instruction", "predicted", "measured", "more")
    return f"<p>The step: {step}. The durations furthest from theirs:</p>{_table(heads, rows)}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{name}</th>" if name else "<td></td>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
