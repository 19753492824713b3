"""`ooctrain reproduce table1`: paper 000's table 1, and the values computed here.

It shows two tables for each machine, a figure and numbers. On the preset the images per second are
shown beside the paper's only for reference; on the machines that are fitted to the paper's in-core
speed they can be compared, and with what no list exceeds that only offloads. Read next:
`table1.py`; `report/charts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.experiments.paper_000 import table1 as experiment
from ooctrain.experiments.paper_000.table1 import (
    ABOUT_VA,
    METHODS,
    Method,
    MethodCell,
    OffloadBound,
    in_core_images_per_s,
    method_named,
    printed_kept,
    speed_kept,
)
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.tables import plain_table


def table1(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 000, table 1: ResNet-50 from batch 64 to 1440 on 16 GB."""
    batches = experiment.QUICK_BATCHES if wanted.quick else experiment.BATCHES
    cases = [(experiment.MODEL, batch, wanted.physical_bytes) for batch in batches]
    # The largest batches take longest to plan; with several processes they should begin first.
    processes = 1 if wanted.quick else None
    found = spread(experiment.batch_cells, cases[::-1], processes, wanted.keep)
    cells = [cell for rows in reversed(list(found)) for cell in rows]
    proved = spread(experiment.offload_bounds, cases, processes, wanted.keep)
    bounds = [bound for rows in proved for bound in rows]
    print_title(console, "Images per second, simulated (paper 000, measured)", ABOUT_VA)
    for where, rows in _by_machine(cells).items():
        print_title(console, f"\n{where}")
        console.print(speed_table(rows, [bound for bound in bounds if bound.machine == where]))
        print_title(console, "\nShare of the best in-core speed (paper 000)")
        console.print(kept_table(rows))
    write_figure(wanted, console, table1_figure(cells))
    in_core = {where: in_core_images_per_s(rows) for where, rows in _by_machine(cells).items()}
    return {
        "model": experiment.MODEL,
        "physical_bytes": wanted.physical_bytes,
        "in_core_images_per_s": in_core,
        "bounds": [asdict(bound) for bound in bounds],
        "cells": [_numbers(cell, in_core[cell.machine]) for cell in cells],
    }


def speed_table(cells: Sequence[MethodCell], bounds: Sequence[OffloadBound]) -> Table:
    """Images per second of one machine; the paper's in brackets; last what no list exceeds."""

    def text(cell: MethodCell, method: Method) -> str:
        return _pair(cell.images_per_s, method.printed.get(cell.batch), "{:.0f}", method)

    found = {bound.batch: f"{bound.images_per_s:.0f}" for bound in bounds}
    return _table(cells, text, {"LP": found})


def kept_table(cells: Sequence[MethodCell]) -> Table:
    """Shares of the best in-core speed; the paper's in brackets."""
    in_core = in_core_images_per_s(cells)

    def text(cell: MethodCell, method: Method) -> str:
        return _pair(speed_kept(cell, in_core), printed_kept(method, cell.batch), "{:.0%}", method)

    return _table(cells, text, {})


def table1_figure(cells: Sequence[MethodCell]) -> str:
    """SVG: the share of speed that each method keeps over the batch, here and in the paper."""
    batches = sorted({cell.batch for cell in cells})
    paper = [
        Curve(m.name, [(batch, _in_percent(printed_kept(m, batch))) for batch in batches])
        for m in METHODS
        if m.printed
    ]
    pictures = [
        (f"Computed here: speed kept, simulated, {where}", _kept_curves(rows))
        for where, rows in _by_machine(cells).items()
    ]
    pictures.append(("Paper 000, table 1: speed kept (LMS on a P100, the others on a V100)", paper))
    # The line at 100 % gives all pictures the same axis; first, it gives all the same colours.
    whole = Curve("in-core", [(batch, 100.0) for batch in batches], dashed=True)
    return stacked_svg(
        [
            curves_svg(
                title, [whole, *curves],
                axes=("batch (no point: it cannot be trained)", "% of the best in-core speed"),
            )
            for title, curves in pictures
        ]
    )  # fmt: skip


def _kept_curves(cells: Sequence[MethodCell]) -> list[Curve]:
    in_core = in_core_images_per_s(cells)
    return [
        Curve(m.name, [(c.batch, _in_percent(speed_kept(c, in_core))) for c in _of(cells, m)])
        for m in METHODS
    ]


def _by_machine(cells: Sequence[MethodCell]) -> dict[str, list[MethodCell]]:
    names = dict.fromkeys(cell.machine for cell in cells)
    return {name: [cell for cell in cells if cell.machine == name] for name in names}


def _numbers(cell: MethodCell, in_core: float | None) -> Mapping[str, Any]:
    method = method_named(cell.method)
    return {
        **asdict(cell),
        "planner": method.planner,
        "allocator": method.allocator,
        "speed_kept": speed_kept(cell, in_core),
        "printed_images_per_s": method.printed.get(cell.batch),
        "printed_speed_kept": printed_kept(method, cell.batch),
    }


def _table(
    cells: Sequence[MethodCell], text: Callable[[MethodCell, Method], str],
    last: Mapping[str, Mapping[int, str]],
) -> Table:  # fmt: skip
    """A line for each batch; `last`: {title: {batch: text}} of columns behind the methods."""
    names = {cell.method for cell in cells}
    methods = [method for method in METHODS if method.name in names]
    table = plain_table("batch", *(method.name for method in methods), *last, no_wrap=True)
    for batch in sorted({cell.batch for cell in cells}):
        found = {cell.method: cell for cell in cells if cell.batch == batch}
        table.add_row(
            str(batch), *(text(found[method.name], method) for method in methods),
            *(column.get(batch, "") for column in last.values()),
        )  # fmt: skip
    return table


def _pair(here: float | None, paper: float | None, form: str, method: Method) -> str:
    shown = "x" if here is None else form.format(here)
    if not method.printed:
        return shown
    return f"{shown} ({'x' if paper is None else form.format(paper)})"


def _of(cells: Sequence[MethodCell], method: Method) -> list[MethodCell]:
    return sorted((c for c in cells if c.method == method.name), key=lambda cell: cell.batch)


def _in_percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
