"""Paper 000's figures 4 and 5: largest batches beside the paper's, speed and memory over the batch.

In: what `architectures.py` finds. Out: tables for a terminal, one SVG. The one idea:
the two figures share their batches, so where a speed ends, the memory below it shows why. Read
next: `report/charts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from ooctrain.experiments.paper_000.architectures import (
    Largest,
    Network,
    factors,
    printed_batch,
    printed_factor,
)
from ooctrain.experiments.paper_000.table1 import BASELINE, Cell
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.tables import plain_table
from ooctrain.units import GIB, format_bytes


def largest_table(networks: Sequence[Network], found: Mapping[str, Sequence[Largest]]) -> Table:
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


def cell_table(cells: Mapping[str, Sequence[Cell]]) -> Table:
    """Images per second and reserved memory of each method, a line for each batch."""
    methods = list(dict.fromkeys(cell.method for rows in cells.values() for cell in rows))
    table = plain_table("network", "batch", *methods, left=("network",))
    for model, rows in cells.items():
        for batch in sorted({cell.batch for cell in rows}):
            here = {cell.method: cell for cell in rows if cell.batch == batch}
            table.add_row(model, str(batch), *(_speed(here[method]) for method in methods))
    return table


def architectures_figure(cells: Mapping[str, Sequence[Cell]], physical_bytes: int) -> str:
    """SVG: for each network speed over the batch (figure 4) and below it memory (figure 5)."""
    pictures = []
    for model, rows in cells.items():
        there_is = [(batch, physical_bytes / GIB) for batch in sorted({c.batch for c in rows})]
        axis = "batch (no point: it cannot be trained)"
        pictures += [
            curves_svg(
                f"Figure 4, {model}", _curves(rows, lambda cell: cell.images_per_s),
                x_axis=axis, y_axis="images/s, simulated",
            ),
            curves_svg(
                f"Figure 5, {model}",
                [*_curves(rows, _reserved_gib), Curve("there is", there_is, dashed=True)],
                x_axis=axis, y_axis="GiB that the allocator takes",
            ),
        ]  # fmt: skip
    return stacked_svg(pictures)


def _curves(rows: Sequence[Cell], y: Callable[[Cell], float | None]) -> list[Curve]:
    by_batch = sorted(rows, key=lambda cell: cell.batch)
    # The baseline, drawn last, lies above those that equal it.
    methods = [*dict.fromkeys(cell.method for cell in rows)][::-1]
    return [Curve(m, [(c.batch, y(c)) for c in by_batch if c.method == m]) for m in methods]


def _reserved_gib(cell: Cell) -> float | None:
    return None if cell.reserved_bytes is None else cell.reserved_bytes / GIB


def _speed(cell: Cell) -> str:
    if cell.images_per_s is None or cell.reserved_bytes is None:
        return "x"
    return f"{cell.images_per_s:.4g} ({format_bytes(cell.reserved_bytes)})"
