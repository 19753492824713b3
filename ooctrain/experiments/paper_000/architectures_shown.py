"""`ooctrain reproduce architectures`: paper 000's figures 4 and 5, and the values computed here.

It shows a table of largest batches, one of speeds and memory, a figure and numbers. The two figures
share their batches, so where a speed ends, the memory below it shows why. Read next:
`architectures.py`; `report/charts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.experiments.paper_000 import architectures as experiment
from ooctrain.experiments.paper_000.architectures import (
    FigureNetwork,
    Largest,
    factors,
    printed_batch,
    printed_factor,
)
from ooctrain.experiments.paper_000.fragmentation import MACHINE
from ooctrain.experiments.paper_000.table1 import ABOUT_VA, BASELINE, MethodCell
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.tables import plain_table
from ooctrain.units import GIB, format_bytes


def architectures(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 000, figures 4 and 5: DenseNet, Pix2PixHD, DeepLabv3+."""
    networks = experiment.QUICK_NETWORKS if wanted.quick else experiment.NETWORKS
    processes, physical = 1 if wanted.quick else None, wanted.physical_bytes
    sizes = [(each, physical) for each in networks]
    found = spread(experiment.largest, sizes, processes, wanted.keep)
    largest = {each.model: rows for each, rows in zip(networks, found, strict=True)}
    print_title(console, f"The largest batch in {format_bytes(physical)}")
    console.print(largest_table(networks, largest))
    cases = [
        (model, batch, physical, wanted.quick)
        for model, rows in largest.items()
        for batch in experiment.batches_of(rows)
    ]
    cells: dict[str, list[MethodCell]] = {each.model: [] for each in networks}
    speeds = spread(experiment.cells, cases, processes, wanted.keep)
    for case, rows in zip(cases, speeds, strict=True):
        cells[case[0]] += rows
    print_title(console, "\nImages per second, simulated, and the memory taken", ABOUT_VA)
    console.print(cell_table(cells))
    write_figure(wanted, console, architectures_figure(cells, physical))
    return {
        "machine": MACHINE,
        "physical_bytes": physical,
        "networks": [asdict(each) for each in networks],
        "largest_batches": [asdict(row) for rows in largest.values() for row in rows],
        "cells": [{"model": m, **asdict(cell)} for m, rows in cells.items() for cell in rows],
    }


def largest_table(
    networks: Sequence[FigureNetwork], found: Mapping[str, Sequence[Largest]]
) -> Table:
    """The largest batch of each network and method, and how many times that of the one before."""
    table = plain_table(
        "network", "method", "largest batch", "paper", "factor", "paper's factor",
        left=("network", "method"),
    )  # fmt: skip
    for network in networks:
        times = factors(found[network.model])
        for row in found[network.model]:
            factor, printed = times.get(row.method), printed_batch(network, row.method)
            table.add_row(
                network.model if row.method == BASELINE else "", row.method, str(row.batch),
                "" if printed is None else str(printed),
                "" if factor is None else f"{factor:.2f} x", printed_factor(network, row.method),
            )  # fmt: skip
    return table


def cell_table(cells: Mapping[str, Sequence[MethodCell]]) -> Table:
    """Images per second and reserved memory of each method, a line for each batch."""
    methods = list(dict.fromkeys(cell.method for rows in cells.values() for cell in rows))
    table = plain_table("network", "batch", *methods, left=("network",))
    for model, rows in cells.items():
        for batch in sorted({cell.batch for cell in rows}):
            here = {cell.method: cell for cell in rows if cell.batch == batch}
            table.add_row(model, str(batch), *(_speed(here[method]) for method in methods))
    return table


def architectures_figure(cells: Mapping[str, Sequence[MethodCell]], physical_bytes: int) -> str:
    """SVG: for each network speed over the batch (figure 4) and below it memory (figure 5)."""
    pictures = []
    for model, rows in cells.items():
        there_is = [(batch, physical_bytes / GIB) for batch in sorted({c.batch for c in rows})]
        axis = "batch (no point: it cannot be trained)"
        pictures += [
            curves_svg(
                f"Figure 4, {model}", _curves(rows, lambda cell: cell.images_per_s),
                axes=(axis, "images/s, simulated"),
            ),
            curves_svg(
                f"Figure 5, {model}",
                [*_curves(rows, _reserved_gib), Curve("there is", there_is, dashed=True)],
                axes=(axis, "GiB that the allocator takes"),
            ),
        ]  # fmt: skip
    return stacked_svg(pictures)


def _curves(rows: Sequence[MethodCell], y: Callable[[MethodCell], float | None]) -> list[Curve]:
    by_batch = sorted(rows, key=lambda cell: cell.batch)
    # The baseline, drawn last, lies above those that equal it.
    methods = [*dict.fromkeys(cell.method for cell in rows)][::-1]
    return [Curve(m, [(c.batch, y(c)) for c in by_batch if c.method == m]) for m in methods]


def _reserved_gib(cell: MethodCell) -> float | None:
    return None if cell.reserved_bytes is None else cell.reserved_bytes / GIB


def _speed(cell: MethodCell) -> str:
    if cell.images_per_s is None or cell.reserved_bytes is None:
        return "x"
    return f"{cell.images_per_s:.4g} ({format_bytes(cell.reserved_bytes)})"
