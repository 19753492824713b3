"""A step as one page that any browser shows, alone and without a network.

A picture shows when something happens and a table shows which value is responsible, so the page of
a `Record` has both: the step drawn, the values that hold the memory when it is fullest, and the
longest waits with the copies that ended them. That still page is what paper and a browser without
scripts show. With scripts a live one takes its place, in which a reader goes through the list and
sees the memory at each instruction. Script, style and numbers are in the file, and nothing is asked
of elsewhere, so it can be mailed, and read in ten years. Read next: `live.py`, the live part;
`step.py`, which draws the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ooctrain.report.holdings import held_at
from ooctrain.report.live import live_part, resource
from ooctrain.report.page_data import listed_of
from ooctrain.report.record import Record
from ooctrain.report.step import GROUP_COLOURS, step_svg
from ooctrain.report.text import share, timeline_rows
from ooctrain.report.waits import peak_of, waits_of
from ooctrain.units import format_bytes, format_us

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
    still = [*_picture(record), *_holders(record), *_waits(record)]
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
        f"<h2>Who holds {format_bytes(peak.size_bytes)} at {format_us(peak.time_us)}, "
        f"{escape(peak.call)}</h2>",
        _table(("what", "kind", "size", "share"), rows, numbers=(2, 3)),
    ]


def _waits(record: Record) -> list[str]:
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
        _table(("at", "for", "before", "the last copy to end in it"), rows, numbers=(0, 1)),
    ]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int]) -> str:
    """Rows of cells that are HTML already; those of `numbers` stand to the right."""
    lines = ["<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    for row in rows:
        cells = (
            f'<td class="number">{cell}</td>' if place in numbers else f"<td>{cell}</td>"
            for place, cell in enumerate(row)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"
