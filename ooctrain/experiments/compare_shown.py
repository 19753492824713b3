"""A comparison of planners as a table, as CSV, as Markdown, and as two kinds of curves.

The rows come from `compare.py`. A ratio of 1 is the bound itself, so one number says how good a
plan is, on any network and any link. Read next: `report/charts.py`.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields

from rich.table import Table

from ooctrain.experiments.compare import CompareRow
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.tables import or_dash, plain_table
from ooctrain.units import format_bytes, format_percent, format_us

HEADINGS = (
    "model", "batch", "machine", "budget", "share", "planner", "step", "ratio", "in-core", "out",
    "in", "again", "planned in",
)  # fmt: skip


def compare_table(rows: Sequence[CompareRow]) -> Table:
    """A line for each row; what repeats from the line above is left out."""
    table = plain_table(*HEADINGS, left=("model", "machine", "planner"), no_wrap=True)
    last: tuple[str, ...] = ()
    for row in rows:
        cells = _cells(row)
        head = cells[:5]
        table.add_row(*(("",) * 5 if head == last else head), *cells[5:])
        last = head
    return table


def compare_markdown(rows: Sequence[CompareRow]) -> str:
    """The same as Markdown."""
    lines = [" | ".join(HEADINGS), " | ".join("---" for _ in HEADINGS)]
    lines += [" | ".join(_cells(row)) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


def compare_csv(rows: Sequence[CompareRow]) -> str:
    """All numbers, one line for each row, as RFC 4180 has it."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(CompareRow)])
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def compare_figure(rows: Sequence[CompareRow]) -> str:
    """Ratio against budget for each step and machine; speed against batch where there are
    several.
    """
    pictures = list(_by_budget(rows))
    pictures += _by_batch(rows)
    return stacked_svg(pictures)


def _by_budget(rows: Sequence[CompareRow]) -> list[str]:
    groups: dict[tuple[str, int, int, str], list[CompareRow]] = defaultdict(list)
    for row in rows:
        groups[row.model, row.batch, row.image_size, row.machine].append(row)
    return [
        curves_svg(
            f"{model}, batch {batch}, {size} pixels high, {machine}",
            _curves(group, lambda row: 100 * row.budget_fraction, lambda row: row.ratio),
            axes=("budget, % of the way from least to in-core", "step / lower bound"),
        )
        for (model, batch, size, machine), group in groups.items()
        if len({row.budget_bytes for row in group}) > 1
    ]


def _by_batch(rows: Sequence[CompareRow]) -> list[str]:
    """Where several batches stand in the same number of bytes, or share, each."""
    groups: dict[tuple[str, int, str, str], list[CompareRow]] = defaultdict(list)
    for row in rows:
        share = format_percent(row.budget_fraction)
        for budget in {share, format_bytes(row.budget_bytes)}:
            groups[row.model, row.image_size, row.machine, budget].append(row)
    return [
        curves_svg(
            f"{model}, {size} pixels high, {machine}, budget {budget}",
            _curves(group, lambda row: row.batch, lambda row: row.images_per_s),
            axes=("batch", "images/s"), doubling=True,
        )
        for (model, size, machine, budget), group in groups.items()
        if len({row.batch for row in group}) > 2
    ]  # fmt: skip


def _curves(
    rows: Sequence[CompareRow],
    x: Callable[[CompareRow], float],
    y: Callable[[CompareRow], float | None],
) -> list[Curve]:
    by_planner: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for row in rows:
        by_planner[row.planner].append((x(row), y(row)))
    return [Curve(name, sorted(points)) for name, points in by_planner.items()]


def _cells(row: CompareRow) -> tuple[str, ...]:
    head = (
        row.model, str(row.batch), row.machine,
        format_bytes(row.budget_bytes), format_percent(row.budget_fraction), row.planner,
    )  # fmt: skip
    if row.makespan_us is None:
        minimum = row.minimum_bytes or 0
        lacks = minimum > row.budget_bytes  # else it is host memory that it lacks
        least = "fails" if row.error else f"needs {format_bytes(minimum)}" if lacks else "-"
        return (*head, least, "-", "-", "-", "-", "-", f"{row.plan_s:.2f} s")
    return (
        *head, format_us(row.makespan_us), or_dash(row.ratio, ".3f"),
        f"{row.makespan_us / row.compute_us:.3f} x", format_bytes(row.bytes_out or 0),
        format_bytes(row.bytes_in or 0), format_us(row.recompute_us or 0), f"{row.plan_s:.2f} s",
    )  # fmt: skip
