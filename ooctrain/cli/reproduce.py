"""`ooctrain reproduce EXPERIMENT`: a figure or table of the papers, computed here.

In: the name of an experiment. Out: its tables, a figure, numbers as JSON, and in words where they
differ from the print and why. Nothing needs a GPU; what is simulated is called so. Read next:
`ooctrain/experiments/`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import click
from rich.console import Console

from ooctrain.cli import DONE
from ooctrain.cli.options import OUTPUT_FILE, json_option
from ooctrain.cli.replay import split_names
from ooctrain.cli.terminal import make_console
from ooctrain.experiments import chunks as chunk_sizes
from ooctrain.experiments import fragmentation as experiment
from ooctrain.experiments import table1 as first_table
from ooctrain.experiments.spread import spread
from ooctrain.report.fragmentation import (
    batch_table,
    budget_table,
    chunk_table,
    fragmentation_figure,
)
from ooctrain.report.table1 import kept_table, speed_table, table1_figure
from ooctrain.units import format_bytes, parse_bytes

JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for.

    Args:
        quick: few batches, allocators and chunks.
        physical_bytes: memory of the device.
        allocators: by name; None: those of the experiment.
        figure_path: of the SVG.
    """

    quick: bool
    physical_bytes: int
    allocators: tuple[str, ...] | None
    figure_path: str


class Experiment(Protocol):
    """An experiment: prints what it finds and returns it for the JSON file."""

    def __call__(self, wanted: Wanted, console: Console) -> Mapping[str, Any]:
        """Runs it."""


