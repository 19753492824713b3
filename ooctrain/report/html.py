"""A step as one page that any browser shows, alone and without a network.

A picture shows when something happens and a table shows which value is responsible, so the page of
a `Record` has both: the step drawn, the values that hold the memory when it is fullest, and the
longest waits with the copies that ended them. It has no scripts, and no fonts or styles from
elsewhere, so the file can be mailed, and read in ten years. Read next: `step.py`, which draws the
picture; `perfetto.py` for a trace that can be zoomed into.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ooctrain.report.holdings import held_at
from ooctrain.report.record import Record
from ooctrain.report.step import GROUP_COLOURS, step_svg
from ooctrain.report.text import share, timeline_rows
from ooctrain.report.waits import peak_of, waits_of
from ooctrain.units import format_bytes, format_us

MOST_HOLDERS, MOST_WAITS = 12, 10
STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #222; margin: 24px auto; max-width: 1000px; }
h1 { font-size: 20px; } h2 { font-size: 16px; margin-top: 28px; }
table { border-collapse: collapse; } td, th { padding: 2px 18px 2px 0; text-align: left; }
th { border-bottom: 1px solid #888; font-weight: 600; } td.number { text-align: right; }
dl { display: grid; grid-template-columns: max-content auto; gap: 2px 18px; }
dt { color: #666; } dd { margin: 0; } p { color: #555; }
i { display: inline-block; width: 11px; height: 11px; margin-right: 6px; }
"""


def step_page(record: Record) -> str:
    """The page of a step."""
    title = escape(record.title)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n"
        + "\n".join([_facts(record), *_picture(record), *_holders(record), *_waits(record)])
        + "\n</body>\n</html>\n"
    )


def _facts(record: Record) -> str:
    rows = timeline_rows(record.timeline)
    if record.budget_bytes:
        rows.append(("budget", format_bytes(record.budget_bytes)))
    shown = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows)
    return f"<dl>{shown}</dl>"


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
