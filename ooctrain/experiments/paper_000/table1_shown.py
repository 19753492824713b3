"""Paper 000's table 1 beside what is computed here: two tables and a figure.

In: the cells of `table1.py`. Out: tables for a terminal, one SVG. The one idea:
machines and kernels differ, so images per second stand beside each other for whoever wants them,
and what is compared is the share of the in-core speed that is kept. Read next: `report/charts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from ooctrain.experiments.paper_000.table1 import (
    METHODS,
    Cell,
    Method,
    in_core_images_per_s,
    printed_kept,
    speed_kept,
)
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.tables import plain_table


def speed_table(cells: Sequence[Cell]) -> Table:
    """Images per second; the paper's in brackets."""

    def text(cell: Cell, method: Method) -> str:
        return _pair(cell.images_per_s, method.printed.get(cell.batch), "{:.0f}", method)

    return _table(cells, text)


def kept_table(cells: Sequence[Cell]) -> Table:
    """Shares of the best in-core speed; the paper's in brackets."""
    in_core = in_core_images_per_s(cells)

    def text(cell: Cell, method: Method) -> str:
        return _pair(speed_kept(cell, in_core), printed_kept(method, cell.batch), "{:.0%}", method)

    return _table(cells, text)


def table1_figure(cells: Sequence[Cell]) -> str:
    """SVG: the share of speed that each method keeps over the batch, here and in the paper."""
    in_core = in_core_images_per_s(cells)
    batches = sorted({cell.batch for cell in cells})
    here = [
        Curve(m.name, [(c.batch, _in_percent(speed_kept(c, in_core))) for c in _of(cells, m)])
        for m in METHODS
    ]
    paper = [
        Curve(m.name, [(batch, _in_percent(printed_kept(m, batch))) for batch in batches])
        for m in METHODS
        if m.printed
    ]
    # The line at 100 % gives both pictures the same axis; first, it gives both the same colours.
    whole = Curve("in-core", [(batch, 100.0) for batch in batches], dashed=True)
    return stacked_svg(
        [
            curves_svg(
                title, [whole, *curves], x_axis="batch (no point: it cannot be trained)",
                y_axis="% of the best in-core speed",
            )
            for title, curves in (
                ("Computed here: speed kept, simulated", here),
                ("Paper 000, table 1: speed kept (LMS on a P100, the others on a V100)", paper),
            )
        ]
    )  # fmt: skip


def _table(cells: Sequence[Cell], text: Callable[[Cell, Method], str]) -> Table:
    table = plain_table("batch", *(method.name for method in METHODS), no_wrap=True)
    for batch in sorted({cell.batch for cell in cells}):
        found = {cell.method: cell for cell in cells if cell.batch == batch}
        table.add_row(str(batch), *(text(found[method.name], method) for method in METHODS))
    return table


def _pair(here: float | None, paper: float | None, form: str, method: Method) -> str:
    shown = "x" if here is None else form.format(here)
    if not method.printed:
        return shown
    return f"{shown} ({'x' if paper is None else form.format(paper)})"


def _of(cells: Sequence[Cell], method: Method) -> list[Cell]:
    return sorted((c for c in cells if c.method == method.name), key=lambda cell: cell.batch)


def _in_percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