def fragmentation(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 000, figure 3, the memory side of table 1, and the choice of the chunk size."""
    names = experiment.QUICK_ALLOCATORS if wanted.quick else experiment.ALLOCATORS
    allocators = wanted.allocators or names
    asked = experiment.allocators_for
    batches = experiment.QUICK_BATCHES if wanted.quick else experiment.BATCHES
    physical = wanted.physical_bytes
    console.print(f"[bold]What a scheduler may be promised of {format_bytes(physical)}[/bold]")
    processes = 1 if wanted.quick else None
    cases = [
        (model, batch, asked(model, allocators), physical)
        for model, sizes in batches.items()
        for batch in sizes
    ]
    budgets: list[experiment.LargestBudget] = []
    for rows in spread(experiment.budget_case, cases, processes):
        console.print(budget_table(rows, header=not budgets))
        budgets += rows
    console.print("\n[bold]The largest batch that can be trained[/bold]")
    models = [
        (model, asked(model, allocators), physical, experiment.batch_step(model))
        for model in batches
    ]
    found = spread(experiment.batch_case, models, processes)
    largest = [row for rows in found for row in rows]
    console.print(batch_table(largest))
    chunks = _chunks(wanted.quick, console)
    figure = fragmentation_figure(budgets, chunks, physical, allocators)
    Path(wanted.figure_path).write_text(figure, encoding="utf-8")
    _say(console, "Where this differs from the paper", experiment.DIFFERENCES)
    console.print(f"\nwrote {wanted.figure_path}")
    return {
        "planner": experiment.PLANNER,
        "machine": experiment.MACHINE,
        "physical_bytes": physical,
        "budgets": [
            {**asdict(row), "ratio": row.ratio, "images_per_s": row.images_per_s} for row in budgets
        ],
        "largest_batches": [asdict(row) for row in largest],
        "chunks": [{**asdict(row), "wasted_bytes": row.wasted_bytes} for row in chunks],
        "differences": list(experiment.DIFFERENCES),
    }


def _chunks(quick: bool, console: Console) -> Sequence[chunk_sizes.ChunkCost]:
    sizes = chunk_sizes.QUICK_CHUNKS if quick else chunk_sizes.CHUNKS
    console.print(
        f"\n[bold]Chunk sizes of va[/bold] ({chunk_sizes.MODEL}, batch {chunk_sizes.BATCH}, "
        f"{format_bytes(chunk_sizes.BUDGET_BYTES)}; real steps: {chunk_sizes.DEVICE_MODEL}, batch "
        f"{chunk_sizes.DEVICE_BATCH}, {chunk_sizes.DEVICE_BUDGET})"
    )
    steps = chunk_sizes.QUICK_STEPS if quick else chunk_sizes.TIMED_STEPS
    times = chunk_sizes.time_chunks(sizes if quick else sizes[::2], steps=steps)
    replayed = chunk_sizes.replay_chunks(
        sizes, "va", chunk_sizes.MODEL, chunk_sizes.BATCH, chunk_sizes.BUDGET_BYTES
    )
    rows = [replace(row, step_us=times.get(row.chunk_bytes)) for row in replayed]
    console.print(chunk_table(rows))
    return rows


def table1(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 000, table 1: ResNet-50 from batch 64 to 1440 on 16 GB."""
    batches = first_table.QUICK_BATCHES if wanted.quick else first_table.BATCHES
    cases = [(first_table.MODEL, batch, wanted.physical_bytes) for batch in batches]
    # The largest batches take longest to plan; with several processes they should begin first.
    found = spread(first_table.batch_cells, cases[::-1], 1 if wanted.quick else None)
    cells = [cell for rows in reversed(list(found)) for cell in rows]
    in_core = first_table.in_core_images_per_s(cells)
    console.print("[bold]Images per second, simulated (paper 000, measured)[/bold]")
    console.print(speed_table(cells))
    console.print("\n[bold]Share of the best in-core speed (paper 000)[/bold]")
    console.print(kept_table(cells))
    Path(wanted.figure_path).write_text(table1_figure(cells), encoding="utf-8")
    _say(console, "What agrees with the paper", first_table.AGREES)
    _say(console, "What does not, and why", first_table.DIFFERS)
    console.print(f"\nwrote {wanted.figure_path}")
    return {
        "model": first_table.MODEL,
        "machine": experiment.MACHINE,
        "physical_bytes": wanted.physical_bytes,
        "in_core_images_per_s": in_core,
        "cells": [_table1_cell(cell, in_core) for cell in cells],
        "agrees": list(first_table.AGREES),
        "differs": list(first_table.DIFFERS),
    }


def _table1_cell(cell: first_table.Cell, in_core: float | None) -> Mapping[str, Any]:
    method = first_table.method_named(cell.method)
    return {
        **asdict(cell),
        "planner": method.planner,
        "allocator": method.allocator,
        "speed_kept": first_table.speed_kept(cell, in_core),
        "printed_images_per_s": method.printed.get(cell.batch),
        "printed_speed_kept": first_table.printed_kept(method, cell.batch),
    }


def _say(console: Console, title: str, texts: Sequence[str]) -> None:
    console.print(f"\n[bold]{title}[/bold]")
    for text in texts:
        console.print(f"- {text}")


EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {"fragmentation": fragmentation, "table1": table1}
)


@click.command()
@click.argument("experiment_name", metavar="EXPERIMENT", type=click.Choice(sorted(EXPERIMENTS)))
@click.option("--quick", is_flag=True, help="Few cases: does it run, and about what comes out?")
@click.option("--physical", default="16GiB", show_default=True, help="Memory of the device.")
@click.option("--allocator", "names", help="Names with parameters, separated by commas.")
@click.option("--figure", "figure_path", metavar="FILE", type=OUTPUT_FILE,
              help="Write the figure here; default: EXPERIMENT.svg.")  # fmt: skip
@json_option
def reproduce(
    experiment_name: str, quick: bool, physical: str, names: str | None, figure_path: str | None,
    json_path: str | None,
) -> int:  # fmt: skip
    """Compute a figure or table of the papers."""
    console = make_console()
    wanted = Wanted(
        quick, parse_bytes(physical, what="memory"), tuple(split_names(names)) if names else None,
        figure_path or f"{experiment_name}.svg",
    )  # fmt: skip
    started = time.perf_counter()
    found = EXPERIMENTS[experiment_name](wanted, console)
    seconds = time.perf_counter() - started
    if json_path:
        content = {
            "version": JSON_VERSION, "experiment": experiment_name, **found, "seconds": seconds,
            "error": None,
        }  # fmt: skip
        Path(json_path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    console.print(f"took {seconds:.0f} s")
    return DONE
