"""The live part of a step's page: what `page.js` fills, and what is known before it runs.

The script draws and answers; the frame of controls and panels is HTML, so that each has its name,
its place in the order of the Tab key, and a heading. What never changes while the reader steps (two
runs beside each other, what took longer than predicted) is written here once. Read next: `page.js`,
`page.css`; `html.py`, the page around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from itertools import zip_longest

from ooctrain.report.holdings import GROUPS
from ooctrain.report.list_file import ListedStep
from ooctrain.report.lists_compared import first_difference_at
from ooctrain.report.page_data import data_text, listed_of
from ooctrain.report.record import Record
from ooctrain.report.streams import STREAM_NAMES, streams_of
from ooctrain.report.svg import PHASES
from ooctrain.report.text import timeline_rows
from ooctrain.units import format_us

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
        _panel("holders", "Who holds memory at the cursor", _HOLDERS),
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
