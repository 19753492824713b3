"""The experiments of paper 000 for `ooctrain reproduce`: architectures, fragmentation, table1.

In: what is wanted. Out: tables, a figure, numbers. The one idea: compute row by row and print each
as soon as it is there, since the whole takes minutes. Read next: `fragmentation.py`,
`table1.py`, `architectures.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console

from ooctrain.experiments.paper_000 import architectures as other_networks
from ooctrain.experiments.paper_000 import chunks as chunk_sizes
from ooctrain.experiments.paper_000 import fragmentation as experiment
from ooctrain.experiments.paper_000 import table1 as first_table
from ooctrain.experiments.paper_000.architectures_shown import (
    architectures_figure,
    cell_table,
    largest_table,
)
from ooctrain.experiments.paper_000.fragmentation_shown import (
    batch_table,
    budget_table,
    chunk_table,
    fragmentation_figure,
)
from ooctrain.experiments.paper_000.table1_shown import kept_table, speed_table, table1_figure
from ooctrain.experiments.reproducing import Wanted, finish, print_title
from ooctrain.experiments.spread import spread
from ooctrain.experiments.verdicts import architectures as architectures_verdict
from ooctrain.experiments.verdicts import table1 as table1_verdict
from ooctrain.experiments.verdicts.sentences import Verdict, fill
from ooctrain.units import format_bytes


def fragmentation(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 000, figure 3, the memory side of table 1, and the choice of the chunk size."""
    names = experiment.QUICK_ALLOCATORS if wanted.quick else experiment.ALLOCATORS
    allocators = wanted.allocators or names
    batches = experiment.QUICK_BATCHES if wanted.quick else experiment.BATCHES
    physical = wanted.physical_bytes
    print_title(console, f"What a scheduler may be promised of {format_bytes(physical)}")
    processes = 1 if wanted.quick else None
    cases = [
        (model, batch, experiment.allocators_for(model, allocators), physical)
        for model, sizes in batches.items()
        for batch in sizes
    ]
    budgets: list[experiment.LargestBudget] = []
    for rows in spread(experiment.budget_case, cases, processes):
        console.print(budget_table(rows, header=not budgets))
        budgets += rows
    print_title(console, "\nThe largest batch that can be trained")
    models = [
        (model, experiment.allocators_for(model, allocators), physical,
         experiment.batch_step(model))
        for model in batches
    ]  # fmt: skip
    found = spread(experiment.batch_case, models, processes)
    largest = [row for rows in found for row in rows]
    console.print(batch_table(largest))
    chunks = _chunks(wanted.quick, console)
    figure = fragmentation_figure(budgets, chunks, physical, allocators)
    finish(wanted, console, figure, Verdict((), experiment.DIFFERENCES))
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
    about = (
        f" ({chunk_sizes.MODEL}, batch {chunk_sizes.BATCH}, "
        f"{format_bytes(chunk_sizes.BUDGET_BYTES)}; real steps: {chunk_sizes.DEVICE_MODEL}, batch "
        f"{chunk_sizes.DEVICE_BATCH}, {chunk_sizes.DEVICE_BUDGET})"
    )
    print_title(console, "\nChunk sizes of va", about)
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
    print_title(console, "Images per second, simulated (paper 000, measured)")
    console.print(speed_table(cells))
    print_title(console, "\nShare of the best in-core speed (paper 000)")
    console.print(kept_table(cells))
    verdict = fill(table1_verdict.SENTENCES, table1_verdict.facts(cells))
    finish(wanted, console, table1_figure(cells), verdict)
    return {
        "model": first_table.MODEL,
        "machine": experiment.MACHINE,
        "physical_bytes": wanted.physical_bytes,
        "in_core_images_per_s": in_core,
        "cells": [_table1_cell(cell, in_core) for cell in cells],
        **asdict(verdict),
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


def architectures(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 000, figures 4 and 5: DenseNet, Pix2PixHD, DeepLabv3+."""
    networks = other_networks.QUICK_NETWORKS if wanted.quick else other_networks.NETWORKS
    processes, physical = 1 if wanted.quick else None, wanted.physical_bytes
    found = spread(other_networks.largest, [(each, physical) for each in networks], processes)
    largest = {each.model: rows for each, rows in zip(networks, found, strict=True)}
    print_title(console, f"The largest batch in {format_bytes(physical)}")
    console.print(largest_table(networks, largest))
    cases = [
        (model, batch, physical, wanted.quick)
        for model, rows in largest.items()
        for batch in other_networks.batches_of(rows)
    ]
    cells: dict[str, list[first_table.Cell]] = {each.model: [] for each in networks}
    for case, rows in zip(cases, spread(other_networks.cells, cases, processes), strict=True):
        cells[case[0]] += rows
    print_title(console, "\nImages per second, simulated, and the memory taken")
    console.print(cell_table(cells))
    figure = architectures_figure(cells, physical)
    facts = architectures_verdict.facts(largest, cells, physical)
    verdict = fill(architectures_verdict.SENTENCES, facts)
    finish(wanted, console, figure, verdict)
    return {
        "machine": experiment.MACHINE,
        "physical_bytes": physical,
        "networks": [asdict(each) for each in networks],
        "largest_batches": [asdict(row) for rows in largest.values() for row in rows],
        "cells": [{"model": m, **asdict(cell)} for m, rows in cells.items() for cell in rows],
        **asdict(verdict),
    }
