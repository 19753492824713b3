"""Paper 000, figures 4 and 5: DenseNet, Pix2PixHD, DeepLabv3+ at batches that do not fit.

For each network and the memory of a device, this finds the largest batch in-core, with scheduling
and with virtual addressing; and at these batches the images per second and the memory that each
method takes. It is table 1 for other networks and uses its methods and its cells. Only the batches
are new: the paper gives them as factors, so they are searched for.

Source: paper 000, section 5.2, figures 4 and 5. Departures: docs/papers.md. Read next: `table1.py`,
`fragmentation.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isqrt
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.experiments.paper_000.fragmentation import (
    BASELINE_ALLOCATOR,
    MACHINE,
    largest_batches,
)
from ooctrain.experiments.paper_000.table1 import (
    ABOUT_VA,
    BASELINE,
    NNABLA_VA,
    OUR_VA,
    OURS,
    SCHEDULE,
    SCHEDULE_VA,
    MethodCell,
    cells_of,
    method_named,
)
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.text import plain_table
from ooctrain.units import GIB, format_bytes

WITH_VA = (SCHEDULE_VA, NNABLA_VA, OUR_VA)
METHODS = tuple(method_named(name) for name in (BASELINE, SCHEDULE, *WITH_VA, OURS))
QUICK_METHODS = METHODS[:-1]


@dataclass(frozen=True, slots=True)
class FigureNetwork:
    """A network of the figures.

    Args:
        model: by name, on images of its usual size, which are the paper's.
        printed_in_core: the paper's largest batch in-core.
        printed_factor: how many times that the schedule trains.
        batch_step: in which steps batches are searched.
    """

    model: str
    printed_in_core: int
    printed_factor: float
    batch_step: int


NETWORKS = (
    FigureNetwork("densenet121", 512, 1.5, 32),
    FigureNetwork("pix2pixhd_perceptual", 4, 4.0, 2),
    FigureNetwork("deeplabv3plus_xception65", 6, 5.3, 4),
    FigureNetwork("deeplabv3plus", 6, 5.3, 8),
)
QUICK_NETWORKS = (FigureNetwork("pix2pixhd_perceptual", 4, 4.0, 4),)
#: How many times the schedule's batch virtual addressing trains.
PRINTED_VA_FACTORS = (1.5, 2.0)


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest batch of a network that a method trains; 0: none."""

    model: str
    method: str
    batch: int


def largest(case: tuple[FigureNetwork, int]) -> list[Largest]:
    """In-core, with scheduling, and with virtual addressing, of (network, physical bytes)."""
    network, physical_bytes = case
    model, step = network.model, network.batch_step
    (in_core,) = largest_batches(model, (BASELINE_ALLOCATOR,), physical_bytes, 1, "keep-all")
    methods = (SCHEDULE, *WITH_VA)
    allocators = [method_named(name).allocator for name in methods]
    swapped = largest_batches(model, allocators, physical_bytes, step)
    return [
        Largest(model, method, row.batch)
        for method, row in zip((BASELINE, *methods), (in_core, *swapped), strict=True)
    ]


def batches_of(found: Sequence[Largest]) -> list[int]:
    """Half of what fits in-core, what fits, the largest of the others as in print, and one in
    between."""
    in_core, schedule, va = (row.batch for row in found[:3])
    between = isqrt(in_core * schedule)
    return sorted({batch for batch in (in_core // 2, in_core, between, schedule, va) if batch})


def cells(case: tuple[str, int, int, bool]) -> list[MethodCell]:
    """The cells of (model, batch, physical bytes, whether quick), one for each method."""
    model, batch, physical_bytes, quick = case
    return cells_of(model, batch, physical_bytes, QUICK_METHODS if quick else METHODS)


def factors(found: Sequence[Largest]) -> Mapping[str, float | None]:
    """{method: how many times the batch}: the schedule's of the baseline's, virtual addressing's of
    the schedule's."""
    batches = {row.method: row.batch for row in found}
    base = {name: BASELINE if name == SCHEDULE else SCHEDULE for name in batches}
    return {
        name: batch / batches[base[name]] if batches[base[name]] else None
        for name, batch in batches.items()
        if name != BASELINE
    }


def printed_factor(network: FigureNetwork, method: str) -> str:
    """The paper's factor of a method, in words."""
    if method == SCHEDULE:
        return f"{network.printed_factor:g} x"
    low, high = PRINTED_VA_FACTORS
    return f"{low:g} to {high:g} x" if method == SCHEDULE_VA else ""


def printed_batch(network: FigureNetwork, method: str) -> int | None:
    """The paper's batch, where it follows from what is printed."""
    if method == BASELINE:
        return network.printed_in_core
    return round(network.printed_in_core * network.printed_factor) if method == SCHEDULE else None


# `ooctrain reproduce architectures`: a table of largest batches, one of speeds and memory, a
# figure, numbers. The two figures share their batches, so where a speed ends, the memory below it
# shows why.


def architectures(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 000, figures 4 and 5: DenseNet, Pix2PixHD, DeepLabv3+."""
    networks = QUICK_NETWORKS if wanted.quick else NETWORKS
    processes, physical = 1 if wanted.quick else None, wanted.physical_bytes
    sizes = [(each, physical) for each in networks]
    found = spread(largest, sizes, processes, wanted.keep)
    batches = {each.model: rows for each, rows in zip(networks, found, strict=True)}
    print_title(console, f"The largest batch in {format_bytes(physical)}")
    console.print(largest_table(networks, batches))
    cases = [
        (model, batch, physical, wanted.quick)
        for model, rows in batches.items()
        for batch in batches_of(rows)
    ]
    found_cells: dict[str, list[MethodCell]] = {each.model: [] for each in networks}
    speeds = spread(cells, cases, processes, wanted.keep)
    for case, rows in zip(cases, speeds, strict=True):
        found_cells[case[0]] += rows
    print_title(console, "\nImages per second, simulated, and the memory taken", ABOUT_VA)
    console.print(cell_table(found_cells))
    write_figure(wanted, console, architectures_figure(found_cells, physical))
    return {
        "machine": MACHINE,
        "physical_bytes": physical,
        "networks": [asdict(each) for each in networks],
        "largest_batches": [asdict(row) for rows in batches.values() for row in rows],
        "cells": [{"model": m, **asdict(cell)} for m, rows in found_cells.items() for cell in rows],
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


def cell_table(found_cells: Mapping[str, Sequence[MethodCell]]) -> Table:
    """Images per second and reserved memory of each method, a line for each batch."""
    methods = list(dict.fromkeys(cell.method for rows in found_cells.values() for cell in rows))
    table = plain_table("network", "batch", *methods, left=("network",))
    for model, rows in found_cells.items():
        for batch in sorted({cell.batch for cell in rows}):
            here = {cell.method: cell for cell in rows if cell.batch == batch}
            table.add_row(model, str(batch), *(_speed(here[method]) for method in methods))
    return table


def architectures_figure(
    found_cells: Mapping[str, Sequence[MethodCell]], physical_bytes: int
) -> str:
    """SVG: for each network speed over the batch (figure 4) and below it memory (figure 5)."""
    pictures = []
    for model, rows in found_cells.items():
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
