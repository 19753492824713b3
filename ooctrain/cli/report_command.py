"""`ooctrain report`: draws a step that another command has planned, simulated or run.

It reads a file that `plan`, `simulate` or `train` wrote with `--json`, and draws the step in the
terminal; on demand it writes a page for a browser, a trace for Perfetto, a snapshot for PyTorch's
viewer of memory, or a picture. With `--against` a second step stands next to the first. Nothing is
planned or run. Read next: `ooctrain/report/record.py`, which reads the file; `diff_command.py`,
which compares lists in text.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass

import click

from ooctrain.cli.options import gathered
from ooctrain.cli.terminal import lanes_on, make_console
from ooctrain.cli.values import OutputFile, UserPath
from ooctrain.report.numbers_file import write_bytes, write_file
from ooctrain.report.page import listed_of, step_page
from ooctrain.report.perfetto import perfetto_trace
from ooctrain.report.record import Record, read_record
from ooctrain.report.snapshot import snapshot_pickle
from ooctrain.report.step import step_svg
from ooctrain.report.text import facts, timeline_rows
from ooctrain.report.waits import peak_of, waits_of
from ooctrain.sched.list_text import first_difference
from ooctrain.step.option import option
from ooctrain.units import format_bytes, format_us


@dataclass(frozen=True, slots=True)
class DrawnFiles:
    """Where to draw a step, for each kind of file a path or None."""

    page_path: str | None = option(
        None, "Write one self-contained page for a browser.", flag="html", kind=OutputFile()
    )
    trace_path: str | None = option(
        None, "Write a trace for ui.perfetto.dev or chrome://tracing.",
        flag="perfetto", kind=OutputFile(),
    )  # fmt: skip
    snapshot_path: str | None = option(
        None, "Write a memory snapshot for pytorch.org/memory_viz.",
        flag="snapshot", kind=OutputFile(),
    )  # fmt: skip
    svg_path: str | None = option(
        None, "Write the page's picture by itself.", flag="svg", kind=OutputFile()
    )


@click.command()
@click.argument("record_path", metavar="FILE", type=UserPath())
@gathered("drawn", DrawnFiles)
@click.option(
    "--against", "against_path", metavar="FILE", type=UserPath(),
    help="Compare with the step in this file: on the page, and where the lists part.",
)  # fmt: skip
def report(record_path: str, drawn: DrawnFiles, against_path: str | None) -> None:
    """Draw the step in FILE, which plan, simulate or train wrote with --json."""
    record, console = read_record(record_path), make_console()
    against = read_record(against_path) if against_path else None
    console.print(lanes_on(console, record.timeline))
    console.print()
    console.print(facts(_rows(record)))
    if against:
        console.print()
        console.print(_difference(record, against))
    if drawn.page_path:
        write_file(drawn.page_path, step_page(record, against))
    if drawn.trace_path:
        write_file(drawn.trace_path, json.dumps(perfetto_trace(record)))
    if drawn.snapshot_path:
        write_bytes(drawn.snapshot_path, snapshot_pickle(record))
    if drawn.svg_path:
        write_file(drawn.svg_path, step_svg(record))
    for path in filter(None, astuple(drawn)):
        console.print(f"wrote {path}")


def _difference(record: Record, against: Record) -> str:
    """Where two lists part."""
    ours, theirs = (
        "\n".join(line.text for line in listed_of(one).lines) for one in (record, against)
    )  # fmt: skip
    said = first_difference(ours, theirs) or "the lists are equal"
    return f"against {against.title}:\n{said}"


def _rows(record: Record) -> list[tuple[str, str]]:
    peak, waits = peak_of(record.timeline), waits_of(record.timeline)
    budget = f" of {format_bytes(record.budget_bytes)}" if record.budget_bytes else ""
    rows = [
        ("record", record.title),
        *timeline_rows(record.timeline),
        ("most held", f"{format_bytes(peak.size_bytes)}{budget}, at {peak.call}"),
    ]
    if waits:
        longest = waits[0]
        before = longest.call or "the end of the step"
        last = f", the last copy in it: {longest.reason}" if longest.reason else ""
        rows.append(("longest wait", f"{format_us(longest.length_us)} before {before}{last}"))
    return rows
